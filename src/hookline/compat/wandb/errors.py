"""The errors of the drop-in, under wandb's names.

They also inherit `HooklineError`, so a program that uses both catches them either way.
"""

from typing import Any

from hookline._engine.errors import HooklineError

__all__ = ["AuthenticationError", "CommError", "ConfigError", "Error", "UnsupportedError", "UsageError"]


class Error(HooklineError):
    """The base class of wandb's errors."""

    def __init__(self, message: str, context: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.context = context or {}


class CommError(Error):
    """A run, file or artifact that wandb would fetch from its server does not exist."""

    def __init__(self, msg: str, exc: Exception | None = None) -> None:
        super().__init__(msg)
        self.exc = exc


class AuthenticationError(CommError):
    """Never raised: the drop-in needs no account. Programs catch it."""


class UsageError(Error):
    """The API was used in a way that wandb does not accept."""


class UnsupportedError(UsageError):
    """The drop-in does not have this feature, and its result would be wrong without it."""


class ConfigError(Error):
    """A value of the configuration was changed without ``allow_val_change=True``."""


class RunStopped(BaseException):
    """Raised in `log` of a run that its sweep ends early; the agent catches it."""

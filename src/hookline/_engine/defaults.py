"""Defaults of settings that a variable of the environment replaces, and the names of these variables.

A default that a variable may replace is a `Default`: what a program gives explicitly is never one, so it wins.
"""

import os
from typing import Any, Final, Literal, Self

from hookline._engine.errors import OptionError, closest

ROOT_VARIABLE: Final = "HOOKLINE_ROOT"
PROJECT_VARIABLE: Final = "HOOKLINE_PROJECT"
NAME_VARIABLE: Final = "HOOKLINE_NAME"
TAGS_VARIABLE: Final = "HOOKLINE_TAGS"
MODE_VARIABLE: Final = "HOOKLINE_MODE"
SINKS_VARIABLE: Final = "HOOKLINE_SINKS"
CALLBACKS_VARIABLE: Final = "HOOKLINE_CALLBACKS"

MODES = ("online", "offline", "disabled")


class Default(str):
    """A default that a variable of the environment replaces."""

    __slots__ = ("variable",)
    variable: str

    def __new__(cls, text: str, variable: str) -> Self:
        """Create the default.

        Args:
            text: The value without the variable.
            variable: The name of the variable.
        """
        made = super().__new__(cls, text)
        made.variable = variable
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Default, (str(self), self.variable)


ROOT = Default("runs", ROOT_VARIABLE)
PROJECT = Default("default", PROJECT_VARIABLE)
NAME = Default("run", NAME_VARIABLE)


def resolved(value: Any) -> Any:
    """Return the value of a variable in place of its default; any other value as it is."""
    if not isinstance(value, Default):
        return value
    return os.environ.get(value.variable, "").strip() or str(value)


def mode() -> Literal["online", "offline", "disabled"]:
    """Return what ``HOOKLINE_MODE`` says."""
    given = os.environ.get(MODE_VARIABLE, "").strip().lower()
    if given and given not in MODES:
        raise OptionError(f"{MODE_VARIABLE}={given!r}: {', '.join(MODES)} are accepted. {closest(given, MODES)}")
    return given or "online"  # type: ignore[return-value]

"""The errors that hookline raises.

    HooklineError
    ├── MomentError        (TypeError)    a misspelt moment, or a signature that cannot be called
    ├── OptionError        (ValueError)   an option with a value that is not accepted
    ├── OrderError         (ValueError)   a cycle, an unknown dependency, a position that violates a constraint
    ├── DuplicateError     (ValueError)   a name or an instance that is already there
    ├── UnknownNameError   (LookupError)  a name that nothing is registered under
    ├── ConfigError        (ValueError)   a configuration file or dict that does not fit
    ├── CheckpointError    (RuntimeError) a checkpoint that cannot be written or read
    ├── ArtifactError      (RuntimeError) an artifact that cannot be saved, or whose files are missing or damaged
    ├── NonFiniteError     (ArithmeticError)  a loss that is NaN or infinite
    ├── MissingExtraError  (ImportError)  an optional dependency that is not installed
    ├── NotOfferedError    (AttributeError)   an attribute that another framework's callback needs
    └── RefusedError       (PermissionError)  a destination that rejects records as configured

Each also inherits the built-in exception it resembles, so ``except ValueError`` keeps working.
"""

import difflib
from collections.abc import Iterable, Sequence


class HooklineError(Exception):
    """The base class of all errors that hookline raises."""


class MomentError(HooklineError, TypeError):
    """A misspelt moment, or a signature that the engine cannot call."""


class OptionError(HooklineError, ValueError):
    """An option of a subscriber or of a schedule with a value that is not accepted."""


class OrderError(HooklineError, ValueError):
    """An impossible order: a cycle, an unknown dependency, a position that violates a constraint."""


class DuplicateError(HooklineError, ValueError):
    """A name or an instance that is already in the collection."""


class UnknownNameError(HooklineError, LookupError):
    """A name that nothing is registered under."""


class ConfigError(HooklineError, ValueError):
    """An invalid configuration; the message names the file and the path inside it."""


class CheckpointError(HooklineError, RuntimeError):
    """A checkpoint that cannot be written or read."""


class ArtifactError(HooklineError, RuntimeError):
    """An artifact that cannot be saved, or whose files are missing or damaged."""


class NonFiniteError(HooklineError, ArithmeticError):
    """A loss that is NaN or infinite; further training would ruin the model."""


class MissingExtraError(HooklineError, ImportError):
    """An optional dependency that is not installed; the message has the command that installs it."""

    def __init__(self, what: str, extra: str | None = None) -> None:
        install = f" needs a package that is not installed. Install it with: pip install 'hookline[{extra}]'"
        super().__init__(what + install if extra else what)


class NotOfferedError(HooklineError, AttributeError):
    """Another framework's callback needs an attribute that a hookline loop does not have."""


class RefusedError(HooklineError, PermissionError):
    """A destination rejects records as configured, or a run a command; the message says what to change."""


def closest(name: str, known: Iterable[str], *, listed: Sequence[str] | None = None) -> str:
    """Return a sentence that names the known spelling closest to ``name``, or lists all of them.

    Args:
        listed: The names to list if all are too many.

    >>> closest("on_step_ends", ["on_step_end", "on_train_end"])
    "Did you mean 'on_step_end'?"
    """
    names = sorted(known)
    folded = {other.lower(): other for other in reversed(names)}
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.6) or [
        folded[match] for match in difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    ]
    if matches:
        return f"Did you mean {matches[0]!r}?"
    if listed is not None and len(listed) < len(names):
        return f"Known: {', '.join(listed)} and {len(names) - len(listed)} more."
    return f"Known: {', '.join(names)}." if names else "There are none."

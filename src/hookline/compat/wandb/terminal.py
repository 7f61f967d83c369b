"""Messages on the terminal, as `termlog`, `termwarn` and `termerror` of wandb print them: on stderr, with a prefix.

`WANDB_SILENT` or ``Settings(silent=True)`` hides them; then they go to the log of hookline. What the drop-in accepts
and ignores is reported once per process by `ignored`.
"""

import logging
import sys

logger = logging.getLogger("hookline")

_PREFIX = "wandb: "
_printed: set[str] = set()
_ignored: set[str] = set()


class Terminal:
    """Which messages are printed."""

    silent = False
    show_info = True
    show_warnings = True
    show_errors = True


def termlog(string: str = "", newline: bool = True, repeat: bool = True, prefix: bool = True) -> None:
    """Print a message on stderr.

    Args:
        string: The message.
        newline: End it with a newline.
        repeat: Print it again if it was printed before.
        prefix: Begin each line with ``wandb:``.
    """
    _print(string, logging.INFO, Terminal.show_info, newline=newline, repeat=repeat, prefix=prefix)


def termwarn(string: str, newline: bool = True, repeat: bool = True, prefix: bool = True) -> None:
    """Print a warning on stderr; the arguments are those of `termlog`."""
    text = f"WARNING {string}"
    _print(text, logging.WARNING, Terminal.show_warnings, newline=newline, repeat=repeat, prefix=prefix)


def termerror(string: str, newline: bool = True, repeat: bool = True, prefix: bool = True) -> None:
    """Print an error on stderr; the arguments are those of `termlog`."""
    text = f"ERROR {string}"
    _print(text, logging.ERROR, Terminal.show_errors, newline=newline, repeat=repeat, prefix=prefix)


def termsetup(settings: object, logger: object = None) -> None:
    """Apply settings that select the printed messages.

    Args:
        settings: A `Settings`.
        logger: Accepted for compatibility.
    """
    for name in ("silent", "show_info", "show_warnings", "show_errors"):
        setattr(Terminal, name, bool(getattr(settings, name, getattr(Terminal, name))))


def ignored(what: str, why: str = "") -> None:
    """Warn once per process that an argument or setting has no effect."""
    if what not in _ignored:
        _ignored.add(what)
        termwarn(f"{what} is accepted, and has no effect in hookline's drop-in{f': {why}' if why else ''}.")


def _print(text: str, level: int, shown: bool, *, newline: bool, repeat: bool, prefix: bool) -> None:
    if not repeat:
        if text in _printed:
            return
        _printed.add(text)
    if Terminal.silent or not shown:
        logger.log(logging.DEBUG if level == logging.INFO else level, "%s", text)
        return
    lines = "\n".join(f"{_PREFIX if prefix else ''}{line}" for line in text.split("\n"))
    print(lines, end="\n" if newline else "", file=sys.stderr, flush=True)  # noqa: T201 - this is its job

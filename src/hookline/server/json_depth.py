"""How deep JSON may be that others send: what is nested without end would end every reader of it, for everybody."""

from typing import Any

import msgspec

from hookline.core.errors import OptionError
from hookline.record.records import DEEPEST, is_too_deep


def check_depth(what: str, value: Any) -> None:
    """Refuse a value that is nested too deeply.

    Raises:
        OptionError: It is.
    """
    if is_too_deep(value):
        raise OptionError(f"{what} is nested more than {DEEPEST} levels deep.")


def check_lines_depth(lines: bytes) -> None:
    """Refuse lines of JSON of which one is nested too deeply; only those are decoded that could be.

    Raises:
        OptionError: One is.
    """
    if _brackets(lines) <= DEEPEST:
        return
    for line in lines.split(b"\n"):
        if _brackets(line) > DEEPEST:
            try:
                check_depth("A line", msgspec.json.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # a reader passes over it, too
            except RecursionError:
                raise OptionError(f"A line is nested more than {DEEPEST} levels deep.") from None


def _brackets(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")

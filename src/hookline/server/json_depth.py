"""How deep JSON may be that others send: what is nested without end would end every reader of it, for everybody."""

import io
import itertools
import re
from typing import Any

from hookline.core.errors import OptionError
from hookline.record.records import DEEPEST, is_too_deep

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_UP_AND_DOWN = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_PIECE = 128 << 10


def check_depth(what: str, value: Any) -> None:
    """Refuse a value that is nested too deeply.

    Raises:
        OptionError: It is.
    """
    if is_too_deep(value):
        raise OptionError(f"{what} is nested more than {DEEPEST} levels deep.")


def check_lines_depth(lines: bytes) -> None:
    """Refuse lines of JSON of which one is nested too deeply; only those are looked at that could be.

    Raises:
        OptionError: One is.
    """
    if _brackets(lines) <= DEEPEST:
        return
    for line in io.BytesIO(lines):
        if len(line) > DEEPEST and _brackets(line) > DEEPEST and _is_line_too_deep(line):
            raise OptionError(f"A line is nested more than {DEEPEST} levels deep.")


def _is_line_too_deep(line: bytes) -> bool:
    """By its brackets alone: decoding a line could take up many times its size."""
    steps = memoryview(_STRING.sub(b"", line).translate(_UP_AND_DOWN, _NO_BRACKETS)).cast("b")
    depth = 0
    for begin in range(0, len(steps), _PIECE):  # between the pieces other threads have their turn
        piece = steps[begin : begin + _PIECE]
        if depth + max(itertools.accumulate(piece)) > DEEPEST:
            return True
        depth += sum(piece)
    return False


def _brackets(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")

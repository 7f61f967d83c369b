"""How deep JSON may be that others send: what is nested without end would end every reader of it, for everybody."""

import itertools
from dataclasses import dataclass
from typing import Any

from hookline.core.errors import OptionError
from hookline.record.records import DEEPEST, is_too_deep

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


def check_lines_depth(lines: bytes, *, piece_bytes: int = _PIECE) -> None:
    """Refuse lines of JSON of which one is nested too deeply, by their brackets alone: decoding takes up more.

    Args:
        piece_bytes: How much is looked at at a time: between the pieces other threads have their turn.

    Raises:
        OptionError: One is.
    """
    if _brackets(lines) <= DEEPEST:
        return
    line = _Line()
    for begin in range(0, len(lines), piece_bytes):
        end_of_line, *others = lines[begin : begin + piece_bytes].split(b"\n")
        depths = [line.pass_by(end_of_line)]
        depths += [_Line().pass_by(whole) for whole in others[:-1] if len(whole) > DEEPEST < _brackets(whole)]
        if others:
            line = _Line()
            depths.append(line.pass_by(others[-1]))
        if max(depths) > DEEPEST:
            raise OptionError(f"A line is nested more than {DEEPEST} levels deep.")


@dataclass(slots=True)
class _Line:
    """Where a line stands, as far as it was looked at.

    Outside of strings no JSON has a backslash. What has one there is decoded by nobody beyond it.
    """

    depth: int = 0
    is_in_string: bool = False
    begun: bytes = b""
    """A backslash at the end of a piece, of which the next one says what it escapes."""

    def pass_by(self, piece: bytes) -> int:
        """Look at the next piece of it; how deep it is in there."""
        unescaped = (self.begun + piece).replace(b"\\\\", b"").replace(b'\\"', b"")
        self.begun = b"\\" if unescaped.endswith(b"\\") else b""
        parts = unescaped.split(b'"')  # every second one is in a string
        outside = b"".join(parts[self.is_in_string :: 2]).translate(_UP_AND_DOWN, _NO_BRACKETS)
        self.is_in_string ^= len(parts) % 2 == 0
        steps = memoryview(outside).cast("b")
        deepest = self.depth + max(itertools.accumulate(steps), default=0)
        self.depth += sum(steps)
        return deepest


def _brackets(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")

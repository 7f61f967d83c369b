"""A line of a chart in one line of text: one character a value, eight heights."""

import sys
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-=+*#@"


def sparkline(values: Sequence[float], marks: str = BLOCKS) -> str:
    """The values, each as high as it lies between the least and the largest.

    >>> sparkline([0, 1, 2, 4, 8])
    '▁▂▃▅█'
    >>> sparkline([3, 3], ASCII)
    '++'
    """
    if not values:
        return ""
    low, high = min(values), max(values)
    span = high - low
    if not 0 < span < float("inf"):  # all the same, or too far apart for a float
        return marks[len(marks) // 2] * len(values)
    return "".join(marks[min(len(marks) - 1, int((value - low) / span * len(marks)))] for value in values)


def marks_for(encoding: str | None = None) -> str:
    """The characters that an output can show: blocks, or ASCII where those cannot be encoded."""
    try:
        BLOCKS.encode(encoding or getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS

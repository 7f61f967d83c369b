"""`TerminalLines`: what anybody prints on a terminal, line by line, while something else is drawn there.

Between `start` and `stop` the process's standard streams that lead to the terminal lead here instead, also those of the
processes it starts, which then see no terminal: their progress bars print lines. What was there before is put back.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

STREAMS = (1, 2)
"""Standard output and standard error."""


class TerminalLines:
    """Takes over the streams that lead to a terminal.

    Args:
        hear: Called with each line, on a thread of its own.
    """

    def __init__(self, hear: Callable[[str], None]) -> None:
        self._hear = hear
        self._kept: dict[int, int] = {}
        self._thread: threading.Thread | None = None
        self.terminal: TextIO | None = None
        """The terminal itself, to draw on."""

    def start(self) -> bool:
        """Take over; False where neither stream leads to a terminal that this process can reach."""
        taken = [number for number in STREAMS if _is_terminal(number)]
        if not taken:
            return False
        _flush()
        self.terminal = os.fdopen(os.dup(taken[-1]), "w", encoding="utf-8", errors="replace")
        ours, theirs = os.pipe()
        for number in taken:
            self._kept[number] = os.dup(number)
            os.dup2(theirs, number)
        os.close(theirs)
        self._thread = threading.Thread(target=self._listen, args=(ours,), name="hookline-terminal", daemon=True)
        self._thread.start()
        return True

    def stop(self, wait_seconds: float = 2.0) -> None:
        """Put the streams back, and hear what is left; a process that still writes is not waited for longer."""
        _flush()
        for number, kept in self._kept.items():
            os.dup2(kept, number)
            os.close(kept)
        self._kept = {}
        if self._thread is not None:
            self._thread.join(wait_seconds)
            self._thread = None

    def _listen(self, pipe: int) -> None:
        with os.fdopen(pipe, encoding="utf-8", errors="replace", newline="\n") as lines:
            for line in lines:
                with contextlib.suppress(OSError, ValueError):  # a terminal that is gone: nobody may wait for us
                    self._hear(line.rstrip("\r\n").rpartition("\r")[2])  # of what was drawn over, the last


def _is_terminal(number: int) -> bool:
    """Whether a stream leads to a terminal, and Python's own stream of that number writes to it."""
    stream: Any = (sys.stdout, sys.stderr)[number - 1]
    try:
        return bool(os.isatty(number)) and stream.fileno() == number
    except (AttributeError, OSError, ValueError):  # replaced by something else, or closed
        return False


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()

"""Work on other threads that has been handed data and has not logged it yet: `shutdown` waits for it first.

Whoever logs from a thread of its own adds a function that waits for that thread, and takes it out at the end.
"""

import threading
import time
from collections.abc import Callable

Wait = Callable[[float], object]
"""Waits for what was handed over so far, for so many seconds at most."""

_lock = threading.Lock()
_waits: list[Wait] = []


def add(wait: Wait) -> None:
    """Have `shutdown` call a function before it takes anything down."""
    with _lock:
        _waits.append(wait)


def remove(wait: Wait) -> None:
    """Have it called no more; one that is not there is passed over."""
    with _lock:
        if wait in _waits:
            _waits.remove(wait)


def finish(seconds: float) -> None:
    """Wait for all of them, for so many seconds at most."""
    deadline = time.monotonic() + seconds
    with _lock:
        waits = list(_waits)
    for wait in waits:
        wait(max(0.0, deadline - time.monotonic()))

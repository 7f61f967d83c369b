"""`Ticker`: calls a function at a fixed pace on a thread of its own, until it is closed.

An exception of the function is logged the first time and does not end the thread. The thread is a
daemon's: it never keeps a program from ending.
"""

import logging
import threading
from collections.abc import Callable

from hookline.core.errors import OptionError

logger = logging.getLogger("hookline")

CLOSE_SECONDS = 5.0
"""How long `Ticker.close` waits for a call that is under way."""


def require_seconds(name: str, value: float) -> float:
    """A pace or a time limit: a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise OptionError(f"{name}={value!r}: give a number of seconds above 0.")
    return float(value)


class Ticker:
    """Runs from the moment that it is made.

    Args:
        name: What the thread and its errors go by.
        seconds: The time between two calls; the first comes after as long.
    """

    def __init__(self, name: str, seconds: float, action: Callable[[], object]) -> None:
        self.name, self.seconds, self._action = name, seconds, action
        self._ended = threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name=f"hookline-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, after the call that is under way. May be called again, and by the function itself."""
        self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(self.seconds):
            try:
                self._action()
            except Exception:
                if not self._has_failed:
                    self._has_failed = True
                    logger.exception("%s failed on its thread; it goes on.", self.name)

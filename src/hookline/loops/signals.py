"""SIGINT and SIGTERM ask for a stop at the next step boundary; a second one is immediate."""

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

logger = logging.getLogger("hookline")


def is_signal(reason: str) -> bool:
    """Whether a stop was asked for by a signal."""
    return reason.partition(" ")[0] in {number.name for number in StopSignals.SIGNALS}


class StopSignals:
    """Turns the first SIGINT or SIGTERM into ``request_stop(name)`` between `install` and `restore`.

    Signals belong to the main thread; anywhere else this does nothing.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)
    are_announced = True
    """Whether it is said that a stop was asked for; a process whose parent has said it need not say it again."""

    def __init__(self, request_stop: Callable[[str], None]) -> None:
        self._request_stop = request_stop
        self._previous: dict[int, Any] = {}
        self._asked = False

    def install(self) -> None:
        """Take over the signals."""
        self._asked = False
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in self.SIGNALS}

    def restore(self) -> None:
        """Give the signals back to whoever had them."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if not self._asked:
            self._asked = True
            self._request_stop(name)
            if self.are_announced:
                logger.warning("%s: stopping after this step. Send it again to stop at once.", name)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)

"""SIGINT and SIGTERM request a stop at the next step boundary; a second signal stops at once.

Every run in the process is asked to stop: a nested run does not keep the signal to itself. A forked child gets the
handlers that were installed before.
"""

import functools
import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

logger = logging.getLogger("hookline")


def is_signal(reason: str) -> bool:
    """Return whether a signal requested the stop."""
    return reason.partition(" ")[0] in {number.name for number in StopSignals.SIGNALS}


def exit_status(reason: str | None) -> int | None:
    """Return the exit status for a stop reason: 128 plus the signal number, or None if it was not a signal."""
    if reason is None or not is_signal(reason):
        return None
    return 128 + signal.Signals[reason.partition(" ")[0]].value


class StopSignals:
    """Turns the first SIGINT or SIGTERM into ``request_stop(name)`` between `install` and `restore`.

    Signals belong to the main thread; anywhere else this does nothing.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)
    are_announced = True
    """Whether to log that a stop was requested; a process whose parent has logged it sets this to False."""

    def __init__(self, request_stop: Callable[[str], None]) -> None:
        self._request_stop = request_stop
        self._previous: dict[int, Any] = {}
        self._is_requested = False
        self._process = 0

    def install(self) -> None:
        """Install the handlers."""
        self._is_requested = False
        if threading.current_thread() is threading.main_thread():
            _let_go_in_children()
            self._process = os.getpid()
            # Before the handlers: a signal between the two lines must find this run, or it would be taken for a second
            # one.
            _LISTENING.append(self)
            self._previous = {number: signal.signal(number, self._handle) for number in self.SIGNALS}

    def restore(self) -> None:
        """Restore the previous handlers. If a nested instance is still installed, it restores them when it is done."""
        inner = _LISTENING[_LISTENING.index(self) + 1 :] if self in _LISTENING else []
        for number, handler in self._previous.items():
            if not inner:
                signal.signal(number, handler)
            elif inner[0]._previous[number] == self._handle:  # the inner one must not restore this handler
                inner[0]._previous[number] = handler
        self._previous = {}
        if self in _LISTENING:
            _LISTENING.remove(self)

    def let_go(self) -> None:
        """Restore the previous handlers in a forked child, unless they have been replaced since."""
        for number, handler in self._previous.items():
            # None: that handler was not installed by Python, and cannot be set from here.
            if handler is not None and signal.getsignal(number) == self._handle:
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked child where another handler calls this one
            _act(self._previous.get(number), number, frame)
        # Whichever run got the first one: a second signal must stop the process, even if an inner run ended in between.
        elif _LISTENING and not any(each._is_requested for each in _LISTENING):
            self._request_stops(signal.Signals(number).name)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)

    def _request_stops(self, name: str) -> None:
        # A copy, innermost first: a request may end a run, which then leaves the list.
        for each in reversed(_LISTENING.copy()):
            each._request_stop(name)
        if all(each._is_requested for each in _LISTENING):
            return  # a request_stop sent the signal again, and the nested call has notified everyone
        for each in _LISTENING:
            each._is_requested = True
        if self.are_announced:
            logger.warning("%s: stopping after this step. Send it again to stop at once.", name)


_LISTENING: list[StopSignals] = []
"""The installed instances, outermost first."""
# Any thread may fork, and each has a mask of its own.
_masks = threading.local()


def _act(handler: Any, number: int, frame: FrameType | None) -> None:
    """Call a handler, or perform the default action."""
    if callable(handler):
        handler(number, frame)
    elif handler == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


@functools.cache
def _let_go_in_children() -> None:
    """Restore the handlers in forked children. Done once per process, because it cannot be undone."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_restore_in_child)


def _block_signals() -> None:
    """Block the signals: one sent to a child that has not restored its handlers yet would be lost."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, StopSignals.SIGNALS)


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _restore_in_child() -> None:
    """Restore the handlers in a child, innermost first: each restores those of the instance around it."""
    while _LISTENING:
        _LISTENING.pop().let_go()
    # Last: a signal that waited is delivered now, to the handlers that were just restored.
    _unblock_signals()

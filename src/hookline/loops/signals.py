"""SIGINT and SIGTERM ask for a stop at the next step boundary; a second one is immediate.

Whoever listens in this process is asked: a run inside another one does not keep the signal to itself. A forked
child has the handlers that stood before.
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
    """Whether a stop was asked for by a signal."""
    return reason.partition(" ")[0] in {number.name for number in StopSignals.SIGNALS}


def exit_status(reason: str | None) -> int | None:
    """What a program ends with whose training was stopped for this reason: 128 and the number, if it was a signal."""
    if reason is None or not is_signal(reason):
        return None
    return 128 + signal.Signals[reason.partition(" ")[0]].value


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
        self._process = 0

    def install(self) -> None:
        """Take over the signals."""
        self._asked = False
        if threading.current_thread() is threading.main_thread():
            _let_go_in_children()
            self._process = os.getpid()
            _LISTENING.append(self)
            self._previous = {number: signal.signal(number, self._handle) for number in self.SIGNALS}

    def restore(self) -> None:
        """Give the signals back to whoever had them; one that is inside this one keeps them, and does so later."""
        inner = _LISTENING[_LISTENING.index(self) + 1 :] if self in _LISTENING else []
        for number, handler in self._previous.items():
            if not inner:
                signal.signal(number, handler)
            elif inner[0]._previous[number] == self._handle:
                inner[0]._previous[number] = handler
        self._previous = {}
        if self in _LISTENING:
            _LISTENING.remove(self)

    def let_go(self) -> None:
        """Give back, in a forked child, those signals that nobody else has taken over since."""
        for number, handler in self._previous.items():
            if handler is not None and signal.getsignal(number) == self._handle:
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked child in which another handler leads here
            _act(self._previous.get(number), number, frame)
        elif _LISTENING and not any(each._asked for each in _LISTENING):
            self._ask_all(signal.Signals(number).name)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)

    def _ask_all(self, name: str) -> None:
        for each in reversed(_LISTENING.copy()):
            each._request_stop(name)
        if all(each._asked for each in _LISTENING):
            return  # one that the signal was not for has sent it again, and those that are left have heard it
        for each in _LISTENING:
            each._asked = True
        if self.are_announced:
            logger.warning("%s: stopping after this step. Send it again to stop at once.", name)


_LISTENING: list[StopSignals] = []
"""Those that have the signals, each inside the one before it."""
_masks = threading.local()


def _act(handler: Any, number: int, frame: FrameType | None) -> None:
    """Do what a handler would have done."""
    if callable(handler):
        handler(number, frame)
    elif handler == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


@functools.cache
def _let_go_in_children() -> None:
    """Make forked children leave their parent's runs alone; once in a process, as it cannot be taken back."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_hold_off, after_in_parent=_let_through, after_in_child=_begin_anew)


def _hold_off() -> None:
    """A signal to a child that has not given the handlers back yet would be lost: let it wait."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, StopSignals.SIGNALS)


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _begin_anew() -> None:
    """In a child: the inner ones first, as the others stand behind them."""
    while _LISTENING:
        _LISTENING.pop().let_go()
    _let_through()

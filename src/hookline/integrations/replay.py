"""`Replay`: the data of a loop in the order that it had, so that a resume is exact.

The order of an epoch comes from the random states at its beginning (Python's, NumPy's, torch's), which are noted there.
To take an epoch up again they are put back, the batches that are done are drawn once more and left out, and then the
states are set to those that held when the checkpoint was saved. One that is saved before the first batch is done goes
on from the beginning of the epoch: the order is drawn once more.

Data that wants to know the epoch (``set_epoch``) is told.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from hookline.loops import rng


class Replay:
    """Opens the epochs of a loop, each from the beginning or behind so many batches."""

    def __init__(self) -> None:
        self._began: dict[str, Any] = {}
        self._now: dict[str, Any] | None = None  # what a checkpoint had, until training goes on
        self._is_open = False  # since it began: the order may be drawn already

    def epoch(self, data: Iterable[Any], number: int, done: int) -> Iterator[Any]:
        """The batches of an epoch, with None for each that is done; it begins when the first one is asked for."""
        self._is_open = False
        return self._batches_of(data, number, done)

    def _batches_of(self, data: Iterable[Any], number: int, done: int) -> Iterator[Any]:
        self._look_at(data)
        self._put_in_place()
        if done and self._began:
            self._restore(self._began)
        else:
            self._go_on()
            self._began = self._states()
        self._is_open = True
        source = self._open(data, number, done)
        yield from itertools.repeat(None, done)
        self._go_on()
        for batch in source:  # noqa: UP028 - "yield from" would close what others may go on with
            yield batch

    def state(self, *, nothing_done: bool = False) -> dict[str, Any]:
        """What a checkpoint holds of it.

        Args:
            nothing_done: Whether no batch of the epoch under way is done.
        """
        now = self._began if nothing_done and self._is_open else self._now or self._states()
        return {"now": now, "epoch_began": self._began}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint with the next epoch that is opened."""
        self._now, self._began, self._is_open = state["now"], state["epoch_began"], False

    def _look_at(self, data: Iterable[Any]) -> None:
        """See what the data is, before anything is done with it."""

    def _put_in_place(self) -> None:
        """Put data that keeps its own place where it was when the checkpoint was saved."""

    def _open(self, data: Iterable[Any], number: int, done: int) -> Iterator[Any]:
        """The batches behind those that are done."""
        announce = getattr(data, "set_epoch", None)
        if callable(announce):
            announce(number)
        source = iter(data)
        next(itertools.islice(source, done, done), None)
        return source

    def _go_on(self) -> None:
        if self._now is not None:
            self._restore(self._now)
            self._now = None

    def _states(self) -> dict[str, Any]:
        return rng.capture()

    def _restore(self, states: dict[str, Any]) -> None:
        rng.restore(states)

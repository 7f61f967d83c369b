"""`Place`: where a bare loop is in its data, so that a resume goes on there.

A program may call ``steps()`` or ``epochs()`` several times, one after the other, and ``steps()`` several times in an
epoch. So a place is the number of the call, the epoch in it, the number of the pass over data in the epoch, and the
batches that are done of that pass. What lies before is complete.

`Replay`: the data of a loop in the order that it had, so that a resume is exact.

The order of an epoch comes from the random states at its beginning (Python's, NumPy's, torch's), which are noted there.
To take an epoch up again they are put back, the batches that are done are drawn once more and left out, and then the
states are set to those that held when the checkpoint was saved. One that is saved before the first batch is done goes
on from the beginning of the epoch: the order is drawn once more.

Data that wants to know the epoch (``set_epoch``) is told.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Self

from hookline.loops import rng


def length_of(data: object) -> int | None:
    """How many batches some data has, or None where it does not tell.

    The loader of an `IterableDataset` has a ``__len__`` that raises `TypeError`.
    """
    try:
        return len(data) if isinstance(data, Sized) else None
    except TypeError:
        return None


@dataclass(slots=True)
class DataPosition:
    """A place in the data, and what is known of the call, the pass and the epoch there."""

    calls: int = 0
    epoch: int = 0
    passes: int = 0
    batches: int = 0
    call_left: bool = False
    """Whether the program left the call with a ``break``, which completes it."""
    pass_left: bool = False
    epoch_open: bool = False
    """Whether the epoch's start was told, and its end was not."""
    epoch_complete: bool = False
    cut_short: bool = False
    """Whether a stop or the total ended the pass; not saved, since a resume may go on with it."""

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """The place in a checkpoint; an older one knows the epoch and the batches only."""
        return cls(
            state.get("calls_done", 0),
            state["epoch"],
            state.get("passes_done", 0),
            state["batches_done"],
            call_left=state.get("call_left", False),
            pass_left=state.get("pass_left", False),
            epoch_open=state.get("epoch_open", False),
            epoch_complete=state.get("epoch_complete", False),
        )

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it, besides the epoch."""
        return {
            "calls_done": self.calls,
            "passes_done": self.passes,
            "batches_done": self.batches,
            "call_left": self.call_left,
            "pass_left": self.pass_left,
            "epoch_open": self.epoch_open,
            "epoch_complete": self.epoch_complete and not self.epoch_open,
        }

    def leave_pass(self, *, stopped: bool) -> None:
        """The program left the pass with a ``break``, which completes it unless a stop was requested."""
        self.pass_left, self.cut_short = not stopped, stopped

    def within(self, epochs: int) -> "DataPosition":
        """Where a call of so many epochs goes on; in the epoch behind the last where nothing is left.

        The last epoch is gone on with also where it is complete: there may be more data now.
        """
        if self.call_left or self.epoch >= epochs:
            return DataPosition(self.calls, epochs)
        if self.epoch_complete and self.epoch + 1 < epochs:
            return DataPosition(self.calls, self.epoch + 1)
        return self

    def next_pass(self, number: int) -> "DataPosition":
        """The beginning of another pass over data in the same epoch."""
        return DataPosition(self.calls, self.epoch, number, epoch_open=self.epoch_open)


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

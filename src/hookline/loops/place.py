"""`Place`: where a bare loop is in its data, so that a resume goes on there.

A program may call ``steps()`` or ``epochs()`` several times, one after the other, and ``steps()`` several times in an
epoch. So a place is the number of the call, the epoch in it, the number of the pass over data in the epoch, and the
batches that are done of that pass. What lies before is complete.
"""

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any, Self


def length_of(data: object) -> int | None:
    """How many batches some data has, or None where it does not tell.

    The loader of an `IterableDataset` has a ``__len__`` that raises `TypeError`.
    """
    try:
        return len(data) if isinstance(data, Sized) else None
    except TypeError:
        return None


@dataclass(slots=True)
class Place:
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

    def within(self, epochs: int) -> "Place":
        """Where a call of so many epochs goes on; in the epoch behind the last where nothing is left.

        The last epoch is gone on with also where it is complete: there may be more data now.
        """
        if self.call_left or self.epoch >= epochs:
            return Place(self.calls, epochs)
        if self.epoch_complete and self.epoch + 1 < epochs:
            return Place(self.calls, self.epoch + 1)
        return self

    def next_pass(self, number: int) -> "Place":
        """The beginning of another pass over data in the same epoch."""
        return Place(self.calls, self.epoch, number, epoch_open=self.epoch_open)

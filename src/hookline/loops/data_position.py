"""Where a loop is in its data, and the data in the same order again, so that a resume is exact.

`DataPosition` is a place in the data. A program may call ``steps()`` or ``epochs()`` several times, one after the
other, and ``steps()`` several times in an epoch. So a position is the number of the call, the epoch in it, the number
of the pass over data in the epoch, and the completed batches of that pass. Everything before it is complete.
`DataProgress` follows a bare loop through such calls; a Trainer has one call of one pass per epoch.

`DataOrder` opens epochs after completed batches. `ReplayedOrder` also repeats their order, which comes from the random
states at the beginning of the epoch (Python's, NumPy's, torch's). They are noted there; a resume sets them again, draws
the completed batches once more, skips them, and then sets the states that held when the checkpoint was saved. A
checkpoint that is saved before the first batch is complete resumes at the beginning of the epoch: the order is drawn
again. Data that wants to know the epoch (``set_epoch``) is notified.
"""

import gc
import io
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from types import FrameType, GeneratorType
from typing import Any, Self

from hookline.loops import rng

logger = logging.getLogger("hookline")


def length_of(data: object) -> int | None:
    """Return how many batches some data has, or None where that is unknown.

    The loader of an `IterableDataset` has a ``__len__`` that raises `TypeError`.
    """
    try:
        return len(data) if isinstance(data, Sized) else None
    except TypeError:
        return None


@dataclass(slots=True)
class DataPosition:
    """A position in the data, and the state of the call, the pass and the epoch there."""

    calls: int = 0
    epoch: int = 0
    passes: int = 0
    batches: int = 0
    call_left: bool = False
    """Whether the program left the call with a ``break``, which completes it."""
    pass_left: bool = False
    epoch_open: bool = False
    """Whether the epoch's start was fired, and its end was not."""
    epoch_complete: bool = False
    cut_short: bool = False
    """Whether a stop or the total ended the pass; not saved, since a resume may continue it."""

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """Return the position in a checkpoint; version 0.1 saved the epoch and the batches only."""
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
        """Return its state for a checkpoint, besides the epoch."""
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
        """Note that the program left the pass with a ``break``, which completes it unless a stop was requested."""
        self.pass_left, self.cut_short = not stopped, stopped

    def within(self, epochs: int) -> "DataPosition":
        """Return where a call of this many epochs continues; in the epoch after the last if nothing is left.

        The last epoch continues also where it is complete: there may be more data now.
        """
        if self.call_left or self.epoch >= epochs:
            return DataPosition(self.calls, epochs)
        if self.epoch_complete and self.epoch + 1 < epochs:
            return DataPosition(self.calls, self.epoch + 1)
        return self


class DataProgress:
    """A bare loop's progress through its data, over all calls of ``steps()`` and ``epochs()``.

    Attributes:
        at: The present position.
        resume: The position of a resumed checkpoint, until the loop gets there.
        to_skip: How many batches of the next pass a resume skips.
    """

    def __init__(self) -> None:
        self.at = DataPosition()
        self.resume: DataPosition | None = None
        self.to_skip = 0
        self._calls_begun = 0
        self._passes_begun = 0  # in this epoch

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint with the next call."""
        self.resume, self.at = DataPosition.of(state), DataPosition.of(state)

    @property
    def is_next_call_done(self) -> bool:
        """Whether the next call was complete when the resumed checkpoint was saved."""
        return self.resume is not None and self._calls_begun < self.resume.calls

    def skip_call(self) -> bool:
        """Count the next call if it was complete already; returns whether it was."""
        done = self.is_next_call_done
        self._calls_begun += done
        return done

    def start_of_call(self, epochs: int, batches: Any) -> DataPosition:
        """Return where a call begins: at the position of a resume, otherwise at its first batch."""
        start = DataPosition(self._calls_begun) if self.resume is None else self.resume.within(epochs)
        length = length_of(batches)
        # Nothing is left of it, unless there is more data now than when it was saved.
        if start.epoch_complete and (batches is None or (length is not None and length <= start.batches)):
            return DataPosition(start.calls, epochs)
        return start

    def planned_start(self, epochs: int) -> tuple[int, int]:
        """Return the epoch that a call begins with, and how many of its batches are complete."""
        start = DataPosition() if self.resume is None else self.resume.within(epochs)
        return start.epoch, start.batches

    def complete_call(self, position: DataPosition) -> None:
        """Count the call that a resume is in, of which nothing is left."""
        self._calls_begun, self.resume = position.calls + 1, None

    def begin_epoch(self, position: DataPosition) -> None:
        """Move to the beginning of an epoch, or to the position of a resume in it."""
        self._calls_begun, self.resume = position.calls + 1, None
        self.at, self._passes_begun, self.to_skip = position, 0, position.batches

    def begin_pass(self) -> DataPosition:
        """Move to the next pass over data, and return its position; one that a resume finds complete is ``left``."""
        number, self._passes_begun = self._passes_begun, self._passes_begun + 1
        if number < self.at.passes:
            return DataPosition(pass_left=True)
        if number > self.at.passes:
            self.at = DataPosition(self.at.calls, self.at.epoch, number, epoch_open=self.at.epoch_open)
        return self.at

    def withdraw_break(self) -> None:
        """Treat a ``break`` as if it had not happened: the program ended inside the loop."""
        self.at.pass_left = self.at.call_left = False


class DataOrder:
    """Opens the epochs of a loop, each from the beginning or after completed batches."""

    def epoch(self, data: Iterable[Any], number: int, done: int) -> Iterator[Any]:
        """Yield the batches of an epoch after those that are done; it is opened when the first one is drawn."""
        source = iter(data)
        next(itertools.islice(source, done, done), None)
        for batch in source:  # noqa: UP028 - "yield from" would close an iterator that the program may continue
            yield batch


class ReplayedOrder(DataOrder):
    """Opens epochs in the order that they had; see the module."""

    def __init__(self) -> None:
        self._began: dict[str, Any] = {}  # the states at the beginning of the epoch
        self._now: dict[str, Any] | None = None  # the states to continue with, until training continues
        self._is_open = False  # since `_began`: the order may be drawn already

    def epoch(self, data: Iterable[Any], number: int, done: int) -> Iterator[Any]:
        """Yield the batches of an epoch after those that are done; it is opened when the first one is drawn."""
        # Not in the generator, whose body only runs with the first batch: a checkpoint saved until then would take the
        # states of the last epoch for those of this one.
        self._is_open = False
        return self._epoch(data, number, done)

    def _epoch(self, data: Iterable[Any], number: int, done: int) -> Iterator[Any]:
        source = self.open(data, number, done)
        self.proceed()
        for batch in source:  # noqa: UP028 - "yield from" would close an iterator that the program may continue
            yield batch

    def open(self, data: Iterable[Any], number: int, done: int) -> Iterator[Any]:
        """Open an epoch now; `proceed` then sets the random states to continue with."""
        self._prepare(data)
        if done and self._began:
            # The completed batches are drawn from the states that they had. For the program nothing has been drawn.
            with rng.kept():
                self._restore(self._began)
                source = self._open(data, number, done)
            self._is_open = True
            return source
        # First the states of a checkpoint between two epochs: the order of this epoch is drawn from them.
        self.proceed()
        # Right before the data draws its order; a draw in between would be missing in a resume.
        self._began = self._states()
        self._is_open = True
        return self._open(data, number, done)

    def proceed(self, *, keep: bool = False) -> None:
        """Set the random states to those of a loaded checkpoint or of `pause`, if there are such.

        Args:
            keep: Set them once more with the next call: what is drawn until then does not belong to the training.
        """
        if self._now is not None:
            self._restore(self._now)
            self._now = self._now if keep else None

    def pause(self) -> None:
        """Note the states to continue with: what is drawn from now on does not belong to the training."""
        # Paused already: what was drawn since then does not belong to the training either.
        if self._now is None:
            self._now = self._states()

    def state(self, *, nothing_done: bool = False) -> dict[str, Any]:
        """Return its state for a checkpoint.

        Args:
            nothing_done: Whether no batch of the epoch in progress is complete.
        """
        # While paused, the present states are not the training's.
        now = self._began if nothing_done and self._is_open else self._now or self._states()
        return {"now": now, "epoch_began": self._began}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint with the next epoch that is opened."""
        self._now, self._began, self._is_open = state["now"], state["epoch_began"], False

    def _prepare(self, data: Iterable[Any]) -> None:
        """Look at the data, before anything is drawn from it."""

    def _open(self, data: Iterable[Any], number: int, done: int) -> Iterator[Any]:
        """Return the batches after those that are done, which are skipped before this returns."""
        set_epoch = getattr(data, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(number)
        source = iter(data)
        next(itertools.islice(source, done, done), None)
        return source

    def _states(self) -> dict[str, Any]:
        return rng.capture()

    def _restore(self, states: dict[str, Any]) -> None:
        rng.restore(states)


def check_resumed_body(steps: Any, frame: FrameType | None, *, name: str, step: int, batch_idx: int) -> None:
    """Warn about a loop body whose own counters or iterators start over after a resume.

    A resume gives the body the batches after the completed ones. A count of its own (`enumerate`) or an iterator of
    its own (`next`) starts from the beginning, and the training would differ without an error.

    Args:
        steps: The iterator that yields the batches.
        frame: The frame of the loop.
        name, step, batch_idx: The run, the completed steps, and the index of the batch in its epoch.
    """
    # A generator does not know who iterates over it, but an enumerate() refers to it. The search is slow, and is made
    # once per resume.
    for counter in (each for each in gc.get_referrers(steps) if type(each) is enumerate):
        count = counter.__reduce__()[1][1]  # the number of the present batch
        if count not in (step, batch_idx):
            logger.warning(
                "%r is resumed after step %d, and enumerate(run.steps(...)) counts from %d again. "
                "Use run.step, or enumerate(run.steps(...), start=run.step).",
                *(name, step, count),
            )
    # An iterator among the locals only matters where the body advances it.
    if frame is None or "next" not in frame.f_code.co_names:
        return
    own = [key for key, value in frame.f_locals.items() if _is_own_iterator(value, steps)]
    if own:
        logger.warning(
            "%r is resumed after step %d, and its loop calls next() on iterators of its own (%s), which begin again "
            "with their first item. Give the data to run.steps(...), which continues after the batches that are done.",
            *(name, step, ", ".join(own)),
        )


def _is_own_iterator(value: Any, steps: Any) -> bool:
    if not isinstance(value, Iterator) or isinstance(value, io.IOBase) or value is steps:
        return False
    is_ours = isinstance(value, GeneratorType) and isinstance(steps, GeneratorType) and value.gi_code is steps.gi_code
    return not is_ours and steps not in gc.get_referents(value)

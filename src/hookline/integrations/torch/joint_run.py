"""`JointRun`: what runs over torch have in common: several processes, steps of several batches, an exact resume.

Checkpoints are saved by all processes together: `save_checkpoint` is called on each of them, `request_checkpoint` on
any. What one process cannot write fails on all, and leaves no half of a checkpoint. Each saves its random states and
its place in the data, so that a resume goes on as if there had been no interruption.

A step is one update of the weights. Where several batches make one, the moments of a batch are fired around each, and
the step with its row goes on until the update. Stops and checkpoints wait for it; a checkpoint that is saved before it
is one of the last update, and a resume does the batches since then again, with the random states that they had.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Unpack

from hookline.core.state import ManifestRow
from hookline.integrations.replay import Replay
from hookline.loops import checkpoint
from hookline.loops.checkpoint import read_tensors
from hookline.loops.options import LoopOptions
from hookline.loops.place import length_of
from hookline.loops.run import Run
from hookline.loops.tensor_file import write_tensors

B = TypeVar("B")


class StepStart(NamedTuple):
    """Where a step begins: what a checkpoint goes back to that is saved before its update."""

    place: dict[str, Any]
    replay: dict[str, Any]


class JointRun(Run):
    """A bare loop over torch, in one process or in several; see the module.

    Args:
        replay: Opens the epochs.
        options: As for `hl.run`.
    """

    restores_itself = True

    def __init__(self, name: str | None, *, replay: Replay, **options: Unpack[LoopOptions]) -> None:
        super().__init__(name, **options)
        self._replay = replay
        self._listening: list[Any] = []
        self._goes_back = False  # a checkpoint is saved that belongs to the last update
        self._step_start: StepStart | None = None  # of a step of several batches

    @property
    @abstractmethod
    def batches_per_step(self) -> int:
        """How many batches make a step, as far as that is planned."""

    @abstractmethod
    def _has_updated(self) -> bool:
        """Whether the weights were updated since the last step."""

    @abstractmethod
    def _optimizers(self) -> Iterable[Any]:
        """The optimizers that fire `on_before_optimizer_step`, as torch has them."""

    @property
    def in_step(self) -> bool:
        """Whether a step is under way that `step` does not count yet."""
        return not self._goes_back and super().in_step

    @property
    def _is_between_batches(self) -> bool:
        """Whether some batches of a step are done and others, with its update, are not."""
        return self.lifecycle.is_open and self._step is None

    def begin(self) -> None:
        """Begin to record, and listen to the optimizers."""
        super().begin()
        self._listening = [each.register_step_pre_hook(self._before_update) for each in self._optimizers()]

    def finish(self, error: BaseException | None) -> None:
        """Close everything, and leave the optimizers as they were."""
        for handle in self._listening:
            handle.remove()
        super().finish(error)

    def save_checkpoint(self, path: str | Path | None = None, *, kind: str = "step") -> ManifestRow:
        """Save a checkpoint now, on all processes, and return its row."""
        self._goes_back = self.batches_per_step > 1 and self.in_step and not self._has_updated()
        try:
            return super().save_checkpoint(path, kind=kind)
        finally:
            self._goes_back = False

    def answer_requests(self) -> None:
        """Save a checkpoint that was asked for; several processes do that together, at the step boundary."""
        if self.world_size == 1:
            super().answer_requests()

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.in_step:
            self.callbacks.on_before_optimizer_step(self, optimizer)

    def _write_checkpoint(self, place: Path, step: int, kind: str) -> ManifestRow:
        self.callbacks.drain()  # so that the states are those of all moments so far
        aside: Path = self.agreement.from_rank_zero(lambda: checkpoint.make_aside(place))
        try:
            self.agreement.all_do(lambda: self._save_files(aside))
        except BaseException:
            checkpoint.discard(aside)
            raise
        row: ManifestRow = self.agreement.from_rank_zero(
            lambda: checkpoint.complete(aside, place, self._state(step), step=step, kind=kind)
        )
        return row

    def _save_files(self, directory: Path) -> None:
        if self.rank == 0:
            super()._save_files(directory)
        write_tensors(self._replay_state(), directory / _random_file(self.rank))

    def _replay_state(self) -> dict[str, Any]:
        if self._goes_back and self._step_start is not None:
            return self._step_start.replay
        nothing_done = self._epoch_state == "open" and self._step is None and self._batches_done == 0
        return self._replay.state(nothing_done=nothing_done)

    def _load_files(self, directory: Path) -> None:
        own, first = (directory / _random_file(rank) for rank in (self.rank, 0))
        self._replay.load_state(read_tensors(own if own.exists() else first))
        super()._load_files(directory)

    def _state(self, step: int) -> dict[str, Any]:
        state = super()._state(step) | {"has_files": True}
        if self._goes_back and self._step_start is not None:
            state |= self._step_start.place
        return state

    def _fetch(self, batches: Iterable[B], total: int | None) -> Iterator[tuple[int, B]]:
        done = self._to_skip
        return super()._fetch(self._noted(self._replay.epoch(batches, self.epoch, done), done), total)

    def _noted(self, batches: Iterator[B], done: int) -> Iterator[B]:
        """The same batches; where a step begins is noted before its first one is drawn."""
        for index, batch in enumerate(batches):
            if index == 0:
                self._note_step_start(nothing_done=not done)
            yield batch
            self._note_step_start()

    def _note_step_start(self, *, nothing_done: bool = False) -> None:
        if self.batches_per_step > 1 and not self._is_between_batches:
            place = {"epoch": self.epoch, **self._at.state()}
            self._step_start = StepStart(place, self._replay.state(nothing_done=nothing_done))

    def _begin_step(self, batch: Any, batch_idx: int) -> None:
        if self._is_between_batches:
            self._step = (batch, batch_idx)
            self.callbacks.on_train_batch_start(self, batch, batch_idx)
        else:
            super()._begin_step(batch, batch_idx)

    def _end_step(self) -> None:
        if self._step is None or self._has_updated():
            super()._end_step()
            return
        batch, batch_idx = self._step
        self.callbacks.on_train_batch_end(self, self.lifecycle.row, batch, batch_idx)
        self._step = None

    def _must_stop(self) -> bool:
        return not self._is_between_batches and super()._must_stop()

    def _plan(self, batches: Any, epochs: int, total: int | None) -> None:
        super()._plan(batches, epochs, total)
        length = length_of(batches)
        if total is None and self.batches_per_step > 1 and length is not None:
            epoch, done = (self.epoch, self._to_skip) if self._inside_epochs else self._place(epochs)
            steps = -(-length // self.batches_per_step)
            steps_done = -(-done // self.batches_per_step)  # the last one of an epoch may have had fewer batches
            self.num_steps = self.step + steps * ((self.num_epochs or 1) - epoch) - steps_done

    def _end(self) -> None:
        try:
            self._leave_unfinished_step()
            if self.world_size > 1:
                self._must_stop()  # a loop that was left early has not heard yet what others ask for
        except BaseException as error:
            self._fail(error)
            raise
        super()._end()

    def _leave_unfinished_step(self) -> None:
        """Record what was logged of batches that no update came of."""
        self._settle()
        if self._is_between_batches:
            self._write(*self.lifecycle.abandon())


def _random_file(rank: int) -> str:
    return f"random-rank{rank}.pt"

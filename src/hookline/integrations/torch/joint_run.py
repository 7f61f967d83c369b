"""`JointRun`: what runs over torch have in common: several processes, steps of several batches, an exact resume.

Checkpoints are saved by all processes together: `save_checkpoint` is called on each of them, `request_checkpoint` on
any. What one process cannot write fails on all, and leaves no half of a checkpoint. Each saves its random states and
its place in the data, so that a resume goes on as if there had been no interruption.

A step is one update of the weights. Where several batches make one, the moments of a batch are fired around each, and
the step with its row goes on until the update. Stops and checkpoints wait for it; a checkpoint that is saved before it
is one of the last update, and a resume does the batches since then again, with the random states that they had.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Unpack

from hookline._engine.errors import OptionError
from hookline._engine.metrics import plain
from hookline._engine.state import ManifestRow
from hookline.loops import checkpoint
from hookline.loops.checkpoint import read_tensors
from hookline.loops.data_position import Replay, length_of
from hookline.loops.options import LoopOptions
from hookline.loops.run import Run
from hookline.loops.sharded import write_tensors

logger = logging.getLogger("hookline")

B = TypeVar("B")


class StepStart(NamedTuple):
    """Where a step begins: what a checkpoint goes back to that is saved before its update."""

    place: dict[str, Any]
    replay: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PreparedCheckpoint:
    """A checkpoint that rank zero has begun to write, and that all processes complete at the step boundary."""

    aside: Path
    path: Path
    step: int
    metrics: dict[str, Any]


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
        self._updates = 0  # of the weights, in the step under way
        self._evaluates_first = False  # whether this loop evaluates before it updates, and a checkpoint rule monitors
        self._step_start: StepStart | None = None  # where a checkpoint may have to go back to
        self._unfinished: PreparedCheckpoint | None = None
        self._must_not_update = False  # until a checkpoint is saved of the weights that were evaluated

    @property
    @abstractmethod
    def batches_per_step(self) -> int:
        """How many batches make a step, as far as that is planned."""

    @abstractmethod
    def _has_updated(self) -> bool:
        """Whether the weights were updated since the last step."""

    def _completes_step(self) -> bool:
        """Whether the body that ends now is the last one of its step."""
        return self._has_updated()

    def _notes_step_starts(self) -> bool:
        """Whether a checkpoint may have to go back to where a step began."""
        return self.batches_per_step > 1 or self._evaluates_first

    @abstractmethod
    def _optimizers(self) -> Iterable[Any]:
        """The optimizers that fire `on_before_optimizer_step`, as torch has them."""

    @property
    def _is_between_batches(self) -> bool:
        """Whether some batches of a step are done and others, with its update, are not."""
        return self.lifecycle.is_open and self._step is None and self._logged_steps is None

    def begin(self) -> None:
        """Begin to record, and listen to the optimizers."""
        super().begin()
        optimizers = list(self._optimizers())
        self._listening = [each.register_step_pre_hook(self._before_update) for each in optimizers]
        self._listening += [each.register_step_post_hook(self._after_update) for each in optimizers]

    def finish(self, error: BaseException | None = None) -> None:
        """Close everything, and leave the optimizers as they were."""
        for handle in self._listening:
            handle.remove()
        super().finish(error)

    def save_checkpoint(self, path: str | Path | None = None, *, kind: str = "step") -> ManifestRow:
        """Save a checkpoint now, on all processes, and return its row."""
        went_back = self._goes_back
        self._goes_back = went_back or (self.batches_per_step > 1 and self.in_step and not self._has_updated())
        try:
            return super().save_checkpoint(path, kind=kind)
        finally:
            self._goes_back = went_back

    def evaluated_step(self, *, before_update: bool | None = None) -> int:
        """The completed steps of the weights that an evaluation measures if it is made now."""
        sees_updates = bool(self._listening)
        before = sees_updates and not self._updates if before_update is None else before_update
        return super().evaluated_step(before_update=before)

    def save_evaluated(self) -> None:
        """Save the weights that were just evaluated in the body of a step, before its update.

        Several processes can complete a checkpoint only at the step boundary. By then the weights have moved on, so
        rank zero writes them now, and the boundary adds the other processes' random states.

        Raises:
            OptionError: The weights cannot be written by one process alone.
        """
        # Noting the random states takes longer than the rest of a step boundary, so it begins with the first evaluation
        # that comes before an update. For that one, the states are those of now.
        if not self._notes_step_starts():
            self._step_start = StepStart({"epoch": self.epoch, **self._at.state()}, self._replay.state())
        self._evaluates_first = True
        if self.world_size == 1:
            super().save_evaluated()
            return
        self._require_whole_weights()
        self._goes_back = True
        try:
            self._unfinished = self._prepare() if self.rank == 0 else PreparedCheckpoint(Path(), Path(), self.step, {})
        finally:
            self._goes_back = False

    def _require_whole_weights(self) -> None:
        """Refuse to save evaluated weights that one process alone does not have, or cannot write."""
        raise OptionError(
            f"CheckpointCallback(monitor=...): the evaluation at step {self.step} was made before the update of the "
            "step under way. Several processes of this kind of run can save only after it, when the weights are no "
            "longer those that were evaluated. Evaluate after the update, or between two steps."
        )

    def _prepare(self) -> "PreparedCheckpoint":
        place = self._checkpoint_path(None, self.step)
        aside = checkpoint.make_partial(place, name=f".evaluated-{place.name}")
        self.callbacks.drain()
        self._save_common_files(aside)
        state = self._state(self.step)
        checkpoint.write_state(aside, place, state)
        return PreparedCheckpoint(aside, place, self.step, plain(dict(state["metrics"])))

    def _save_common_files(self, directory: Path) -> None:
        """Write what rank zero writes for all processes."""
        super()._save_files(directory)

    @property
    def _has_evaluated_to_save(self) -> bool:
        return self._unfinished is not None

    def _save_prepared(self) -> None:
        own, self._unfinished = self._unfinished, None
        prepared: PreparedCheckpoint | None = self.processes.share(own)
        if prepared is None:
            if own is not None:
                logger.warning(
                    "The weights evaluated at step %d are not saved: rank zero, which writes checkpoints, did not "
                    "evaluate them. Evaluate on rank zero, or after the update.",
                    own.step,
                )
            return
        self._share_checkpoint_requests(prepared.step)
        self.secure_record()
        aside = prepared.aside
        try:
            self.processes.all_do(lambda: self._save_random_states(aside, goes_back=True))
        except BaseException:
            checkpoint.discard(aside)
            raise
        row: ManifestRow = self.processes.from_rank_zero(
            lambda: checkpoint.seal(aside, prepared.path, prepared.metrics, step=prepared.step, kind="step")
        )
        self._saved(row)

    def answer_requests(self) -> None:
        """Save a checkpoint that was asked for; several processes do that together, at the step boundary."""
        if self.world_size == 1:
            super().answer_requests()

    def record_evaluation(self, name: str, metrics: dict[str, Any], *, step: int | None = None, **options: Any) -> None:
        """Record an evaluation, and note whether a checkpoint was requested of the weights that it measured."""
        requested_before = self.checkpoint_requested
        super().record_evaluation(name, metrics, step=step, **options)
        self._must_not_update = self.in_step and self.checkpoint_requested and not requested_before

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._must_not_update:
            raise OptionError(
                f"CheckpointCallback(monitor=...): step {self.step + 1} updates the weights again after the evaluation "
                "that a checkpoint was requested for, so the checkpoint would hold others than those evaluated. "
                "Evaluate after the last update of the step."
            )
        if self.in_step:
            self.callbacks.on_before_optimizer_step(self, optimizer)

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._updates += 1

    def secure_record(self) -> None:
        """Have what each rank recorded where a resume finds it; where one rank fails, all do."""
        self.processes.all_do(super().secure_record)

    def _write_checkpoint(self, place: Path, step: int, kind: str) -> ManifestRow:
        self.callbacks.drain()  # so that the states are those of all moments so far
        aside: Path = self.processes.from_rank_zero(lambda: checkpoint.make_partial(place))
        try:
            if self._is_sharded():
                self.processes.all_do(lambda: self._write_callback_shards(aside))
            self.processes.all_do(lambda: self._save_files(aside))
        except BaseException:
            checkpoint.discard(aside)
            raise
        row: ManifestRow = self.processes.from_rank_zero(
            lambda: checkpoint.complete(aside, place, self._state(step), step=step, kind=kind)
        )
        return row

    def _save_files(self, directory: Path) -> None:
        if self.rank == 0:
            self._save_common_files(directory)
        self._save_random_states(directory, goes_back=self._goes_back)

    def _save_random_states(self, directory: Path, *, goes_back: bool) -> None:
        write_tensors(self._replay_state(goes_back=goes_back), directory / _random_file(self.rank))

    def _replay_state(self, *, goes_back: bool) -> dict[str, Any]:
        if goes_back and self._step_start is not None:
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
        if self._notes_step_starts() and not self._is_between_batches:
            place = {"epoch": self.epoch, **self._at.state()}
            self._step_start = StepStart(place, self._replay.state(nothing_done=nothing_done))

    def _begin_step(self, batch: Any, batch_idx: int) -> None:
        if self._is_between_batches:
            self._step = (batch, batch_idx)
            self.callbacks.on_train_batch_start(self, batch, batch_idx)
        else:
            super()._begin_step(batch, batch_idx)

    def _end_step(self) -> None:
        if self._step is None or self._completes_step():
            self._must_not_update = False
            super()._end_step()
            return
        batch, batch_idx = self._step
        self.callbacks.on_train_batch_end(self, self.lifecycle.row, batch, batch_idx)
        self._step = None

    def after_step(self) -> None:
        """Record what other threads logged, and answer requests."""
        self._updates, self._must_not_update = 0, False
        super().after_step()

    def _must_stop(self) -> bool:
        return not self._is_between_batches and super()._must_stop()

    def _plan(self, batches: Any, epochs: int, total: int | None) -> None:
        super()._plan(batches, epochs, total)
        length = length_of(batches)
        if total is None and self.batches_per_step > 1 and length is not None:
            epoch, done = (self.epoch, self._to_skip) if self._inside_epochs else self._place(epochs)
            self._plan_updates(length, epoch, done)

    def _plan_updates(self, length: int, epoch: int, done: int) -> None:
        """Plan the steps of epochs of so many batches, from a place in one of them."""
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


def check_accumulation(accumulation: Any) -> None:
    """Refuse what is no number of batches.

    Raises:
        OptionError: It is not.
    """
    if isinstance(accumulation, bool) or not isinstance(accumulation, int) or accumulation < 1:
        raise OptionError(f"accumulation={accumulation!r}: give how many batches make a step, a whole number.")


def _random_file(rank: int) -> str:
    return f"random-rank{rank}.pt"

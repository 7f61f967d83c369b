"""`AccelerateRun`: `hl.run` for a loop over what an `Accelerator` has prepared.

A step is one update, whether ``accelerator.accumulate()`` or the loop itself decides when a prepared optimizer steps.
Checkpoints are Accelerate's own (``save_state``), in a
folder of hookline's, whatever the sharding; a resume (``load_state``) is exact, also in the middle of an epoch that is
shuffled. `on_before_optimizer_step` is fired by the prepared optimizers, when gradients are complete and unscaled.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

from accelerate import Accelerator

from hookline.core.errors import CheckpointError, OptionError
from hookline.integrations.accelerate.prepared_batches import PreparedReplay
from hookline.integrations.torch.joint_run import JointRun, check_accumulation
from hookline.loops.options import LoopOptions
from hookline.loops.place import length_of

FOLDER = "accelerate"
"""Where in a checkpoint the state of the accelerator lies."""


class AccelerateRun(JointRun):
    """Drives a loop of your own over what an accelerator has prepared.

    Args:
        accelerator: What prepared the model, the optimizer and the data; ``loop.native``.
        name: What the run is called.
        model, optimizer, scheduler: As ``accelerator.prepare()`` returned them, for callbacks; where the accelerator
            has prepared exactly one of a kind, that is it.
        accumulation: How many batches make a step in a loop that accumulates gradients without
            ``accelerator.accumulate()``. Left out, it is found out at the first update, and ``num_steps`` is right from
            there on.
        options: As for `hl.run`; what ``save`` writes and ``load`` reads comes in addition.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        name: str | None = None,
        *,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        accumulation: int | None = None,
        **options: Unpack[LoopOptions],
    ) -> None:
        _check(accelerator)
        if accumulation is not None:
            check_accumulation(accumulation)
        super().__init__(name, replay=PreparedReplay(), **options)
        self._accelerator = accelerator
        _require_processes(accelerator.num_processes, self.world_size)
        self._given = (model, optimizer, scheduler)
        self._accumulation = accumulation
        self._found: int | None = None  # how many batches make a step, as far as that was seen
        self._is_found = False
        self._batches_in_step = 0
        self._uses_accumulate = False
        self._planned_length: int | None = None

    @property
    def native(self) -> Any:
        """The accelerator."""
        return self._accelerator

    @property
    def batches_per_step(self) -> int:
        """How many batches make a step, as far as that is planned."""
        if self._accumulation is not None:
            return self._accumulation
        return max(int(self._accelerator.gradient_accumulation_steps), self._found or 1)

    def begin(self) -> None:
        """Begin to record, with what the accelerator has prepared by now."""
        model, self.optimizer, self.scheduler = map(_only, self._given, self._prepared())
        self.model = None if model is None else self._accelerator.unwrap_model(model)
        super().begin()

    def _prepared(self) -> tuple[list[Any], ...]:
        """The models, the optimizers and the schedules."""
        kinds = ("_models", "_optimizers", "_schedulers")
        return tuple(list(getattr(self._accelerator, kind, ())) for kind in kinds)

    def _optimizers(self) -> Iterable[Any]:
        own = (getattr(each, "optimizer", each) for each in self._prepared()[1])
        return [each for each in own if hasattr(each, "register_step_pre_hook")]  # others have their own engine

    def _has_updated(self) -> bool:
        return self._updates > 0 if self._listening else bool(self._accelerator.sync_gradients)

    def _completes_step(self) -> bool:
        synchronizes = bool(self._accelerator.sync_gradients)
        self._uses_accumulate = self._uses_accumulate or not synchronizes
        if not self._listening or (self._uses_accumulate and not self._updates):
            return synchronizes
        return self._has_updated() or (synchronizes and self._was_skipped())

    def _was_skipped(self) -> bool:
        """Whether the update was left out because gradients overflowed; Accelerate keeps saying so until the next."""
        skipped = any(getattr(each, "step_was_skipped", False) for each in self._prepared()[1])
        return skipped and self._batches_in_step >= self.batches_per_step

    def _notes_step_starts(self) -> bool:
        unknown = self._found is None and self._accumulation is None
        return unknown or super()._notes_step_starts()

    def _plan(self, batches: Any, epochs: int, total: int | None) -> None:
        super()._plan(batches, epochs, total)
        self._planned_length = None if total is not None else length_of(batches)

    def _end_step(self) -> None:
        if self._step is None:
            super()._end_step()
            return
        self._batches_in_step += 1
        super()._end_step()
        if self._is_between_batches:
            self._found = max(self._found or 1, 2)  # where a step begins is noted from here on
            return
        if self._batches_in_step > 1 and not self._is_found:
            self._is_found, self._found = True, self._batches_in_step
            if self.batches_per_step > 1 and self._planned_length is not None:
                self._plan_updates(self._planned_length, self.epoch, self._batches_done)
        self._found, self._batches_in_step = self._found or 1, 0

    def _save_files(self, directory: Path) -> None:
        with self._counted_from_the_update():
            self._accelerator.save_state(str(directory / FOLDER))
        super()._save_files(directory)

    @contextmanager
    def _counted_from_the_update(self) -> Iterator[None]:
        """What the accelerator counts of the batches of a step, without those that a resume does again."""
        counted = self._accelerator.step
        self._accelerator.step = 0 if self._goes_back else counted
        try:
            yield
        finally:
            self._accelerator.step = counted

    def _load_files(self, directory: Path) -> None:
        if not (directory / FOLDER).is_dir():
            raise CheckpointError(f"{directory / FOLDER} is missing: that checkpoint was saved by another kind of run.")
        try:
            self._accelerator.load_state(str(directory / FOLDER))
        except Exception as error:
            why = str(error).partition("\n")[0]
            raise CheckpointError(f"Accelerate cannot load {directory / FOLDER}: {why}") from error
        super()._load_files(directory)


run = AccelerateRun


def _check(accelerator: Any) -> None:
    if not isinstance(accelerator, Accelerator):
        raise OptionError(f"accelerator={accelerator!r}: give an accelerate.Accelerator.")
    if accelerator.project_configuration.automatic_checkpoint_naming:
        raise OptionError(
            "The accelerator names its checkpoints itself (automatic_checkpoint_naming=True), and would save elsewhere "
            "than in the run's directory. Leave that off: hookline numbers them, and a CheckpointCallback limits them."
        )


def _require_processes(prepared_for: int, here: int) -> None:
    if prepared_for != here:
        raise OptionError(
            f"Accelerate was set up for {prepared_for} processes, and torch.distributed connects {here}: connect them, "
            "with a launcher or init_process_group(), before anything makes an Accelerator."
        )


def _only(given: Any, prepared: list[Any]) -> Any:
    """What was given, or the only one that was prepared."""
    return prepared[0] if given is None and len(prepared) == 1 else given

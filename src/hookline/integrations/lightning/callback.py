"""`HooklineCallback`: turns the events of a Lightning trainer into moments, and requests into the trainer's settings.

- A step is one optimizer update. With accumulation it starts with its first batch and ends with the last, at which the
  trainer's ``global_step`` increases. Its row has the step's ``loss`` (the mean over its batches) and what was logged
  with ``self.log`` since the previous step, with Lightning's names and values.
- `on_train_batch_end` comes after `on_before_optimizer_step`, as in Lightning, which has the outputs only then.
- The sanity check before a training is not a validation: nothing fires.
- A stop sets ``trainer.should_stop``. A checkpoint is saved with ``trainer.save_checkpoint`` at the end of the step, or
  at once outside of steps and validations. A requested validation follows the same step.
- The callbacks' states are in every checkpoint that Lightning saves with more than the weights. A fit from one
  continues its run; so does a second fit of the same trainer.
- ``trainer.validate()`` and ``trainer.test()`` fire the moments of a validation, in the run of the training if there
  was one.

Strategies that start processes by pickling the trainer (``ddp_spawn``) are not supported: the callback holds a journal.
"""

import logging
import shutil
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, Unpack

from hookline._engine.defaults import NAME
from hookline._engine.errors import DuplicateError
from hookline._engine.state import ManifestRow
from hookline._engine.state_encoding import decode, encode
from hookline.integrations.host_loop import HostLoop
from hookline.integrations.lightning.logger import FRAMEWORK, HooklineLogger, LoggedMetrics, with_hookline_names
from hookline.loops.options import RunOptions
from hookline.loops.signals import is_signal

logger = logging.getLogger("hookline")


class HooklineCallback(FRAMEWORK.Callback):  # type: ignore[misc]
    """Fires hookline's moments in a Lightning trainer.

    Args:
        callbacks, name, options: As for every run of hookline.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
        is_recording: Whether the run has begun and not ended, including its last moments.
    """

    def __init__(
        self,
        callbacks: Iterable[Any] = (),
        *,
        name: str = NAME,
        **options: Unpack[RunOptions],
    ) -> None:
        self.loop = HostLoop(name, native=None, save=self._save, callbacks=callbacks, **options)
        self.loop.cannot = self._cannot
        self.is_recording = False
        self._checkpoint_listener = CheckpointListener(self._checkpoint_saved)
        self._validation = ValidationRequest()
        self._logged = LoggedMetrics()
        self._loss = StepLoss()
        self._step_metrics: dict[str, Any] = {}  # logged in the current step, before a validation
        self._saved_state: dict[str, Any] | None = None
        self._saved: ManifestRow | None = None
        self._pending_checkpoints: list[Path] = []
        self._has_state = self._epoch_is_open = False
        self._trained_module: Any = None  # the module of the last fit
        self._global_step = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if sum(isinstance(each, HooklineCallback) for each in trainer.callbacks) > 1:
            raise DuplicateError(
                "This trainer has two HooklineCallbacks: give all callbacks to one of them, HooklineCallback([...])."
            )
        self._saved_state = None
        self._logged.clear()
        self._checkpoint_listener.begin(trainer)
        for each in trainer.loggers:
            if isinstance(each, HooklineLogger):
                each.join_run(self)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self.is_recording:  # there was nothing to train
            self._end()
        self._checkpoint_listener.end()

    def state_dict(self) -> dict[str, Any]:
        if not self._has_state:
            return {}
        # Lightning loads checkpoints without running their code, so they may hold only plain values and tensors.
        state: dict[str, Any] = encode(self.loop.state_dict(step=self._steps_done()))
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved_state = decode(state_dict)

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin(trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not self.is_recording:
            self._begin(trainer, pl_module)
        self._use_trainer(trainer, pl_module)  # the optimizers may differ from those at the sanity check
        loop, max_epochs = self.loop, trainer.max_epochs
        loop.train_start(
            step=loop.step,
            epoch=trainer.current_epoch,
            num_steps=_planned_steps(trainer) if pl_module.automatic_optimization else None,
            num_epochs=max_epochs if max_epochs is not None and max_epochs >= 0 else None,
        )

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._log_rest(trainer)
        self._epoch_is_open = True
        self.loop.epoch_start(trainer.current_epoch)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._validation.withdraw()
        if not self._epoch_is_open:  # a fit that resumes in the middle of an epoch
            self.on_train_epoch_start(trainer, pl_module)
        if not self.loop.in_step:
            self._log_rest(trainer)  # values that one of the module's hooks logged after the last step
            self.loop.step_start()
        self.loop.batch_start(batch, batch_idx)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.loop.before_optimizer_step(optimizer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.loop.batch_end(outputs, batch)
        self._loss.add(outputs)
        if trainer.global_step == self._global_step:
            return  # gradients accumulate
        self._global_step = trainer.global_step
        divided_by = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        logged, self._step_metrics = self._step_metrics | self._logged.take_new(trainer), {}
        self.loop.step_end(batch, self._loss.take(divided_by) | logged)
        self._apply_requests(trainer, can_validate=True)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._epoch_is_open = False
        self._log_rest(trainer)
        self.loop.epoch_end()
        self._apply_requests(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._validation.withdraw()
        self._log_rest(trainer)  # values that the module logged at the end of the last epoch, after its callbacks
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._validation.withdraw()
        try:
            self.loop.failed(exception)
        finally:
            self.is_recording = False
            self._checkpoint_listener.end()  # Lightning does not call teardown after an error

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return
        self._validation.withdraw()
        if not self.is_recording:
            self._use_trainer(trainer, pl_module)
            self.loop.begin(trains=False)
            self.loop.start()
            self.is_recording = True
        elif self.loop.in_step:  # between the batches of a step
            self._step_metrics |= self._logged.take_new(trainer)
        else:
            self._log_rest(trainer)
        self.loop.validation_start()

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if not trainer.sanity_checking:
            self.loop.validation_batch_start(batch)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if trainer.sanity_checking:
            return
        self.loop.validation_batch_end(outputs, batch)
        reason = self.loop.stop_reason
        if trainer.state.fn != "fit" and reason is not None and is_signal(reason):
            raise KeyboardInterrupt(reason)  # the only way to stop an evaluation in Lightning

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._end_evaluation(trainer, "val")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self.on_validation_start(trainer, pl_module)

    def on_test_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.on_validation_batch_start(trainer, pl_module, batch, batch_idx)

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.on_validation_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._end_evaluation(trainer, "test")

    def has_recorded(self, name: str) -> bool:
        """Check whether this callback itself records a metric that a logger receives."""
        return name == "epoch" or name in self.loop.native.callback_metrics

    def _use_trainer(self, trainer: Any, pl_module: Any) -> None:
        loop, schedulers = self.loop, trainer.lr_scheduler_configs
        loop.native, loop.model = trainer, pl_module
        loop.rank, loop.world_size = trainer.global_rank, trainer.world_size
        loop.ctx.rank = loop.rank
        loop.optimizer = trainer.optimizers[0] if trainer.optimizers else None
        loop.scheduler = schedulers[0].scheduler if schedulers else None

    def _begin(self, trainer: Any, pl_module: Any) -> None:
        self._use_trainer(trainer, pl_module)
        state, row = self._saved_state, None
        if trainer.ckpt_path is not None:
            row = self.loop.checkpoint_row(trainer.ckpt_path, step=trainer.global_step)
            if state is None:
                logger.warning("%s holds no state of callbacks: they start without it.", trainer.ckpt_path)
        elif pl_module is self._trained_module and 0 < trainer.global_step == self._global_step:
            state = self.loop.state_dict()  # the same trainer continues with the same module
        self._logged.clear()
        self._loss, self._step_metrics, self._pending_checkpoints = StepLoss(), {}, []
        self._epoch_is_open = False
        self._trained_module, self._global_step = pl_module, trainer.global_step
        self._saved_state = None
        self.loop.begin(state=state, row=row)
        self.is_recording = self._has_state = True
        if (
            state is None or pl_module.automatic_optimization
        ):  # otherwise each of several optimizers counts in global_step
            self.loop.step = trainer.global_step

    def _end_evaluation(self, trainer: Any, name: str) -> None:
        trains = trainer.state.fn == "fit"
        trained_steps, saved = self.loop.step, self._saved_state
        if not trains and saved is not None:
            self.loop.step = saved["step"]  # the step of the evaluated checkpoint
        self.loop.validation_end(name, with_hookline_names(self._logged.take_new(trainer), name))
        self.loop.step = trained_steps
        if trains:
            self._apply_requests(trainer)
        else:
            self._end()

    def _end(self) -> None:
        try:
            self.loop.train_end()
        finally:
            self.is_recording = False

    def _log_rest(self, trainer: Any) -> None:
        """Record values logged after the last step, such as the means of an epoch."""
        rest = self._logged.take_new(trainer)
        if rest:
            self.loop.host_log(rest, step=self.loop.step)

    def _cannot(self, command: str) -> str | None:
        """Return why Lightning cannot apply a command, or None."""
        trainer = self.loop.native
        if command != "validate" or (trainer.enable_validation and trainer.val_check_batch is not None):
            return None
        return "The trainer validates by time." if trainer.enable_validation else "The trainer has no validation data."

    def _apply_requests(self, trainer: Any, *, can_validate: bool = False) -> None:
        requests = self.loop.requests()
        if requests.stop is not None:
            trainer.should_stop = True
        if requests.validation and can_validate:
            self._validation.make(trainer)
        elif requests.validation:
            self.loop.request_validation()  # after the next step
        if requests.checkpoint and self.loop.in_step:
            self.loop.request_checkpoint()  # this validation is between the batches of a step
        elif requests.checkpoint:
            self._save_pending(trainer)

    def _save(self, path: Path | None) -> ManifestRow:
        target = path or self._default_path()
        if self.loop.in_step or self.loop.is_validating:
            self._pending_checkpoints.append(target)
            self.loop.request_checkpoint()
            return self.loop.checkpoint_row(target)
        self.loop.native.save_checkpoint(target, weights_only=False)
        return self._saved or self.loop.checkpoint_row(target)

    def _save_pending(self, trainer: Any) -> None:
        # All processes have to save together, but only some may have requested a copy: save once, then copy.
        paths, self._pending_checkpoints = self._pending_checkpoints or [self._default_path()], []
        trainer.save_checkpoint(paths[0], weights_only=False)
        for copy in paths[1:]:
            if self.loop.rank == 0 and copy != paths[0]:
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copytree(paths[0], copy) if paths[0].is_dir() else shutil.copy2(paths[0], copy)
            self._checkpoint_saved(copy)

    def _default_path(self) -> Path:
        step = self.loop.step + self.loop.in_step
        directory = self.loop.output_dir or Path(self.loop.native.default_root_dir)
        return directory / "checkpoints" / f"step-{step:08d}.ckpt"

    def _checkpoint_saved(self, path: Any) -> None:
        if self.is_recording:
            self._saved = self.loop.checkpoint_saved(path, step=self._steps_done())

    def _steps_done(self) -> int:
        """Count the completed steps, including one whose end Lightning has not reported to this callback yet."""
        loop = self.loop
        return loop.step + (loop.in_step and loop.native.global_step != self._global_step)


class StepLoss:
    """Computes the loss of a step from those of its batches, on the device.

    Lightning reports each batch's loss divided by the number of accumulated batches. The mean over a step's batches is
    that of the original losses.
    """

    def __init__(self) -> None:
        self._sum: Any = None
        self._batches = 0

    def add(self, outputs: Any) -> None:
        """Add the outputs of a batch."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else None
        if loss is not None:
            self._sum = loss if self._sum is None else self._sum + loss
            self._batches += 1

    def take(self, divided_by: int) -> dict[str, Any]:
        """Return the step's loss as a metric, if its batches had one, and start the next step.

        Args:
            divided_by: The divisor of each loss.
        """
        total, batches = self._sum, self._batches
        self._sum, self._batches = None, 0
        if total is None:
            return {}
        return {"loss": total if batches == divided_by else total * divided_by / batches}


class ValidationRequest:
    """Makes a trainer validate after the current batch, by changing its settings for that batch.

    Lightning decides after each batch whether to validate, by ``val_check_batch`` (every N batches) and
    ``check_val_every_n_epoch``. A trainer that validates by time looks at neither, so it cannot be asked.
    """

    def __init__(self) -> None:
        self._trainer: Any = None
        self._previous: dict[str, Any] = {}

    def make(self, trainer: Any) -> None:
        """Request a validation; call `withdraw` when it starts, or with the next batch."""
        if not trainer.enable_validation or trainer.val_check_batch is None:
            reason = "the trainer has no validation data, or the module no validation_step"
            reason = "the trainer validates by time" if trainer.enable_validation else reason
            logger.warning("A requested validation is not possible now: %s.", reason)
            return
        self.withdraw()
        self._trainer = trainer
        self._previous = {name: getattr(trainer, name) for name in ("val_check_batch", "check_val_every_n_epoch")}
        trainer.val_check_batch = 1
        if trainer.check_val_every_n_epoch is not None:
            trainer.check_val_every_n_epoch = 1

    def withdraw(self) -> None:
        """Restore the trainer's settings."""
        for name, value in self._previous.items():
            setattr(self._trainer, name, value)
        self._trainer, self._previous = None, {}


class CheckpointListener:
    """Reports every checkpoint that a trainer saves, with its path.

    Lightning reports to callbacks that a checkpoint is about to be made, but neither its path nor its completion. All
    checkpoints go through the trainer's public ``save_checkpoint``, which is wrapped during a fit.

    Args:
        on_saved: Called with the path of a saved checkpoint, on every process.
    """

    def __init__(self, on_saved: Callable[[Any], None]) -> None:
        self._on_saved = on_saved
        self._trainer: Any = None
        self._wrapper: Any = None
        self._previous: dict[str, Any] = {}

    def begin(self, trainer: Any) -> None:
        """Wrap the method of a trainer."""
        self.end()
        save = trainer.save_checkpoint

        @wraps(save)
        def save_checkpoint(filepath: Any, *args: Any, **options: Any) -> None:
            save(filepath, *args, **options)
            if self._wrapper is save_checkpoint:
                self._on_saved(filepath)

        # Another wrapper may already be among the instance's attributes.
        self._previous = {"save_checkpoint": save} if "save_checkpoint" in vars(trainer) else {}
        self._trainer, self._wrapper = trainer, save_checkpoint
        trainer.save_checkpoint = save_checkpoint

    def end(self) -> None:
        """Restore the method, unless it was wrapped again since; that wrapper stays and reports nothing."""
        trainer, wrapper = self._trainer, self._wrapper
        self._trainer = self._wrapper = None
        if trainer is not None and vars(trainer).get("save_checkpoint") is wrapper:
            del trainer.save_checkpoint
            vars(trainer).update(self._previous)


def _planned_steps(trainer: Any) -> int | None:
    try:
        planned = trainer.estimated_stepping_batches
    except Exception:  # Lightning refuses if the accumulation changes between epochs
        return None
    return None if planned == float("inf") else int(planned)

"""`HooklineCallback`: tells a `HostLoop` what happens in a Lightning trainer, and the trainer what was asked for.

- A step is one optimizer update. Under accumulation it begins with its first batch and ends with the last, at which
  the trainer's ``global_step`` moves. Its row has the step's ``loss`` (the mean over its batches) and what was logged
  with ``self.log`` since the last one, by Lightning's names and with its values.
- `on_train_batch_end` comes behind `on_before_optimizer_step`, as in Lightning, which knows the outputs only then.
- The sanity check before a training is no validation: nothing fires.
- A stop is ``trainer.should_stop``. A checkpoint is saved by ``trainer.save_checkpoint`` at the end of the step, or at
  once where no step and no validation is under way. A validation that is asked for comes behind the same step.
- The callbacks' states are in every checkpoint that Lightning saves with more than the weights. A fit from one goes
  on in its run; so does a second fit of the same trainer.
- ``trainer.validate()`` and ``trainer.test()`` fire the moments of a validation, in the run of the training if there
  was one.

Strategies that start their processes by pickling the trainer (``ddp_spawn``) cannot take it: it holds a journal.

`StepLoss`: the loss of a step from those of its batches.

`ValidationRequest`: a validation in the middle of a training, by the trainer's own settings.

Lightning decides after each batch whether to validate, by ``val_check_batch`` (every so many batches) and
``check_val_every_n_epoch``. For one batch they say "every", and then again what they said before. A trainer that
validates by time looks at neither: it cannot be asked.

`CheckpointWatch`: hears of every checkpoint that a trainer saves, and where.

Lightning tells callbacks that a checkpoint is about to be made, and neither its path nor when it is there. All of
them, whoever asks (`ModelCheckpoint`, this bridge, a user), go through the trainer's public ``save_checkpoint``: for
the length of a fit, that method of this one trainer also says so.
"""

import logging
import shutil
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, Unpack

from hookline._engine.encoding import decode, encode
from hookline._engine.errors import DuplicateError
from hookline._engine.state import ManifestRow
from hookline.integrations.host_loop import HostLoop
from hookline.integrations.lightning.logger import FRAMEWORK, HooklineLogger, LoggedMetrics, also_as_ours
from hookline.loops.options import RunOptions
from hookline.loops.signals import is_signal


class StepLoss:
    """Adds up, on the device, what the batches of one optimizer update gave.

    Lightning gives out each batch's loss divided by the number of batches that gradients are accumulated over: the mean
    over the batches of a step is that of the losses as they were.
    """

    def __init__(self) -> None:
        self._sum: Any = None
        self._batches = 0

    def add(self, outputs: Any) -> None:
        """A batch is done."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else None
        if loss is not None:
            self._sum = loss if self._sum is None else self._sum + loss
            self._batches += 1

    def take(self, divided_by: int) -> dict[str, Any]:
        """The step's loss as a metric, if its batches had one; the next step begins.

        Args:
            divided_by: What each loss was divided by.
        """
        total, batches = self._sum, self._batches
        self._sum, self._batches = None, 0
        if total is None:
            return {}
        return {"loss": total if batches == divided_by else total * divided_by / batches}


logger = logging.getLogger("hookline")

_SETTINGS = ("val_check_batch", "check_val_every_n_epoch")


class ValidationRequest:
    """Has a trainer validate behind the batch under way."""

    def __init__(self) -> None:
        self._trainer: Any = None
        self._before: dict[str, Any] = {}

    def make(self, trainer: Any) -> None:
        """Ask for it; `withdraw` is due when it begins, or with the next batch."""
        why = _why_not(trainer)
        if why is not None:
            logger.warning("A validation was asked for, and there is none now: %s.", why)
            return
        self.withdraw()
        self._trainer = trainer
        self._before = {name: getattr(trainer, name) for name in _SETTINGS}
        trainer.val_check_batch = 1
        if trainer.check_val_every_n_epoch is not None:
            trainer.check_val_every_n_epoch = 1

    def withdraw(self) -> None:
        """Give the trainer its settings back."""
        for name, value in self._before.items():
            setattr(self._trainer, name, value)
        self._trainer, self._before = None, {}


def _why_not(trainer: Any) -> str | None:
    if not trainer.enable_validation:
        return "the trainer has no validation data, or the module no validation_step"
    return "the trainer validates by time" if trainer.val_check_batch is None else None


class CheckpointWatch:
    """Watches one trainer at a time.

    Args:
        tell: Called with the path of a checkpoint when it is saved, on every process.
    """

    def __init__(self, tell: Callable[[Any], None]) -> None:
        self._tell = tell
        self._trainer: Any = None
        self._ours: Any = None
        self._before: dict[str, Any] = {}

    def begin(self, trainer: Any) -> None:
        """Watch this trainer."""
        self.end()
        save = trainer.save_checkpoint

        @wraps(save)
        def save_checkpoint(filepath: Any, *args: Any, **options: Any) -> None:
            save(filepath, *args, **options)
            if self._ours is save_checkpoint:
                self._tell(filepath)

        # somebody else may have put a method there as well
        self._before = {"save_checkpoint": save} if "save_checkpoint" in vars(trainer) else {}
        self._trainer, self._ours = trainer, save_checkpoint
        trainer.save_checkpoint = save_checkpoint

    def end(self) -> None:
        """Leave the trainer as it was; what somebody has put around the method since stays, and is told no more."""
        trainer, ours = self._trainer, self._ours
        self._trainer = self._ours = None
        if trainer is not None and vars(trainer).get("save_checkpoint") is ours:
            del trainer.save_checkpoint
            vars(trainer).update(self._before)


class HooklineCallback(FRAMEWORK.Callback):  # type: ignore[misc]
    """Fires the moments of hookline in a Lightning trainer.

    Args:
        callbacks, name, options: As for every run of hookline.

    Attributes:
        loop: What callbacks are given, and the run: ``loop.dir``, ``loop.history``.
    """

    def __init__(
        self,
        callbacks: Iterable[Any] = (),
        *,
        name: str = "run",
        **options: Unpack[RunOptions],
    ) -> None:
        self.loop = HostLoop(name, native=None, save=self._save, callbacks=callbacks, **options)
        self.is_recording = False
        """Whether the run has begun and not ended, its last moments included."""
        self._watch = CheckpointWatch(self._tell_saved)
        self._validation = ValidationRequest()
        self._logged = LoggedMetrics()
        self._loss = StepLoss()
        self._of_step: dict[str, Any] = {}  # what was logged in the step under way, before a validation
        self._saved_state: dict[str, Any] | None = None
        self._saved: ManifestRow | None = None
        self._owed: list[Path] = []
        self._has_state = self._epoch_is_open = False
        self._trained: Any = None  # the module of the last fit
        self._global_step = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        _check_that_it_is_alone(trainer)
        self._saved_state = None
        self._logged.forget()
        self._watch.begin(trainer)
        for each in trainer.loggers:
            if isinstance(each, HooklineLogger):
                each.join(self)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self.is_recording:  # a fit that had nothing to train
            self._end()
        self._watch.end()

    def state_dict(self) -> dict[str, Any]:
        if not self._has_state:
            return {}
        # Lightning's checkpoints are read without running code of theirs: nothing but plain values and tensors.
        state: dict[str, Any] = encode(self.loop.state_dict(step=self._steps_done()))
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved_state = decode(state_dict)

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin(trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not self.is_recording:
            self._begin(trainer, pl_module)
        self._meet(trainer, pl_module)  # the optimizers may be others than at the sanity check
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
        if not self._epoch_is_open:  # a fit that goes on in the middle of an epoch
            self.on_train_epoch_start(trainer, pl_module)
        if not self.loop.in_step:
            self._log_rest(trainer)  # what the module logged behind the last step, in a hook of its own
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
        logged, self._of_step = self._of_step | self._logged.take(trainer), {}
        self.loop.step_end(batch, self._loss.take(divided_by) | logged)
        self._answer(trainer, validates=True)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._epoch_is_open = False
        self._log_rest(trainer)
        self.loop.epoch_end()
        self._answer(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._validation.withdraw()
        self._log_rest(trainer)  # what the module logged at the end of the last epoch, behind its callbacks
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._validation.withdraw()
        try:
            self.loop.failed(exception)
        finally:
            self.is_recording = False
            self._watch.end()  # nothing is torn down after an error

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return
        self._validation.withdraw()
        if not self.is_recording:
            self._begin_evaluation(trainer, pl_module)
        elif self.loop.in_step:  # among the batches of a step
            self._of_step |= self._logged.take(trainer)
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
            raise KeyboardInterrupt(reason)  # Lightning's only way out of an evaluation

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
        """Whether a metric that a logger is given is one that this callback records by itself."""
        return name == "epoch" or name in self.loop.native.callback_metrics

    def _meet(self, trainer: Any, pl_module: Any) -> None:
        """Know the parts of a trainer as they are now."""
        loop, schedulers = self.loop, trainer.lr_scheduler_configs
        loop.native, loop.model = trainer, pl_module
        loop.rank, loop.world_size = trainer.global_rank, trainer.world_size
        loop.ctx.rank = loop.rank
        loop.optimizer = trainer.optimizers[0] if trainer.optimizers else None
        loop.scheduler = schedulers[0].scheduler if schedulers else None

    def _begin(self, trainer: Any, pl_module: Any) -> None:
        self._meet(trainer, pl_module)
        state, row = self._saved_state, None
        if trainer.ckpt_path is not None:
            row = self.loop.checkpoint_row(trainer.ckpt_path, step=trainer.global_step)
            if state is None:
                logger.warning("%s holds no state of callbacks: they start anew.", trainer.ckpt_path)
        elif pl_module is self._trained and 0 < trainer.global_step == self._global_step:
            state = self.loop.state_dict()  # the same trainer goes on with the same module
        self._logged.forget()
        self._loss, self._of_step, self._owed = StepLoss(), {}, []
        self._epoch_is_open = False
        self._trained, self._global_step = pl_module, trainer.global_step
        self._saved_state = None
        self.loop.begin(state=state, row=row)
        self.is_recording = self._has_state = True
        if state is None or pl_module.automatic_optimization:  # otherwise each of several optimizers counts there
            self.loop.step = trainer.global_step

    def _begin_evaluation(self, trainer: Any, pl_module: Any) -> None:
        """Only evaluate, in the run of the training before if there was one."""
        self._meet(trainer, pl_module)
        self.loop.begin(trains=False)
        self.loop.start()
        self.is_recording = True

    def _end_evaluation(self, trainer: Any, name: str) -> None:
        trains = trainer.state.fn == "fit"
        trained_to, saved = self.loop.step, self._saved_state
        if not trains and saved is not None:
            self.loop.step = saved["step"]  # it is this checkpoint that was evaluated
        self.loop.validation_end(name, also_as_ours(self._logged.take(trainer), name))
        self.loop.step = trained_to
        if trains:
            self._answer(trainer)
        else:
            self._end()

    def _end(self) -> None:
        try:
            self.loop.train_end()
        finally:
            self.is_recording = False

    def _log_rest(self, trainer: Any) -> None:
        """Record what was logged behind the last step: the means of an epoch."""
        rest = self._logged.take(trainer)
        if rest:
            self.loop.host_log(rest, step=self.loop.step)

    def _answer(self, trainer: Any, *, validates: bool = False) -> None:
        """Do what callbacks asked for; a validation that cannot be had here comes behind the next step."""
        asked = self.loop.requests()
        if asked.stop is not None:
            trainer.should_stop = True
        if asked.validation and validates:
            self._validation.make(trainer)
        elif asked.validation:
            self.loop.request_validation()
        if asked.checkpoint and self.loop.in_step:
            self.loop.request_checkpoint()  # a validation among the batches of a step
        elif asked.checkpoint:
            self._save_what_is_owed(trainer)

    def _save(self, path: Path | None) -> ManifestRow:
        place = path or self._usual_place()
        if self.loop.in_step or self.loop.is_validating:
            self._owed.append(place)
            self.loop.request_checkpoint()
            return self.loop.checkpoint_row(place)
        self.loop.native.save_checkpoint(place, weights_only=False)
        return self._saved or self.loop.checkpoint_row(place)

    def _save_what_is_owed(self, trainer: Any) -> None:
        """Save once, whoever asked: all processes have to save together, and only some of them may owe a copy."""
        places, self._owed = self._owed or [self._usual_place()], []
        trainer.save_checkpoint(places[0], weights_only=False)
        for copy in places[1:]:
            if self.loop.rank == 0 and copy != places[0]:
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copytree(places[0], copy) if places[0].is_dir() else shutil.copy2(places[0], copy)
            self._tell_saved(copy)

    def _usual_place(self) -> Path:
        step = self.loop.step + self.loop.in_step
        home = self.loop.output_dir or Path(self.loop.native.default_root_dir)
        return home / "checkpoints" / f"step-{step:08d}.ckpt"

    def _tell_saved(self, path: Any) -> None:
        if self.is_recording:
            self._saved = self.loop.checkpoint_saved(path, step=self._steps_done())

    def _steps_done(self) -> int:
        """The completed steps, with one whose end Lightning has told to others and not to this callback yet."""
        loop = self.loop
        return loop.step + (loop.in_step and loop.native.global_step != self._global_step)


def _check_that_it_is_alone(trainer: Any) -> None:
    if sum(isinstance(each, HooklineCallback) for each in trainer.callbacks) > 1:
        raise DuplicateError(
            "This trainer has two HooklineCallbacks: give all callbacks to one of them, HooklineCallback([...])."
        )


def _planned_steps(trainer: Any) -> int | None:
    try:
        planned = trainer.estimated_stepping_batches
    except Exception:  # it refuses where the accumulation changes between epochs
        return None
    return None if planned == float("inf") else int(planned)

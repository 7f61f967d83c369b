"""`HooklineCallback`: turns a Hugging Face trainer's events into moments, and requests into control flags.

Use `attach`, which also observes the trainer itself. On its own, among the trainer's ``callbacks=``, it sees only what
Hugging Face reports to callbacks: no batches, no outputs, no loss of steps that are not logged, no errors, and
gradients only after clipping.

Hugging Face ends a step before it logs the step's loss. A step that is about to be logged therefore ends here when its
log arrives, which is still before an evaluation, a checkpoint and the next step: `on_step_end` has the loss, and what
callbacks derive from it is in the same row. Likewise an epoch ends here after the evaluation that belongs to it, so
`on_train_epoch_end` has its metrics.

Metrics keep their names. Those of evaluations are also recorded under hookline's names, so that
``EarlyStopping("val/loss")`` works everywhere: ``eval_loss`` is ``val/loss``; ``eval_short_loss``, of a data set
"short" among several, is ``val/short/loss``; with another prefix, ``test_loss`` is ``test/loss``. A ``loss`` logged for
several steps is their mean and recorded as ``loss_mean``: ``loss`` is that of one step.
"""

import logging
import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from hookline._engine.defaults import NAME
from hookline._engine.errors import CheckpointError
from hookline._engine.metrics import PLAIN, MediaValue, plain
from hookline._engine.state import ManifestRow
from hookline.integrations import host_loop
from hookline.integrations.host_loop import HostLoop
from hookline.loops.options import RunOptions

logger = logging.getLogger("hookline")

PREFIX = "eval"
"""Hugging Face's default prefix of evaluation metrics."""
VALIDATION = "val"
"""hookline's name of that evaluation."""
_RUNTIME = "_runtime"
_SPEED = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


def recordable(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert logged values to numbers and strings; media are kept."""
    plain_logs = {str(name): plain(value) for name, value in logs.items()}
    return {
        name: value if type(value) in PLAIN or isinstance(value, MediaValue) else str(value)
        for name, value in plain_logs.items()
        if name
    }


def evaluation_metrics(metrics: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of an evaluation, and its metrics under their own names and under hookline's."""
    prefix = next((name.removesuffix(_RUNTIME) for name in metrics if name.endswith(_RUNTIME)), PREFIX)
    head, _, data_set = prefix.partition("_")
    evaluation = prefix if head != PREFIX else f"{VALIDATION}/{data_set}" if data_set else VALIDATION
    start = f"{prefix}_"
    ours = {name.removeprefix(start): value for name, value in metrics.items() if name.startswith(start)}
    named = {f"{evaluation}/{name}": value for name, value in ours.items() if name not in _SPEED}
    return evaluation, {**metrics, **named}


@dataclass(slots=True)
class CurrentStep:
    """The current optimizer update, as far as it is known before Hugging Face reports its end.

    Attributes:
        ended_at: The number of completed steps, while the step is complete and waits for its log.
        batch: Its last batch.
        loss: The sum of the batches' shares, which is the step's loss; on its device.
        logged: What was logged before it ended.
        before_optimizer_fired: Whether `on_before_optimizer_step` has fired.
    """

    ended_at: int | None = None
    batch: Any = None
    loss: Any = None
    logged: dict[str, Any] = field(default_factory=dict)
    before_optimizer_fired: bool = False


class HooklineCallback(TrainerCallback):  # type: ignore[misc]
    """Fires hookline's moments in a Hugging Face trainer.

    Args:
        callbacks, name, options: As for every run of hookline.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
        trainer: The trainer, if `attach` was used.
        resumes_from: The checkpoint that a training resumes from, if it is known.
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
        self.trainer: Any = None
        self.attachment: Any = None
        self.resumes_from: str | None = None
        self._args: Any = None
        self._checkpoints = Checkpoints(self.loop, None, ".")
        self._step = CurrentStep()
        self._logged_at = 0
        self._epochs = 0
        self._evaluations_left = 0  # until the epoch ends
        self._only_validates = False

    @property
    def is_attached(self) -> bool:
        """Whether it also observes the trainer's methods."""
        return self.trainer is not None

    def detach(self) -> None:
        """Undo `attach`."""
        if self.is_attached:
            self.attachment.remove()
            self.trainer.remove_callback(self)
            self.trainer = self.attachment = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.loop.failed(RuntimeError("the trainer started again before it had ended"))
        self._use_trainer(args, **kwargs)
        self._checkpoints = Checkpoints(self.loop, self.trainer, args.output_dir)
        self._step, self._logged_at, self._epochs = CurrentStep(), state.global_step, 0
        self._only_validates, self._evaluations_left = False, 0
        default = self._checkpoints.path(state.global_step)
        saved = default if state.global_step > 0 and default.is_dir() else None
        if self.resumes_from is not None:
            saved = Path(self.resumes_from)
        row = None if saved is None else self.loop.checkpoint_row(saved, step=state.global_step)
        self.loop.begin(state=None if saved is None else host_loop.load(saved), row=row)
        self.loop.train_start(
            step=state.global_step,
            epoch=int(state.epoch or 0),
            num_steps=state.max_steps,
            num_epochs=state.num_train_epochs,
        )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_waiting_epoch(control)
        self._epochs += 1
        self._checkpoints.at_boundary = False
        if self._epochs > 1:
            self.loop.epoch_start(self.loop.epoch + 1)
        else:
            done = _batches_done(args, state, kwargs.get("train_dataloader"))
            self.loop.epoch_start(int(state.epoch or 0), batches_done=done)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_waiting_step(control)
        self._checkpoints.at_boundary = False
        if self.loop.in_step:
            return  # the gradients of the previous epoch's last batches belong to this step
        self._step = CurrentStep()
        self.loop.step_start()
        if not self.is_attached:
            self.loop.batch_start()

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.is_attached:
            self.loop.batch_end()
            self.loop.batch_start()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.is_attached:
            self.loop.batch_end()
        if not self._step.before_optimizer_fired:
            # Hugging Face has clipped by now; the grad_norm that it logs is the norm before clipping.
            self.loop.before_optimizer_step(kwargs.get("optimizer"), clipped=(args.max_grad_norm or 0) > 0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._step.ended_at = state.global_step
        if not control.should_log:
            self._end_waiting_step(control)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not self.loop.is_running or self.loop.is_validating:
            return  # on_evaluate has an evaluation's metrics
        metrics = recordable(logs or {})
        if "loss" in metrics:
            if self.is_attached and state.global_step - self._logged_at > 1:
                metrics = {"loss_mean" if name == "loss" else name: value for name, value in metrics.items()}
            self._logged_at = state.global_step
        if self._step.ended_at is not None:
            self._end_waiting_step(control, metrics)
        elif self.loop.in_step and not self._checkpoints.at_boundary:
            self._step.logged |= metrics  # logged during the step: it belongs to its row
        else:
            self.loop.host_log(metrics, step=state.global_step)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.is_attached:
            self.begin_validation(args, **kwargs)
            self.loop.validation_batch_start()
            self.loop.validation_batch_end()

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self.begin_validation(args, **kwargs)
        self.loop.validation_end(*evaluation_metrics(recordable(metrics or {})))
        if self._only_validates:
            self._only_validates = False
            self.loop.train_end()
            return
        self._apply_requests(control)
        if self._evaluations_left == 1:
            self._end_waiting_epoch(control)
        elif self._evaluations_left:
            self._evaluations_left -= 1
        self._postpone_validation(control)

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if not self.is_attached:  # only now is it known that those batches were no evaluation
            self.on_evaluate(args, state, control, metrics, **kwargs)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_waiting_step(control)
        self._end_waiting_epoch(control)
        self._checkpoints.saved(self._checkpoints.path(state.global_step))
        self._apply_requests(control)
        self._postpone_validation(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_waiting_step(control)
        self._checkpoints.at_boundary = True  # also if the last batches did not complete a step
        self._evaluations_left = 0
        if control.should_evaluate:
            data = self.trainer.eval_dataset if self.is_attached else None
            self._evaluations_left = max(1, len(data)) if isinstance(data, dict) else 1  # one for each data set
        else:
            self.loop.epoch_end()
            self._apply_requests(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.loop.is_running:
            self._end_waiting_step(control)
            self._end_waiting_epoch(control)
            self._checkpoints.at_boundary = self._checkpoints.is_over = True
            self.loop.train_end()

    def batch_end(self, loss: Any, batch: Any) -> None:
        """Handle the end of a forward and backward pass, with its share of the step's loss."""
        step = self._step
        step.batch = batch
        step.loss = loss if step.loss is None else step.loss + loss
        self.loop.batch_end({"loss": loss}, batch)

    def before_optimizer_step(self, optimizer: Any) -> None:
        """Handle the end of a step's last batch, before the gradients are clipped."""
        self._step.before_optimizer_fired = True
        self.loop.before_optimizer_step(optimizer)

    def begin_validation(self, args: Any, **kwargs: Any) -> None:
        """Start a validation, unless one is running; outside of a training it starts or continues a run."""
        if self.loop.is_validating:
            return
        self._end_waiting_step(None)
        if not self.loop.is_running:
            self._use_trainer(args, **kwargs)
            self._only_validates = True
            self.loop.begin(trains=False)
            self.loop.start()
        self.loop.validation_start()

    def _use_trainer(self, args: Any, **kwargs: Any) -> None:
        self._args, loop = args, self.loop
        loop.native = self.trainer
        loop.rank, loop.world_size = args.process_index, args.world_size
        loop.ctx.rank = loop.rank
        loop.model, loop.optimizer = kwargs.get("model"), kwargs.get("optimizer")
        loop.scheduler = kwargs.get("lr_scheduler")

    def _end_waiting_step(self, control: Any, metrics: dict[str, Any] | None = None) -> None:
        """End the step that waits for its log, with its own loss and the logged values.

        A trainer may log without calling its callbacks: then the next event ends the step.
        """
        step = self._step
        if step.ended_at is None:
            return
        ended_at, step.ended_at = step.ended_at, None
        self._checkpoints.at_boundary = True
        logged, own = metrics or {}, {} if step.loss is None else {"loss": step.loss}
        # With several processes the logged loss is the mean of theirs, so it wins, unless Hugging Face replaced a
        # non-finite loss (logging_nan_inf_filter). float() does not wait then: Hugging Face has already done so.
        if self.loop.world_size == 1 or (
            own and self._args.logging_nan_inf_filter and not math.isfinite(float(step.loss))
        ):
            row = {**step.logged, **logged, **own}
        else:
            row = {**step.logged, **own, **logged}
        self.loop.step_end(step.batch, row, step=ended_at)
        if control is not None:
            self._apply_requests(control)

    def _end_waiting_epoch(self, control: Any) -> None:
        """End an epoch that waits for its evaluation, also if the trainer never reported that."""
        if self._evaluations_left:
            self._evaluations_left = 0
            self.loop.epoch_end()
            self._apply_requests(control)

    def _cannot(self, command: str) -> str | None:
        """Return why Hugging Face cannot apply a command, or None."""
        if command != "validate":
            return None
        if self.is_attached:
            can_evaluate = self.trainer.eval_dataset is not None
        else:
            can_evaluate = str(getattr(self._args.eval_strategy, "value", self._args.eval_strategy)) != "no"
        return None if can_evaluate else "This trainer has no eval_dataset."

    def _apply_requests(self, control: Any) -> None:
        requests = self.loop.requests()
        if requests.stop is not None:
            control.should_training_stop = True
        if requests.validation:
            if self._cannot("validate") is None:
                control.should_evaluate = True
            else:
                logger.warning("A validation was requested, but this trainer has no eval_dataset.")
        if requests.checkpoint:
            self._checkpoints.request()
        if self._checkpoints.is_due:
            control.should_save = True

    def _postpone_validation(self, control: Any) -> None:
        """Keep a requested validation for the next boundary; at this one Hugging Face no longer reads the flag."""
        if control.should_evaluate:
            control.should_evaluate = False
            self.loop.request_validation()

    def _save(self, path: Path | None) -> ManifestRow:
        return self._checkpoints.save(path)


class Checkpoints:
    """The checkpoints of one training.

    A trainer saves at the boundaries between its steps, after the evaluation there, and reports it afterwards. What is
    requested at a boundary is saved there; what is requested during a step, at its end. A step is saved once. The
    callbacks' states are in each checkpoint, beside Hugging Face's files.

    Args:
        trainer: The trainer, if it is known.
        output_dir: Where the trainer saves.

    Attributes:
        at_boundary: Whether a step has ended and the next has not started.
        is_over: Whether the last boundary has passed.
        is_due: Whether the trainer has to save at the next boundary.
    """

    def __init__(self, loop: HostLoop, trainer: Any, output_dir: str) -> None:
        self._loop, self._trainer = loop, trainer
        self._directory = Path(output_dir).absolute()
        self._copies: list[Path] = []
        self.at_boundary = self.is_over = self.is_due = False

    def path(self, step: int) -> Path:
        """Return where the trainer saves after this number of steps."""
        default = self._directory / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        trials = self._directory.glob(f"*/{default.name}")  # each trial of a search has its own directory
        return default if default.exists() else max(trials, key=lambda found: found.stat().st_mtime, default=default)

    def request(self) -> None:
        """Request a checkpoint, unless this step is already saved."""
        self.is_due = self.is_due or not (self.at_boundary and self._is_saved())

    def save(self, path: Path | None) -> ManifestRow:
        """Save at this boundary or the next, with a copy at a path; returns the row that it has or will have."""
        self._copies += [] if path is None else [path]
        step = self._loop.step + (not self.at_boundary)
        target = self.path(step)
        if self.at_boundary and self._is_saved():
            self._save_state(target)
            return self._make_copies(target) or self._loop.checkpoint_row(target)
        if self.is_over:
            # After the last step Hugging Face has no public way to save.
            save = getattr(self._trainer, "_save_checkpoint", None)
            if not callable(save):
                raise CheckpointError(
                    "A checkpoint after the last step needs the trainer: use attach(trainer, ...), not callbacks=[...]."
                    if self._trainer is None
                    else f"{type(self._trainer).__name__} saves no checkpoint after its last step: request it earlier."
                )
            save(self._trainer.model_wrapped, trial=None)
            return self.saved(target)
        self._loop.request_checkpoint()
        return self._loop.checkpoint_row(path or target, step=step)

    def saved(self, path: Path) -> ManifestRow:
        """Handle a checkpoint that the trainer saved: add the states, make the copies, and report all of them."""
        self.is_due = False
        self._save_state(path)
        row = self._loop.checkpoint_saved(path)
        return self._make_copies(path) or row

    def _is_saved(self) -> bool:
        step = self._loop.step
        return any((row.step, row.path) == (step, self.path(step)) for row in self._loop.checkpoints)

    def _save_state(self, path: Path) -> None:
        try:
            host_loop.save(path, self._loop)
        except CheckpointError as error:
            logger.error("%s is saved without the states of callbacks. %s", path, error)  # noqa: TRY400 - it says why

    def _make_copies(self, path: Path) -> ManifestRow | None:
        """Make the requested copies; returns the row of the last one."""
        copies, self._copies = self._copies, []
        row = None
        for copy in copies:
            if self._loop.rank == 0:
                shutil.copytree(path, copy, dirs_exist_ok=True)
            row = self._loop.checkpoint_saved(copy)
        return row


def _batches_done(args: Any, state: Any, batches: Any) -> int:
    """Return how many batches of the epoch a resumed training skips."""
    step: int = state.global_step
    if step == 0 or args.ignore_data_skip or batches is None:
        return 0
    accumulation: int = args.gradient_accumulation_steps
    try:
        steps_per_epoch = max(1, math.ceil(len(batches) / accumulation))
    except TypeError:  # without a length, Hugging Face treats the whole training as one epoch
        steps_per_epoch = state.max_steps
    return step % steps_per_epoch * accumulation

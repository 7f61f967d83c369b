"""`HooklineCallback`: tells a `HostLoop` what happens in a Hugging Face trainer, and the trainer what was asked for.

Use `attach`, which gives it the trainer as well. On its own, as one of the trainer's ``callbacks=``, it hears only
what Hugging Face tells callbacks: no batches, no outputs, no loss at steps that are not logged, no errors, and
gradients only after they were clipped.

Hugging Face ends a step first and logs its loss afterwards. So a step that is about to be logged ends here when its
log arrives, which is still before an evaluation, a checkpoint and the next step: `on_step_end` has the loss in its
metrics, and what callbacks derive from it stands in the same row. In the same way an epoch ends here behind the
evaluation that belongs to it: `on_train_epoch_end` finds its metrics.

Everything that callbacks ask for goes through Hugging Face's own `TrainerControl`, in time for the same boundary.

What the metrics of Hugging Face are called in the record.

They keep their names. Those of evaluations also stand under the names that hookline's own loops use, so that
``EarlyStopping("val/loss")`` means the same everywhere: ``eval_loss`` is ``val/loss``, and ``eval_short_loss``, of a
data set called "short" among several, ``val/short/loss``. With another prefix, that is the name of the evaluation:
``test_loss`` is ``test/loss``. How fast an evaluation was has one name only.

A ``loss`` that was logged for several steps at once is their mean, and called ``loss_mean``: ``loss`` is that of one
step.

`StepUnderWay`: what is known of a trainer's step before Hugging Face tells about it.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from transformers import TrainerCallback

from hookline._engine.metrics import PLAIN, plain
from hookline._engine.state import ManifestRow
from hookline.integrations import host_loop
from hookline.integrations.host_loop import HostLoop
from hookline.integrations.transformers.checkpoints import Checkpoints
from hookline.loops.options import RunOptions

PREFIX = "eval"
"""What the metrics of an evaluation begin with where nobody says another prefix."""
VALIDATION = "val"
"""What hookline calls it."""
_RUNTIME = "_runtime"
_SPEED = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


def recordable(logs: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics as they can be recorded: what is neither a number nor text is kept as text."""
    plain_logs = {str(name): plain(value) for name, value in logs.items()}
    return {name: value if type(value) in PLAIN else str(value) for name, value in plain_logs.items() if name}


def of_steps(metrics: dict[str, Any], *, several: bool) -> dict[str, Any]:
    """The metrics of a training's log.

    Args:
        several: Whether they stand for several steps, whose own losses are known.
    """
    return {"loss_mean" if several and name == "loss" else name: value for name, value in metrics.items()}


def of_evaluation(metrics: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of an evaluation, and its metrics under their own names and under those of hookline."""
    prefix = next((name.removesuffix(_RUNTIME) for name in metrics if name.endswith(_RUNTIME)), PREFIX)
    head, _, data_set = prefix.partition("_")
    evaluation = prefix if head != PREFIX else f"{VALIDATION}/{data_set}" if data_set else VALIDATION
    start = f"{prefix}_"
    ours = {name.removeprefix(start): value for name, value in metrics.items() if name.startswith(start)}
    named = {f"{evaluation}/{name}": value for name, value in ours.items() if name not in _SPEED}
    return evaluation, {**metrics, **named}


@dataclass(slots=True)
class StepUnderWay:
    """One optimizer update.

    Attributes:
        ended_at: The number of completed steps, while the step is complete and waits for its log.
        batch: Its last batch.
        loss: The sum of the batches' shares, which is the step's loss; on its device.
        logged: What was logged before it ended.
        optimizer_was_told: Whether `on_before_optimizer_step` has fired.
    """

    ended_at: int | None = None
    batch: Any = None
    loss: Any = None
    logged: dict[str, Any] = field(default_factory=dict)
    optimizer_was_told: bool = False

    def add(self, loss: Any, batch: Any) -> None:
        """A batch is done."""
        self.batch = batch
        self.loss = loss if self.loss is None else self.loss + loss

    def known(self) -> dict[str, Any]:
        """What is known of the step before it is logged."""
        return self.logged if self.loss is None else {**self.logged, "loss": self.loss}


logger = logging.getLogger("hookline")


class HooklineCallback(TrainerCallback):  # type: ignore[misc]
    """Fires the moments of hookline in a Hugging Face trainer.

    Args:
        callbacks, name, options: As for every run of hookline.

    Attributes:
        loop: What callbacks are given, and the run: ``loop.dir``, ``loop.history``.
        trainer: The trainer, where `attach` gave it.
    """

    def __init__(
        self,
        callbacks: Iterable[Any] = (),
        *,
        name: str = "run",
        **options: Unpack[RunOptions],
    ) -> None:
        self.loop = HostLoop(name, native=None, save=self._save, callbacks=callbacks, **options)
        self.trainer: Any = None
        self.attachment: Any = None
        self.resumes_from: str | None = None
        """The checkpoint that a training is asked to go on from, where that is known."""
        self._args: Any = None
        self._checkpoints = Checkpoints(self.loop, None, ".")
        self._step = StepUnderWay()
        self._logged_at = 0
        self._epochs = 0
        self._evaluations_left = 0  # until the epoch ends
        self._only_validates = False

    @property
    def is_attached(self) -> bool:
        """Whether it hears more than what Hugging Face tells callbacks."""
        return self.trainer is not None

    def detach(self) -> None:
        """Leave the trainer as it was before `attach`."""
        if self.is_attached:
            self.attachment.remove()
            self.trainer.remove_callback(self)
            self.trainer = self.attachment = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.loop.failed(RuntimeError("the trainer began again before it had ended"))
        self._meet(args, **kwargs)
        self._checkpoints = Checkpoints(self.loop, self.trainer, args.output_dir)
        self._step, self._logged_at, self._epochs = StepUnderWay(), state.global_step, 0
        self._only_validates, self._evaluations_left = False, 0
        saved = self._taken_up(state)
        row = None if saved is None else self.loop.checkpoint_row(saved, step=state.global_step)
        self.loop.begin(state=None if saved is None else host_loop.load(saved), row=row)
        self.loop.train_start(
            step=state.global_step,
            epoch=int(state.epoch or 0),
            num_steps=state.max_steps,
            num_epochs=state.num_train_epochs,
        )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_epoch_at_last(control)
        self._epochs += 1
        self._checkpoints.at_boundary = False
        if self._epochs > 1:
            self.loop.epoch_start(self.loop.epoch + 1)
        else:
            done = _batches_done(args, state, kwargs.get("train_dataloader"))
            self.loop.epoch_start(int(state.epoch or 0), batches_done=done)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._complete_step(control)
        self._checkpoints.at_boundary = False
        if self.loop.in_step:
            return  # the epoch before left batches over, whose gradients are still there
        self._step = StepUnderWay()
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
        if not self._step.optimizer_was_told:
            # Hugging Face clips first; the grad_norm that it logs is the norm before that.
            self.loop.before_optimizer_step(kwargs.get("optimizer"), clipped=(args.max_grad_norm or 0) > 0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._step.ended_at = state.global_step
        if not control.should_log:
            self._complete_step(control)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not self.loop.is_running or self.loop.is_validating:
            return  # an evaluation's metrics come again when it ends
        metrics = recordable(logs or {})
        if "loss" in metrics:
            several = self.is_attached and state.global_step - self._logged_at > 1
            metrics = of_steps(metrics, several=several)
            self._logged_at = state.global_step
        if self._step.ended_at is not None:
            self._complete_step(control, metrics)
        elif self.loop.in_step and not self._checkpoints.at_boundary:  # in the middle of a step: it belongs to its row
            self._step.logged |= metrics
        else:
            self.loop.host_log(metrics, step=state.global_step)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.is_attached:
            self.begin_validation(args, **kwargs)
            self.loop.validation_batch_start()
            self.loop.validation_batch_end()

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self.begin_validation(args, **kwargs)
        self.loop.validation_end(*of_evaluation(recordable(metrics or {})))
        if self._only_validates:
            self._only_validates = False
            self.loop.train_end()
            return
        self._answer(control)
        if self._evaluations_left == 1:
            self._end_epoch_at_last(control)
        elif self._evaluations_left:
            self._evaluations_left -= 1
        self._put_validation_off(control)

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if not self.is_attached:  # only now is it known that those batches were no evaluation
            self.on_evaluate(args, state, control, metrics, **kwargs)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._complete_step(control)
        self._end_epoch_at_last(control)
        self._checkpoints.saved(self._checkpoints.place(state.global_step))
        self._answer(control)
        self._put_validation_off(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._complete_step(control)
        self._checkpoints.at_boundary = True  # also where batches are left over
        self._evaluations_left = self._evaluations() if control.should_evaluate else 0
        if not self._evaluations_left:
            self._end_epoch(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.loop.is_running:
            self._complete_step(control)
            self._end_epoch_at_last(control)
            self._checkpoints.at_boundary = self._checkpoints.is_over = True
            self.loop.train_end()

    def batch_start(self, batch: Any) -> None:
        """A forward and backward pass begins."""
        self.loop.batch_start(batch)

    def batch_end(self, loss: Any, batch: Any) -> None:
        """It ended, with its share of the step's loss."""
        self._step.add(loss, batch)
        self.loop.batch_end({"loss": loss}, batch)

    def gradients_are_complete(self, optimizer: Any) -> None:
        """All batches of the step are done, and the gradients not clipped yet."""
        self._step.optimizer_was_told = True
        self.loop.before_optimizer_step(optimizer)

    def begin_validation(self, args: Any, **kwargs: Any) -> None:
        """The first batch of an evaluation comes; outside of a training, that is a run or goes on in one."""
        if self.loop.is_validating:
            return
        self._complete_step(None)
        if not self.loop.is_running:
            self._meet(args, **kwargs)
            self._only_validates = True
            self.loop.begin(trains=False)
            self.loop.start()
        self.loop.validation_start()

    def _meet(self, args: Any, **kwargs: Any) -> None:
        """Know the parts of a trainer as they are now."""
        self._args, loop = args, self.loop
        loop.native = self.trainer
        loop.rank, loop.world_size = args.process_index, args.world_size
        loop.ctx.rank = loop.rank
        loop.model, loop.optimizer = kwargs.get("model"), kwargs.get("optimizer")
        loop.scheduler = kwargs.get("lr_scheduler")

    def _taken_up(self, state: Any) -> Path | None:
        """The checkpoint that a training goes on from."""
        if self.resumes_from is not None:
            return Path(self.resumes_from)
        usual = self._checkpoints.place(state.global_step)
        return usual if state.global_step > 0 and usual.is_dir() else None

    def _complete_step(self, control: Any, metrics: dict[str, Any] | None = None) -> None:
        """End the step that waits for its log, if one does, with its own loss and what was logged.

        A trainer may log without telling its callbacks: then whatever comes next ends the step.
        """
        step = self._step
        if step.ended_at is None:
            return
        ended_at, step.ended_at = step.ended_at, None
        self._checkpoints.at_boundary = True
        logged = metrics or {}
        own = step.loss is not None and (self.loop.world_size == 1 or self._is_filtered(step.loss))
        known = {**step.logged, **logged, "loss": step.loss} if own else {**step.known(), **logged}
        self.loop.step_end(step.batch, known, step=ended_at)
        if control is not None:
            self._answer(control)

    def _evaluations(self) -> int:
        """How many evaluations one is: of several data sets, each is told."""
        data = self.trainer.eval_dataset if self.is_attached else None
        return max(1, len(data)) if isinstance(data, dict) else 1

    def _end_epoch(self, control: Any) -> None:
        self.loop.epoch_end()
        self._answer(control)

    def _end_epoch_at_last(self, control: Any) -> None:
        """End an epoch that waits for its evaluation; also where a trainer never told of that."""
        if self._evaluations_left:
            self._evaluations_left = 0
            self._end_epoch(control)

    def _is_filtered(self, loss: Any) -> bool:
        """Whether Hugging Face logs something else than a loss that is not finite; it has waited for it then."""
        return bool(self._args.logging_nan_inf_filter) and not math.isfinite(float(loss))

    def _answer(self, control: Any) -> None:
        """Hand on what callbacks asked for."""
        asked = self.loop.requests()
        if asked.stop is not None:
            control.should_training_stop = True
        if asked.validation and self._can_evaluate():
            control.should_evaluate = True
        if asked.checkpoint:
            self._checkpoints.ask()
        if self._checkpoints.is_due:
            control.should_save = True

    def _put_validation_off(self, control: Any) -> None:
        """Keep a validation for the next boundary that Hugging Face would forget: at this one it has looked already."""
        if control.should_evaluate:
            control.should_evaluate = False
            self.loop.request_validation()

    def _can_evaluate(self) -> bool:
        if self.is_attached:
            possible = self.trainer.eval_dataset is not None
        else:
            possible = str(getattr(self._args.eval_strategy, "value", self._args.eval_strategy)) != "no"
        if not possible:
            logger.warning("A validation was asked for, and this trainer has no eval_dataset: there is none.")
        return possible

    def _save(self, path: Path | None) -> ManifestRow:
        return self._checkpoints.save(path)


def _batches_done(args: Any, state: Any, batches: Any) -> int:
    """How many batches of the epoch a training that goes on behind a step leaves out."""
    step: int = state.global_step
    if step == 0 or args.ignore_data_skip or batches is None:
        return 0
    accumulation: int = args.gradient_accumulation_steps
    try:
        steps_per_epoch = max(1, math.ceil(len(batches) / accumulation))
    except TypeError:  # data without a length: for Hugging Face the whole training is one epoch
        steps_per_epoch = state.max_steps
    return step % steps_per_epoch * accumulation

"""fastai: hookline's callbacks observe and control ``Learner.fit`` and its relatives.

    from hookline.integrations.fastai import HooklineCallback

    with HooklineCallback(["early_stopping"], name="warmup") as hooks:
        learn = Learner(dls, model, loss_func=loss, metrics=accuracy, cbs=hooks)
        learn.fit_one_cycle(3)

How fastai's events become moments:

- A step is one update; with fastai's `GradientAccumulation` it takes several batches, and its ``loss`` is their mean.
  Metrics of a ``Recorder(train_metrics=True)`` are recorded at the end of the epoch, without its smoothed loss.
- A validation is the evaluation ``val``: ``val/loss``, ``val/<metric>``, and fastai's own names, ``valid_loss`` and
  ``<metric>``. Outputs of its batches have ``predictions`` and ``targets``.
- A fit continues the run of the one before, so both parts of ``fine_tune`` are one run, and ``learn.validate()`` is
  recorded in it. ``lr_find`` and predictions are not.
- A stop cancels the fit after the step. A checkpoint is a directory with ``model.pth``, the model and the optimizer as
  ``learn.save`` writes them, and the callbacks' states: ``learn.load("<directory>/model")`` and
  ``learn.fit(..., start_epoch=n)`` continue from it.

fastai validates at the end of an epoch only. It does not report errors: as a context manager, the callback learns at
once that a fit raised.
"""

from hookline._engine.optional import require

require("torch", ">=2.4", extra="fastai", what=__name__)
require("fastai", ">=2.7", extra="fastai", what=__name__)

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Unpack

from fastai.callback.core import Callback, CancelFitException
from fastai.callback.training import GradientClip
from fastai.learner import save_model

from hookline._engine.defaults import NAME
from hookline.integrations.host_callback import HostCallback, RateGroup, StepMeans
from hookline.loops.options import RunOptions

__all__ = ["HooklineCallback"]

MODEL = "model.pth"
NOT_TRAINING = ("lr_finder", "gather_preds")
"""The names of fastai's callbacks in whose presence a fit or a validation is another thing."""


class HooklineCallback(HostCallback, Callback):  # type: ignore[misc]
    """Fires hookline's moments in a fastai `Learner`: ``Learner(..., cbs=hooks)`` or ``learn.fit(..., cbs=hooks)``.

    Args:
        callbacks, name, options: As for every run of hookline.
        resume: The directory of a checkpoint that a callback saved. The next fit continues its run with the callbacks'
            states. Load the model yourself, with ``learn.load("<directory>/model")``.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
    """

    host = "fastai"
    package = "fastai"
    reports_epochs = True
    order = 90
    """After fastai's own callbacks, which accumulate, clip, schedule and record."""

    def __init__(
        self,
        callbacks: Iterable[Any] = (),
        *,
        name: str = NAME,
        resume: str | Path | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        Callback.__init__(self)
        HostCallback.__init__(self, callbacks, name=name, resume=resume, **options)
        self._epoch_is_open = self._has_updated = self._continues = False
        self._epochs_before = 0
        self._means = StepMeans()

    def __call__(self, event_name: str) -> None:
        # fastai's own would replace the message of an error, and fails for one without arguments.
        handler = getattr(type(self), event_name, None)
        if handler is not None and not any(hasattr(self.learn, name) for name in NOT_TRAINING):
            handler(self)

    def before_fit(self) -> None:
        learn = self.learn
        # fastai keeps start_epoch= in a private attribute of one of its callbacks.
        first = max((getattr(cb, "_skip_to", 0) for cb in learn.cbs), default=0)
        steps = len(learn.dls.train) * (learn.n_epoch - first)
        self.loop.optimizer = _View(learn.opt)
        self._epoch_is_open, self._means = False, StepMeans()
        self._begin(
            learn.model,
            native=learn,
            further_steps=None if any(cb.name == "gradient_accumulation" for cb in learn.cbs) else steps,
            epoch=self._epochs_before + first,
            num_epochs=self._epochs_before + learn.n_epoch,
        )
        if not self._continues:
            self._epochs_before = 0

    def _resumed(self) -> tuple[dict[str, Any] | None, Any]:
        if self._continues and self._resume is None:
            return self.loop.state_dict(), None
        self._epochs_before = 0
        return super()._resumed()

    def before_epoch(self) -> None:
        if self.loop.is_running:
            self.loop.epoch_start(self._epochs_before + self.learn.epoch)
            self._epoch_is_open = True

    def before_batch(self) -> None:
        if not self.learn.training:
            self.loop.validation_batch_start(self._batch())
            return
        if not self.loop.in_step:
            self.loop.step_start()
        self._has_updated = False
        self.loop.batch_start(self._batch(), self.learn.iter)

    def before_step(self) -> None:
        clipped = any(isinstance(cb, GradientClip) for cb in self.learn.cbs)
        self.loop.before_optimizer_step(self.learn.opt, clipped=clipped)

    def after_step(self) -> None:
        self._has_updated = True

    def after_batch(self) -> None:
        learn, batch = self.learn, self._batch()
        outputs = {"loss": learn.loss, "predictions": learn.pred, "targets": _only(learn.yb)}
        if not learn.training:
            self.loop.validation_batch_end(outputs, batch)
            return
        self._means.add({"loss": learn.loss})
        self.loop.batch_end(outputs, batch)
        if not self._has_updated:
            return
        self.loop.step_end(batch, self._means.take())
        if self._boundary() is not None:
            raise CancelFitException

    def before_validate(self) -> None:
        if not self.loop.is_running:  # learn.validate()
            self.loop.begin(trains=False)
            self.loop.start()
        self.loop.validation_start()

    def after_validate(self) -> None:
        learn = self.learn
        shown = {metric.name: metric.value for metric in learn.metrics}
        loss = learn.recorder.loss.value if hasattr(learn, "recorder") else None
        named = {f"val/{name}": value for name, value in ({} if loss is None else {"loss": loss} | shown).items()}
        own = shown if loss is None else {"valid_loss": loss} | shown
        self.loop.validation_end("val", self.loop.recordable(named | own))
        if not self._epoch_is_open:
            self.loop.train_end()
        elif not self.loop.in_step and self._boundary() is not None:
            raise CancelFitException

    def after_epoch(self) -> None:
        if not self._epoch_is_open:
            return
        if hasattr(self.learn, "recorder"):
            shown = dict(zip(self.learn.recorder.metric_names, self.learn.recorder.log, strict=False))
            metrics = {n: value for n, value in shown.items() if n.startswith("train_") and n != "train_loss"}
            if metrics:  # of a Recorder(train_metrics=True)
                self.loop.host_log(self.loop.recordable(metrics), step=self.loop.step)
        self._close_epoch()

    def after_fit(self) -> None:
        if self.loop.is_running:
            self._close_epoch()
            self._end()
            self._epochs_before += self.learn.n_epoch
            self._continues = True

    def _fail_if_running(self, error: BaseException | None) -> None:
        if self.loop.is_running:
            self._continues = False
        super()._fail_if_running(error)

    def _close_epoch(self) -> None:
        if self._epoch_is_open:
            self._epoch_is_open = False
            self.loop.epoch_end()

    def _batch(self) -> Any:
        return (*self.learn.xb, *self.learn.yb)

    def _cannot(self, command: str) -> str | None:
        return "fastai validates only at the end of an epoch." if command == "validate" else None

    def _write_model(self, directory: Path) -> None:
        save_model(directory / MODEL, self.learn.model, self.learn.opt)


class _View:
    """fastai's optimizer, with groups whose learning rate can be set."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        pairs = zip(optimizer.param_lists, optimizer.hypers, strict=True)
        self.param_groups = [_group(parameters, values) for parameters, values in pairs]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)


def _group(parameters: Any, values: dict[str, Any]) -> RateGroup:
    def write(rate: float) -> None:
        values["lr"] = rate

    return RateGroup(lambda: values["lr"], write, parameters)


def _only(values: Any) -> Any:
    return values[0] if len(values) == 1 else values

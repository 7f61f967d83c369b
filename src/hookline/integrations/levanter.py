"""Levanter: hookline's callbacks observe and control its `Trainer`, and its tracker's metrics are recorded.

    from hookline.integrations.levanter import attach

    trainer = Trainer(config, optimizer, loss_fn)
    attach(trainer, ["nan_guard"], name="pretrain")
    with trainer:
        trainer.train(trainer.initial_state(key, model=model), loader)

How Levanter's hooks become moments:

- A step is one ``train_step``. Its row has the ``loss``, and what Levanter logs with its trackers in the step, by its
  names: ``train/loss``, ``optim/learning_rate``. What it logs after the step (``throughput/loading_time``) is a row of
  its own at the same step.
- An evaluation is ``val``: what Levanter logs as ``eval/<metric>`` is recorded as ``val/<metric>`` too, so its loss is
  ``val/loss``. One of a data set with a name, ``eval/<name>/<metric>``, is the evaluation ``<name>``.
- A stop ends the training after the step: it becomes the number of steps in the trainer's configuration, until the run
  ends. A checkpoint is a directory with one of Levanter's in a folder ``levanter``, for ``initialize_from``, and the
  callbacks' states.
- ``loop.model`` is the model after the last step. Its arrays may be donated to the next one.

The state belongs to Levanter's loop: callbacks cannot change weights or rates, and see no gradients and no predictions.
With several processes callbacks run on the first one, and can stop nothing.
"""

from hookline._engine.optional import require

require("jax", ">=0.4.30", extra="jax", what=__name__)

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Unpack

from hookline._engine.defaults import NAME
from hookline._engine.errors import OptionError
from hookline.integrations.host_callback import WrappedMethods
from hookline.integrations.jax_host import JaxHost
from hookline.loops.options import RunOptions

__all__ = ["AttachedTrainer", "attach"]

FOLDER = "levanter"
EVALUATION = "eval/"
_NOTHING: Any = None


def attach(
    trainer: Any,
    callbacks: Iterable[Any] = (),
    *,
    name: str = NAME,
    resume: str | Path | None = None,
    **options: Unpack[RunOptions],
) -> "AttachedTrainer":
    """Have callbacks run in the training of a Levanter trainer, which becomes a run.

    Args:
        trainer: A `levanter.trainer.Trainer`, before it is entered.
        callbacks, name, options: As for every run of hookline.
        resume: The directory of a checkpoint that a callback saved: the training continues its run with the callbacks'
            states. Levanter loads the model with ``initialize_from="<directory>/levanter"``.
    """
    if not all(hasattr(trainer, each) for each in ("add_hook", "train_step", "tracker", "config")):
        raise OptionError(f"attach({type(trainer).__name__}): give a levanter.trainer.Trainer.")
    attached = AttachedTrainer(callbacks, name=name, resume=resume, **options)
    attached.attach(trainer)
    return attached


class AttachedTrainer(JaxHost):
    """What `attach` returns.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
    """

    host = "Levanter"
    package = "levanter"
    no_gradients = "Levanter computes gradients and update in one jitted function; it logs norms with watch="
    no_validation_batches = "Levanter keeps the batches of evaluations to itself"

    def attach(self, trainer: Any) -> None:
        """Add the hook and the tracker, and wrap the methods that train; for `attach`."""
        self._trainer, self._info, self._batch = trainer, _NOTHING, _NOTHING
        self._logged: dict[str, Any] = {}
        self._evaluated: dict[str, Any] = {}
        self._planned: int | None = None
        self._repeats, self._evaluated_at = False, -1
        hook, tracker = Hook(self), Tracker(self)
        import_module("levanter.callbacks").Callback.register(Hook)  # whose events Levanter otherwise keeps
        trainer.add_hook(hook, every=1)
        # Before all others: a step ends before its evaluations.
        trainer.hooks.hooks.insert(0, trainer.hooks.hooks.pop())
        if not hasattr(trainer.tracker, "loggers"):
            trainer.tracker = import_module("levanter.tracker").CompositeTracker([trainer.tracker])
        trainer.tracker.loggers.append(tracker)
        self._methods = WrappedMethods(trainer)
        self._methods.wrap("train_step", self._train_step)
        self._methods.wrap("train", self._train)

    def _train(self, train: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            info = train(*args, **kwargs)
        except BaseException as error:
            self._fail_if_running(error)
            raise
        self.finish()
        return info

    def _train_step(self, train_step: Callable[..., Any], state: Any, *batch: Any, **kwargs: Any) -> Any:
        loop, self._batch = self.loop, batch[0] if len(batch) == 1 else batch
        if not loop.is_running:
            self._begin(
                state.model,
                native=self._trainer,
                step=int(state.step),
                num_steps=int(self._trainer.num_train_steps),
            )
        self._flush()
        self._repeats = False
        loop.step_start()
        loop.batch_start(self._batch)
        info = train_step(state, *batch, **kwargs)
        self._end_step()
        if self._boundary() is not None:
            config = self._trainer.config
            self._planned = config.num_train_steps if self._planned is None else self._planned
            config.num_train_steps = int(info.next_step)
        return info

    def on_step(self, info: Any) -> None:
        """Note the step that was completed; the hook calls this."""
        self._repeats = not self.loop.in_step  # `train` runs the hooks of the last step once more
        self._info = info

    def _end_step(self) -> None:
        """End the step, with what Levanter's own hooks have logged by now."""
        info = self._info
        if not self.loop.in_step or info is None:
            return
        self.loop.model = info.state.model
        self.loop.batch_end({"loss": info.loss}, self._batch)
        logged, self._logged = self._logged, {}
        self.loop.step_end(self._batch, {"loss": info.loss} | self.loop.recordable(logged), step=int(info.next_step))

    def on_event(self, event: str) -> None:
        """Begin and end evaluations, and the run where the training was left; the hook calls this."""
        if not self.loop.is_running:
            return
        if event == "evaluation_started" and not (self._repeats and self._evaluated_at == self.loop.step):
            self._end_step()
            self._evaluated = {}
            self.loop.validation_start()
        elif event == "evaluation_finished" and self.loop.is_validating:
            self._end_evaluation()
        elif event == "training_finished" and (error := sys.exception()) is not None:
            self._fail_if_running(error)
        elif event == "training_finished":
            self.finish()

    def _end_evaluation(self) -> None:
        metrics, self._evaluated = self._evaluated, {}
        inner = {each.removeprefix(EVALUATION): value for each, value in metrics.items() if each.startswith(EVALUATION)}
        name = "val"
        if "loss" not in inner and inner:  # of a data set with a name
            name = next(iter(inner)).partition("/")[0]
            inner = {each.removeprefix(f"{name}/"): value for each, value in inner.items()}
        named = {f"{name}/{each}": value for each, value in inner.items()}
        self.loop.validation_end(name, self.loop.recordable({**named, **metrics}))
        self._evaluated_at = self.loop.step

    def log(self, metrics: Mapping[str, Any], step: int | None) -> None:
        """Collect values logged with Levanter's trackers; called by our tracker."""
        if self.loop.is_validating:
            self._evaluated.update(metrics)
        elif not self._repeats:
            self._logged.update(metrics)

    def log_config(self, values: Mapping[str, Any]) -> None:
        """Add hyperparameters to the run's configuration; the tracker calls this."""
        self.loop.update_config(values)

    def log_summary(self, metrics: Mapping[str, Any]) -> None:
        """Record results; the tracker calls this."""
        if self.loop.is_running:
            self.loop.summary.update(self.loop.recordable(metrics))

    def _flush(self) -> None:
        """Record the values logged since the last step ended."""
        logged, self._logged = self._logged, {}
        row = self.loop.recordable(logged)
        if row and self.loop.is_running:
            self.loop.host_log(row, step=self.loop.step)

    def finish(self) -> None:
        """End the run."""
        if self.loop.is_running:
            self._flush()
            self._end()
        self._restore_config()

    def _fail_if_running(self, error: BaseException | None) -> None:
        self._restore_config()
        super()._fail_if_running(error)

    def _restore_config(self) -> None:
        planned, self._planned = getattr(self, "_planned", None), None
        if planned is not None:
            self._trainer.config.num_train_steps = planned

    def _cannot(self, command: str) -> str | None:
        if command == "validate":
            return "Levanter evaluates every steps_per_eval, and not on request."
        return super()._cannot(command)

    def _write_model(self, directory: Path) -> None:
        import_module("levanter.checkpoint").save_checkpoint(
            self._info.state.saveable_state, self._info.step, str(directory / FOLDER), is_temporary=False
        )


class Hook:
    """A callback of Levanter, by registration with its abstract class."""

    def __init__(self, attached: AttachedTrainer) -> None:
        self._attached = attached

    def on_step(self, info: Any, force: bool = False) -> None:
        """End the step; ``force`` repeats the hooks of the last one."""
        self._attached.on_step(info)

    def on_event(self, event: Any) -> None:
        """Pass an event on."""
        self._attached.on_event(str(event))


class Tracker:
    """A tracker of Levanter, with its methods."""

    name = "hookline"

    def __init__(self, attached: AttachedTrainer) -> None:
        self._attached = attached

    def log_hyperparameters(self, hparams: dict[str, Any]) -> None:
        """Add to the run's configuration."""
        self._attached.log_config(hparams)

    def log(self, metrics: Mapping[str, Any], *, step: int | None, commit: bool | None = None) -> None:
        """Record metrics."""
        self._attached.log(metrics, step)

    def log_summary(self, metrics: Mapping[str, Any]) -> None:
        """Record results."""
        self._attached.log_summary(metrics)

    def log_artifact(self, artifact_path: Any, *, name: str | None = None, type: str | None = None) -> None:  # noqa: A002
        """Do nothing: Levanter keeps its files itself."""

    def log_html(self, key: str, html_path: Any, *, step: int | None, commit: bool | None = None) -> None:
        """Do nothing."""

    def capture_stall_diagnostics(self) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Do nothing: the run ends with the training."""

"""MaxText: hookline's callbacks observe and control pre-training.

    from hookline.integrations.maxtext import observe

    with observe(["early_stopping"], name="pretrain"):
        train.run(config, recorder)

Its SFT, DPO and RL use the trainers of Tunix: `hookline.integrations.tunix.attach` to ``trainer`` between
``setup_trainer_state`` and ``train_model``.

MaxText's loop calls no callbacks. It passes its metrics to a `MetricLogger` and its state to ``maybe_save_checkpoint``,
and ends when one of them raises `StopTraining`. Inside of the ``with``, the loop finds observed ones in their modules:

- A step's row has MaxText's scalars by its names (``learning/loss``, ``perf/...``), and the ``loss``. Like MaxText,
  hookline reads them later: nothing waits for the device. There is one epoch.
- An evaluation is ``val``: ``val/loss`` is ``eval/avg_loss``, and so on. It is reported when it is over.
- A stop ends the training after the step. A requested checkpoint is one of MaxText's own, in its ``checkpoint_dir``.
- For each checkpoint of MaxText the callbacks' states are saved in the run's directory. ``observe(resume=...)`` with
  such a directory continues the run, where MaxText resumes from its checkpoint of that step.

MaxText shows no batches, gradients and predictions. With several processes callbacks run on the first one, and can stop
nothing.
"""

from hookline._engine.optional import require

require("jax", ">=0.4.30", extra="jax", what=__name__)

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from hookline._engine.defaults import NAME
from hookline.integrations.host_callback import WrappedMethods
from hookline.integrations.jax_host import JaxHost
from hookline.loops.options import RunOptions

__all__ = ["ObservedTraining", "observe"]

LOSS = "learning/loss"
EVALUATION = "eval/"
FILE = "maxtext.json"


def observe(
    callbacks: Iterable[Any] = (),
    *,
    name: str = NAME,
    resume: str | Path | None = None,
    **options: Unpack[RunOptions],
) -> "ObservedTraining":
    """Return a context in which callbacks run in MaxText's training loop, each of which is a run.

    Args:
        callbacks, name, options: As for every run of hookline; ``config`` is MaxText's by default.
        resume: The directory of a checkpoint of hookline's. The next training continues its run with the callbacks'
            states.
    """
    return ObservedTraining(callbacks, name=name, resume=resume, **options)


class ObservedTraining(JaxHost):
    """What `observe` returns.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
    """

    host = "MaxText"
    package = "maxtext"
    no_gradients = "MaxText computes gradients and update in one jitted function, and logs learning/grad_norm"
    no_validation_batches = "MaxText keeps the batches of evaluations to itself"

    def __enter__(self) -> Self:
        self._logger_module = _module("common.metric_logger")
        self._checkpointing = _module("common.checkpointing")
        self._stop = _module("utils.exceptions").StopTraining
        self._observed_class = self._logger_module.MetricLogger
        self._logger_module.MetricLogger = _observed(self._observed_class, self)
        self._methods = WrappedMethods(self._checkpointing)
        self._methods.wrap("maybe_save_checkpoint", self._maybe_save)
        self._checkpoint: tuple[Any, ...] = (None, None, None, None)  # the manager, state, configuration and data
        self._evaluated: dict[str, Any] = {}
        self._saved_by_host: int | None = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._logger_module.MetricLogger = self._observed_class
        self._methods.restore()
        self._fail_if_running(error)

    def begin(self, config: Any, start_step: int) -> None:
        """Begin the run; the metric logger calls this and the following methods."""
        self._evaluated, self._saved_by_host = {}, None
        settings = getattr(config, "get_keys", None)
        if settings is not None and not self.loop.config:
            self.loop.update_config(settings())
        self._begin(None, native=config, step=int(start_step), num_steps=int(config.steps))
        self._start_step()

    def _start_step(self) -> None:
        if self.loop.num_steps is None or self.loop.step < self.loop.num_steps:
            self.loop.step_start()

    def evaluated(self, metrics: Mapping[str, Any]) -> None:
        """Take the metrics of an evaluation, which MaxText reports before those of the step."""
        self._evaluated = dict(metrics["scalar"])

    def trained(self, metrics: Mapping[str, Any], step: int) -> None:
        """End a step, and the evaluation after it."""
        loop, scalars = self.loop, dict(metrics["scalar"])
        if not loop.in_step:
            return
        loop.model = self._checkpoint[1]
        loss = {"loss": scalars[LOSS]} if LOSS in scalars else {}
        loop.step_end(None, loop.recordable(loss | scalars), step=step + 1)
        evaluated, self._evaluated = self._evaluated, {}
        if evaluated:
            named = {f"val/{name.removeprefix(EVALUATION).removeprefix('avg_')}": v for name, v in evaluated.items()}
            loop.validation_start()
            loop.validation_end("val", loop.recordable(named | evaluated))
        saved, self._saved_by_host = self._saved_by_host, None
        if saved == step:
            self._save_now(self._default_path())
        if (reason := self._boundary()) is not None:
            raise self._stop(reason)
        self._start_step()

    def finish(self) -> None:
        """End the run; MaxText cleans up in a ``finally`` clause, so an error is the one that is handled here."""
        error = sys.exception()
        if error is not None and not isinstance(error, self._stop):
            self._fail_if_running(error)
        elif self.loop.is_running:
            self._end()

    def _maybe_save(
        self,
        maybe_save: Callable[..., Any],
        checkpoint_manager: Any,
        state: Any,
        config: Any,
        data_iterator: Any,
        step: int | None = None,
    ) -> Any:
        self._checkpoint = (checkpoint_manager, state, config, data_iterator)
        before = self._latest()
        result = maybe_save(checkpoint_manager, state, config, data_iterator, step)
        if step is not None and before != self._latest() == step:
            self._saved_by_host = step
        return result

    def _latest(self) -> Any:
        manager = self._checkpoint[0]
        return None if manager is None else self._checkpointing.latest_step(manager)

    def _cannot(self, command: str) -> str | None:
        manager, state, *_ = self._checkpoint
        if command == "checkpoint" and state is not None and manager is None:  # known once a step has passed
            return "MaxText's checkpoints are disabled (enable_checkpointing=False)."
        if command == "validate":
            return "MaxText evaluates every eval_interval steps, and not on request."
        return super()._cannot(command)

    def _write_model(self, directory: Path) -> None:
        """Have MaxText save its checkpoint where it keeps them, unless it just has, and note which one it is."""
        manager, state, config, data = self._checkpoint
        step = self.loop.step - 1  # MaxText names checkpoints by the index of the step
        if self._latest() != step:
            self._checkpointing.save_checkpoint(manager, step, state, config, data, True)
        self._checkpointing.wait_until_finished(manager)
        note = {"checkpoint_dir": str(getattr(config, "checkpoint_dir", "")), "step": step}
        (directory / FILE).write_text(json.dumps(note))


def _module(name: str) -> Any:
    return import_module(f"maxtext.{name}")


def _observed(kind: type[Any], training: ObservedTraining) -> type[Any]:
    """Return a subclass of MaxText's `MetricLogger` that reports to a training."""

    class ObservedMetricLogger(kind):  # type: ignore[misc]
        def __init__(self, config: Any, learning_rate_schedule: Any, start_step: int = 0) -> None:
            super().__init__(config, learning_rate_schedule, start_step)
            training.begin(config, start_step)

        def buffer_and_write_metrics(
            self, metrics: Any, step: int, step_time_delta: Any = None, is_training: bool = True
        ) -> None:
            try:
                super().buffer_and_write_metrics(metrics, step, step_time_delta, is_training)
            finally:  # it may end the training itself
                if is_training:
                    training.trained(metrics, step)

        def write_metrics(self, metrics: Any, step: int, metric_type: str = "train") -> None:
            super().write_metrics(metrics, step, metric_type)
            if metric_type == "eval":
                training.evaluated(metrics)

        def flush_metrics_and_cleanup(self) -> None:
            try:
                super().flush_metrics_and_cleanup()
            finally:
                training.finish()

    return ObservedMetricLogger

"""Logs a line of metrics every N steps and epochs, and optionally norms of gradients and parameters.

The lines go to the standard library's logger ``hookline.training`` at level INFO. A line has the mean of each training
metric over all values since the previous line, and the latest value of each evaluation metric. If logging is not set
up, the lines are shown on ``sys.stderr`` for the duration of the training. Values that are still on a device are not
waited for: their line is logged when they have arrived, in order and with its own step. The loop records the metrics.
"""

import logging
import sys
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from hookline._engine.checks import require_integer
from hookline._engine.jax_trees import named_leaves
from hookline._engine.metrics import copied, readable
from hookline._engine.moments import Callback
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState
from hookline._engine.subscriber import WRITER_PRIORITY
from hookline._engine.torch_models import local_part
from hookline._record.terminal import printable
from hookline.callbacks.gradient_monitor import StepNorms, gradients_by_name, norm_of, norms, parameters_by_name
from hookline.callbacks.monitoring import MOST_PENDING, is_nth

logger = logging.getLogger("hookline")
training = logging.getLogger("hookline.training")


@register("logger")
class LoggerCallback(Callback):
    """Logs the metrics to ``hookline.training``: a line per interval, with the mean of each training metric over it.

    Args:
        log_every_n_steps: Log a line, and norms, every N steps; None for never.
        log_every_n_epochs: Log a line at the end of every N epochs, over all of their steps; None for never.
        log_metrics: Whether to log lines at all.
        log_gradients: Record ``gradients/norm`` and the norm of each parameter's gradient, ``gradients/<parameter>``.
        log_parameters: Record ``parameters/norm`` and the norm of each parameter, ``parameters/<parameter>``.
    """

    priority = WRITER_PRIORITY
    ranks = "zero"

    def __init__(
        self,
        log_every_n_steps: int | None = 1,
        log_every_n_epochs: int | None = 1,
        log_metrics: bool = True,
        log_gradients: bool = False,
        log_parameters: bool = False,
    ) -> None:
        self.log_every_n_steps = require_integer("log_every_n_steps", log_every_n_steps, optional=True)
        self.log_every_n_epochs = require_integer("log_every_n_epochs", log_every_n_epochs, optional=True)
        self.log_metrics = log_metrics
        self.log_gradients = log_gradients
        self.log_parameters = log_parameters
        self._console: _Console | None = None
        self._is_set_up = False
        self._reset()

    def _reset(self) -> None:
        self._evaluated: set[str] = set()  # the names of evaluation metrics
        self._steps, self._epochs = _Averages(self._evaluated), _Averages(self._evaluated)
        self._pending: deque[dict[str, Any] | tuple[str, _Averages]] = deque()  # rows, and lines to log after them
        self._line_due = False
        self._gradients_at: int | None = None
        self._step_norms = StepNorms()

    def on_train_start(self, loop: LoopState, /) -> None:
        self._reset()
        self._set_up(loop)

    def _set_up(self, loop: LoopState) -> None:
        self._is_set_up = True
        if self.log_metrics and not training.hasHandlers():
            self._console = _Console()
        if self.log_metrics and not training.isEnabledFor(logging.INFO):
            logger.warning(
                "logger: the logger 'hookline.training' is disabled for level INFO, so no lines appear. "
                "Call hookline.logging.initialize() or logging.basicConfig(level=logging.INFO) before the training."
            )
        if (self.log_gradients or self.log_parameters) and loop.model is None and loop.optimizer is None:
            logger.warning("logger logs no norms: the loop has no model. Set it first: run.model = model.")

    def on_before_optimizer_step(self, loop: LoopState, optimizer: Any, /) -> None:
        if self.log_gradients and is_nth(loop.step + 1, self.log_every_n_steps):
            self._record_gradients(loop, optimizer, step=loop.step + 1)

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        if not self._is_set_up:  # added while training
            self._set_up(loop)
        self._line_due = is_nth(step_idx + 1, self.log_every_n_steps)
        if not self._line_due:
            return
        if self.log_gradients and self._gradients_at != step_idx + 1:  # on_before_optimizer_step was not fired
            self._record_gradients(loop, None, step=step_idx + 1)
        if self.log_parameters:
            parameters = parameters_by_name(loop, None)
            tensors = {name: local_part(p.detach()) for name, p in parameters.items() if p.is_floating_point()}
            tensors = tensors or named_leaves(loop.model)
            if tensors:
                loop.log(_norms_of("parameters", tensors))

    def on_log(self, loop: LoopState, step: int, metrics: dict[str, Any], /) -> None:
        if not self.log_metrics or not training.isEnabledFor(logging.INFO):
            return
        if metrics:
            self._pending.append(copied(metrics))
        if self._line_due:
            self._line_due = False
            self._pending.append((_counted("step", step, loop.num_steps), self._steps))
        self._log_ready()

    def on_eval(self, loop: LoopState, step_idx: int, eval_name: str, metrics: dict[str, Any], /) -> None:
        self._evaluated.update(metrics)

    def on_train_epoch_end(self, loop: LoopState, /) -> None:
        if is_nth(loop.epoch + 1, self.log_every_n_epochs):
            text = f"{_counted('epoch', loop.epoch + 1, loop.num_epochs)}  {_counted('step', loop.step, None)}"
            self._pending.append((text, self._epochs))
            self._log_ready()

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        self._log_rest(loop)
        if self.log_gradients and self._gradients_at is None:
            logger.warning(
                "logger saw no gradients. In a loop of your own, call optimizer.zero_grad() first in a step, "
                "or run.callbacks.on_before_optimizer_step(run, optimizer) before optimizer.step()."
            )

    def on_exception(self, loop: LoopState, error: BaseException, /) -> None:
        self._log_rest(loop)

    def _log_rest(self, loop: LoopState) -> None:
        if self.log_every_n_steps is not None:
            self._pending.append((_counted("step", loop.step, loop.num_steps), self._steps))
        self._log_ready(limit=0)
        self.close()

    def close(self) -> None:
        self._is_set_up = False
        if self._console is not None:
            self._console.close()
            self._console = None

    def _record_gradients(self, loop: LoopState, optimizer: Any, *, step: int) -> None:
        gradients = gradients_by_name(loop, optimizer)
        if gradients:
            self._gradients_at = step
            key = id(optimizer) if loop.model is None else tuple(gradients)
            loop.log(self._step_norms.add(_norms_of("gradients", gradients), step=step, key=key))

    def _log_ready(self, *, limit: int = MOST_PENDING) -> None:
        """Log the lines whose rows have arrived; wait for rows only while more than ``limit`` are pending."""
        while self._pending:
            first = self._pending[0]
            if isinstance(first, tuple):
                text, averages = first
                words = averages.take()
                if words:
                    training.info("%s", "  ".join([text, *words]))
            else:
                row = readable(first) if len(self._pending) <= limit else dict(first.items())
                if len(row) < len(first):
                    return
                self._steps.add(row)
                self._epochs.add(row)
            self._pending.popleft()


class _Console(logging.Handler):
    """Shows the lines on the console of a program that has not set up logging, until closed."""

    def __init__(self) -> None:
        super().__init__()
        self._level_before = training.level
        training.addHandler(self)
        training.setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # Looked up for each line: a progress bar may have replaced it.
            sys.stderr.write(printable(self.format(record)) + "\n")
        except Exception:  # as in all handlers: logging must not raise
            with suppress(ValueError):  # the console is closed
                self.handleError(record)

    def close(self) -> None:
        training.removeHandler(self)
        training.setLevel(self._level_before)
        super().close()


class _Averages:
    """The mean of each training metric over an interval, and the last value of each other metric.

    Args:
        evaluated: The names of evaluation metrics. Each evaluation measures different weights, so a mean of two would
            describe neither.
    """

    def __init__(self, evaluated: Collection[str]) -> None:
        self._evaluated = evaluated
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._last: dict[str, Any] = {}

    def add(self, row: dict[str, Any]) -> None:
        sums, counts = self._sums, self._counts
        for name, value in row.items():
            if type(value) is float or type(value) is int:
                sums[name] = sums.get(name, 0.0) + value
                counts[name] = counts.get(name, 0) + 1
            if value is not None:
                self._last[name] = value

    def take(self) -> list[str]:
        """Return the values as text and start a new interval. The costs of hooks are left to the summary."""
        numbers = {name: total / self._counts[name] for name, total in self._sums.items()}
        numbers |= {name: self._last[name] for name in numbers if name in self._evaluated}
        words = {name: f"{name} {number:.4g}" for name, number in numbers.items()}
        words |= {name: f"{name} {value}" for name, value in self._last.items() if name not in numbers}
        self._sums, self._counts, self._last = {}, {}, {}
        return [text for name, text in words.items() if not name.startswith("hooks/")]


def _norms_of(topic: str, tensors: dict[str, Any]) -> dict[str, Any]:
    each = norms(list(tensors.values()), 2.0)
    return {f"{topic}/norm": norm_of(each, 2.0)} | {f"{topic}/{name}": n for name, n in zip(tensors, each, strict=True)}


def _counted(what: str, count: int, total: int | None) -> str:
    return f"{what} {count}/{total}" if total else f"{what} {count}"

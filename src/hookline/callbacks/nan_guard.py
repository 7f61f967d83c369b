"""Stops, skips the update or warns when the loss or a gradient is not finite.

Gradients are checked in `on_before_optimizer_step`, the loss when a step ends. "stop" and "skip" must know the result
before the optimizer steps, so they wait for the device once per step. "warn" never waits and reports some steps later.

With "stop" and "skip", the processes of a distributed training exchange one number before each update, so that all of
them make it or none. The guard has to be added on all ranks.

A bare loop cannot see its optimizer step unless it registers this hook once, before the first step::

    optimizer.register_step_pre_hook(lambda *_: run.callbacks.on_before_optimizer_step(run, optimizer))

Without it, a loss that is not finite is still found, but only after the update.

A loop in JAX passes its gradients to ``run.before_update(gradients)``, which returns whether to make the update.
"""

import logging
import math
import sys
from typing import Any, Literal

from hookline._engine import jax_trees
from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError
from hookline._engine.metrics import Deferred
from hookline._engine.moments import Callback
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState
from hookline._engine.torch_models import local_part
from hookline._record.device import defer
from hookline.callbacks.gradient_monitor import (
    first_not_finite,
    gradients_by_name,
    parameters_by_name,
    require_on_all_ranks,
)
from hookline.callbacks.monitoring import PendingValues, pending_metric

logger = logging.getLogger("hookline")

ACTIONS = ("stop", "skip", "warn")


@register("nan_guard")
class NaNGuard(Callback):
    """Acts when the loss or a gradient is NaN or infinite, and names the first affected parameter.

    "stop" and "skip" skip the update by setting the gradients to None, so weights, momentum and weight decay stay
    unchanged and a stopped training leaves a working model.

    Args:
        action: "stop" ends the training, "skip" skips the update and continues, "warn" only logs.
        monitor: The metric that is the loss.
        check_gradients: Check the gradients, where the loop fires `on_before_optimizer_step`.
        check_parameters: When the loss is not finite, report the first parameter that is not finite either.
        max_skips: With "skip", stop after this many bad steps in a row; None never stops.
    """

    priority = -50  # after callbacks that watch the gradients, which this one may remove

    def __init__(
        self,
        action: Literal["stop", "skip", "warn"] = "stop",
        monitor: str = "loss",
        *,
        check_gradients: bool = True,
        check_parameters: bool = True,
        max_skips: int | None = 10,
    ) -> None:
        if action not in ACTIONS:
            raise OptionError(f"action={action!r}: give 'stop', 'skip' or 'warn'.")
        self.action = action
        self.monitor = monitor
        self.check_gradients = check_gradients
        self.check_parameters = check_parameters
        self.max_skips = require_integer("max_skips", max_skips, optional=True)
        self._pending: PendingValues[tuple[int, list[str] | None]] = PendingValues()
        self._skipped = False
        self._in_a_row = 0

    def on_train_start(self, loop: LoopState, /) -> None:
        self._in_a_row = 0
        if self.check_gradients and (reason := getattr(loop, "no_gradients", None)):
            logger.warning(
                "nan_guard checks only the loss, after each update: %s. Pass check_gradients=False to accept that.",
                reason,
            )

    def on_step_start(self, loop: LoopState, step_idx: int, /) -> None:
        self._skipped = False

    def on_before_optimizer_step(self, loop: LoopState, optimizer: Any, /) -> None:
        gradients = gradients_by_name(loop, optimizer) if self.check_gradients else {}
        if not gradients:
            return
        distributed = sys.modules.get("torch.distributed")
        has_group = distributed is not None and distributed.is_available() and distributed.is_initialized()
        together = self.action != "warn" and loop.world_size > 1 and has_group
        if together:
            require_on_all_ranks(loop, self)
        index, names = first_not_finite(list(gradients.values()), together=together), list(gradients)
        if self.action == "warn":
            self._check_later(loop, loop.step + 1, index, names)
        elif (bad := int(index)) >= 0:
            if hasattr(loop, "skip_update"):
                loop.skip_update()
            for parameter in parameters_by_name(loop, optimizer).values():
                parameter.grad = None
            self._skipped = True
            self._act(loop, loop.step + 1, f"the gradient of {names[bad]} is not finite", names[bad])

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        value = pending_metric(metrics, self.monitor)
        if self.action == "warn":
            self._check_later(loop, step_idx + 1, value, None)
        elif not self._skipped:
            self._check_loss(loop, step_idx + 1, value)

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        self._check_pending(loop, wait=True)

    def on_exception(self, loop: LoopState, error: BaseException, /) -> None:
        self._check_pending(loop, wait=True)

    def close(self) -> None:
        self._pending.clear()

    def _check_later(self, loop: LoopState, step: int, value: Any, names: list[str] | None) -> None:
        row = {"value": value}
        defer(row)
        self._pending.append(row["value"], (step, names))
        self._check_pending(loop)

    def _check_pending(self, loop: LoopState, *, wait: bool = False) -> None:
        for value, (step, names) in self._pending.ready(wait=wait):
            if names is None:  # the loss; otherwise the index of a gradient
                self._check_loss(loop, step, value)
            elif (bad := int(_number(value, otherwise=-1))) >= 0:
                self._act(loop, step, f"the gradient of {names[bad]} is not finite", names[bad])

    def _check_loss(self, loop: LoopState, step: int, value: Any) -> None:
        number = _number(value)
        if math.isfinite(number):
            self._in_a_row = 0
            return
        parameter = None
        if self.check_parameters and self._in_a_row == 0:  # once, not at every step: this waits for the device
            parameter = _first_not_finite(loop)
        affected = f"; the first parameter that is not finite is {parameter}" if parameter else ""
        self._act(loop, step, f"{self.monitor} is {number}{affected}", parameter)

    def _act(self, loop: LoopState, step: int, what: str, parameter: str | None) -> None:
        self._in_a_row += 1
        first = self._in_a_row == 1
        too_often = self.action == "skip" and self.max_skips is not None and self._in_a_row >= self.max_skips
        if self.action == "stop" or too_often:
            loop.request_stop(f"nan_guard: {what}" + (f", for {self._in_a_row} steps in a row" if too_often else ""))
        recorder = getattr(loop, "recorder", None)
        if recorder is not None and (first or self.action == "skip"):
            recorder.event("not_finite", step=step, action=self.action, reason=what, parameter=parameter)
        if first or too_often:  # once, not at every step of a model that is beyond recovery
            outcome = ""
            if self._skipped:
                outcome = " The update was skipped."
            elif self.action == "skip":
                outcome = " The update was made: skipping it takes a loop that fires on_before_optimizer_step."
            logger.warning("nan_guard: at step %d %s.%s", step, what, outcome)


def _first_not_finite(loop: LoopState) -> str | None:
    """The name of the first parameter that is not finite, if there is one."""
    weights = {name: local_part(parameter) for name, parameter in parameters_by_name(loop, None).items()}
    arrays = {} if weights else jax_trees.named_leaves(loop.model)
    if arrays and (bad := int(jax_trees.first_not_finite(list(arrays.values())))) >= 0:
        return list(arrays)[bad]
    return next((name for name, w in weights.items() if hasattr(w, "isfinite") and not w.isfinite().all()), None)


def _number(value: Any, *, otherwise: float = 0.0) -> float:
    """The value as a float, waiting for it if needed; text and None give ``otherwise``."""
    value = value.get() if isinstance(value, Deferred) else value
    return otherwise if value is None or isinstance(value, str) else float(value)

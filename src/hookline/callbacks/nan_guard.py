"""Stops, skips the update or warns when the loss or a gradient is not finite.

Gradients are looked at in `on_before_optimizer_step`, the loss when a step ends. "stop" and "skip"
must know before the optimizer moves, so they wait for the device once a step; "warn" never does, and
tells as soon as the numbers have arrived, some steps later.

Processes that train together decide together: with "stop" and "skip" they exchange one number before each update, so
that all make it or none. The guard has to be added on all ranks.

A bare loop does not know when its optimizer moves, unless it is told once, before the first step::

    optimizer.register_step_pre_hook(lambda *_: run.callbacks.on_before_optimizer_step(run, optimizer))

Without that, a loss that is not finite is still found, when its update has been made already.
"""

import logging
import math
import sys
from collections import deque
from typing import Any, Literal

from hookline._engine.errors import OptionError
from hookline._engine.metrics import Deferred, MetricsRow, find_metric
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

logger = logging.getLogger("hookline")

ACTIONS = ("stop", "skip", "warn")
MOST_WAITING = 256
"""How many values "warn" keeps that have not arrived; the oldest of more is waited for."""


@register("nan_guard")
class NaNGuard(Callback):
    """Acts when the loss or a gradient is NaN or infinite, and names the first parameter that is affected.

    The update is left out by taking the gradients away (``grad = None``), so that weights, momentum and
    weight decay all stay as they were; "stop" does that as well, and what is left is a model that works.

    Args:
        action: "stop" ends the training, "skip" leaves out the update and goes on, "warn" only says so.
        monitor: The metric that is the loss.
        check_gradients: Look at the gradients, where the loop fires `on_before_optimizer_step`.
        check_parameters: Say which parameter is not finite any more when the loss is not.
        max_skips: Stop after so many bad steps in a row with "skip"; None never does.
    """

    priority = -50  # behind those that watch the gradients, which it may take away

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
        if max_skips is not None and (isinstance(max_skips, bool) or not isinstance(max_skips, int) or max_skips < 1):
            raise OptionError(f"max_skips={max_skips!r}: give a whole number of at least 1, or None.")
        self.action = action
        self.monitor = monitor
        self.check_gradients = check_gradients
        self.check_parameters = check_parameters
        self.max_skips = max_skips
        self._waiting: deque[tuple[int, Any, list[str] | None]] = deque()
        self._dropped = False
        self._in_a_row = 0

    def on_train_start(self, loop: LoopState, /) -> None:
        self._in_a_row = 0
        if self.check_gradients and (reason := getattr(loop, "no_gradients", None)):
            logger.warning(
                "nan_guard looks at the loss only, after each update: %s. check_gradients=False asks for that.",
                reason,
            )

    def on_step_start(self, loop: LoopState, step_idx: int, /) -> None:
        self._dropped = False

    def on_before_optimizer_step(self, loop: LoopState, optimizer: Any, /) -> None:
        gradients = gradients_by_name(loop, optimizer) if self.check_gradients else {}
        if not gradients:
            return
        together = self.action != "warn" and loop.world_size > 1 and _are_connected()
        if together:
            require_on_all_ranks(loop, self)
        index, names = first_not_finite(list(gradients.values()), together=together), list(gradients)
        if self.action == "warn":
            self._look_later(loop, loop.step + 1, index, names)
        elif (bad := int(index)) >= 0:
            for parameter in parameters_by_name(loop, optimizer).values():
                parameter.grad = None
            self._dropped = True
            self._act(loop, loop.step + 1, f"the gradient of {names[bad]} is not finite", names[bad])

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        raw = dict(dict.items(metrics)) if isinstance(metrics, MetricsRow) else metrics  # what is on its way stays so
        value = find_metric(raw, self.monitor)
        if self.action == "warn":
            self._look_later(loop, step_idx + 1, value, None)
        elif not self._dropped:
            self._check_loss(loop, step_idx + 1, value)

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        self._look_at_waiting(loop, wait=True)

    def on_exception(self, loop: LoopState, error: BaseException, /) -> None:
        self._look_at_waiting(loop, wait=True)

    def close(self) -> None:
        self._waiting.clear()

    def _look_later(self, loop: LoopState, step: int, value: Any, names: list[str] | None) -> None:
        row = {"value": value}
        defer(row)
        self._waiting.append((step, row["value"], names))
        self._look_at_waiting(loop)

    def _look_at_waiting(self, loop: LoopState, *, wait: bool = False) -> None:
        while self._waiting and (wait or len(self._waiting) > MOST_WAITING or _is_there(self._waiting[0][1])):
            step, value, names = self._waiting.popleft()
            if names is None:
                self._check_loss(loop, step, value)
            elif (bad := int(_number(value, otherwise=-1))) >= 0:
                self._act(loop, step, f"the gradient of {names[bad]} is not finite", names[bad])

    def _check_loss(self, loop: LoopState, step: int, value: Any) -> None:
        number = _number(value)
        if math.isfinite(number):
            self._in_a_row = 0
            return
        first = self._in_a_row == 0  # looking for the parameter waits for the device: once, not at every step
        parameter = _first_bad_weight(loop) if first and self.check_parameters else None
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
        if first or too_often:  # said once, not at every step of a model that is lost
            logger.warning("nan_guard: at step %d %s.%s", step, what, self._outcome())

    def _outcome(self) -> str:
        if self._dropped:
            return " The update was left out."
        if self.action == "skip":
            return " The update was made: leaving it out takes a loop that fires on_before_optimizer_step."
        return ""


def _is_there(value: Any) -> bool:
    return not isinstance(value, Deferred) or value.source.ready()


def _number(value: Any, *, otherwise: float = 0.0) -> float:
    """The value as a float, waiting if need be; what is no number is not this guard's concern."""
    value = value.get() if isinstance(value, Deferred) else value
    return otherwise if value is None or isinstance(value, str) else float(value)


def _first_bad_weight(loop: LoopState) -> str | None:
    parameters = {name: local_part(p) for name, p in parameters_by_name(loop, None).items()}
    return next((name for name, p in parameters.items() if hasattr(p, "isfinite") and not p.isfinite().all()), None)


def _are_connected() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()

"""Raises an alert when a metric breaks a rule: a log line, an event in the record, and optionally a stop or a call.

A rule is checked for each logged row that has the metric. A value that is still on a device is checked when it arrives,
at the end of training at the latest. A metric that is missing after the first evaluation, or at the end, is warned
about.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from hookline._engine.errors import OptionError, closest
from hookline._engine.metrics import plain
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState
from hookline.callbacks.monitoring import (
    MonitorCheck,
    PendingValues,
    StatefulCallback,
    pending_metric,
    require_metric_name,
)

logger = logging.getLogger("hookline")

SEVERITIES = ("debug", "info", "warning", "error", "critical")
MOST_PENDING = 64
"""How many values may be on their way from a device: few, so that an alert is not late."""

Action = Callable[[LoopState, dict[str, Any]], object]


@register("alert")
class Alert(StatefulCallback):
    """Fires when a metric is above or below a limit, or satisfies ``when``; without a rule, when it is not finite.

    Args:
        metric: The metric; ``val_loss`` and ``val/loss`` are the same.
        above: Fire when it is greater than this.
        below: Fire when it is less than this.
        when: A function of the value; fire when it returns something true.
        severity: The level of the log line: "debug", "info", "warning", "error" or "critical".
        cooldown_seconds: Do not fire again for this long.
        once: Fire once per run, resumes included.
        stop: Also request a stop.
        action: Called with the loop and the alert: ``metric``, ``value``, ``step``, ``severity``, ``message``.
    """

    def __init__(
        self,
        metric: str = "loss",
        *,
        above: float | None = None,
        below: float | None = None,
        when: Callable[[Any], object] | None = None,
        severity: str = "warning",
        cooldown_seconds: float = 0.0,
        once: bool = False,
        stop: bool = False,
        action: Action | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require_metric_name("metric", metric)
        if severity not in SEVERITIES:
            raise OptionError(f"severity={severity!r}: {closest(str(severity), SEVERITIES)}")
        if not cooldown_seconds >= 0:
            raise OptionError(f"cooldown_seconds={cooldown_seconds!r}: give a number of at least 0.")
        for name, function in {"when": when, "action": action}.items():
            if function is not None and not callable(function):
                raise OptionError(f"{name}={function!r}: give a function.")
        self.metric = metric
        self.severity = severity
        self.cooldown_seconds = cooldown_seconds
        self.once = once
        self.stop = stop
        self.action = action
        self._above, self._below, self._when = above, below, when
        self._clock = clock
        self._check = MonitorCheck(metric)
        self._reset()

    def _reset(self) -> None:
        self.fired = 0
        self._silent_until = -math.inf
        self._pending: PendingValues[int] = PendingValues(MOST_PENDING)
        self._check.reset()

    def on_eval(self, loop: LoopState, step_idx: int, eval_name: str, metrics: dict[str, Any], /) -> None:
        self._check.evaluated(step_idx + 1)

    def on_log(self, loop: LoopState, step: int, metrics: dict[str, Any], /) -> None:
        value = pending_metric(metrics, self.metric)
        if value is not None:
            self._pending.append(value, step)
        self._check.after_row(loop, step, who=self.name)
        self._apply_rules(loop)

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        super().on_train_end(loop, artifacts)
        self._apply_rules(loop, wait=True)
        self._check.at_end(loop, who=self.name)

    def on_exception(self, loop: LoopState, error: BaseException, /) -> None:
        super().on_exception(loop, error)
        self._apply_rules(loop, wait=True)

    def state_dict(self) -> dict[str, Any]:
        return {"fired": self.fired}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.fired = int(state["fired"])

    def _apply_rules(self, loop: LoopState, *, wait: bool = False) -> None:
        for pending, step in self._pending.ready(wait=wait):
            value = plain(pending)
            broken = self._broken_rule(value)
            is_silent = (self.once and self.fired > 0) or self._clock() < self._silent_until
            if broken is not None and not is_silent:
                shown = f"{value:g}" if isinstance(value, int | float) else repr(value)
                self._fire(loop, step, value, f"{self.metric} is {shown}{broken} at step {step}")

    def _broken_rule(self, value: Any) -> str | None:
        """The rule that the value breaks, as part of the message; None if it breaks none."""
        is_number = isinstance(value, int | float)
        if self._above is not None and is_number and value > self._above:
            return f", above {self._above:g},"
        if self._below is not None and is_number and value < self._below:
            return f", below {self._below:g},"
        if self._when is not None:
            return "" if self._when(value) else None
        has_rule = self._above is not None or self._below is not None
        return "" if not has_rule and is_number and not math.isfinite(value) else None

    def _fire(self, loop: LoopState, step: int, value: Any, message: str) -> None:
        self.fired += 1
        self._silent_until = self._clock() + self.cooldown_seconds
        logger.log(logging.getLevelName(self.severity.upper()), "%s: %s", self.name, message)
        alert = {"metric": self.metric, "value": value, "severity": self.severity, "message": message}
        recorder = getattr(loop, "recorder", None)
        if recorder is not None:
            recorder.event("alert", step=step, **alert)
        if self.stop:
            loop.request_stop(f"alert: {message}")
        if self.action is not None:
            self.action(loop, {**alert, "step": step})

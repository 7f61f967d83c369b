"""Raises an alert when a metric breaks a rule: a line of logging, an event in the record, and what else is asked for.

A rule is looked at whenever a row with the metric is written. A value that is still on its way from a
device is not waited for: it is looked at when it is there, at the end of training at the latest. A metric that is
not there after the first evaluation, or at the end, is warned about.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from hookline._engine.errors import OptionError, closest
from hookline._engine.metrics import Deferred, find_metric, plain
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState
from hookline.callbacks.monitoring import FreshStart, MonitorCheck

logger = logging.getLogger("hookline")

SEVERITIES = ("debug", "info", "warning", "error", "critical")
WAITING_VALUES = 64
"""How many values may be on their way; the oldest of more is waited for."""

Action = Callable[[LoopState, dict[str, Any]], object]


@register("alert")
class Alert(FreshStart):
    """Fires when a metric is above, below, or as a function says; without any of these, when it is not finite.

    Args:
        metric: The metric; ``val_loss`` and ``val/loss`` are the same.
        above: Fire when it is greater than this.
        below: Fire when it is less than this.
        when: A function of the value; fire when it returns something true.
        severity: The level of the line: "debug", "info", "warning", "error" or "critical".
        cooldown_seconds: Keep silent for so long after firing.
        once: Fire once in the run, also after a resume.
        stop: Ask for a stop, too.
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
        _require(metric, severity, cooldown_seconds, {"when": when, "action": action})
        self.metric = metric
        self.severity = severity
        self.cooldown_seconds = cooldown_seconds
        self.once = once
        self.stop = stop
        self.action = action
        self._rules = _rules(above, below, when)
        self._clock = clock
        self._check = MonitorCheck(metric)
        self._forget()

    def _forget(self) -> None:
        self.fired = 0
        self._silent_until = -math.inf
        self._waiting: deque[tuple[int, Any]] = deque()
        self._check.forget()

    def on_eval(self, loop: LoopState, step_idx: int, eval_name: str, metrics: dict[str, Any], /) -> None:
        self._check.evaluated(step_idx + 1)

    def on_log(self, loop: LoopState, step: int, metrics: dict[str, Any], /) -> None:
        value = find_metric(dict(dict.items(metrics)), self.metric)  # as it is, also one on its way
        if value is not None:
            self._waiting.append((step, value))
        self._check.after_row(loop, step, who=self.name)
        self._look(loop, leave=WAITING_VALUES)

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        super().on_train_end(loop, artifacts)
        self._look(loop, leave=0)
        self._check.at_end(loop, who=self.name)

    def on_exception(self, loop: LoopState, error: BaseException, /) -> None:
        super().on_exception(loop, error)
        self._look(loop, leave=0)

    def state_dict(self) -> dict[str, Any]:
        return {"fired": self.fired}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.fired = int(state["fired"])

    def _look(self, loop: LoopState, *, leave: int) -> None:
        """Look at the values that are there, and at the oldest of more than may be on their way."""
        while self._waiting and (len(self._waiting) > leave or _is_there(self._waiting[0][1])):
            step, given = self._waiting.popleft()
            value = plain(given)
            broken = next((words for words, rule in self._rules if rule(value)), None)
            if broken is not None and not self._is_silent():
                self._fire(loop, step, value, f"{self.metric} is {_shown(value)}{broken} at step {step}")

    def _is_silent(self) -> bool:
        return (self.once and self.fired > 0) or self._clock() < self._silent_until

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


def _require(metric: Any, severity: Any, cooldown_seconds: float, functions: Mapping[str, Any]) -> None:
    if not isinstance(metric, str) or not metric:
        raise OptionError(f"metric={metric!r}: give the name of a metric.")
    if severity not in SEVERITIES:
        raise OptionError(f"severity={severity!r}: {closest(str(severity), SEVERITIES)}")
    if not cooldown_seconds >= 0:
        raise OptionError(f"cooldown_seconds={cooldown_seconds!r}: give a number of at least 0.")
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise OptionError(f"{name}={function!r}: give a function.")


def _rules(
    above: float | None, below: float | None, when: Callable[[Any], object] | None
) -> list[tuple[str, Callable[[Any], object]]]:
    """The rules that were given, each with the words for a value that breaks it."""
    rules: list[tuple[str, Callable[[Any], object]]] = []
    if above is not None:
        rules.append((f", above {above:g},", lambda value: _is_number(value) and value > above))
    if below is not None:
        rules.append((f", below {below:g},", lambda value: _is_number(value) and value < below))
    if when is not None:
        rules.append(("", when))
    return rules or [("", lambda value: _is_number(value) and not math.isfinite(value))]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _shown(value: Any) -> str:
    return f"{value:g}" if _is_number(value) else repr(value)


def _is_there(value: Any) -> bool:
    return not isinstance(value, Deferred) or value.source.ready()

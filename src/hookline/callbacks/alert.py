"""Alerts: a log line, an event in the record, and optionally a stop or a call, when a metric breaks a rule.

`Alert` compares each value with limits; `NoProgress` fires when a metric has not improved for some steps or seconds. A
value that is still on a device is checked when it arrives, at the end of training at the latest. A metric that is
missing after the first evaluation, or at the end, is warned about. `hookline ui` and `hookline serve` deliver the
events to people, with ``--alerts``.
"""

import bisect
import functools
import glob
import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hookline._engine.checks import require_integer, require_number
from hookline._engine.errors import OptionError, closest
from hookline._engine.metrics import plain
from hookline._engine.moments import Callback
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState
from hookline._engine.subscriber_list import SubscriberList
from hookline._record.reader import JOURNAL, read
from hookline._record.records import Metrics
from hookline._record.run_directory import METADATA
from hookline._record.segment import journal_files
from hookline.callbacks.monitoring import (
    MonitorCheck,
    PendingValues,
    StatefulCallback,
    direction,
    monitored_number,
    pending_metric,
    require_metric_name,
)

logger = logging.getLogger("hookline")

ALERT = "alert"
"""The event of an alert in the record."""
REARM = ("always", "recovered")
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
        reference: Directories of recorded runs, or patterns such as ``runs/lab/baseline-*``: with ``differs_by``.
        differs_by: Fire when it differs by more than this from the median of the reference runs at the same step, which
            are read when training starts.
        severity: The level of the log line: "debug", "info", "warning", "error" or "critical".
        cooldown_seconds: Do not fire again for this long.
        once: Fire once per run, resumes included.
        stop: Also request a stop.
        action: Called with the loop and the alert: ``metric``, ``value``, ``step``, ``severity``, ``message``. A replay
            does not call it.
        in_a_row: How many values in a row must break the rule.
        rearm: When it may fire again: ``"always"``, or ``"recovered"``, after a value that does not break the rule.
    """

    def __init__(
        self,
        metric: str = "loss",
        *,
        above: float | None = None,
        below: float | None = None,
        when: Callable[[Any], object] | None = None,
        reference: Sequence[str | Path] = (),
        differs_by: float | None = None,
        severity: str = "warning",
        cooldown_seconds: float = 0.0,
        once: bool = False,
        stop: bool = False,
        action: Action | None = None,
        in_a_row: int = 1,
        rearm: Literal["always", "recovered"] = "always",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require_metric_name("metric", metric)
        _require_severity(severity)
        if not cooldown_seconds >= 0:
            raise OptionError(f"cooldown_seconds={cooldown_seconds!r}: give a number of at least 0.")
        if rearm not in REARM:
            raise OptionError(f"rearm={rearm!r}: {closest(str(rearm), REARM)}")
        if isinstance(reference, str | Path) or not all(isinstance(each, str | Path) for each in reference):
            raise OptionError(f"reference={reference!r:.80}: give a list of directories of runs.")
        self.differs_by = require_number("differs_by", differs_by, above=0, optional=True)
        if (self.differs_by is None) != (not reference):
            raise OptionError("reference and differs_by belong together: give both.")
        for name, function in {"when": when, "action": action}.items():
            if function is not None and not callable(function):
                raise OptionError(f"{name}={function!r}: give a function.")
        self.metric = metric
        self.severity = severity
        self.cooldown_seconds = cooldown_seconds
        self.once = once
        self.stop = stop
        self.action = action
        self.in_a_row = require_integer("in_a_row", in_a_row)
        self.rearm = rearm
        self._above, self._below, self._when = above, below, when
        self._reference = tuple(map(str, reference))
        self._curves: list[Curve] = []
        self._clock = clock
        self._check = MonitorCheck(metric)
        self._reset()

    def _reset(self) -> None:
        self.fired = 0
        self._broken = 0  # how many of the latest values in a row broke the rule
        self._armed = True
        self._silent_until = -math.inf
        self._pending: PendingValues[int] = PendingValues(MOST_PENDING)
        self._check.reset()

    def on_train_start(self, loop: LoopState, /) -> None:
        super().on_train_start(loop)
        if self._reference:
            self._curves = reference_curves(self._reference, self.metric)

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
        counts = self.in_a_row > 1 or self.rearm != "always"
        return {"fired": self.fired} | ({"broken": self._broken, "armed": self._armed} if counts else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.fired = int(state["fired"])
        self._broken, self._armed = int(state.get("broken", 0)), bool(state.get("armed", True))

    def _apply_rules(self, loop: LoopState, *, wait: bool = False) -> None:
        for pending, step in self._pending.ready(wait=wait):
            value = plain(pending)
            broken = self._broken_rule(value, step)
            self._broken = 0 if broken is None else self._broken + 1
            if broken is None:
                self._armed = True
                continue
            is_silent = (self.once and self.fired > 0) or self._clock() < self._silent_until
            if self._broken >= self.in_a_row and self._armed and not is_silent:
                self._armed = self.rearm == "always"
                shown = f"{value:g}" if isinstance(value, int | float) else repr(value)
                often = f" {self._broken} times in a row," if self.in_a_row > 1 else ""
                self._fire(loop, step, value, f"{self.metric} is {shown}{broken}{often} at step {step}")

    def _broken_rule(self, value: Any, step: int) -> str | None:
        """The rule that the value breaks, as part of the message; None if it breaks none."""
        is_number = isinstance(value, int | float)
        if self._above is not None and is_number and value > self._above:
            return f", above {self._above:g},"
        if self._below is not None and is_number and value < self._below:
            return f", below {self._below:g},"
        usual = None if self.differs_by is None else _median_at(self._curves, step)
        # Not ">": NaN differs from everything, and compares as false with any number.
        if usual is not None and is_number and not abs(value - usual) <= self.differs_by:
            return f", {abs(value - usual):g} from the median {usual:g} of {len(self._curves)} runs,"
        if self._when is not None:
            return "" if self._when(value) else None
        has_rule = any(rule is not None for rule in (self._above, self._below, self.differs_by))
        return "" if not has_rule and is_number and not math.isfinite(value) else None

    def _fire(self, loop: LoopState, step: int, value: Any, message: str) -> None:
        self.fired += 1
        self._silent_until = self._clock() + self.cooldown_seconds
        facts = {"metric": self.metric, "value": value, "severity": self.severity, "message": message}
        repeats = self.rearm == "always" and not self.once
        raise_alert(loop, self, facts, step=step, stop=self.stop, action=self.action, repeats=repeats)


class Curve(NamedTuple):
    """The values of a metric of a recorded run, by step."""

    steps: list[int]
    values: list[float]


def reference_curves(patterns: Sequence[str], metric: str) -> list[Curve]:
    """Return the finite values of a metric in recorded runs.

    Raises:
        OptionError: A pattern matches no run, or a run has no such metric.
    """
    curves = []
    for pattern in patterns:
        found = sorted(Path(each).parent for each in glob.glob(f"{pattern}/{METADATA}"))  # noqa: PTH207 - may be absolute
        if not found:
            raise OptionError(f"reference={pattern!r}: there is no such run. Give a directory with a {METADATA}.")
        for directory in found:
            # By their size: a server reads the same runs for each run that it watches.
            size = sum(file.path.stat().st_size for file in journal_files(directory / JOURNAL))
            curve = _read_curve(directory.resolve(), metric, size)
            if not curve.steps:
                raise OptionError(f"reference={str(directory)!r} has no metric {metric!r}.")
            curves.append(curve)
    return curves


@functools.lru_cache(maxsize=64)
def _read_curve(directory: Path, metric: str, size: int) -> Curve:
    values = {}
    for record in read(directory):
        value = pending_metric(record.values, metric) if isinstance(record, Metrics) else None
        if isinstance(value, int | float) and math.isfinite(value) and record.step is not None:
            values[record.step] = float(value)
    steps = sorted(values)
    return Curve(steps, [values[step] for step in steps])


def _median_at(curves: Sequence[Curve], step: int) -> float | None:
    """Return the median of curves at a step, each with its last value up to it; None if none has begun."""
    at = [(curve, bisect.bisect_right(curve.steps, step)) for curve in curves]
    known = [curve.values[index - 1] for curve, index in at if index]
    return statistics.median(known) if known else None


@register("no_progress")
class NoProgress(StatefulCallback):
    """Fires when a metric has not improved for some steps or seconds, and again only after it has improved.

    Args:
        metric: The metric; ``val_loss`` and ``val/loss`` are the same.
        steps: Fire after this many steps without an improvement.
        seconds: Fire after this long without an improvement.
        mode: Whether smaller ("min") or larger ("max") is better; by default guessed from the metric's name.
        min_delta: How much better a value must be to count as an improvement.
        severity: The level of the log line: "debug", "info", "warning", "error" or "critical".
        stop: Also request a stop.
        action: Called with the loop and the alert: ``metric``, ``value``, ``step``, ``severity``, ``message``. A replay
            does not call it.
    """

    def __init__(
        self,
        metric: str = "loss",
        *,
        steps: int | None = None,
        seconds: float | None = None,
        mode: Literal["min", "max"] | None = None,
        min_delta: float = 0.0,
        severity: str = "warning",
        stop: bool = False,
        action: Action | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require_metric_name("metric", metric)
        _require_severity(severity)
        self.metric = metric
        self.steps = require_integer("steps", steps, optional=True)
        self.seconds = require_number("seconds", seconds, above=0, optional=True)
        if self.steps is None and self.seconds is None:
            self.steps = 1000
        self.mode = direction(metric, mode)
        self.min_delta = require_number("min_delta", min_delta, minimum=0)
        self.severity, self.stop, self.action = severity, stop, action
        self._clock = clock
        self._check = MonitorCheck(metric)
        self._reset()

    def _reset(self) -> None:
        self.best: float | None = None
        self.fired = 0
        self._armed = True
        self._improved_at: int | None = None
        self._improved_time: float | None = None
        self._pending: PendingValues[int] = PendingValues(MOST_PENDING)
        self._check.reset()

    def on_train_start(self, loop: LoopState, /) -> None:
        super().on_train_start(loop)
        # From here on, also for a resumed run: the time between two sessions is not time without progress.
        self._improved_time = self._clock()
        if self._improved_at is None:
            self._improved_at = loop.step

    def on_eval(self, loop: LoopState, step_idx: int, eval_name: str, metrics: dict[str, Any], /) -> None:
        self._check.evaluated(step_idx + 1)

    def on_log(self, loop: LoopState, step: int, metrics: dict[str, Any], /) -> None:
        value = pending_metric(metrics, self.metric)
        if value is not None:
            self._pending.append(value, step)
        self._check.after_row(loop, step, who=self.name)
        for pending, at in self._pending.ready():
            self._note(plain(pending), at)
        self._fire_if_stuck(loop, step)

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        super().on_train_end(loop, artifacts)
        self._check.at_end(loop, who=self.name)

    def state_dict(self) -> dict[str, Any]:
        for pending, at in self._pending.ready(wait=True):
            self._note(plain(pending), at)
        return {"best": self.best, "fired": self.fired, "armed": self._armed, "improved_at": self._improved_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.best, self.fired, self._armed = state["best"], int(state["fired"]), bool(state["armed"])
        self._improved_at = state["improved_at"]

    def _note(self, value: Any, step: int) -> None:
        if value is None:  # it could not be fetched
            return
        number = monitored_number(self.metric, value)
        if not math.isfinite(number):
            return
        gain = math.inf if self.best is None else self.best - number if self.mode == "min" else number - self.best
        if gain > self.min_delta:
            self.best, self._improved_at, self._improved_time = number, step, self._clock()
            self._armed = True

    def _fire_if_stuck(self, loop: LoopState, step: int) -> None:
        if not self._armed or self._improved_at is None or self._improved_time is None:
            return
        steps, seconds = step - self._improved_at, self._clock() - self._improved_time
        if self.steps is not None and steps >= self.steps:
            how_long = f"{steps} steps"
        elif self.seconds is not None and seconds >= self.seconds:
            how_long = f"{seconds:.0f} s"
        else:
            return
        self._armed = False
        self.fired += 1
        best = "has had no finite value" if self.best is None else f"has not improved on {self.best:g}"
        message = f"{self.metric} {best} for {how_long} at step {step}"
        facts = {"metric": self.metric, "value": self.best, "severity": self.severity, "message": message}
        raise_alert(loop, self, facts, step=step, stop=self.stop, action=self.action)


def _require_severity(severity: Any) -> None:
    if severity not in SEVERITIES:
        raise OptionError(f"severity={severity!r}: {closest(str(severity), SEVERITIES)}")


def severity_level(severity: str) -> int:
    """Return the level of a log line about an alert."""
    level = logging.getLevelName(severity.upper())
    return level if isinstance(level, int) else logging.WARNING


def raise_alert(
    loop: LoopState,
    rule: Callback,
    facts: dict[str, Any],
    *,
    step: int,
    stop: bool,
    action: Action | None,
    repeats: bool = False,
) -> None:
    """Log and record an alert, and do what its rule asks for.

    Args:
        rule: The callback; its name in the loop's collection is recorded.
        facts: ``metric``, ``value``, ``severity`` and ``message``.
        repeats: It fires at each value that breaks it; recorded, so that a server can report it once.
    """
    callbacks = getattr(loop, "callbacks", None)
    flat = callbacks.flatten() if isinstance(callbacks, SubscriberList) else ()
    name = next((each.path for each in flat if each.registration.subscriber is rule), rule.name)
    is_replay = getattr(loop, "is_replay", False)  # nothing has happened now: its result has the alert
    if not is_replay:
        logger.log(severity_level(facts["severity"]), "%s: %s", name, facts["message"])
    recorder = getattr(loop, "recorder", None)
    if recorder is not None:
        recorder.event(ALERT, step=step, rule=name, **facts, **({"repeats": True} if repeats else {}))
    if stop:
        loop.request_stop(f"alert: {facts['message']}")
    if action is not None and not is_replay:  # it may page someone
        action(loop, {**facts, "step": step})

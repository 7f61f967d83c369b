"""What each built-in callback does in a host, so that one that receives nothing there does not count as working.

Every callback is made so that it does something within a few steps. Threads and clocks are not waited for: `Nudges`
calls the functions that threads call, and moves the clock.
"""

import io
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from test_subscribers import built_in

import hookline as hl
from hookline import callbacks
from hookline._engine.hook_manager import CompositeHook
from hookline._engine.hooks import CheckpointHook, LoggingHook, MetricsHook
from hookline._engine.jax_trees import named_leaves
from hookline._record.reader import read
from hookline._record.records import Event, Metrics, Sample, Status
from hookline.rl.hooks import EvaluationHook
from hookline.testing import RecordingCallback
from hosts.base import BATCHES, STEPS

HOUR = 3600.0
NUDGED_AT = 2
"""The step at which clocks are moved and threads' work is done."""
MARK = "found by sample_logger"


class Nudges(hl.Callback):
    """Does what threads and time would do. It leaves after an epoch: a checkpoint, and the timer ends its budget."""

    priority = 1000

    def __init__(self, bench: "Bench") -> None:
        self.bench = bench

    def on_before_optimizer_step(self, loop: Any, optimizer: Any) -> None:
        if not self.bench.leaves or loop.step != NUDGED_AT:
            return
        if getattr(loop, "gradients", None) is not None:  # the guard leaves this update out
            loop.gradients = sys.modules["jax"].tree.map(lambda each: each * float("nan"), loop.gradients)
        else:
            loop.model.get_parameter(next(iter(dict(loop.model.named_parameters())))).grad.fill_(float("nan"))

    def on_step_end(self, loop: Any, step_idx: int) -> dict[str, float]:
        made = self.bench.made
        if loop.step == NUDGED_AT:
            made["heartbeat"].beat()
            made["resource_monitor"].read()
            self.bench.now += HOUR
            made["progress_watchdog"].check()
        if self.bench.leaves and loop.step == BATCHES:
            loop.request_checkpoint()
            self.bench.now += 10 * HOUR
        return {"poison": float("nan") if loop.step == NUDGED_AT else 0.0}


class Looks(hl.Callback):
    """Checks whether a validation uses the averages of `EMA`."""

    priority = -1000

    def __init__(self, bench: "Bench") -> None:
        self.bench = bench

    def on_validation_start(self, loop: Any) -> None:
        averages = list(self.bench.made["ema"].averages.values())
        if averages:
            trained = [*named_leaves(loop.model).values()]
            trained = trained or [each.detach() for each in loop.model.parameters() if each.requires_grad]
            same = [bool((one == other).all()) for one, other in zip(trained, averages, strict=True)]
            self.bench.averaged.append(all(same))


@dataclass
class Bench:
    """All built-in callbacks for one training, and what can be seen of them.

    Args:
        directory: Where they write.
        leaves: Whether the training is to end after an epoch.
        monitor: What the host's evaluations measure.
    """

    directory: Path
    leaves: bool
    monitor: str
    now: float = 0.0
    lines: list[str] = field(default_factory=list)
    alerts: list[Any] = field(default_factory=list)
    stuck: list[int] = field(default_factory=list)
    printed: io.StringIO = field(default_factory=io.StringIO)
    drawn: io.StringIO = field(default_factory=io.StringIO)
    seen: RecordingCallback = field(default_factory=RecordingCallback)
    averaged: list[bool] = field(default_factory=list)
    made: dict[str, Any] = field(default_factory=dict)

    def make(self) -> list[Any]:
        """Create one of each."""
        clock = lambda: self.now  # noqa: E731
        self.made = {
            "alert": callbacks.Alert(
                "loss", when=lambda value: True, action=lambda loop, found: self.alerts.append(found)
            ),
            "checkpoint": callbacks.CheckpointCallback(every_n_steps=3),
            "checkpoint_hook": CheckpointHook(5),
            "composite_hook": CompositeHook([MetricsHook(1, lambda context: {"composed": 1.0})]),
            "csv_metrics": callbacks.CsvMetrics(self.directory / "metrics.csv"),
            "early_stopping": callbacks.EarlyStoppingCallback(self.monitor, mode="min", patience=1000),
            "ema": callbacks.EMA(0.5),
            "evaluation_hook": EvaluationHook(2, 1, "probe"),
            "gradient_monitor": callbacks.GradientMonitor(every=1),
            "heartbeat": callbacks.Heartbeat(HOUR),
            "learning_rate_monitor": callbacks.LearningRateMonitor(),
            "logger": callbacks.LoggerCallback(),
            "logging_hook": LoggingHook(1),
            "metrics_hook": MetricsHook(1, lambda context: {"collected": 1.0}),
            "nan_guard": callbacks.NaNGuard("skip", "nudges/poison"),
            "no_progress": callbacks.NoProgress(
                "loss", steps=1, min_delta=1e9, action=lambda loop, found: self.stuck.append(found["step"])
            ),
            "print_progress": callbacks.PrintProgress(every=1),
            "progress_bar": callbacks.ProgressBar(console=Console(file=self.drawn, force_terminal=True)),
            "progress_watchdog": callbacks.ProgressWatchdog(HOUR, clock=clock),
            "resource_monitor": callbacks.ResourceMonitor(HOUR),
            "sample_logger": callbacks.SampleLogger(source="validation", make=_marked),
            "throughput_monitor": callbacks.ThroughputMonitor(),
            "timer": callbacks.Timer(seconds=5 * HOUR, clock=clock),
        }
        assert sorted(self.made) == built_in()
        rollouts = callbacks.SampleLogger(make=_marked).configure(name="rollout_logger")
        return [*self.made.values(), rollouts, Nudges(self), Looks(self), self.seen]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Capture what is printed and logged."""
        handler = _Lines(self.lines)
        loggers = [logging.getLogger(name) for name in ("hookline.training", "hookline.hooks")]
        levels = [each.level for each in loggers]
        for each in loggers:
            each.addHandler(handler)
            each.setLevel(logging.INFO)
        try:
            with redirect_stdout(self.printed):
                yield
        finally:
            for each, level in zip(loggers, levels, strict=True):
                each.removeHandler(handler)
                each.setLevel(level)


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(f"{record.name}: {record.getMessage()}")


def _marked(*given: Any) -> list[dict[str, Any]]:
    return [{"prompt": MARK, "completion": ""}]


@dataclass(frozen=True)
class Found:
    """Two trainings; the second resumes the first."""

    first: Bench
    second: Bench
    records: list[Any]
    stop_reason: str | None

    @property
    def metrics(self) -> set[str]:
        """The names of all metrics."""
        return {name for record in self.records if isinstance(record, Metrics) for name in record.values}

    @property
    def events(self) -> set[str]:
        """The names of all events."""
        return {record.name for record in self.records if isinstance(record, Event)}

    @property
    def not_finite(self) -> set[str]:
        """The findings of the guard."""
        found = [record for record in self.records if isinstance(record, Event) and record.name == "not_finite"]
        return {record.data["reason"] for record in found}

    @property
    def saved(self) -> set[int]:
        """The steps of all checkpoints."""
        events = [*self.first.seen.events, *self.second.seen.events]
        return {event.arguments[0].step for event in events if event.moment == "on_checkpoint"}

    def has_metric(self, pattern: str) -> bool:
        """Whether there is a metric whose name matches."""
        return any(re.fullmatch(pattern, name) for name in self.metrics)

    def has_line(self, start: str) -> bool:
        """Whether a line was logged that begins so, in both trainings."""
        return all(any(line.startswith(start) for line in each.lines) for each in (self.first, self.second))


EFFECTS: dict[str, Callable[[Found], bool]] = {
    "alert": lambda found: (
        {alert["step"] for alert in found.first.alerts + found.second.alerts} == set(range(1, STEPS + 1))
    ),
    "checkpoint": lambda found: {3, 6} <= found.saved,
    "checkpoint_hook": lambda found: 5 in found.saved,
    "composite_hook": lambda found: found.has_metric(".*/composed"),
    "csv_metrics": lambda found: len((found.second.directory / "metrics.csv").read_text().splitlines()) > STEPS,
    "early_stopping": lambda found: found.second.made["early_stopping"].best is not None,
    "ema": lambda found: found.second.made["ema"].updates == STEPS and all(found.second.averaged),
    "evaluation_hook": lambda found: found.has_metric("(.*/)?probe/.*"),
    "gradient_monitor": lambda found: found.has_metric("(clipped_)?grad_norm/.*"),
    "heartbeat": lambda found: any(isinstance(r, Status) and r.status == "heartbeat" for r in found.records),
    "learning_rate_monitor": lambda found: found.has_metric("lr(/.*)?"),
    "logger": lambda found: found.has_line("hookline.training: "),
    "logging_hook": lambda found: found.has_line("hookline.hooks: step "),
    "metrics_hook": lambda found: found.has_metric(".*/collected"),
    "nan_guard": lambda found: any("nudges/poison" in reason for reason in found.not_finite),
    "no_progress": lambda found: len(found.first.stuck) == 1,
    "print_progress": lambda found: re.search(r"^step +\d+", found.second.printed.getvalue(), re.MULTILINE) is not None,
    "progress_bar": lambda found: f"{STEPS}/{STEPS}" in found.second.drawn.getvalue(),
    "progress_watchdog": lambda found: "hang" in found.events,
    "resource_monitor": lambda found: found.has_metric("(.*/)?process_cpu_percent"),
    "sample_logger": lambda found: any(isinstance(r, Sample) and r.prompt == MARK for r in found.records),
    "throughput_monitor": lambda found: "throughput/steps_per_second" in found.metrics,
    "timer": lambda found: found.stop_reason is not None and found.stop_reason.startswith("timer: the budget"),
}
"""How the effect of each callback is visible."""


PARTS: dict[str, Callable[[Found], bool]] = {
    "nan_guard": lambda found: any(reason.startswith("the gradient of") for reason in found.not_finite),
}
"""How more of what one does shows, which some hosts do not let it do."""


def records_of(*directories: Path) -> list[Any]:
    """What was recorded in some directories, each read once."""
    return [record for directory in dict.fromkeys(directories) for record in read(directory)]

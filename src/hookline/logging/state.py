"""What the ``log_*`` functions know: the settings, the run, the step, and what was held back.

There is one at a time, because the functions are called without an object, as those of the standard
library's logging are. Before `initialize` everything is due and no run is recorded to.
"""

import logging
import os
from dataclasses import dataclass, field
from typing import Any

from hookline.core.metrics import MetricsRow
from hookline.logging.payloads import ATTRIBUTE, MetricsPayload, Payload
from hookline.logging.rewards import Trend
from hookline.logging.run_handler import step_of
from hookline.logging.settings import MetricSettings
from hookline.record.recorder import whole_step


@dataclass(eq=False)
class State:
    """The state of one set-up.

    Args:
        settings: Which metrics are recorded, and how often.
        run: Its ``recorder`` gets all data that the functions are given, whatever the levels of the loggers are.
    """

    settings: MetricSettings = field(default_factory=MetricSettings)
    run: Any = None
    _step: int = 0
    _seen: set[tuple[str, str]] = field(default_factory=set)
    _held: dict[str, dict[str, tuple[int, Any]]] = field(default_factory=dict)
    _trends: dict[str, Trend] = field(default_factory=dict)
    _process: int = field(default_factory=os.getpid)

    def at(self, step: Any) -> int:
        """The step to record at: the one given, else the run's, else the last one given."""
        if step is not None:
            self._step = step if type(step) is int else whole_step(step)
        elif self.run is not None:
            return step_of(self.run)
        return self._step

    def trend(self, name: str) -> Trend:
        """The trend of a reward."""
        return self._trends.setdefault(name, Trend(self.settings.trend_window))

    def emit(self, logger: logging.Logger, payload: Payload, *, stacklevel: int = 3) -> None:
        """Give data to the run and to the handlers."""
        if self.run is not None and self.run.recorder is not None:
            payload.record(self.run.recorder)
        if logger.isEnabledFor(logging.INFO):
            logger.info(payload, extra={ATTRIBUTE: payload}, stacklevel=stacklevel)

    def emit_if_due(self, logger: logging.Logger, payload: MetricsPayload) -> bool:
        """Give metrics to the run and to the handlers if they are due, or bring a metric that was not there before.

        Of what is left out, the latest value of each metric is kept: a later row of the same step records it, or
        `emit_held` does, because the end of a training is no multiple of anything.
        """
        held = self._held.setdefault(logger.name, {})
        new = {(logger.name, key) for key in payload.values} - self._seen
        if not new and not self.settings.is_due(payload.step):
            held.update((key, (payload.step, value)) for key, value in dict.items(payload.values))
            return False
        self._seen |= new
        for key in payload.values:
            held.pop(key, None)
        beside = {key: held.pop(key)[1] for key in list(held) if held[key][0] == payload.step}
        if beside:
            payload = MetricsPayload(payload.step, _row(beside | dict(dict.items(payload.values))))
        self.emit(logger, payload, stacklevel=4)
        return True

    def emit_held(self) -> None:
        """Give out what was held back, by step; only in the process that was given it."""
        if self._process == os.getpid():
            for name, held in self._held.items():
                for step in sorted({step for step, _ in held.values()}):
                    values = {key: value for key, (at, value) in held.items() if at == step}
                    self.emit(logging.getLogger(name), MetricsPayload(step, _row(values)))
        self._held.clear()


def _row(values: dict[str, Any]) -> dict[str, Any]:
    """The values as a row, without waiting for those that are on their way from a device."""
    row = MetricsRow()
    row.update(values)
    return row if row.is_waiting() else values


_current = State()


def current() -> State:
    """The state of the present set-up."""
    return _current


def replace(state: State) -> None:
    """Make another state the present one."""
    global _current
    _current = state

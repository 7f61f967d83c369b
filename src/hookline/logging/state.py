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
    _held: dict[str, MetricsPayload] = field(default_factory=dict)
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

        The last ones that were not are held back for `emit_held`: the end of a training is no multiple of anything.
        """
        new = {(logger.name, key) for key in payload.values} - self._seen
        if not new and not self.settings.is_due(payload.step):
            held = self._held.get(logger.name)
            if held is not None and held.step == payload.step:
                payload = MetricsPayload(payload.step, _merged(held.values, payload.values))
            self._held[logger.name] = payload
            return False
        self._seen |= new
        self._held.pop(logger.name, None)
        self.emit(logger, payload, stacklevel=4)
        return True

    def emit_held(self) -> None:
        """Give out what was held back; only in the process that was given it."""
        if self._process == os.getpid():
            for name, payload in self._held.items():
                self.emit(logging.getLogger(name), payload)
        self._held.clear()


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Both, without waiting for values that are on their way."""
    row = MetricsRow()
    row.update(first)
    row.update(second)
    return row if row.is_waiting() else dict(row)


_current = State()


def current() -> State:
    """The state of the present set-up."""
    return _current


def replace(state: State) -> None:
    """Make another state the present one."""
    global _current
    _current = state

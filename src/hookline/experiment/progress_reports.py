"""`ProgressReports`: tells whoever started a run how far it is, a few times a second at the most."""

import time
from collections.abc import Callable
from typing import Any

from hookline.core.callback import Callback
from hookline.core.values import Deferred
from hookline.experiment.messages import Message, Progress

SECONDS = 0.25
SHOWN = 4
"""How many metrics are told; whoever wants more reads the record."""


class ProgressReports(Callback):
    """Reports the progress of a run.

    Args:
        key: The run's name in its experiment.
        tell: Called with the reports.
        clock: Seconds, from anywhere.
    """

    name = "progress_reports"
    priority = -1001

    def __init__(self, key: str, tell: Callable[[Message], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._key, self._tell, self._clock = key, tell, clock
        self._due = float("-inf")

    def on_train_start(self, loop: Any) -> None:
        """Say that it begins."""
        self._report(loop)

    def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
        """Say how far it is, unless that was just said."""
        if self._clock() >= self._due:
            self._due = self._clock() + SECONDS
            self._report(loop)

    def on_train_end(self, loop: Any, artifacts: Any) -> None:
        """Say how far it came."""
        self._report(loop)

    def _report(self, loop: Any) -> None:
        self._tell(Progress(self._key, loop.step, loop.num_steps, _ready(loop.metrics)))


def _ready(metrics: dict[str, Any]) -> dict[str, Any]:
    """The first numbers that are there; those still on their way from a device are not waited for."""
    ready: dict[str, Any] = {}
    for name, value in dict.items(metrics):
        if isinstance(value, Deferred):
            value = value.get() if value.source.ready() else None
        if type(value) in (int, float):
            ready[name] = value
        if len(ready) == SHOWN:
            break
    return ready

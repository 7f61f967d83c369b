"""Checks that the metric a callback monitors exists: a name that never comes is most often a misspelt one."""

import logging

from hookline.core.state import LoopState
from hookline.core.values import find_metric

logger = logging.getLogger("hookline")


class MonitorCheck:
    """Warns once, with the names that exist, about a monitored metric that was not logged.

    The metric is checked after the first evaluation, with the first row of a later step: by then all evaluations that
    follow the same step have been logged. A training that ends before it is checked at its end, unless it was stopped
    before any evaluation. Only rank zero warns; other ranks need not evaluate at all.

    Args:
        metric: The name that is monitored.
        consequence: What follows from its absence, for the warning.
    """

    def __init__(self, metric: str, *, consequence: str = "") -> None:
        self._metric, self._consequence = metric, consequence
        self.forget()

    def forget(self) -> None:
        """Start over, for another training."""
        self._evaluated_at: int | None = None
        self._done = False

    def evaluated(self, step: int) -> None:
        """Note that an evaluation of this completed step has been logged."""
        if self._evaluated_at is None:
            self._evaluated_at = step

    def after_row(self, loop: LoopState, step: int, *, who: str) -> None:
        """Check the metric once, if the first evaluation belongs to an earlier step than this row."""
        if not self._done and self._evaluated_at is not None and step > self._evaluated_at:
            self._warn_unless_seen(loop, who, f" up to the first evaluation, at step {self._evaluated_at}")

    def at_end(self, loop: LoopState, *, who: str) -> None:
        """Check the metric when training ends, unless that is done or a stop came before the first evaluation."""
        if not self._done and (self._evaluated_at is not None or not loop.stop_requested):
            self._warn_unless_seen(loop, who, "")

    def _warn_unless_seen(self, loop: LoopState, who: str, when: str) -> None:
        self._done = True
        # Names only: reading a value could wait for a device.
        if loop.rank == 0 and not find_metric(dict.fromkeys(loop.metrics, True), self._metric):
            seen = ", ".join(sorted(loop.metrics)) or "none"
            logger.warning("%s never saw %r%s%s. Metrics seen: %s.", who, self._metric, when, self._consequence, seen)

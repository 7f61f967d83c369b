"""`RunningMeans`: the means of what batches gave, over an epoch or a validation.

Numbers that are still on their way from a device are not waited for before somebody reads the means, or so many wait
that the first have long arrived.
"""

from collections.abc import Mapping
from typing import Any

from hookline.core.metrics import collect, copied
from hookline.core.values import plain
from hookline.loops.step_metrics import scalars
from hookline.loops.training_step import COUNTS
from hookline.record.device import defer

WAITING = 64


class RunningMeans:
    """Weighted means by name; counts are added up."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._waiting: list[tuple[dict[str, Any], float]] = []

    def add(self, outputs: Any, weight: float) -> None:
        """Take over the numbers among what a batch gave."""
        if isinstance(outputs, Mapping):
            numbers = copied(scalars(outputs) if type(outputs) is dict else collect((outputs,), {}, defer))
            self._waiting.append((numbers, weight))
        if len(self._waiting) >= WAITING:
            self._add_up()

    def result(self) -> dict[str, float]:
        """The means so far."""
        self._add_up()
        return {name: total / (self._weights[name] or 1.0) for name, total in self._sums.items()}

    def state(self) -> dict[str, Any]:
        """What `load` goes on from."""
        self._add_up()
        return {"sums": dict(self._sums), "weights": dict(self._weights)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._sums, self._weights, self._waiting = dict(state["sums"]), dict(state["weights"]), []

    def _add_up(self) -> None:
        waiting, self._waiting = self._waiting, []
        for numbers, weight in waiting:
            for name, value in numbers.items():
                number = plain(value)
                if isinstance(number, int | float) and not isinstance(number, bool):
                    is_count = name in COUNTS
                    self._sums[name] = self._sums.get(name, 0.0) + number * (1.0 if is_count else weight)
                    self._weights[name] = 1.0 if is_count else self._weights.get(name, 0.0) + weight

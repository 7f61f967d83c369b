"""`BenchmarkCallback`: scores benchmarks within a training, each after every so many steps.

A benchmark is scored at the end of its step, before a checkpoint of the step is saved. It is recorded once the step's
row is written: a checkpoint rule that monitors it finds the step complete, as after a validation.
"""

from collections.abc import Callable, Sequence
from typing import Any

from hookline.core.callback import Callback

LAST = -1000
"""It scores when everybody else has had the step."""


class BenchmarkCallback(Callback):
    """Has benchmarks scored when they are due.

    Args:
        benchmarks: Those with an ``every``.
        score: Called with a benchmark; returns its result and the predictions, or None where it failed.
        record: Called with the loop, the result and the predictions.
    """

    name = "benchmarks"
    priority = LAST
    critical = True
    """A benchmark that fails is dealt with where it is scored; what else is raised is somebody's who is critical."""

    def __init__(
        self, benchmarks: Sequence[Any], score: Callable[[Any], Any], record: Callable[[Any, Any, Any], None]
    ) -> None:
        self._benchmarks, self._score, self._record = list(benchmarks), score, record
        self._scored: list[tuple[Any, Any]] = []

    def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
        """Score those that are due after this step."""
        due = [benchmark for benchmark in self._benchmarks if loop.step % benchmark.every == 0]
        self._scored = [scored for scored in map(self._score, due) if scored is not None]

    def on_log(self, loop: Any, step: int, metrics: Any) -> None:
        """Record what was scored: this is the row of its step."""
        scored, self._scored = self._scored, []
        for result, predictions in scored:
            self._record(loop, result, predictions)

"""`BenchmarkCallback`: scores benchmarks within a training, each after every so many steps."""

from collections.abc import Callable, Sequence
from typing import Any

from hookline.core.callback import Callback

LAST = -1000
"""It scores when everybody else has had the step."""


class BenchmarkCallback(Callback):
    """Has benchmarks scored when they are due.

    Args:
        benchmarks: Those with an ``every``.
        score: Called with the loop and a benchmark.
    """

    name = "benchmarks"
    priority = LAST
    critical = True
    """A benchmark that fails is dealt with where it is scored; what else is raised is somebody's who is critical."""

    def __init__(self, benchmarks: Sequence[Any], score: Callable[[Any, Any], None]) -> None:
        self._benchmarks, self._score = list(benchmarks), score

    def on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
        """Score those that are due after this step."""
        for benchmark in self._benchmarks:
            if loop.step % benchmark.every == 0:
                self._score(loop, benchmark)

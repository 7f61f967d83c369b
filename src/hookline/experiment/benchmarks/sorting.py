"""`SortingBenchmark`: digits to put in order, by whether one comes twice and by how long the list is."""

from collections.abc import Mapping, Sequence
from typing import Any

from hookline.experiment.benchmark import BATCH_SIZE, register_benchmark
from hookline.experiment.benchmarks.environment import TASKS, EnvironmentBenchmark
from hookline.rl.environments.sorting import Sorting
from hookline.rl.task_space import HELD_OUT_SHARE
from hookline.rl.types import Task

SPARE_TOKENS = 8
"""Room for the end of the text, and for a subject that writes too much to be seen to."""


@register_benchmark("sorting")
class SortingBenchmark(EnvironmentBenchmark):
    """Tasks that the environment ``sorting`` holds out; the tags are ``length`` and ``repeats``.

    Args:
        length: How many digits.
        n: How many tasks; all that are held out, where there are fewer.
        held_out_share: The share that is held out: as in training, or smaller.
        seed: Another one draws other tasks.
        max_tokens: The length and a few more, where it is not given.
    """

    def __init__(
        self,
        length: int = 4,
        n: int = TASKS,
        *,
        held_out_share: float = HELD_OUT_SHARE,
        seed: int = 0,
        name: str | None = None,
        every: int | None = None,
        batch_size: int = BATCH_SIZE,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> None:
        super().__init__(
            Sorting(length, held_out_share=held_out_share),
            n,
            seed=seed,
            name=name,
            every=every,
            batch_size=batch_size,
            max_tokens=length + SPARE_TOKENS if max_tokens is None else max_tokens,
            stop=stop,
        )

    def tags(self, task: Task) -> Mapping[str, Any]:
        digits = task.prompt.removesuffix(">")
        return {"length": len(digits), "repeats": "yes" if len(set(digits)) < len(digits) else "no"}

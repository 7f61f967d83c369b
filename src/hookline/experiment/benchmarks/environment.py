"""`EnvironmentBenchmark`: the tasks that an environment holds out, solved or not."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hookline.experiment.benchmark import BATCH_SIZE, MAX_TOKENS, Benchmark, register_benchmark
from hookline.rl.environment import evaluation_tasks, make_environment, succeeded
from hookline.rl.task_space import require_whole
from hookline.rl.types import Task

TASKS = 100
"""How many tasks a benchmark has, where it is not said."""
MOST = 1_000_000


@register_benchmark("environment")
class EnvironmentBenchmark(Benchmark):
    """Tasks of any environment; the accuracy is the share that is solved.

    The tasks are held-out ones, where the environment has such, and never trained on where its held-out share is at
    least as large in training. They are different from each other: where there are fewer than ``n``, it is all of
    them.

    Args:
        environment: The environment, or its name and settings.
        n: How many tasks.
        seed: Another one draws other tasks.
        name: What it is called; the environment's name, where it is not given.
    """

    def __init__(
        self,
        environment: Any,
        n: int = TASKS,
        *,
        seed: int = 0,
        name: str | None = None,
        every: int | None = None,
        batch_size: int = BATCH_SIZE,
        max_tokens: int = MAX_TOKENS,
        stop: Sequence[str] = (),
    ) -> None:
        require_whole("n", n, least=1, most=MOST)
        self.environment = make_environment(environment)
        self.n = n
        self.seed = seed
        name = self.environment.name if name is None else name
        super().__init__(name=name, every=every, batch_size=batch_size, max_tokens=max_tokens, stop=stop)

    def tasks(self) -> list[Task]:
        rng = random.Random(self.seed)  # noqa: S311 - sampling, not secrets
        drawn = {task.id: task for task in evaluation_tasks(self.environment, self.n, rng)}
        return [self._tagged(task) for task in drawn.values()]

    def score(self, task: Task, output: Any) -> float | Mapping[str, float]:
        """Whether the task is solved."""
        return succeeded(self.environment, task, self.environment.score(task, output))

    def tags(self, task: Task) -> Mapping[str, Any]:
        """What results are broken down by, for one task, by kind; without any the task's own tags stay."""
        return {}

    def _tagged(self, task: Task) -> Task:
        tags = self.tags(task)
        return replace(task, metadata={**task.metadata, "tags": dict(tags)}) if tags else task

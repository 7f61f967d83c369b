"""`FormatBenchmark`: whether a subject answers as ``<reasoning>..</reasoning><answer>..</answer>``, and rightly.

The two are metrics of their own, since an answer can be right in a wrong format, and the other way round.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hookline.experiment.benchmark import BATCH_SIZE, register_benchmark
from hookline.experiment.benchmarks.arithmetic import arithmetic_tags
from hookline.experiment.benchmarks.environment import TASKS, EnvironmentBenchmark
from hookline.rl.environment import succeeded
from hookline.rl.environments.arithmetic import Arithmetic
from hookline.rl.environments.reasoning import FORMAT, TEMPLATE, Reasoning
from hookline.rl.task_space import CORRECT
from hookline.rl.types import Task

MAX_TOKENS = 256


@register_benchmark("format")
class FormatBenchmark(EnvironmentBenchmark):
    """Tasks to be answered with reasoning first; the metrics are ``correct``, the main one, and ``format``.

    Tasks of the environment ``arithmetic`` have its benchmark's tags; those of others have their own, if any.

    Args:
        environment: The environment whose tasks are asked; it, or its name and settings.
        n: How many tasks; all that are held out, where there are fewer.
        template: The prompt, with the environment's in place of ``{prompt}``.
        seed: Another one draws other tasks.
    """

    def __init__(
        self,
        environment: Any = "arithmetic",
        n: int = TASKS,
        *,
        template: str = TEMPLATE,
        seed: int = 0,
        name: str = "format",
        every: int | None = None,
        batch_size: int = BATCH_SIZE,
        max_tokens: int = MAX_TOKENS,
        stop: Sequence[str] = (),
    ) -> None:
        self.reasoning = Reasoning(environment, template=template, format_reward=1.0)
        super().__init__(
            self.reasoning,
            n,
            seed=seed,
            name=name,
            every=every,
            batch_size=batch_size,
            max_tokens=max_tokens,
            stop=stop,
        )

    def score(self, task: Task, output: Any) -> Mapping[str, float]:
        """Whether the answer is right, and whether the output is in the format."""
        rewards = self.reasoning.score(task, output)
        return {CORRECT: succeeded(self.reasoning, task, rewards), FORMAT: rewards[FORMAT]}

    def tags(self, task: Task) -> Mapping[str, Any]:
        if not isinstance(self.reasoning.environment, Arithmetic):
            return {}
        return arithmetic_tags(task.metadata["inner_prompt"])

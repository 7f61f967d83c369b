"""`ArithmeticBenchmark`: sums, differences and products, by operator and by the number of digits."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hookline.experiment.benchmark import BATCH_SIZE, register_benchmark
from hookline.experiment.benchmarks.environment import TASKS, EnvironmentBenchmark
from hookline.rl.environments.arithmetic import Answer, Arithmetic, Difficulty
from hookline.rl.task_space import HELD_OUT_SHARE
from hookline.rl.types import Task

ANSWER_TOKENS = {"exact": 16, "last_number": 256}
"""The most tokens of an answer, where it is not said: a number, or sentences with one."""


@register_benchmark("arithmetic")
class ArithmeticBenchmark(EnvironmentBenchmark):
    """Tasks that the environment ``arithmetic`` holds out; the tags are ``operator`` and ``digits``.

    Args:
        difficulty: That of the environment. ``easy`` has 100 tasks, of which about ten are held out.
        n: How many tasks; all that are held out, where there are fewer.
        answer: What of an output counts: all of it (``exact``), or its ``last_number``.
        held_out_share: The share that is held out: as in training, or smaller.
        seed: Another one draws other tasks.
        max_tokens: 16 for exact answers and 256 for others, where it is not given.
    """

    def __init__(
        self,
        difficulty: Difficulty = "easy",
        n: int = TASKS,
        *,
        answer: Answer = "exact",
        held_out_share: float = HELD_OUT_SHARE,
        seed: int = 0,
        name: str | None = None,
        every: int | None = None,
        batch_size: int = BATCH_SIZE,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> None:
        super().__init__(
            Arithmetic(difficulty, answer=answer, held_out_share=held_out_share),
            n,
            seed=seed,
            name=name,
            every=every,
            batch_size=batch_size,
            max_tokens=ANSWER_TOKENS[answer] if max_tokens is None else max_tokens,
            stop=stop,
        )

    def tags(self, task: Task) -> Mapping[str, Any]:
        return arithmetic_tags(task.prompt)


def arithmetic_tags(question: str) -> dict[str, Any]:
    """The operators in their order, and how many digits the longest number has.

    >>> arithmetic_tags("7-45*3=")
    {'operator': '-*', 'digits': 2}
    """
    return {
        "operator": "".join(re.findall(r"[-+*]", question)),
        "digits": max(map(len, re.findall(r"[0-9]+", question)), default=0),
    }

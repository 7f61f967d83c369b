"""`Sums`: what the demo's model learns, ``17+25=`` with ``42``; and `SumsBenchmark`, sums it has never seen."""

from collections.abc import Mapping
from typing import Any

from hookline.experiment.benchmarks.environment import EnvironmentBenchmark
from hookline.rl.task_space import CORRECT, TaskSpace
from hookline.rl.types import Task

BELOW = 50
"""The numbers that are added are below this."""
CLOSE = 2
"""How far off an answer may be to be close."""
ANSWER_TOKENS = 4
"""Two digits, the end of the text, and one to be wrong with."""


class Sums(TaskSpace):
    """Sums of two numbers; a completion gets two rewards: whether it is right, and whether it is close to that."""

    name = "sums"

    @property
    def size(self) -> int:
        return BELOW**2

    def task(self, index: int) -> Task:
        first, second = divmod(index, BELOW)
        return Task(f"{first}+{second}=", str(first + second))

    def score(self, task: Task, completion: str) -> dict[str, float]:
        answer, expected = completion.strip(), task.expected or ""
        is_number = answer.isascii() and answer.isdigit()
        is_close = is_number and abs(int(answer) - int(expected)) <= CLOSE
        return {CORRECT: float(answer == expected), "close": float(is_close)}


class SumsBenchmark(EnvironmentBenchmark):
    """Sums that are held out, broken down by whether there is something to carry."""

    def tags(self, task: Task) -> Mapping[str, Any]:
        first, second = (int(number) for number in task.prompt.rstrip("=").split("+"))
        return {"carry": "yes" if first % 10 + second % 10 > 9 else "no"}

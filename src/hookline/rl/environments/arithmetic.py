"""Arithmetic with whole numbers: ``12+7=`` expects ``19``.

The answer is the whole completion, white space around it aside; ``19.`` and ``007`` are wrong. For models that write
sentences, ``answer="last_number"`` takes the last number of the completion, in which ``1,019`` and ``19.0`` are
numbers as well.
"""

import re
from dataclasses import dataclass
from typing import Literal

from hookline.core.errors import OptionError, closest
from hookline.rl.environment import register_environment
from hookline.rl.task_space import CORRECT, HELD_OUT_SHARE, TaskSpace
from hookline.rl.types import Task

Answer = Literal["exact", "last_number"]
Difficulty = Literal["easy", "medium", "hard", "expert"]

_NUMBER = re.compile(r"(?:(?<![0-9])-)?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class _Level:
    """What the tasks of a difficulty are made of."""

    below: int
    operands: int
    operators: str


LEVELS = {
    "easy": _Level(10, 2, "+"),
    "medium": _Level(100, 2, "+-"),
    "hard": _Level(1000, 2, "+-*"),
    "expert": _Level(100, 3, "+-*"),
}


@register_environment("arithmetic")
class Arithmetic(TaskSpace):
    """Sums, differences and products.

    Args:
        difficulty: ``easy`` adds digits, ``medium`` adds and subtracts numbers below 100, ``hard`` also multiplies,
            below 1,000, and ``expert`` has three numbers below 100, of which products go first.
        answer: What of a completion counts: all of it, or its last number.
        held_out_share: The share of tasks that is never trained on.
    """

    name = "arithmetic"

    def __init__(
        self,
        difficulty: Difficulty = "easy",
        *,
        answer: Answer = "exact",
        held_out_share: float = HELD_OUT_SHARE,
    ) -> None:
        if difficulty not in LEVELS:
            raise OptionError(f"difficulty={difficulty!r}: {closest(str(difficulty), LEVELS)}")
        if answer not in ("exact", "last_number"):
            raise OptionError(f"answer={answer!r}: give 'exact' or 'last_number'.")
        self.difficulty = difficulty
        self.answer = answer
        self._level = LEVELS[difficulty]
        super().__init__(held_out_share)

    @property
    def size(self) -> int:
        level = self._level
        return int(level.below**level.operands * len(level.operators) ** (level.operands - 1))

    def task(self, index: int) -> Task:
        level = self._level
        numbers, signs = [], []
        for place in range(level.operands):
            index, number = divmod(index, level.below)
            numbers.append(number)
            if place:
                index, sign = divmod(index, len(level.operators))
                signs.append(level.operators[sign])
        question = "".join(f"{sign}{number}" for sign, number in zip(["", *signs], numbers, strict=True))
        return Task(f"{question}=", str(_value(numbers, signs)))

    def score(self, task: Task, completion: str) -> dict[str, float]:
        """1 for the right number, 0 for anything else."""
        if self.answer == "exact":
            return super().score(task, completion)
        return {CORRECT: float(last_number(completion) == task.expected)}


def last_number(text: str) -> str | None:
    """The last number of a text, without commas and a fraction of zeros.

    >>> last_number("3+4 is 7, so 1,007.0 in all.")
    '1007'
    """
    numbers: list[str] = _NUMBER.findall(text)
    if not numbers:
        return None
    whole, _, fraction = numbers[-1].replace(",", "").partition(".")
    return f"{whole}.{fraction}" if fraction.strip("0") else whole


def _value(numbers: list[int], signs: list[str]) -> int:
    """The value of ``numbers[0] signs[0] numbers[1] ...``, products first."""
    terms = [numbers[0]]
    for sign, number in zip(signs, numbers[1:], strict=True):
        if sign == "*":
            terms[-1] *= number
        else:
            terms.append(-number if sign == "-" else number)
    return sum(terms)

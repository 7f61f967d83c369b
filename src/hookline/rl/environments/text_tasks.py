"""Small text tasks for first lessons and tests: arithmetic, copying and sorting.

- `Arithmetic` with whole numbers: ``12+7=`` expects ``19``. By default the answer is the whole completion without
  surrounding white space; ``19.`` and ``007`` are wrong. For models that write sentences, ``answer="last_number"``
  compares the last number of the completion, and accepts ``1,019`` and ``19.0`` as numbers.
- `Copying`: ``abca>`` expects ``abca``.
- `Sorting` digits: ``3142>`` expects ``1234``.
"""

import re
import string
from dataclasses import dataclass
from typing import Literal

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError, closest
from hookline.rl.environments.base import CORRECT, HELD_OUT_SHARE, TaskSpace, register_environment
from hookline.rl.types import Task

Answer = Literal["exact", "last_number"]
Difficulty = Literal["easy", "medium", "hard", "expert"]

_NUMBER = re.compile(r"(?:(?<![0-9])-)?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class _Level:
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
            below 1,000, and ``expert`` has three numbers below 100, with multiplication before addition.
        answer: Which part of a completion is compared: all of it, or its last number.
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
        """Return 1 for the right number, 0 for anything else."""
        if self.answer == "exact":
            return super().score(task, completion)
        return {CORRECT: float(last_number(completion) == task.expected)}


def last_number(text: str) -> str | None:
    """Return the last number of a text, without commas and without a fraction of zeros.

    >>> last_number("3+4 is 7, so 1,007.0 in all.")
    '1007'
    """
    numbers: list[str] = _NUMBER.findall(text)
    if not numbers:
        return None
    whole, _, fraction = numbers[-1].replace(",", "").partition(".")
    return f"{whole}.{fraction}" if fraction.strip("0") else whole


def _value(numbers: list[int], signs: list[str]) -> int:
    """Evaluate ``numbers[0] signs[0] numbers[1] ...``, products first."""
    terms = [numbers[0]]
    for sign, number in zip(signs, numbers[1:], strict=True):
        if sign == "*":
            terms[-1] *= number
        else:
            terms.append(-number if sign == "-" else number)
    return sum(terms)


MARK = ">"


@register_environment("copying")
class Copying(TaskSpace):
    """A text to repeat.

    Args:
        length: The number of characters.
        alphabet: The characters of the text.
        held_out_share: The share of tasks that is never trained on.
    """

    name = "copying"

    def __init__(
        self, length: int = 4, *, alphabet: str = string.ascii_lowercase, held_out_share: float = HELD_OUT_SHARE
    ) -> None:
        require_integer("length", length, maximum=100)
        if not alphabet or len(set(alphabet)) < len(alphabet) or MARK in alphabet or alphabet.split() != [alphabet]:
            raise OptionError(f"alphabet={alphabet!r}: give different characters, without white space and {MARK!r}.")
        self.length = length
        self.alphabet = alphabet
        super().__init__(held_out_share)

    @property
    def size(self) -> int:
        return int(len(self.alphabet) ** self.length)

    def task(self, index: int) -> Task:
        text = ""
        for _ in range(self.length):
            index, place = divmod(index, len(self.alphabet))
            text += self.alphabet[place]
        return Task(text + MARK, text)


@register_environment("sorting")
class Sorting(TaskSpace):
    """Digits to sort in ascending order, with repeats; each is one character, which suits a small model.

    Args:
        length: The number of digits.
        held_out_share: The share of tasks that is never trained on.
    """

    name = "sorting"

    def __init__(self, length: int = 4, *, held_out_share: float = HELD_OUT_SHARE) -> None:
        require_integer("length", length, maximum=100)
        self.length = length
        super().__init__(held_out_share)

    @property
    def size(self) -> int:
        return int(10**self.length)

    def task(self, index: int) -> Task:
        digits = f"{index:0{self.length}d}"
        return Task(f"{digits}>", "".join(sorted(digits)))

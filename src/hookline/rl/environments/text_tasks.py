"""Small text tasks for first lessons and tests, and `Reasoning`, which asks for reasoning before any task's answer.

- `Arithmetic` with whole numbers: ``12+7=`` expects ``19``. By default the answer is the whole completion without
  surrounding white space; ``19.`` and ``007`` are wrong. For models that write sentences, ``answer="last_number"``
  compares the last number of the completion, and accepts ``1,019`` and ``19.0`` as numbers.
- `Copying`: ``abca>`` expects ``abca``.
- `Sorting` digits: ``3142>`` expects ``1234``.
- `Lookup`: ``37?`` expects the value of the key 37, which only a tool knows.
- `Reasoning`: another environment's tasks, answered as ``<reasoning>..</reasoning><answer>..</answer>``.
"""

import hashlib
import random
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError, closest
from hookline.rl.environments.base import (
    CORRECT,
    HELD_OUT_SHARE,
    Faults,
    TaskSpace,
    evaluation_tasks,
    faults_of,
    make_environment,
    register_environment,
    succeeded,
)
from hookline.rl.environments.episodes import has_episodes
from hookline.rl.environments.tools import Tool, tool
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


FORMAT = "format"
TEMPLATE = "{prompt}\nAnswer in this form:\n<reasoning>...</reasoning><answer>...</answer>\n"
_INNER = "inner_prompt"
_TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")


@register_environment("lookup")
class Lookup(TaskSpace):
    """A key, whose value only the tool ``lookup`` knows: ``37?`` expects the value of 37.

    With several hops, the value is the next key: ``37??`` expects the value of the value of 37, so the tool has to be
    called twice, in turn. The text of the last message is the answer.

    Args:
        digits: The number of digits of keys and values.
        hops: The number of values that have to be looked up.
        held_out_share: The share of keys that is never trained on.
    """

    name = "lookup"

    def __init__(self, digits: int = 2, *, hops: int = 1, held_out_share: float = HELD_OUT_SHARE) -> None:
        self.digits = require_integer("digits", digits, maximum=6)
        self.hops = require_integer("hops", hops, maximum=10)
        super().__init__(held_out_share)

    @property
    def size(self) -> int:
        return int(10**self.digits)

    def task(self, index: int) -> Task:
        value = key = f"{index:0{self.digits}d}"
        for _ in range(self.hops):
            value = self.value(value)
        return Task(key + "?" * self.hops, value)

    def value(self, key: str) -> str:
        """Return the value of a key."""
        digest = hashlib.blake2b(f"{self.digits}/{key}".encode(), digest_size=8).digest()
        return f"{int.from_bytes(digest) % self.size:0{self.digits}d}"

    @tool
    async def lookup(self, key: str) -> str:
        """Return the value of a key.

        Args:
            key: The key, with all of its digits.
        """
        if len(key) != self.digits or not (key.isascii() and key.isdigit()):
            raise ValueError(f"{key!r} is not a key of {self.digits} digits")
        return self.value(key)

    @property
    def tools(self) -> list[Any]:
        """The tool that knows the values."""
        assert isinstance(self.lookup, Tool)
        return [self.lookup]


@register_environment("reasoning")
class Reasoning:
    """Asks for reasoning before the answer.

    The answer is the text between the last ``</answer>`` and the ``<answer>`` before it; without one, it is empty. The
    wrapped environment scores the answer like a completion. The reward ``format`` requires exactly one block of each,
    in this order, neither blank, with nothing but white space around them. The two are independent: an answer can be
    right in a wrong format, and the reverse. A task keeps the id of the wrapped task, so the same tasks are held out.

    Args:
        environment: The environment to wrap; an instance, or its name and settings.
        template: The prompt, in which ``{prompt}`` is replaced by the wrapped prompt.
        format_reward: The reward of a completion in the right format.
    """

    name = "reasoning"

    def __init__(self, environment: Any, *, template: str = TEMPLATE, format_reward: float = 0.5) -> None:
        self.environment = make_environment(environment)
        if isinstance(self.environment, Reasoning):
            raise OptionError("environment: it asks for reasoning already; give the environment that it wraps.")
        if has_episodes(self.environment) or getattr(self.environment, "scores_messages", False):
            raise OptionError(
                f"environment: {self.environment.name} has conversations. Give one whose prompts and completions are "
                "texts, and that has no tools."
            )
        if template.count("{prompt}") != 1:
            raise OptionError(f"template={template!r}: give a text with {{prompt}} in it, once.")
        if isinstance(format_reward, bool) or not 0 <= format_reward < float("inf"):
            raise OptionError(f"format_reward={format_reward!r}: give a number of at least 0.")
        self.template = template
        self.format_reward = float(format_reward)
        own = faults_of(self.environment)
        self.faults = Faults() if own is None else own

    @property
    def held_out_share(self) -> float | None:
        """The wrapped environment's share; 0 if it holds nothing out, None if it is unknown."""
        if not callable(getattr(self.environment, "held_out", None)):
            return 0
        return getattr(self.environment, "held_out_share", None)

    def sample(self, n: int, rng: random.Random) -> list[Task]:
        """Sample tasks of the wrapped environment, and ask for reasoning in their prompts."""
        return [self._wrapped(task) for task in self.environment.sample(n, rng)]

    def held_out(self, n: int, rng: random.Random) -> list[Task]:
        """Return tasks that the wrapped environment holds out."""
        if self.held_out_share == 0:
            raise OptionError(f"{self.name}: {self.environment.name} holds nothing out. Give an environment that does.")
        return [self._wrapped(task) for task in evaluation_tasks(self.environment, n, rng)]

    def score(self, task: Task, completion: str) -> dict[str, float]:
        """Return the wrapped environment's rewards for the answer, and one for the format.

        If the wrapped environment has a reward called ``format`` too, that one is prefixed with the environment's name.
        """
        inner = self.environment.score(self._unwrapped(task), answer_of(completion))
        rewards = {f"{self.environment.name}/{key}" if key == FORMAT else key: value for key, value in inner.items()}
        return rewards | {FORMAT: self.format_reward * follows_format(completion)}

    def succeeded(self, task: Task, rewards: Mapping[str, float]) -> bool:
        """Return whether the wrapped environment counts the answer as right; the format does not matter."""
        own = f"{self.environment.name}/{FORMAT}"
        inner = {FORMAT if key == own else key: value for key, value in rewards.items() if key != FORMAT}
        return succeeded(self.environment, self._unwrapped(task), inner)

    def _wrapped(self, task: Task) -> Task:
        prompt = self.template.replace("{prompt}", task.prompt)
        return replace(task, prompt=prompt, metadata={**task.metadata, _INNER: task.prompt})

    def _unwrapped(self, task: Task) -> Task:
        metadata = {key: value for key, value in task.metadata.items() if key != _INNER}
        return replace(task, prompt=task.metadata[_INNER], metadata=metadata)


def answer_of(completion: str) -> str:
    """Return the text of the last answer, or an empty string.

    >>> answer_of("<answer>3</answer> or rather <answer> 4 </answer>!")
    '4'
    """
    before, _, _ = completion.rpartition("</answer>")
    _, tag, answer = before.rpartition("<answer>")
    return answer.strip() if tag else ""


def follows_format(completion: str) -> bool:
    """Return whether a completion is one block of reasoning and then one answer, neither of them blank."""
    if any(completion.count(tag) != 1 for tag in _TAGS):
        return False
    reasoning, _, answer = (part.strip() for part in completion.partition("</reasoning>"))
    return (
        reasoning.startswith("<reasoning>")
        and answer.startswith("<answer>")
        and answer.endswith("</answer>")
        and bool(reasoning.removeprefix("<reasoning>").strip())
        and bool(answer_of(answer))
    )

"""`Batch`: completions, and what several reward functions gave for them.

`Call`: what a reward function was asked, read from the arguments that TRL, or anybody else, calls it with.

The step is found where it is: in TRL's ``trainer_state``, whose ``global_step`` counts completed steps, so that what
is generated for training belongs to the step after it; in an argument or column ``step``; otherwise nowhere. That
an evaluation calls is seen by the model of TRL's trainer, whose method ``log_metric`` is: it is not in training mode.

`RewardError`: a reward function gave something that no reward can be.

What a reward function returned: handed on as it came, and read as plain numbers.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hookline._engine.errors import HooklineError
from hookline._engine.metrics import plain
from hookline.logging.completions import completion_text, extract_reasoning_and_answer, prompt_text
from hookline.rl.types import Task

EXPECTED_COLUMNS = ("expected", "answer", "solution", "ground_truth", "target")
"""Where the right answer is looked for, in this order."""


@dataclass(frozen=True, slots=True)
class Call:
    """The samples that a reward function is to score; what nobody said is None.

    Attributes:
        steps: The number of completed steps that each sample's row belongs to.
        axis: "train" or "eval".
    """

    completions: list[str]
    prompts: list[str] | None = None
    expected: list[str | None] | None = None
    ids: list[str] | None = None
    steps: list[int] | None = None
    axis: str = "train"

    @classmethod
    def of(cls, arguments: Mapping[str, Any], expected: str | None = None) -> "Call | None":
        """The call with these arguments by name; None for one without completions.

        Args:
            expected: The column that holds the right answers; looked for in `EXPECTED_COLUMNS` where None.
        """
        if "completions" not in arguments:
            return None
        completions = [completion_text(each) for each in arguments["completions"]]
        count = len(completions)
        prompts = _column(arguments, "prompts", count)
        ids = _column(arguments, "id", count)
        axis, steps = _steps(arguments, count)
        return cls(
            completions,
            None if prompts is None else [prompt_text(each) for each in prompts],
            _answers(arguments, expected, count),
            None if ids is None else [str(plain(each)) for each in ids],
            steps,
            axis,
        )


def expected_column(arguments: Mapping[str, Any], wanted: str | None = None) -> str | None:
    """The name of the column that holds the right answers; None where there is none."""
    return next((name for name in ((wanted,) if wanted else EXPECTED_COLUMNS) if name in arguments), None)


def _answers(arguments: Mapping[str, Any], wanted: str | None, count: int) -> list[str | None] | None:
    name = expected_column(arguments, wanted)
    answers = None if name is None else _column(arguments, name, count)
    return None if answers is None else [None if each is None else prompt_text(each) for each in answers]


def _column(arguments: Mapping[str, Any], name: str, count: int) -> Sequence[Any] | None:
    values: Any = arguments.get(name)
    values = values.tolist() if hasattr(values, "tolist") else values
    return values if isinstance(values, list | tuple) and len(values) == count else None


def _steps(arguments: Mapping[str, Any], count: int) -> tuple[str, list[int] | None]:
    completed = _whole(getattr(arguments.get("trainer_state"), "global_step", None))
    if completed is not None:
        evaluating = _is_evaluating(arguments.get("log_metric"))
        return "eval" if evaluating else "train", [completed + (not evaluating)] * count
    step = _whole(arguments.get("step"))
    column = _column(arguments, "step", count) if step is None else [step] * count
    steps = [each for value in column or () if (each := _whole(value)) is not None]
    return "train", steps if column is not None and len(steps) == count else None


def _is_evaluating(log_metric: Any) -> bool:
    model = getattr(getattr(log_metric, "__self__", None), "model", None)
    return getattr(model, "training", True) is False


def _whole(value: Any) -> int | None:
    number = plain(value)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


class RewardError(HooklineError, ValueError):
    """A reward function returned something else than a number or None for each completion."""


Values = list[float | None]


def read(result: Any, name: str, count: int | None) -> tuple[Any, Values]:
    """What to hand on, which is the very result unless that can be read only once; and its numbers.

    Args:
        name: The reward function's, for errors.
        count: How many completions there are; None where nobody knows.

    Raises:
        RewardError: It is not a number or None for each completion.
    """
    wanted = f"a list with a number or None for each of the {'' if count is None else f'{count} '}completions"
    handed_on = result if hasattr(result, "tolist") or isinstance(result, list | tuple) else _listed(result)
    values = handed_on.tolist() if hasattr(handed_on, "tolist") else handed_on
    if not isinstance(values, list | tuple):
        raise RewardError(f"{name}: the reward function returned {result!r:.200}; {wanted} is needed.")
    if count is not None and len(values) != count:
        raise RewardError(f"{name}: the reward function returned {len(values)} values; {wanted} is needed.")
    return handed_on, [_number(value, index, name, wanted) for index, value in enumerate(values)]


def _listed(result: Any) -> Any:
    """A generator as a list; anything that is no series of values as it is."""
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
        return result
    return list(result)


def _number(value: Any, index: int, name: str, wanted: str) -> float | None:
    number = plain(value)
    if number is None:
        return None
    if not isinstance(number, int | float):
        raise RewardError(
            f"{name}: value {index} that the reward function returned is {value!r:.200}; {wanted} is needed."
        )
    try:
        return float(number)
    except OverflowError:
        raise RewardError(f"{name}: value {index} that the reward function returned is larger than a float.") from None


class Batch:
    """The samples of one batch; one row each, however many functions score them.

    Args:
        call: What the first of the functions was asked.
        number: Which batch this is, counted from 1: the step, where nobody says one.

    Attributes:
        running: How many functions are scoring it now.
        failed: Whether one of them ended with an exception that went on to its caller.
        values: What each function gave.
        errors: Why a function gave nothing.
        names: The functions that have begun to score it.
    """

    def __init__(self, call: Call, number: int) -> None:
        self.call = call
        self.number = number
        self.running = 0
        self.failed = False
        self.values: dict[str, Values] = {}
        self.errors: dict[str, str] = {}
        self.names: set[str] = set()

    @property
    def step(self) -> int:
        """The step of its first sample."""
        return self.call.steps[0] if self.call.steps else self.number

    @property
    def ids(self) -> list[str]:
        """The questions' ids: the dataset's own, or made from prompt and right answer as `Task` does it."""
        call = self.call
        if call.ids is not None:
            return call.ids
        return [Task(self._prompt(index), self._expected(index)).id for index in range(len(call.completions))]

    def takes(self, name: str, call: Call) -> bool:
        """Whether a function's call is about these samples, and its first one."""
        mine = self.call
        return (
            name not in self.names
            and (mine.axis, mine.steps) == (call.axis, call.steps)
            and mine.completions == call.completions
            and (mine.prompts is None or call.prompts is None or mine.prompts == call.prompts)
        )

    def begin(self, name: str, call: Call) -> None:
        """A function begins to score; what it was told about the samples is known from now on."""
        self.names.add(name)
        self.running += 1
        mine = self.call
        self.call = replace(
            mine,
            prompts=call.prompts if mine.prompts is None else mine.prompts,
            expected=call.expected if mine.expected is None else mine.expected,
            ids=call.ids if mine.ids is None else mine.ids,
        )

    def is_complete(self, members: Collection[str]) -> bool:
        """Whether nothing more is to come: all functions, if they are known, have scored, or one has ended it."""
        return not self.running and (self.failed or (bool(members) and self.names.issuperset(members)))

    def rows(self, weights: Mapping[str, float]) -> list[dict[str, Any]]:
        """A row for each sample, as `Recorder.samples` takes it."""
        ids = self.ids
        return [self._row(index, ids[index], weights) for index in range(len(self.call.completions))]

    def rewards(self, index: int) -> dict[str, float]:
        """What each function gave for a sample; one that gave nothing is missing."""
        given = {name: values[index] for name, values in self.values.items()}
        return {name: value for name, value in given.items() if value is not None}

    def _row(self, index: int, question: str, weights: Mapping[str, float]) -> dict[str, Any]:
        completion = self.call.completions[index]
        rewards = self.rewards(index)
        reasoning, answer = extract_reasoning_and_answer(completion)
        row = {
            "step": self.call.steps[index] if self.call.steps else self.number,
            "axis": self.call.axis,
            "group": question,
            "prompt": self._prompt(index),
            "completion": completion,
            "expected": self._expected(index),
            "reasoning": reasoning,
            "answer": answer,
            "rewards": rewards,
            "total": total(rewards, weights),
            "reward_errors": dict(self.errors) or None,
        }
        return {key: value for key, value in row.items() if value is not None}

    def _prompt(self, index: int) -> str:
        return self.call.prompts[index] if self.call.prompts is not None else ""

    def _expected(self, index: int) -> str | None:
        return self.call.expected[index] if self.call.expected is not None else None


def total(rewards: Mapping[str, float], weights: Mapping[str, float]) -> float | None:
    """The weighted sum, as TRL makes it: NaN counts for nothing; None where nothing counts."""
    counted = [weights.get(name, 1.0) * value for name, value in rewards.items() if not math.isnan(value)]
    return sum(counted) if counted else None

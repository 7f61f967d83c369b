"""`RewardCall`, the samples that a reward function is called with, and `RewardBatch`, their rewards by function.

A call is read from keyword arguments as TRL, or any other caller, passes them. The step comes from TRL's
``trainer_state``, whose ``global_step`` counts completed steps, so samples that are generated for training belong to
the next step; otherwise from an argument or column ``step``; otherwise it is unknown. A call is an evaluation if the
model of TRL's trainer, to which the ``log_metric`` argument is bound, is not in training mode.
"""

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hookline._engine.errors import HooklineError
from hookline._engine.metrics import plain, whole
from hookline._record.chats import as_chat, completion_text, prompt_text
from hookline.logging.payloads import extract_reasoning_and_answer
from hookline.rl.types import Task

EXPECTED_COLUMNS = ("expected", "answer", "solution", "ground_truth", "target")
"""The usual columns of right answers; the first that exists is used."""

Values = list[float | None]


class RewardError(HooklineError, ValueError):
    """A reward function did not return a number or None for each completion."""


@dataclass(frozen=True, slots=True)
class RewardCall:
    """The samples that a reward function scores; None stands for what is unknown.

    Attributes:
        steps: The step of each sample, as a number of completed steps.
        axis: "train" or "eval".
        prompt_chats: The messages of each prompt that is a chat; None for the others.
        completion_chats: The same for the completions.
    """

    completions: list[str]
    prompts: list[str] | None = None
    expected: list[str | None] | None = None
    ids: list[str] | None = None
    steps: list[int] | None = None
    axis: str = "train"
    prompt_chats: list[Any] | None = None
    completion_chats: list[Any] | None = None

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any], expected: str | None = None) -> "RewardCall | None":
        """Read a call from its arguments by name; None if there are no completions.

        Args:
            expected: The column of right answers; by default the first of `EXPECTED_COLUMNS` that exists.
        """
        if "completions" not in arguments:
            return None
        completions = [completion_text(each) for each in arguments["completions"]]
        count = len(completions)
        prompts = _column(arguments, "prompts", count)
        ids = _column(arguments, "id", count)
        answers = _column(arguments, expected_column(arguments, expected), count)
        axis, steps = _axis_and_steps(arguments, count)
        return cls(
            completions,
            None if prompts is None else [prompt_text(each) for each in prompts],
            None if answers is None else [None if each is None else prompt_text(each) for each in answers],
            None if ids is None else [str(plain(each)) for each in ids],
            steps,
            axis,
            None if prompts is None else [as_chat(each) for each in prompts],
            [as_chat(each) for each in arguments["completions"]],
        )

    def chats_of(self, index: int) -> dict[str, Any]:
        """Return the messages of a sample as fields of a row, where it has any."""
        given = {"prompt_messages": self.prompt_chats, "completion_messages": self.completion_chats}
        return {name: chats[index] for name, chats in given.items() if chats is not None and chats[index] is not None}


def function_name(function: Any) -> str:
    """Return the name of a function, of the function inside a partial, or of an object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def expected_column(arguments: Mapping[str, Any], wanted: str | None = None) -> str | None:
    """Return the name of the column of right answers; None if there is none."""
    return next((name for name in ((wanted,) if wanted else EXPECTED_COLUMNS) if name in arguments), None)


def _column(arguments: Mapping[str, Any], name: str | None, count: int) -> Sequence[Any] | None:
    values: Any = None if name is None else arguments.get(name)
    values = values.tolist() if hasattr(values, "tolist") else values
    return values if isinstance(values, list | tuple) and len(values) == count else None


def _axis_and_steps(arguments: Mapping[str, Any], count: int) -> tuple[str, list[int] | None]:
    completed = whole(plain(getattr(arguments.get("trainer_state"), "global_step", None)))
    if completed is not None:
        model = getattr(getattr(arguments.get("log_metric"), "__self__", None), "model", None)
        is_evaluation = getattr(model, "training", True) is False
        return "eval" if is_evaluation else "train", [completed + (not is_evaluation)] * count
    step = whole(plain(arguments.get("step")))
    column = _column(arguments, "step", count) if step is None else [step] * count
    steps = [each for value in column or () if (each := whole(plain(value))) is not None]
    return "train", steps if column is not None and len(steps) == count else None


def read_values(result: Any, name: str, count: int | None) -> tuple[Any, Values]:
    """Return the result of a reward function, and its numbers.

    The result itself is returned unless it can only be read once, as a generator, which becomes a list.

    Args:
        name: The function's name, for errors.
        count: The number of completions; None if it is unknown.

    Raises:
        RewardError: It is not a number or None for each completion.
    """
    wanted = f"a list with a number or None for each of the {'' if count is None else f'{count} '}completions"
    is_iterator = isinstance(result, Iterable) and not isinstance(result, list | tuple | str | bytes | Mapping)
    returned = list(result) if is_iterator and not hasattr(result, "tolist") else result
    values = returned.tolist() if hasattr(returned, "tolist") else returned
    if not isinstance(values, list | tuple):
        raise RewardError(f"{name}: the reward function returned {result!r:.200}; {wanted} is needed.")
    if count is not None and len(values) != count:
        raise RewardError(f"{name}: the reward function returned {len(values)} values; {wanted} is needed.")
    numbers: Values = []
    for index, value in enumerate(values):
        number = plain(value)
        if number is not None and not isinstance(number, int | float):
            raise RewardError(
                f"{name}: value {index} that the reward function returned is {value!r:.200}; {wanted} is needed."
            )
        try:
            numbers.append(None if number is None else float(number))
        except OverflowError:
            raise RewardError(
                f"{name}: value {index} that the reward function returned is larger than a float."
            ) from None
    return returned, numbers


class RewardBatch:
    """The samples of one batch, with one row each, and the rewards of several functions.

    Args:
        call: The call of the first function.
        number: The number of the batch, from 1: the step if the caller does not provide one.

    Attributes:
        running: How many functions are scoring it now.
        failed: Whether a function raised an exception that reached its caller.
        values: The values of each function.
        errors: The error of each function that has no values.
        names: The functions that have begun to score it.
    """

    def __init__(self, call: RewardCall, number: int) -> None:
        self.call = call
        self.number = number
        self.running = 0
        self.failed = False
        self.values: dict[str, Values] = {}
        self.errors: dict[str, str] = {}
        self.names: set[str] = set()

    @property
    def step(self) -> int:
        """The step of the first sample."""
        return self.call.steps[0] if self.call.steps else self.number

    @property
    def ids(self) -> list[str]:
        """The ids of the questions: those of the dataset, or made of prompt and right answer as in `Task`."""
        if self.call.ids is not None:
            return self.call.ids
        return [Task(self._prompt(index), self._expected(index)).id for index in range(len(self.call.completions))]

    def accepts(self, name: str, call: RewardCall) -> bool:
        """Return whether a call has the same samples, and is the function's first for them."""
        mine = self.call
        return (
            name not in self.names
            and (mine.axis, mine.steps) == (call.axis, call.steps)
            and mine.completions == call.completions
            and (mine.prompts is None or call.prompts is None or mine.prompts == call.prompts)
        )

    def begin(self, name: str, call: RewardCall) -> None:
        """Note that a function begins to score, and keep what its call adds to the samples."""
        self.names.add(name)
        self.running += 1
        mine = self.call
        self.call = replace(
            mine,
            prompts=call.prompts if mine.prompts is None else mine.prompts,
            expected=call.expected if mine.expected is None else mine.expected,
            ids=call.ids if mine.ids is None else mine.ids,
            prompt_chats=call.prompt_chats if mine.prompt_chats is None else mine.prompt_chats,
        )

    def is_complete(self, members: Collection[str]) -> bool:
        """Return whether all functions, if they are known, have scored it, or one of them has failed."""
        return not self.running and (self.failed or (bool(members) and self.names.issuperset(members)))

    def rows(self, weights: Mapping[str, float]) -> list[dict[str, Any]]:
        """Return a row per sample, for `Recorder.samples`; the total is weighted as in TRL, ignoring NaN."""
        rows = []
        for index, (completion, question) in enumerate(zip(self.call.completions, self.ids, strict=True)):
            values = {name: values[index] for name, values in self.values.items()}
            rewards = {name: value for name, value in values.items() if value is not None}
            weighted = [weights.get(name, 1.0) * value for name, value in rewards.items() if not math.isnan(value)]
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
                "total": sum(weighted) if weighted else None,
                "reward_errors": dict(self.errors) or None,
                **self.call.chats_of(index),
            }
            rows.append({key: value for key, value in row.items() if value is not None})
        return rows

    def _prompt(self, index: int) -> str:
        return self.call.prompts[index] if self.call.prompts is not None else ""

    def _expected(self, index: int) -> str | None:
        return self.call.expected[index] if self.call.expected is not None else None

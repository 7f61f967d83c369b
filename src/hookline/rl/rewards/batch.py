"""`Batch`: completions, and what several reward functions gave for them."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from hookline.logging.completions import extract_reasoning_and_answer
from hookline.rl.rewards.call import Call
from hookline.rl.rewards.values import Values
from hookline.rl.types import Task


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

"""A data set with reward functions as TRL takes them: ``(prompts, completions, **columns) -> list[float | None]``.

Each function is called with keywords: ``prompts``, ``completions``, and a list for every column of the data set but
``prompt``; a row without a column has None there. What a function gives is taken as follows:

- a number is the reward, and None means that there is none;
- where it raises, or gives anything but one value for each completion, all its rewards of that call are missing;
- where a value is NaN, infinite or no number, that reward is missing.

The last two are counted in ``faults`` by the function's name, and logged once for each.
"""

import functools
import inspect
import json
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hookline._engine.errors import OptionError, UnknownNameError
from hookline.config.factories import import_object
from hookline.rl.environments.base import HELD_OUT_SHARE, SOLVED, TaskSpace, described, finite, register_environment
from hookline.rl.types import Task

RewardFunction = Callable[..., Sequence[float | None]]
RESERVED = {"prompts", "completions"}


@register_environment("dataset")
class RewardDataset(TaskSpace):
    """Rows to ask, and functions that reward the completions.

    Args:
        dataset: The rows, each with a ``prompt``, mostly an ``answer``, and any other columns; or a ``.jsonl`` file
            of them.
        rewards: The functions, or where they are: ``"package.module:function"``. A reward goes by its function's name.
        success_total: The total of rewards from which on a task counts as solved.
        held_out_share: The share of rows, by prompt and answer, that is never trained on.
    """

    name = "dataset"

    def __init__(
        self,
        dataset: Any,
        rewards: Any,
        *,
        success_total: float = SOLVED,
        held_out_share: float = HELD_OUT_SHARE,
    ) -> None:
        rows = _read(Path(dataset)) if isinstance(dataset, str | Path) else _listed(dataset)
        self._tasks = [_task(row, index) for index, row in enumerate(rows)]
        self._columns = list(dict.fromkeys(column for task in self._tasks for column in task.metadata))
        if clash := RESERVED & {*self._columns}:
            raise OptionError(f"dataset: the column {min(clash)!r} has the name of another argument. Rename it.")
        self.rewards = _functions(rewards, self._columns)
        self.success_total = success_total
        super().__init__(held_out_share)

    @property
    def size(self) -> int:
        return len(self._tasks)

    def task(self, index: int) -> Task:
        return self._tasks[index]

    def score(self, task: Task, completion: str) -> dict[str, float]:
        """The reward that each function gives."""
        return self.score_many([task], [completion])[0]

    def score_many(self, tasks: Sequence[Task], completions: Sequence[str]) -> list[dict[str, float]]:
        """The rewards of several completions, for which each function is called once."""
        scores: list[dict[str, float]] = [{} for _ in tasks]
        for name, function in self.rewards.items():
            for score, value in zip(scores, self._values(name, function, tasks, completions), strict=True):
                reward = None if value is None else finite(value, name, self.faults)
                if reward is not None:
                    score[name] = reward
        return scores

    def succeeded(self, task: Task, rewards: Mapping[str, float]) -> bool:
        """Whether the rewards add up to enough."""
        return sum(rewards.values()) >= self.success_total

    def _values(
        self, name: str, function: RewardFunction, tasks: Sequence[Task], completions: Sequence[str]
    ) -> Sequence[Any]:
        """What a function gives for each completion; None for all of them where it fails."""
        columns = {column: [task.metadata.get(column) for task in tasks] for column in self._columns}
        try:
            given = function(prompts=[task.prompt for task in tasks], completions=list(completions), **columns)
            values = None if isinstance(given, str | bytes | Mapping) else list(given)
            if values is not None and len(values) == len(tasks):
                return values
            problem = f"returned {reprlib.repr(given)}, where a list of {len(tasks)} is accepted"
        except Exception as error:  # whatever a function does, training goes on
            problem = described(error)
        self.faults.note(name, problem)
        return [None] * len(tasks)


def _read(path: Path) -> list[Mapping[str, Any]]:
    """The rows of a file with one JSON object a line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines() would split inside of strings
    except OSError as error:
        raise OptionError(f"dataset: {path}: cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"dataset: {path}: is not UTF-8 text (byte {error.start}).") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except json.JSONDecodeError as error:
            raise OptionError(f"dataset: {path}:{number}: is not valid JSON: {error.msg}.") from error
    return _listed(rows)


def _listed(rows: Any) -> list[Mapping[str, Any]]:
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise OptionError(f"dataset={rows!r:.200}: give a list of rows {{'prompt': ..., 'answer': ...}}, or a file.")
    listed = list(rows)
    if not listed:
        raise OptionError("dataset: has no rows. Give at least one {'prompt': ..., 'answer': ...}.")
    return listed


def _task(row: Any, index: int) -> Task:
    if not isinstance(row, Mapping) or not isinstance(row.get("prompt"), str) or not all(type(k) is str for k in row):
        raise OptionError(
            f"dataset: row {index} is {row!r:.200}, where a mapping of columns with a text as its 'prompt' is "
            "accepted. Write conversations out as text with the chat template first."
        )
    answer = row.get("answer")
    columns = {key: value for key, value in row.items() if key != "prompt"}
    return Task(row["prompt"], None if answer is None else str(answer), metadata=columns)


def _functions(given: Any, columns: Sequence[str]) -> dict[str, RewardFunction]:
    """The functions by name, each of them such that it can be called."""
    functions = [given] if isinstance(given, str) or callable(given) else list(given)
    if not functions:
        raise OptionError("rewards: give at least one reward function.")
    named: dict[str, RewardFunction] = {}
    for function in map(_function, functions):
        name = _name(function)
        if name in named:
            raise OptionError(f"rewards: two functions are called {name!r}. Rename one: rewards go by these names.")
        _require_callable(name, function, columns)
        named[name] = function
    return named


def _function(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    if ":" not in given:
        raise OptionError(f"rewards: {given!r} is not a place: give 'package.module:function'.")
    try:
        return import_object(given)
    except UnknownNameError as error:
        raise OptionError(f"rewards: {error}") from error


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _require_callable(name: str, function: Any, columns: Sequence[str]) -> None:
    if not callable(function) or isinstance(function, type) or inspect.iscoroutinefunction(function):
        raise OptionError(f"rewards: {function!r} is not a function that can be called and gives rewards at once.")
    try:
        signature = inspect.signature(function)
        signature.bind(prompts=[], completions=[], **{column: [] for column in columns})
    except ValueError as error:
        raise OptionError(f"rewards: what {name!r} takes cannot be known ({error}). Wrap it in a function.") from None
    except TypeError as error:
        raise OptionError(
            f"rewards: {name}{signature} cannot be called with prompts, completions"
            f"{''.join(f', {column}' for column in columns)}: {error}. Take **columns for those it does not need."
        ) from None

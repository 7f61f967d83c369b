"""`RewardDataset`: a dataset whose completions are scored by reward functions in the style of TRL.

A reward function is ``(prompts, completions, **columns) -> list[float | None]``, called with keyword arguments: a list
for every column of the dataset except ``prompt``, with None for rows without that column. Prompts and completions are
texts, or lists of messages if the prompts of the dataset are. A returned number is the reward; None means no reward. If
a function raises or does not return one value per completion, all its rewards of that call are missing; a value that is
NaN, infinite or not a number is a missing reward. Both are counted in ``faults`` under the function's name, and the
first is logged.
"""

import inspect
import json
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hookline._engine.errors import OptionError, UnknownNameError
from hookline._engine.factories import import_object
from hookline._record.chats import is_chat, prompt_text
from hookline.rl.chat_format import check_messages
from hookline.rl.environments.base import (
    HELD_OUT_SHARE,
    SOLVED,
    TaskSpace,
    describe_error,
    finite_reward,
    register_environment,
)
from hookline.rl.rewards.batch import function_name
from hookline.rl.types import Task

RewardFunction = Callable[..., Sequence[float | None]]
RESERVED = {"prompts", "completions"}


@register_environment("dataset")
class RewardDataset(TaskSpace):
    """Prompts from the rows of a dataset, and functions that score the completions.

    Args:
        dataset: The rows, each with a ``prompt`` (a text, or a list of messages), usually an ``answer``, and any other
            columns; or the path of a ``.jsonl`` file.
        rewards: The functions, or their import paths: ``"package.module:function"``. Each reward is named after its
            function.
        tools: Functions that the policy may call before it answers, or their import paths.
        success_total: The total reward from which a task counts as solved.
        held_out_share: The share of rows, by prompt and answer, that is never trained on.
    """

    name = "dataset"

    def __init__(
        self,
        dataset: Any,
        rewards: Any,
        *,
        tools: Sequence[Any] = (),
        success_total: float = SOLVED,
        held_out_share: float = HELD_OUT_SHARE,
    ) -> None:
        self._tasks = [_task(row, index) for index, row in enumerate(rows_of(dataset))]
        self._columns = list(dict.fromkeys(column for task in self._tasks for column in task.metadata))
        if clash := RESERVED & {*self._columns}:
            raise OptionError(f"dataset: the column {min(clash)!r} has the name of another argument. Rename it.")
        self.scores_messages = any(task.messages is not None for task in self._tasks)
        if self.scores_messages and any(task.messages is None for task in self._tasks):
            raise OptionError("dataset: some prompts are texts and others lists of messages: give one kind.")
        self.tools = [_function(each, "tools") for each in tools]
        self.rewards = _functions(rewards, self._columns)
        self.success_total = success_total
        super().__init__(held_out_share)

    @property
    def size(self) -> int:
        return len(self._tasks)

    def task(self, index: int) -> Task:
        return self._tasks[index]

    def score(self, task: Task, completion: Any) -> dict[str, float]:
        """Return the reward of each function."""
        return self.score_many([task], [completion])[0]

    def score_many(self, tasks: Sequence[Task], completions: Sequence[Any]) -> list[dict[str, float]]:
        """Return the rewards of several completions, calling each function once."""
        scores: list[dict[str, float]] = [{} for _ in tasks]
        for name, function in self.rewards.items():
            for score, value in zip(scores, self._values(name, function, tasks, completions), strict=True):
                reward = None if value is None else finite_reward(value, name, self.faults)
                if reward is not None:
                    score[name] = reward
        return scores

    def succeeded(self, task: Task, rewards: Mapping[str, float]) -> bool:
        """Return whether the rewards add up to `success_total`."""
        return sum(rewards.values()) >= self.success_total

    def _values(
        self, name: str, function: RewardFunction, tasks: Sequence[Task], completions: Sequence[Any]
    ) -> Sequence[Any]:
        """Return one value per completion; None for all of them if the function fails."""
        columns = {column: [task.metadata.get(column) for task in tasks] for column in self._columns}
        try:
            prompts = [task.messages if self.scores_messages else task.prompt for task in tasks]
            returned = function(prompts=prompts, completions=list(completions), **columns)
            values = None if isinstance(returned, str | bytes | Mapping) else list(returned)
            if values is not None and len(values) == len(tasks):
                return values
            problem = f"returned {reprlib.repr(returned)}, where a list of {len(tasks)} is accepted"
        except Exception as error:  # user code: training continues whatever it raises
            problem = describe_error(error)
        self.faults.note(name, problem)
        return [None] * len(tasks)


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line of a JSON Lines file; blank lines are skipped.

    Raises:
        OptionError: The file cannot be read, or a line is not JSON.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines() would split inside of strings
    except OSError as error:
        raise OptionError(f"{path}: cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"{path}: is not UTF-8 text (byte {error.start}).") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise OptionError(f"{path}:{number}: is not valid JSON: {error.msg}.") from error
            yield number, value


def rows_of(dataset: Any) -> list[Mapping[str, Any]]:
    """Return the rows of a dataset: a list or another iterable of rows, or the path of a ``.jsonl`` file."""
    if isinstance(dataset, str | Path):
        try:
            return _listed([row for _, row in json_lines(Path(dataset))])
        except OptionError as error:
            raise OptionError(f"dataset: {error}") from error
    return _listed(dataset)


def _listed(rows: Any) -> list[Mapping[str, Any]]:
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise OptionError(f"dataset={rows!r:.200}: give a list of rows {{'prompt': ..., 'answer': ...}}, or a file.")
    listed = list(rows)
    if not listed:
        raise OptionError("dataset: has no rows. Give at least one {'prompt': ..., 'answer': ...}.")
    return listed


def _task(row: Any, index: int) -> Task:
    prompt = row.get("prompt") if isinstance(row, Mapping) else None
    messages = check_messages(prompt, "prompt") if prompt and is_chat(prompt) else None
    if not (isinstance(prompt, str) or messages) or not all(type(key) is str for key in row):
        raise OptionError(
            f"dataset: row {index} is {row!r:.200}, where a mapping of columns with a text or a list of messages as "
            "its 'prompt' is accepted."
        )
    answer = row.get("answer")
    columns = {key: value for key, value in row.items() if key != "prompt"}
    text = str(prompt) if messages is None else prompt_text(messages)
    return Task(text, None if answer is None else str(answer), metadata=columns, messages=messages)


def _functions(given: Any, columns: Sequence[str]) -> dict[str, RewardFunction]:
    functions = [given] if isinstance(given, str) or callable(given) else list(given)
    if not functions:
        raise OptionError("rewards: give at least one reward function.")
    named: dict[str, RewardFunction] = {}
    for function in (_function(each, "rewards") for each in functions):
        name = function_name(function)
        if name in named:
            raise OptionError(f"rewards: two functions are called {name!r}. Rename one: they name the rewards.")
        _require_callable(name, function, columns)
        named[name] = function
    return named


def _function(given: Any, option: str) -> Any:
    if not isinstance(given, str):
        return given
    if ":" not in given:
        raise OptionError(f"{option}: {given!r} is not an import path: give 'package.module:function'.")
    try:
        return import_object(given)
    except UnknownNameError as error:
        raise OptionError(f"{option}: {error}") from error


def _require_callable(name: str, function: Any, columns: Sequence[str]) -> None:
    if not callable(function) or isinstance(function, type) or inspect.iscoroutinefunction(function):
        raise OptionError(f"rewards: {function!r} is not a function that returns rewards (nor may it be async).")
    try:
        signature = inspect.signature(function)
        signature.bind(prompts=[], completions=[], **{column: [] for column in columns})
    except ValueError as error:
        raise OptionError(f"rewards: the signature of {name!r} is unknown ({error}). Wrap it in a function.") from None
    except TypeError as error:
        raise OptionError(
            f"rewards: {name}{signature} cannot be called with prompts, completions"
            f"{''.join(f', {column}' for column in columns)}: {error}. Take **columns for those it does not need."
        ) from None

"""Benchmarks that come with hookline, one file each.

`QuestionsBenchmark`: questions and their answers from a JSONL file.

    {"question": "What is the capital of France?", "answer": "Paris", "tags": {"continent": "Europe"}}

The file is read once, when the benchmark is made; an error says the line. An ``id`` is that of the task, other columns
go to the task's metadata, and ``tags``, a mapping or a list of texts, are what results are broken down by.

`EnvironmentBenchmark`: the tasks that an environment holds out, solved or not.

`ArithmeticBenchmark`: sums, differences and products, by operator and by the number of digits.

`FormatBenchmark`: whether a subject answers as ``<reasoning>..</reasoning><answer>..</answer>``, and rightly.

The two are metrics of their own, since an answer can be right in a wrong format, and the other way round.

`SortingBenchmark`: digits to put in order, by whether one comes twice and by how long the list is.
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError, closest
from hookline.experiment.benchmark import BATCH_SIZE, MAX_TOKENS, Benchmark, register_benchmark, tags_of
from hookline.rl.environments.base import (
    CORRECT,
    HELD_OUT_SHARE,
    evaluation_tasks,
    make_environment,
    succeeded,
)
from hookline.rl.environments.reasoning import FORMAT, TEMPLATE, Reasoning
from hookline.rl.environments.text_tasks import Answer, Arithmetic, Difficulty, Sorting, last_number
from hookline.rl.types import Task

__all__ = ["ArithmeticBenchmark", "EnvironmentBenchmark", "FormatBenchmark", "QuestionsBenchmark", "SortingBenchmark"]


Match = Literal["exact", "contains", "last_number"]
QUESTION_TOKENS = 128


@register_benchmark("questions")
class QuestionsBenchmark(Benchmark):
    """Questions from a file; the accuracy is the share that is answered rightly.

    Args:
        path: The file, with one JSON object a line; blank lines are left out.
        name: What it is called; the file's name without its ending, where it is not given.
        question: The column that is asked.
        answer: The column with the right answer, a text or a number.
        match: When an output is right: it is the answer with nothing but white space around it (``exact``), the answer
            stands in it and not inside of a longer word or number (``contains``), or the ``last_number`` of it is
            that of the answer. Upper and lower case differ.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        question: str = "question",
        answer: str = "answer",
        match: Match = "exact",
        every: int | None = None,
        batch_size: int = BATCH_SIZE,
        max_tokens: int = QUESTION_TOKENS,
        stop: Sequence[str] = (),
    ) -> None:
        if match not in MATCHES:
            raise OptionError(f"match={match!r}: {closest(str(match), MATCHES)}")
        self.path = Path(path)
        self.match = match
        name = self.path.stem if name is None else name
        super().__init__(name=name, every=every, batch_size=batch_size, max_tokens=max_tokens, stop=stop)
        self._tasks = _read(self.path, question, answer, match)

    def tasks(self) -> list[Task]:
        return list(self._tasks)

    def score(self, task: Task, output: Any) -> bool:
        """Whether the output answers the question."""
        return MATCHES[self.match](output, str(task.expected))


def _contains(output: str, answer: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(answer.strip())}(?!\w)", output) is not None


MATCHES: Mapping[str, Callable[[str, str], bool]] = {
    "exact": lambda output, answer: output.strip() == answer.strip(),
    "contains": _contains,
    "last_number": lambda output, answer: last_number(output) == last_number(answer),
}


def _read(path: Path, question: str, answer: str, match: str) -> list[Task]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines() would split inside of strings
    except OSError as error:
        raise OptionError(f"{path}: cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"{path}: is not UTF-8 text (byte {error.start}).") from error
    tasks: dict[str, tuple[int, Task]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            task = _task(line, question, answer, match)
        except OptionError as error:
            raise OptionError(f"{path}:{number}: {error}") from error
        first, _ = tasks.setdefault(task.id, (number, task))
        if first != number:
            raise OptionError(
                f"{path}:{number}: is the question of line {first} again (id {task.id!r}). Leave one out."
            )
    if not tasks:
        raise OptionError(f"{path}: has no questions. Write one JSON object a line: {_example(question, answer)}")
    return [task for _, task in tasks.values()]


def _task(line: str, question: str, answer: str, match: str) -> Task:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise OptionError(f"is not valid JSON: {error.msg}.") from error
    if not isinstance(row, dict):
        raise OptionError(f"{row!r:.100} is not a JSON object. Write {_example(question, answer)}")
    for column in (question, answer):
        if column not in row:
            raise OptionError(f"has no {column!r}. {closest(column, row)}")
    if not isinstance(row[question], str) or not row[question].strip():
        raise OptionError(f"{question}={row[question]!r:.100}: give a text that is not empty.")
    expected = _answer(row[answer], answer, match)
    metadata = {key: value for key, value in row.items() if key not in (question, answer, "id")}
    task = Task(row[question], expected, _id(row.get("id")), metadata)
    tags_of(task)
    return task


def _answer(given: Any, column: str, match: str) -> str:
    if isinstance(given, bool) or not isinstance(given, str | int | float) or not str(given).strip():
        raise OptionError(f"{column}={given!r:.100}: give a text that is not empty, or a number.")
    expected = str(given)
    if match == "last_number" and last_number(expected) is None:
        raise OptionError(f"{column}={given!r:.100}: has no number, which match='last_number' needs.")
    return expected


def _id(given: Any) -> str:
    if isinstance(given, bool) or not isinstance(given, str | int | None):
        raise OptionError(f"id={given!r:.100}: give a text or a whole number.")
    return "" if given is None else str(given)


def _example(question: str, answer: str) -> str:
    return json.dumps({question: "...", answer: "..."})


TASKS = 100
"""How many tasks a benchmark has, where it is not said."""
MOST = 1_000_000


@register_benchmark("environment")
class EnvironmentBenchmark(Benchmark):
    """Tasks of any environment; the accuracy is the share that is solved.

    The tasks are held-out ones, where the environment has such, and never trained on where its held-out share is at
    least as large in training. They are different from each other: where there are fewer than ``n``, it is all of
    them.

    Args:
        environment: The environment, or its name and settings.
        n: How many tasks.
        seed: Another one draws other tasks.
        name: What it is called; the environment's name, where it is not given.
    """

    def __init__(
        self,
        environment: Any,
        n: int = TASKS,
        *,
        seed: int = 0,
        name: str | None = None,
        every: int | None = None,
        batch_size: int = BATCH_SIZE,
        max_tokens: int = MAX_TOKENS,
        stop: Sequence[str] = (),
    ) -> None:
        require_integer("n", n, maximum=MOST)
        self.environment = make_environment(environment)
        self.n = n
        self.seed = seed
        name = self.environment.name if name is None else name
        super().__init__(name=name, every=every, batch_size=batch_size, max_tokens=max_tokens, stop=stop)

    def tasks(self) -> list[Task]:
        rng = random.Random(self.seed)  # noqa: S311 - sampling, not secrets
        drawn = {task.id: task for task in evaluation_tasks(self.environment, self.n, rng)}
        return [self._tagged(task) for task in drawn.values()]

    def score(self, task: Task, output: Any) -> float | Mapping[str, float]:
        """Whether the task is solved."""
        return succeeded(self.environment, task, self.environment.score(task, output))

    def tags(self, task: Task) -> Mapping[str, Any]:
        """What results are broken down by, for one task, by kind; without any the task's own tags stay."""
        return {}

    def _tagged(self, task: Task) -> Task:
        tags = self.tags(task)
        return replace(task, metadata={**task.metadata, "tags": dict(tags)}) if tags else task


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


FORMAT_TOKENS = 256


@register_benchmark("format")
class FormatBenchmark(EnvironmentBenchmark):
    """Tasks to be answered with reasoning first; the metrics are ``correct``, the main one, and ``format``.

    Tasks of the environment ``arithmetic`` have its benchmark's tags; those of others have their own, if any.

    Args:
        environment: The environment whose tasks are asked; it, or its name and settings.
        n: How many tasks; all that are held out, where there are fewer.
        template: The prompt, with the environment's in place of ``{prompt}``.
        seed: Another one draws other tasks.
    """

    def __init__(
        self,
        environment: Any = "arithmetic",
        n: int = TASKS,
        *,
        template: str = TEMPLATE,
        seed: int = 0,
        name: str = "format",
        every: int | None = None,
        batch_size: int = BATCH_SIZE,
        max_tokens: int = FORMAT_TOKENS,
        stop: Sequence[str] = (),
    ) -> None:
        self.reasoning = Reasoning(environment, template=template, format_reward=1.0)
        super().__init__(
            self.reasoning,
            n,
            seed=seed,
            name=name,
            every=every,
            batch_size=batch_size,
            max_tokens=max_tokens,
            stop=stop,
        )

    def score(self, task: Task, output: Any) -> Mapping[str, float]:
        """Whether the answer is right, and whether the output is in the format."""
        rewards = self.reasoning.score(task, output)
        return {CORRECT: succeeded(self.reasoning, task, rewards), FORMAT: rewards[FORMAT]}

    def tags(self, task: Task) -> Mapping[str, Any]:
        if not isinstance(self.reasoning.environment, Arithmetic):
            return {}
        return arithmetic_tags(task.metadata["inner_prompt"])


SPARE_TOKENS = 8
"""Room for the end of the text, and for a subject that writes too much to be seen to."""


@register_benchmark("sorting")
class SortingBenchmark(EnvironmentBenchmark):
    """Tasks that the environment ``sorting`` holds out; the tags are ``length`` and ``repeats``.

    Args:
        length: How many digits.
        n: How many tasks; all that are held out, where there are fewer.
        held_out_share: The share that is held out: as in training, or smaller.
        seed: Another one draws other tasks.
        max_tokens: The length and a few more, where it is not given.
    """

    def __init__(
        self,
        length: int = 4,
        n: int = TASKS,
        *,
        held_out_share: float = HELD_OUT_SHARE,
        seed: int = 0,
        name: str | None = None,
        every: int | None = None,
        batch_size: int = BATCH_SIZE,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> None:
        super().__init__(
            Sorting(length, held_out_share=held_out_share),
            n,
            seed=seed,
            name=name,
            every=every,
            batch_size=batch_size,
            max_tokens=length + SPARE_TOKENS if max_tokens is None else max_tokens,
            stop=stop,
        )

    def tags(self, task: Task) -> Mapping[str, Any]:
        digits = task.prompt.removesuffix(">")
        return {"length": len(digits), "repeats": "yes" if len(set(digits)) < len(digits) else "no"}

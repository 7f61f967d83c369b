"""The benchmarks that come with hookline: questions from a file, and tasks held out by environments.

`EnvironmentBenchmark` scores any environment's held-out tasks; `ArithmeticBenchmark`, `FormatBenchmark` and
`SortingBenchmark` add tags and, for the format, a second metric.
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
from hookline.rl.environments.dataset import json_lines
from hookline.rl.environments.text_tasks import (
    FORMAT,
    TEMPLATE,
    Answer,
    Arithmetic,
    Difficulty,
    Reasoning,
    Sorting,
    last_number,
)
from hookline.rl.types import Task

__all__ = ["ArithmeticBenchmark", "EnvironmentBenchmark", "FormatBenchmark", "QuestionsBenchmark", "SortingBenchmark"]


Match = Literal["exact", "contains", "last_number"]
QUESTION_TOKENS = 128


@register_benchmark("questions")
class QuestionsBenchmark(Benchmark):
    """Questions from a JSONL file; the accuracy is the share of correct answers.

        {"question": "What is the capital of France?", "answer": "Paris", "tags": {"continent": "Europe"}}

    The file is read once, when the benchmark is made; errors name the line. ``id`` is the task's id, results are
    broken down by ``tags``, and other columns go to the task's metadata.

    Args:
        path: The file, with one JSON object per line; blank lines are skipped.
        name: The benchmark's name; by default the file's, without its extension.
        question: The column with the question.
        answer: The column with the answer, a string or a number.
        match: When an output is correct: it equals the answer except for surrounding white space (``exact``), it
            contains the answer as whole words (``contains``), or its last number is the answer's (``last_number``).
            Matching is case-sensitive.
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
        """Whether the output matches the answer."""
        return MATCHES[self.match](output, str(task.expected))


MATCHES: Mapping[str, Callable[[str, str], bool]] = {
    "exact": lambda output, answer: output.strip() == answer.strip(),
    "contains": lambda output, answer: re.search(rf"(?<!\w){re.escape(answer.strip())}(?!\w)", output) is not None,
    "last_number": lambda output, answer: last_number(output) == last_number(answer),
}


def _read(path: Path, question: str, answer: str, match: str) -> list[Task]:
    tasks: dict[str, tuple[int, Task]] = {}
    for number, row in json_lines(path):
        try:
            task = _task(row, question, answer, match)
        except OptionError as error:
            raise OptionError(f"{path}:{number}: {error}") from error
        first, _ = tasks.setdefault(task.id, (number, task))
        if first != number:
            raise OptionError(f"{path}:{number}: repeats the question of line {first} (id {task.id!r}). Remove one.")
    if not tasks:
        raise OptionError(f"{path}: has no questions. Write one JSON object per line: {_example(question, answer)}")
    return [task for _, task in tasks.values()]


def _task(row: Any, question: str, answer: str, match: str) -> Task:
    if not isinstance(row, dict):
        raise OptionError(f"{row!r:.100} is not a JSON object. Write {_example(question, answer)}")
    for column in (question, answer):
        if column not in row:
            raise OptionError(f"has no {column!r}. {closest(column, row)}")
    if not isinstance(row[question], str) or not row[question].strip():
        raise OptionError(f"{question}={row[question]!r:.100}: give a non-empty string.")
    given, task_id = row[answer], row.get("id")
    if isinstance(given, bool) or not isinstance(given, str | int | float) or not str(given).strip():
        raise OptionError(f"{answer}={given!r:.100}: give a non-empty string or a number.")
    if match == "last_number" and last_number(str(given)) is None:
        raise OptionError(f"{answer}={given!r:.100}: has no number, which match='last_number' needs.")
    if isinstance(task_id, bool) or not isinstance(task_id, str | int | None):
        raise OptionError(f"id={task_id!r:.100}: give a string or a whole number.")
    metadata = {key: value for key, value in row.items() if key not in (question, answer, "id")}
    task = Task(row[question], str(given), "" if task_id is None else str(task_id), metadata)
    tags_of(task)
    return task


def _example(question: str, answer: str) -> str:
    return json.dumps({question: "...", answer: "..."})


TASKS = 100
"""The default number of tasks."""
MOST = 1_000_000


@register_benchmark("environment")
class EnvironmentBenchmark(Benchmark):
    """Tasks of any environment; the accuracy is the share that is solved.

    The tasks are held out, if the environment holds out any, and never trained on if its held-out share is at least as
    large in training. There are no duplicates: if there are fewer than ``n`` tasks, all of them are used.

    Args:
        environment: The environment, or its name and settings.
        n: The number of tasks.
        seed: Selects the tasks.
        name: The benchmark's name; by default the environment's.
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
        """The tags of a task by kind; if empty, the task keeps its own."""
        return {}

    def _tagged(self, task: Task) -> Task:
        tags = self.tags(task)
        return replace(task, metadata={**task.metadata, "tags": dict(tags)}) if tags else task


ANSWER_TOKENS = {"exact": 16, "last_number": 256}
"""The default limit of tokens: for a number, or for sentences with one."""


@register_benchmark("arithmetic")
class ArithmeticBenchmark(EnvironmentBenchmark):
    """Held-out tasks of the environment ``arithmetic``; the tags are ``operator`` and ``digits``.

    Args:
        difficulty: The environment's. ``easy`` has 100 tasks, of which about ten are held out.
        n: The number of tasks; all held-out tasks if there are fewer.
        answer: The part of an output that counts: all of it (``exact``), or its ``last_number``.
        held_out_share: The share that is held out: as in training, or smaller.
        seed: Selects the tasks.
        max_tokens: By default 16 for exact answers and 256 for others.
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
    """The operators of a question in their order, and the number of digits of its longest number.

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
    """Tasks to be answered as ``<reasoning>..</reasoning><answer>..</answer>``.

    The metrics are ``correct``, the main one, and ``format``: an answer can be correct in a wrong format, and the
    other way round. Tasks of the environment ``arithmetic`` have its benchmark's tags; others keep their own.

    Args:
        environment: The environment, or its name and settings.
        n: The number of tasks; all held-out tasks if there are fewer.
        template: The prompt; ``{prompt}`` stands for the environment's prompt.
        seed: Selects the tasks.
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
        """Whether the answer is correct, and whether the output follows the format."""
        rewards = self.reasoning.score(task, output)
        return {CORRECT: succeeded(self.reasoning, task, rewards), FORMAT: rewards[FORMAT]}

    def tags(self, task: Task) -> Mapping[str, Any]:
        if not isinstance(self.reasoning.environment, Arithmetic):
            return {}
        return arithmetic_tags(task.metadata["inner_prompt"])


SPARE_TOKENS = 8
"""Room for the end of the text, and to notice a subject that writes too much."""


@register_benchmark("sorting")
class SortingBenchmark(EnvironmentBenchmark):
    """Held-out tasks of the environment ``sorting``; the tags are ``length`` and ``repeats``.

    Args:
        length: The number of digits.
        n: The number of tasks; all held-out tasks if there are fewer.
        held_out_share: The share that is held out: as in training, or smaller.
        seed: Selects the tasks.
        max_tokens: By default the length and a few more.
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

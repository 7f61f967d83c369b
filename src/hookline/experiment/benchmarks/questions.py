"""`QuestionsBenchmark`: questions and their answers from a JSONL file.

    {"question": "What is the capital of France?", "answer": "Paris", "tags": {"continent": "Europe"}}

The file is read once, when the benchmark is made; an error says the line. An ``id`` is that of the task, other columns
go to the task's metadata, and ``tags``, a mapping or a list of texts, are what results are broken down by.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hookline.core.errors import OptionError, closest
from hookline.experiment.benchmark import BATCH_SIZE, Benchmark, register_benchmark, tags_of
from hookline.rl.environments.arithmetic import last_number
from hookline.rl.types import Task

Match = Literal["exact", "contains", "last_number"]
MAX_TOKENS = 128


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
        max_tokens: int = MAX_TOKENS,
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

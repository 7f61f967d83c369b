"""What one format offers to the import, and what is noted down while it is read.

A source never fails on a broken line or file: it names the place in the `Reading` and goes on.

What a source yields: rows of metrics, samples, things that happened, statuses, and restarts.

A name keeps the spelling it has in the source. A value whose name begins with ``eval``, ``val``,
``valid``, ``validation``, ``evaluation`` or ``test``, up to ``_``, ``/``, ``-`` or ``.``, belongs to the
axis ``eval``, everything else to ``train``; an ``epoch`` goes along with both.
"""

import functools
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

from hookline._record.reader import MAIN

EVAL_WORDS = ("eval", "evaluation", "val", "valid", "validation", "test")
"""How names and directories of evaluations begin."""

_EVAL = re.compile(rf"({'|'.join(EVAL_WORDS)})([_/.-]|$)", re.IGNORECASE)
_COMMON = frozenset({"epoch"})


class Row(NamedTuple):
    """Metrics of a step; the time is in seconds since 1970."""

    step: int
    time: float
    values: dict[str, Any]
    axis: str = "train"
    writer: str = MAIN


class SampleRow(NamedTuple):
    """A completion, with the fields that ``log_samples`` takes, and how long the texts were that were cut."""

    step: int
    time: float
    fields: dict[str, Any]
    axis: str = "train"
    writer: str = MAIN
    truncated: dict[str, int] | None = None


class Occurrence(NamedTuple):
    """Something that happened, an event of the run."""

    step: int | None
    time: float
    name: str
    data: dict[str, Any]
    writer: str = MAIN


class StatusRow(NamedTuple):
    """Where the run was, by its own word."""

    step: int | None
    time: float
    status: str
    message: str
    data: dict[str, Any]
    writer: str = MAIN


class Restart(NamedTuple):
    """The source does an axis again from a step on: what it has of that step and later ones no longer counts."""

    step: int
    time: float
    axis: str


Item: TypeAlias = Row | SampleRow | Occurrence | StatusRow | Restart


@functools.lru_cache(maxsize=1 << 16)
def axis_of(name: str) -> str:
    """The axis that a value belongs to, by its name.

    >>> [axis_of(name) for name in ("loss", "eval_loss", "val/acc", "valence")]
    ['train', 'eval', 'eval', 'train']
    """
    return "eval" if _EVAL.match(name) else "train"


def rows(step: int, time: float, values: dict[str, Any]) -> Iterator[Row]:
    """A row of the source as one row for each axis that it has values of."""
    evaluated = {name: value for name, value in values.items() if axis_of(name) == "eval"}
    common = {name: value for name, value in values.items() if name in _COMMON}
    if len(values) > len(evaluated) + len(common) or (common and not evaluated):
        yield Row(step, time, {name: value for name, value in values.items() if name not in evaluated})
    if evaluated:
        yield Row(step, time, common | evaluated, "eval")


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values, those of nested mappings joined with ``/``."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def is_scalar(value: Any) -> bool:
    """Whether a value can be a metric."""
    return value is None or isinstance(value, bool | int | float | str)


SKIPPED_KEPT = 100
"""How many of the skipped places are named; all are counted."""


class Skipped(NamedTuple):
    """Something in the source that could not be read: where it stands and what is wrong with it."""

    place: str
    reason: str


class Left(NamedTuple):
    """Something that was recognised and not taken, and why."""

    what: str
    reason: str


@dataclass
class Reading:
    """What is noted while the sources of one run are read.

    Args:
        passed: Called with the number of bytes that were read since the last time.
        renamed: What a source calls a name that another source of the run has otherwise.
    """

    passed: Callable[[int], None] | None = None
    renamed: Callable[[str], str] | None = None
    skipped: list[Skipped] = field(default_factory=list)
    skipped_count: int = 0
    left: Counter[tuple[str, str]] = field(default_factory=Counter)
    config: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def skip(self, place: str, reason: object) -> None:
        """Note a place that could not be read."""
        self.skipped_count += 1
        if len(self.skipped) < SKIPPED_KEPT:
            self.skipped.append(Skipped(place, " ".join(str(reason).split())))

    def leave(self, what: str, reason: str, count: int = 1) -> None:
        """Note what is not taken."""
        self.left[what, reason] += count

    def advance(self, size: int) -> None:
        """Note how much was read."""
        if self.passed is not None:
            self.passed(size)

    def name(self, name: str) -> str:
        """What a name of the source is called in the run."""
        return name if self.renamed is None else self.renamed(name)


class Source(ABC):
    """What one tool wrote of one run.

    Args:
        files: The files, in the order in which they are read.
    """

    format: ClassVar[str]
    has_times: bool = False
    """Whether the source says when something was recorded; otherwise the time is that of the file."""
    is_secondary: ClassVar[bool] = False
    """Whether other sources of metrics have the same values better."""
    has_metrics: ClassVar[bool] = True
    has_statuses: bool = False
    """Whether the source says how the run went; otherwise it is said to have finished."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.unused: list[Path] = []
        """Files that, as reading showed, are not needed."""

    def check(self) -> None:  # noqa: B027 - most need nothing
        """Find out whether the source can be read here.

        Raises:
            MissingExtraError: A package is missing.
        """

    @abstractmethod
    def items(self, reading: Reading) -> Iterator[Item]:
        """Everything in the source, in its order."""

    def renamed(self, name: str) -> str:
        """What a secondary source's name is called here."""
        return name


def written(file: Path) -> float:
    """When a file was last written."""
    return file.stat().st_mtime

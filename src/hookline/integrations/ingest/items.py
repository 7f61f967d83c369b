"""What a source yields: rows of metrics, samples, things that happened, statuses, and restarts.

A name keeps the spelling it has in the source. A value whose name begins with ``eval``, ``val``,
``valid``, ``validation``, ``evaluation`` or ``test``, up to ``_``, ``/``, ``-`` or ``.``, belongs to the
axis ``eval``, everything else to ``train``; an ``epoch`` goes along with both.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from hookline.record.reader import MAIN

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

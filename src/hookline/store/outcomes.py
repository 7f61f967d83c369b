"""`outcomes`: the last, smallest and largest value of each metric of some runs; `main_metrics` ranks the metrics.

Shared by the commands that show and compare runs, and by the page.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from hookline.callbacks.monitoring import direction
from hookline.store.run_columns import RunColumns, statistics_of

if TYPE_CHECKING:
    from hookline.store.runs import Runs

Mode = Literal["min", "max"]
_HIDDEN = re.compile(r"^([a-z_]+\d+/)?(hooks|system|memory)/")
"""Metrics about the machine, of the main writer or another one, e.g. ``rank1``."""
_FIRST = ("loss", "reward", "accuracy", "acc", "score", "return", "perplexity")
_SMALLER = re.compile(r"(^|[/_.-])(loss|error|perplexity|ppl|nll|mse|mae|rmse|wer|cer|kl)([/_.-]|$)", re.IGNORECASE)
_SPREAD = re.compile(r"(^|[/_.-])(std|var|variance|stderr)$", re.IGNORECASE)
"""Suffixes of measures of spread: neither smaller nor larger is better."""


class Metric(NamedTuple):
    """A metric on its axis."""

    name: str
    axis: str

    @property
    def label(self) -> str:
        """The name, with the axis unless it is ``train``."""
        return self.name if self.axis == "train" else f"{self.name} ({self.axis})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The last value of a run's metric, and the smallest and largest finite ones."""

    last: float
    step: int
    least: float | None
    largest: float | None
    points: int

    def best(self, better: Mode) -> float | None:
        """The best value."""
        return self.least if better == "min" else self.largest


def outcomes(found: "Runs") -> dict[str, dict[Metric, Outcome]]:
    """The outcome of each metric, by run."""
    return {info.id: dict(_outcomes(columns)) for info, columns in found.columns()}


def _outcomes(columns: RunColumns) -> Iterator[tuple[Metric, Outcome]]:
    for name, axis in columns.keys():  # noqa: SIM118 - not a mapping
        column = columns.column(name, axis)
        found = statistics_of(column.value)
        if found is not None:  # otherwise it has only texts
            step, points = int(column.step[-1]), len(column.value)
            yield Metric(name, axis), Outcome(found.last, step, found.least, found.largest, points)


def main_metrics(names: Iterable[str]) -> list[str]:
    """Metric names, the most interesting first, without those about the machine."""
    shown = [name for name in names if not _HIDDEN.search(name)]
    return sorted(shown, key=lambda name: (_rank(name), name.count("/"), name))


def _rank(name: str) -> int:
    words = re.split(r"[/_.-]", name.lower())
    return next((place for place, word in enumerate(_FIRST) if word in words or f"{word}s" in words), len(_FIRST))


def better_mode(name: str) -> Mode | None:
    """Whether smaller or larger values are better; None if the name does not tell.

    >>> better_mode("val/loss"), better_mode("reward"), better_mode("learning_rate"), better_mode("reward_std")
    ('min', 'max', None, None)
    """
    if _SPREAD.search(name):
        return None
    mode = direction(name, None)
    return mode if mode == "max" or _SMALLER.search(name) else None

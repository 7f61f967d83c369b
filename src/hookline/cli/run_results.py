"""What runs came to: of each metric the last value, the least and the largest, and which of those is the best."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hookline.callbacks.direction import direction
from hookline.store.runs import Runs

_SMALLER = re.compile(r"(^|[/_.-])(loss|error|perplexity|ppl|nll|mse|mae|rmse|wer|cer|kl)([/_.-]|$)", re.IGNORECASE)
_QUERY = """
SELECT run, name, axis, last(value ORDER BY step, recorded) AS last, max(step) AS step,
    min(value) FILTER (isfinite(value)) AS least, max(value) FILTER (isfinite(value)) AS largest, count(*) AS points
FROM metrics_in_order WHERE value IS NOT NULL GROUP BY ALL ORDER BY run, name, axis
"""


class Metric(NamedTuple):
    """A metric on its axis."""

    name: str
    axis: str

    @property
    def label(self) -> str:
        """What it is called where those of all axes are shown."""
        return self.name if self.axis == "train" else f"{self.name} ({self.axis})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a metric of a run came to; the least and the largest are of those values that are finite."""

    last: float
    step: int
    least: float | None
    largest: float | None
    points: int

    def best(self, better: Literal["min", "max"]) -> float | None:
        """The value that counts as the best."""
        return self.least if better == "min" else self.largest


def outcomes(found: Runs) -> dict[str, dict[Metric, Outcome]]:
    """What each metric of some runs came to, by run."""
    made: dict[str, dict[Metric, Outcome]] = {info.id: {} for info in found}
    for row in found.sql(_QUERY, timeout_seconds=None):
        values = row["last"], row["step"], row["least"], row["largest"], row["points"]
        made[row["run"]][Metric(row["name"], row["axis"])] = Outcome(*values)
    return made


def better_way(name: str) -> Literal["min", "max"] | None:
    """Whether less or more of a metric is better; None where its name does not say.

    >>> better_way("val/loss"), better_way("reward"), better_way("learning_rate")
    ('min', 'max', None)
    """
    way = direction(name, None)
    return way if way == "max" or _SMALLER.search(name) else None


def best_by(found: Runs, name: str, way: Literal["min", "max"]) -> Mapping[str, float]:
    """The best value of a metric in each run that has it, on whatever axis."""
    pick = min if way == "min" else max
    best: dict[str, float] = {}
    for run, own in outcomes(found).items():
        values = [value for metric, it in own.items() if metric.name == name and (value := it.best(way)) is not None]
        if values:
            best[run] = pick(values)
    return best

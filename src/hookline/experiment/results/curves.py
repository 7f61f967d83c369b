"""How a metric went over the steps, per arm: the mean of its repeats and how far they lie apart.

The runs' journals are read when curves are asked for, and only those of the arms that are asked for. Values are
aligned on the step at which they were recorded and never made up in between: a step that only some repeats have
(one that ended early, or that recorded at other steps) is the mean of those, and ``n`` says of how many.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hookline.core.errors import ConfigError
from hookline.core.state import ArmResult, RunResult
from hookline.experiment.results.arm_runs import completed
from hookline.experiment.results.main_metric import by_likelihood
from hookline.experiment.results.spread import number, spread
from hookline.record.reader import read
from hookline.record.records import Metrics

Series = dict[int, float]
"""The values of one metric of one run, by their steps."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One arm's metric over the steps: at each, the mean and deviation of the ``n`` repeats that have it.

    Attributes:
        std: The standard deviation of the sample; None at a step that a single repeat has.
    """

    arm: str
    metric: str
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float | None, ...]
    n: tuple[int, ...]


def curves(arms: Iterable[ArmResult], metric: str, stage: str | None) -> list[Curve]:
    """The curve of each arm that recorded the metric, over the runs that completed."""
    read_in = [(arm.name, [_by_axis(run, metric) for run in completed(arm, stage)]) for arm in arms]
    axis = _axis(by_axis for _, runs in read_in for by_axis in runs)
    made = (_curve(arm, metric, [by_axis[axis] for by_axis in runs if axis in by_axis]) for arm, runs in read_in)
    return [curve for curve in made if curve.steps]


def curve_metric(arms: Iterable[ArmResult], stage: str | None, first: str | None) -> str | None:
    """The metric whose curves tell most: the one that is given, if it was recorded over time, else a likely one.

    What was recorded is taken from the first run that recorded anything.
    """
    for arm in arms:
        for run in completed(arm, stage):
            points = dict.fromkeys((name, step) for _, name, step, _ in _points(run))
            steps = Counter(name for name, _ in points)
            if steps:
                candidates = [first or "", *by_likelihood(steps)]
                return next((name for name in candidates if steps[name] > 1), None)
    return None


def _curve(arm: str, metric: str, runs: Sequence[Series]) -> Curve:
    steps = sorted({step for series in runs for step in series})
    spreads = [spread([series[step] for series in runs if step in series]) for step in steps]
    return Curve(
        arm=arm,
        metric=metric,
        steps=tuple(steps),
        mean=tuple(over.mean for over in spreads if over.mean is not None),
        std=tuple(over.std for over in spreads),
        n=tuple(over.n for over in spreads),
    )


def _axis(runs: Iterable[dict[str, Series]]) -> str:
    """The axis on which the metric was recorded most often: one for all, so that the steps mean the same."""
    points: Counter[str] = Counter()
    for by_axis in runs:
        points.update({axis: len(series) for axis, series in by_axis.items()})
    return max(points, key=lambda axis: (points[axis], axis), default="")


def _by_axis(run: RunResult, metric: str) -> dict[str, Series]:
    found: dict[str, Series] = {}
    for axis, name, step, value in _points(run):
        if name == metric:
            found.setdefault(axis, {})[step] = value
    return found


def _points(run: RunResult) -> Iterator[tuple[str, str, int, float]]:
    """Every number that a run recorded: its axis, name and step, and the value. Nothing where no record is left."""
    if run.output_dir is None:
        return
    try:
        records = read(Path(run.output_dir))
    except ConfigError:
        return
    for record in records:
        if isinstance(record, Metrics):
            for name, given in record.values.items():
                value = number(given)
                if value is not None:
                    yield record.axis, name, record.step, value

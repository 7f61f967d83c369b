"""Curves: the metric of an experiment over its steps, per arm, and their picture.

Journals are read when curves are requested, and only those of the requested arms. Values are aligned by the step at
which they were recorded and never interpolated: a step that only some repeats have is the mean of those, with their
number as ``n``.

`main_metric` and `metric_mode` choose the metric that an experiment is about, and its direction.

The picture shows each arm's mean with a band of one standard deviation, in the colours of Okabe and Ito, which are
distinguishable with any colour vision; beyond eight arms, lines are dashed. Long curves are drawn as means of short
segments. It uses no global state of matplotlib, so it works on any thread and beside a notebook's own figures.
"""

import io
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from hookline._engine.errors import ConfigError, MissingExtraError
from hookline._engine.state import ArmResult, RunResult
from hookline._record.reader import read
from hookline._record.records import Metrics
from hookline.callbacks.monitoring import direction
from hookline.experiment.results.statistics import (
    Mode,
    benchmark_names,
    completed,
    last_stage,
    metric_names,
    number,
    spread,
)

_OVERHEAD = "hooks/"


def main_metric(arms: Sequence[ArmResult]) -> str | None:
    """The first metric of the first benchmark, of returned results, of validations, or a likely result.

    A metric that all arms have comes before one that only some have. None if no run completed with a number.
    """
    stage = last_stage(arms)
    runs_of = [runs for arm in arms if (runs := completed(arm, stage))]
    for run in (run for runs in runs_of for run in runs):
        if of_benchmarks := benchmark_names([run]):
            return of_benchmarks[0]
    if returned := _shared(runs_of, lambda run: run.returned):
        return _likeliest(returned)
    return _likeliest(_shared(runs_of))


def by_likelihood(metrics: Iterable[str]) -> list[str]:
    """Metrics in the order in which an experiment is likely about them, without the costs of hooks."""
    return sorted((name for name in metrics if not name.startswith(_OVERHEAD)), key=_unlikelihood)


def metric_mode(metric: str | None, mode: Any, runs: Iterable[RunResult] = ()) -> Mode:
    """Whether smaller or larger values of a metric are better: as given, or as its name suggests.

    A benchmark's metric whose name suggests nothing is a score: larger is better.
    """
    suggested = direction(metric, mode)
    if mode is not None or suggested == "max" or metric is None:
        return suggested
    return "max" if not _suggests_smaller(metric) and metric in benchmark_names(runs) else "min"


def _likeliest(metrics: Iterable[str]) -> str | None:
    return next(iter(by_likelihood(metrics)), None)


def _unlikelihood(metric: str) -> tuple[bool, int]:
    suggests_larger = direction(metric, None) == "max"
    return not metric.startswith("val/"), 0 if suggests_larger else 1 if _suggests_smaller(metric) else 2


def _suggests_smaller(metric: str) -> bool:
    """Whether the name suggests that smaller is better: then an added ``score`` does not change it."""
    return direction(f"{metric}/score", None) == "min"


def _shared(
    runs_of: Sequence[Sequence[RunResult]], some: Callable[[RunResult], Sequence[str]] | None = None
) -> list[str]:
    """The metrics (or those among ``some``) that the largest number of arms has."""
    counts = Counter(
        name
        for runs in runs_of
        for name in metric_names(runs)
        if not name.startswith(_OVERHEAD) and (some is None or any(name in some(run) for run in runs))
    )
    most = max(counts.values(), default=0)
    return [name for name, count in counts.items() if count == most]


Series = dict[int, float]
"""The values of one metric of one run, by step."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric of one arm over the steps: at each, the mean and deviation of the ``n`` repeats that have it.

    Attributes:
        std: The sample standard deviation; None at a step that a single repeat has.
    """

    arm: str
    metric: str
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float | None, ...]
    n: tuple[int, ...]


def curves(arms: Iterable[ArmResult], metric: str, stage: str | None) -> list[Curve]:
    """The curve of each arm that recorded the metric, over its completed runs."""
    read_in = [(arm.name, [_by_axis(run, metric) for run in completed(arm, stage)]) for arm in arms]
    axis = _axis(by_axis for _, runs in read_in for by_axis in runs)
    made = (_curve(arm, metric, [by_axis[axis] for by_axis in runs if axis in by_axis]) for arm, runs in read_in)
    return [curve for curve in made if curve.steps]


def curve_metric(arms: Iterable[ArmResult], stage: str | None, first: str | None) -> str | None:
    """The metric to draw: ``first``, if it was recorded at several steps, or else a likely one.

    Only the first run with any metrics is examined.
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
    """The axis on which the metric was recorded most often: one for all arms, so that steps are comparable."""
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
    """Every number that a run recorded: axis, name, step and value. Empty if its journal is gone."""
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


MOST_ARMS = 12
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A7A00")
_NAME_LENGTH = 40
_MOST_POINTS = 500


def draw_curves(curves: Sequence[Curve], *, title: str, metric: str) -> bytes:
    """Draw curves as a PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        figure_module = import_module("matplotlib.figure")
        canvas_module = import_module("matplotlib.backends.backend_agg")
    except ImportError as error:
        raise MissingExtraError("A picture of an experiment's curves", "experiment") from error
    figure = figure_module.Figure(
        figsize=(8.0, 4.6 + 0.2 * len(curves) / _columns(curves)), dpi=150, layout="constrained"
    )
    canvas = canvas_module.FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # missing glyphs, and numbers beyond the axis limits
        _draw(figure.add_subplot(), curves, title, metric)
        if curves:
            figure.legend(loc="outside lower center", frameon=False, fontsize=9, ncols=_columns(curves))
        picture = io.BytesIO()
        canvas.print_png(picture, metadata={"Software": None})
    return picture.getvalue()


def _draw(axes: Any, curves: Sequence[Curve], title: str, metric: str) -> None:
    for index, curve in enumerate(curves):
        _draw_curve(axes, curve, _COLOURS[index % len(_COLOURS)], "-" if index < len(_COLOURS) else "--")
    axes.set_title(_literal(title), loc="left", fontsize=11)
    axes.set_xlabel("step")
    axes.set_ylabel(_literal(metric))
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _columns(curves: Sequence[Curve]) -> int:
    longest = max((len(curve.arm) for curve in curves), default=0)
    return max(1, min(len(curves), 4 if longest <= 14 else 2 if longest <= 32 else 1))


def _draw_curve(axes: Any, curve: Curve, colour: str, dashes: str) -> None:
    steps = _thinned(curve.steps)
    mean = _thinned([_drawable(value) for value in curve.mean])
    std = _thinned([_drawable(value or 0.0) for value in curve.std])
    marker = "o" if len(curve.steps) == 1 else None
    short = _shortened(curve.arm, _NAME_LENGTH)
    name = f"{short} (n={max(curve.n)})" if max(curve.n) > 1 else short
    axes.plot(steps, mean, dashes, color=colour, linewidth=1.6, marker=marker, label=_literal(name))
    low = [value - spread for value, spread in zip(mean, std, strict=True)]
    high = [value + spread for value, spread in zip(mean, std, strict=True)]
    axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)


def _thinned(values: Sequence[float]) -> list[float]:
    """The means of as many segments as the picture can show."""
    if len(values) <= _MOST_POINTS:
        return list(values)
    edges = [round(index * len(values) / _MOST_POINTS) for index in range(_MOST_POINTS + 1)]
    return [_mean_of_numbers(values[begin:end]) for begin, end in pairwise(edges)]


def _mean_of_numbers(values: Sequence[float]) -> float:
    numbers = [value for value in values if not math.isnan(value)]
    return math.fsum(numbers) / len(numbers) if numbers else math.nan


def _drawable(value: float) -> float:
    """The value, or NaN (a gap) if an axis cannot show it."""
    return value if abs(value) < 1e150 else math.nan


def _literal(text: str) -> str:
    """Text for matplotlib: no formula, not too long, and not hidden from the legend by an underscore."""
    escaped = _shortened(text, 2 * _NAME_LENGTH).replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"

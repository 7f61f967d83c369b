"""Aggregates a metric over groups of runs: mean, standard deviation and range, as a table or as `Band` of a chart.

Over steps, runs are aligned on the step: a step has the values of the runs that recorded the metric there. A run that
recorded it several times at a step counts once, with the last value. Only finite values count, ``n`` of them, so one
diverged run does not erase the curve of its group; ``not_finite`` counts the others.

Over any other x no two runs share their points, so runs are interpolated: at every x at which one of them recorded
something, each run that had started and not ended counts with the value on the straight line between its neighbouring
points. This needs an x that only grows within each run, and runs of a group that overlap. Otherwise there is no band,
and `Bands.problem` gives the reason; it also does if there is nothing to draw.

Smoothing applies to each run over all its points; the band is that of the smoothed runs. So a value is the same at
every zoom level, and does not depend on the number of runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hookline._engine.errors import OptionError, closest
from hookline.store.query import Conditions
from hookline.store.run_info import RunInfo
from hookline.store.series import ELAPSED, Chart, RawLine, downsampled, raw_lines, smoothed, visible_part
from hookline.store.store import Store
from hookline.store.tables import ORDER_COLUMN, ORDERED_METRICS

BY = ("arm", "group", "experiment", "stage", "name", "project", "repeat", "seed", "status", "id")
"""The attributes that runs can be grouped by."""
_DEVIATIONS = {0: "stddev_pop", 1: "stddev_samp"}


def check_group_by(by: str | Sequence[str]) -> list[str]:
    """The attributes to group by, each once.

    Raises:
        OptionError: Runs cannot be grouped by one of them.
    """
    keys = [by] if isinstance(by, str) else list(dict.fromkeys(by))
    if not keys:
        raise OptionError(f"by={by!r}: give what to group by: {', '.join(BY)}.")
    for key in keys:
        if key not in BY:
            raise OptionError(f"by={key!r}: runs cannot be grouped by that. {closest(key, BY)}")
    return keys


def aggregate_query(by: str | Sequence[str], ddof: int, where: str) -> str:
    """The query for an aggregate over runs; its parameters are those of ``where``.

    Raises:
        OptionError: Runs cannot be grouped by that, or ``ddof`` is neither 0 nor 1.
    """
    keys = check_group_by(by)
    if ddof not in _DEVIATIONS:
        raise OptionError(f"ddof={ddof!r}: give 0 (of a population) or 1 (of a sample).")
    groups = ", ".join(f'runs."{key}"' for key in keys)
    shown = ", ".join(f'runs."{key}" AS "{key}"' for key in keys)
    finite = "FILTER (isfinite(value))"
    return f"""
SELECT {shown}, latest.axis, latest.step,
    avg(value) {finite} AS mean,
    {_DEVIATIONS[ddof]}(value) {finite} AS std,
    min(value) {finite} AS min,
    max(value) {finite} AS max,
    count(*) {finite} AS n,
    count(*) FILTER (NOT isfinite(value)) AS not_finite
FROM (
    SELECT run, axis, step, arg_max(value, {ORDER_COLUMN}) AS value
    FROM {ORDERED_METRICS} {where} GROUP BY run, axis, step
) AS latest JOIN runs ON runs.id = latest.run
GROUP BY {groups}, latest.axis, latest.step
ORDER BY {groups}, latest.axis, latest.step
"""


Key = tuple[str | None, ...]
_NUMBERS = ("mean", "std", "min", "max")


@dataclass(slots=True)
class Band:
    """A line with its spread.

    Attributes:
        key: The group's values of the attributes that runs are grouped by.
        points: The number of points along x; ``x`` has all of them, or a selection.
        not_finite: The number of values of its runs that are NaN or infinite, and left out.
        std: The standard deviation of a sample; NaN for a single run.
        n: The number of runs with a finite value at each point.
    """

    key: Key
    axis: str
    points: int = 0
    not_finite: int = 0
    x: list[float] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)
    min: list[float] = field(default_factory=list)
    max: list[float] = field(default_factory=list)
    n: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Bands:
    """The bands of a metric, or the reason why there are none."""

    bands: list[Band] = field(default_factory=list)
    problem: str = ""


def bands(store: Store, runs: Sequence[RunInfo], chart: Chart, by: str | Sequence[str]) -> Bands:
    """A metric over groups of runs, group by group.

    Raises:
        OptionError: Runs cannot be grouped by that.
    """
    keys = check_group_by(by)
    if chart.x == "step" and not chart.smoothing:
        found = Bands(list(_bands_over_steps(store, runs, chart, keys)))
    else:
        found = _bands_of_lines(store, runs, chart, keys)
    if not found.bands and not found.problem:
        found.problem = _why_empty(store, runs, chart)
    return found


def _bands_over_steps(store: Store, runs: Sequence[RunInfo], chart: Chart, keys: list[str]) -> Iterator[Band]:
    """The bands from an aggregate query: far faster than lines, but without smoothing."""
    import numpy as np

    conditions = Conditions()
    conditions.equal("name", chart.names)
    conditions.equal("axis", chart.axis)
    conditions.add("value IS NOT NULL")
    groups = ", ".join(f'"{name}"' for name in (*keys, "axis"))
    query = (
        f"SELECT *, dense_rank() OVER (ORDER BY {groups}) AS rank FROM ({aggregate_query(keys, 1, str(conditions))}) "
        "ORDER BY rank, step"
    )
    with store.snapshot(runs, query) as cursor:
        found = cursor.execute(query, conditions.parameters).fetchnumpy()
    starts = np.unique(found["rank"], return_index=True)[1].tolist()
    for start, end in pairwise([*starts, len(found["rank"])]):
        own = {name: np.ma.filled(found[name][start:end].astype(np.float64), np.nan) for name in _NUMBERS}
        own |= {"x": found["step"][start:end].astype(np.float64), "n": found["n"][start:end]}
        values = [found[name][start] for name in (*keys, "axis")]
        *key, axis = (None if value is None or value is np.ma.masked else str(value) for value in values)
        yield _band(tuple(key), str(axis), own, chart, np.repeat(own["x"], found["not_finite"][start:end]))


def _bands_of_lines(store: Store, runs: Sequence[RunInfo], chart: Chart, keys: list[str]) -> Bands:
    import numpy as np

    run_keys: dict[str, Key] = {}
    for info in runs:
        values = [getattr(info, name) for name in keys]
        run_keys[info.id] = tuple(None if value is None else str(value) for value in values)
    groups: dict[tuple[Key, str], list[RawLine]] = {}
    for line in raw_lines(store, runs, chart, exact=True):
        if not line.is_monotonic:
            return Bands(problem=f"{chart.x} does not only grow in {line.run}, so runs cannot be compared over it")
        if chart.smoothing:
            line.ys = smoothed(line.ys, chart.smoothing)
        groups.setdefault((run_keys[line.run], line.axis), []).append(line)
    found = Bands()
    for (key, axis), lines in sorted(groups.items(), key=lambda item: _nulls_last(item[0])):
        drawn = [line for line in lines if len(line.xs)]
        if not drawn:
            continue
        left_out = np.concatenate([line.left_out for line in lines])
        if chart.x == "step":
            columns = _aligned_on_steps(drawn, left_out)
        elif len(drawn) > 1 and not _overlap(drawn):
            name = " · ".join(part for part in key if part is not None) or "the group"
            if chart.x == "time":
                return Bands(problem=f"the runs of {name} did not run at the same time: choose the time since start")
            return Bands(problem=f"the runs of {name} have no part of {chart.x} in common")
        else:
            columns = _interpolated(drawn, chart)
        found.bands.append(_band(key, axis, columns, chart, left_out))
    return found


def _nulls_last(group: tuple[Key, str]) -> list[tuple[bool, str]]:
    """A sort key for groups that sorts like the database."""
    return [(part is None, part or "") for part in (*group[0], group[1])]


def _overlap(lines: list[RawLine]) -> bool:
    """Whether two of the lines share a part of x."""
    spans = sorted((line.xs[0], line.xs[-1]) for line in lines)
    return any(later[0] <= earlier[1] for earlier, later in pairwise(spans))


def _why_empty(store: Store, runs: Sequence[RunInfo], chart: Chart) -> str:
    if not runs:
        return "there are no runs"
    names = [str(chart.names), *([] if chart.x in ("step", "time", ELAPSED) else [chart.x])]
    with store.snapshot(runs, "metrics") as cursor:
        for name in names:
            conditions = Conditions()
            conditions.equal("name", name)
            conditions.equal("axis", chart.axis)
            query = f"SELECT count(*), count(value), count(*) FILTER (isfinite(value)) FROM metrics {conditions}"
            [(rows, numbers, finite)] = cursor.execute(query, conditions.parameters).fetchall()
            if not rows:
                return f"no run recorded {name!r}" + (f" on the axis {chart.axis!r}" if chart.axis else "")
            if not finite:
                return f"no value of {name!r} is finite" if numbers else f"{name!r} has no numbers"
    return f"there is no step of an axis at which {' and '.join(map(repr, names))} both have a finite value"


_GRID = 2
"""Each run contributes at most this many times as many points as are drawn."""


def _interpolated(lines: list[RawLine], chart: Chart) -> dict[str, Any]:
    """Mean, spread and range at every x of one of the lines; of long lines only at their peaks."""
    import numpy as np

    points = []
    for line in lines:
        part = visible_part(line.xs, chart)
        xs, ys = line.xs[part], line.ys[part]
        points.append(xs[downsampled(xs, ys, _GRID * chart.max_points)])
    grid = np.unique(np.concatenate(points))
    values = np.array([np.interp(grid, line.xs, line.ys, left=np.nan, right=np.nan) for line in lines])
    valid = np.isfinite(values)
    n = valid.sum(axis=0)
    kept = n > 0  # between runs that follow one another there is nothing
    grid, values, valid, n = grid[kept], values[:, kept], valid[:, kept], n[kept]
    mean = np.where(valid, values, 0.0).sum(axis=0) / n
    squares = np.where(valid, (values - mean) ** 2, 0.0).sum(axis=0)
    std = np.where(n > 1, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)
    low, high = np.where(valid, values, np.inf).min(axis=0), np.where(valid, values, -np.inf).max(axis=0)
    return {"x": grid, "mean": mean, "std": std, "min": low, "max": high, "n": n}


def _aligned_on_steps(lines: list[RawLine], left_out: Any) -> dict[str, Any]:
    """Mean, spread and range at every step of one of the lines, as in `aggregate_query`."""
    import numpy as np

    last = [np.append(line.xs[1:] != line.xs[:-1], True) for line in lines]  # the last value of a run at a step
    xs = np.concatenate([line.xs[own] for line, own in zip(lines, last, strict=True)])
    ys = np.concatenate([line.ys[own] for line, own in zip(lines, last, strict=True)])
    order = np.argsort(xs, kind="stable")
    xs, ys = xs[order], ys[order]
    steps, starts, n = np.unique(xs, return_index=True, return_counts=True)
    mean = np.add.reduceat(ys, starts) / n
    with np.errstate(over="ignore"):
        squares = np.add.reduceat((ys - np.repeat(mean, n)) ** 2, starts)
    std = np.where(n > 1, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)
    low, high = np.minimum.reduceat(ys, starts), np.maximum.reduceat(ys, starts)
    columns = {"x": steps, "mean": mean, "std": std, "min": low, "max": high, "n": n}
    gaps = np.setdiff1d(left_out, steps)  # where no run has a finite value, the line is interrupted
    if not len(gaps):
        return columns
    empty = {name: np.full(len(gaps), np.nan) for name in _NUMBERS} | {"x": gaps, "n": np.zeros(len(gaps), n.dtype)}
    order = np.argsort(np.concatenate([steps, gaps]))
    return {name: np.concatenate([column, empty[name]])[order] for name, column in columns.items()}


def _band(key: Key, axis: str, columns: dict[str, Any], chart: Chart, left_out: Any) -> Band:
    import numpy as np

    part = visible_part(columns["x"], chart)
    columns = {name: column[part] for name, column in columns.items()}
    heights = np.where(np.isfinite(columns["mean"]), columns["mean"], 0.0)
    kept = downsampled(columns["x"], heights, chart.max_points)
    shown = {name: column[kept].tolist() for name, column in columns.items()}
    return Band(key, axis, points=len(heights), not_finite=chart.count_visible(left_out), **shown)

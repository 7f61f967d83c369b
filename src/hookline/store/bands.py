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

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hookline._engine.errors import OptionError, closest
from hookline._record.records import clean
from hookline.store.filters import Field
from hookline.store.run_info import RunInfo
from hookline.store.run_values import RunValues, sort_key
from hookline.store.series import (
    ELAPSED,
    Chart,
    RawLine,
    downsampled,
    last_values,
    raw_lines,
    visible_part,
)
from hookline.store.store import Store
from hookline.store.tables import ORDER_COLUMN, ORDERED_METRICS

BY = ("arm", "group", "experiment", "stage", "name", "project", "repeat", "seed", "status", "id")
"""The attributes that runs can be grouped by."""
SETTING = "config."
GROUPED = (*BY, "tag", "host")
"""The attributes that the runs of a chart can be grouped by, besides settings: ``config.lr``."""
MAX_GROUP_TEXT = 200
Key = tuple[str | None, ...]
_DEVIATIONS = {0: "stddev_pop", 1: "stddev_samp"}


def check_group_by(by: str | Sequence[str]) -> list[str]:
    """Return the attributes to group by, without duplicates.

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


def check_chart_groups(by: str | Sequence[str]) -> list[str]:
    """Return the attributes and settings to group a chart's runs by, without duplicates.

    Raises:
        OptionError: Runs cannot be grouped by one of them.
    """
    keys = [by] if isinstance(by, str) else list(dict.fromkeys(by))
    if not keys:
        raise OptionError(f"by={by!r}: give what to group by: {', '.join(GROUPED)}, or a setting: config.lr.")
    for key in keys:
        if key not in GROUPED and not (key.startswith(SETTING) and len(key) > len(SETTING)):
            raise OptionError(f"by={key!r:.80}: runs cannot be grouped by that. {closest(key[:80], GROUPED)}")
    return keys


def group_of(store: Store, info: RunInfo, keys: Sequence[str]) -> tuple[Any, ...]:
    """A run's values of the attributes and settings that runs are grouped by; None where it has none."""
    values = RunValues(store, info)
    # The tags together: a run in several groups would count several times.
    return tuple(
        ", ".join(info.tags) or None
        if key == "tag"
        else values.first(Field(key))
        if key not in BY
        else getattr(info, key)
        for key in keys
    )


def group_text(group: tuple[Any, ...]) -> Key:
    """The values of a group as texts: numbers and lists as in JSON."""
    return tuple(
        None if value is None else (value if isinstance(value, str) else json.dumps(clean(value)))[:MAX_GROUP_TEXT]
        for value in group
    )


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
    keys = check_chart_groups(by)
    found = _bands_of_lines(store, runs, chart, keys)
    if not found.bands and not found.problem:
        found.problem = _why_empty(store, runs, chart)
    return found


def _bands_of_lines(store: Store, runs: Sequence[RunInfo], chart: Chart, keys: list[str]) -> Bands:
    import numpy as np

    run_groups = {info.id: group_of(store, info, keys) for info in runs}
    # By their texts: a setting may be a list, which has no hash.
    run_keys = {run: group_text(group) for run, group in run_groups.items()}
    order = {run_keys[run]: group for run, group in run_groups.items()}
    groups: dict[tuple[Key, str], list[RawLine]] = {}
    is_plain = chart.x == "step" and not chart.smoothing
    for line in last_values(store, runs, chart) if is_plain else raw_lines(store, runs, chart, exact=True):
        if not line.is_monotonic:
            return Bands(problem=f"{chart.x} does not only grow in {line.run}, so runs cannot be compared over it")
        if chart.smoothing:
            line = line.smooth(chart)
        groups.setdefault((run_keys[line.run], line.axis), []).append(line)
    found = Bands()
    for (key, axis), lines in sorted(groups.items(), key=lambda item: group_order((*order[item[0][0]], item[0][1]))):
        drawn = [line for line in lines if len(line.xs)]
        left_out = np.concatenate([line.left_out for line in lines])
        if not drawn and not (is_plain and len(left_out)):
            continue
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


def group_order(group: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    """A sort key for groups: numbers, then texts, then missing values, as in the database."""
    return [(part is None, "" if part is None else sort_key(part)) for part in group]


def _overlap(lines: list[RawLine]) -> bool:
    """Whether two of the lines share a part of x."""
    spans = sorted((line.xs[0], line.xs[-1]) for line in lines)
    return any(later[0] <= earlier[1] for earlier, later in pairwise(spans))


def _why_empty(store: Store, runs: Sequence[RunInfo], chart: Chart) -> str:
    import numpy as np

    if not runs:
        return "there are no runs"
    names = [str(chart.names), *([] if chart.x in ("step", "time", ELAPSED) else [chart.x])]
    found = list(store.columns(runs))
    for name in names:
        keys = [(columns, key) for columns in found for key in columns.keys([name])]
        keys = [(columns, key) for columns, key in keys if chart.axis in (None, key[1])]
        if not keys:
            return f"no run recorded {name!r}" + (f" on the axis {chart.axis!r}" if chart.axis else "")
        values = [columns.column(*key).value for columns, key in keys]
        if not any(np.isfinite(each).any() for each in values):
            return f"no value of {name!r} is finite" if any(map(len, values)) else f"{name!r} has no numbers"
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
    kept = n > 0  # no points between runs that follow one another
    grid, values, valid, n = grid[kept], values[:, kept], valid[:, kept], n[kept]
    mean = np.where(valid, values, 0.0).sum(axis=0) / n
    squares = np.where(valid, (values - mean) ** 2, 0.0).sum(axis=0)
    std = np.where(n > 1, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)
    low, high = np.where(valid, values, np.inf).min(axis=0), np.where(valid, values, -np.inf).max(axis=0)
    return {"x": grid, "mean": mean, "std": std, "min": low, "max": high, "n": n}


def _aligned_on_steps(lines: list[RawLine], left_out: Any) -> dict[str, Any]:
    """Mean, spread and range at every step of one of the lines, as in `aggregate_query`.

    Where no run has a finite value, the line is interrupted.
    """
    import numpy as np

    last = [np.append(line.xs[1:] != line.xs[:-1], True) for line in lines]  # the last value of a run at a step
    points = [
        (line.xs, line.ys) if own.all() else (line.xs[own], line.ys[own]) for line, own in zip(lines, last, strict=True)
    ]
    grid = _union([xs for xs, _ in points], left_out)
    places = [_positions(grid, xs) for xs, _ in points]
    n, mean, squares = np.zeros(len(grid), np.int64), np.zeros(len(grid)), np.zeros(len(grid))
    low, high = np.full(len(grid), np.inf), np.full(len(grid), -np.inf)
    for place, (_, ys) in zip(places, points, strict=True):
        n[place] += 1
        mean[place] += ys
        low[place] = np.minimum(low[place], ys)
        high[place] = np.maximum(high[place], ys)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        mean /= n
        for place, (_, ys) in zip(places, points, strict=True):
            squares[place] += (ys - mean[place]) ** 2
        std = np.where(n > 1, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)
    is_empty = n == 0
    low[is_empty] = high[is_empty] = np.nan
    return {"x": grid, "mean": mean, "std": std, "min": low, "max": high, "n": n}


def _union(parts: list[Any], left_out: Any) -> Any:
    """All x of some sorted arrays, each once. Repeats mostly record the same steps, which needs no sorting."""
    import numpy as np

    grid = max(parts, key=len, default=np.empty(0))
    others = [xs for xs in (*parts, np.unique(left_out)) if not _is_part(grid, xs)]
    return np.unique(np.concatenate([grid, *others])) if others else grid


def _is_part(grid: Any, xs: Any) -> bool:
    import numpy as np

    if len(xs) <= len(grid) and np.array_equal(grid[: len(xs)], xs):
        return True
    return bool(len(grid)) and bool((grid[np.minimum(np.searchsorted(grid, xs), len(grid) - 1)] == xs).all())


def _positions(grid: Any, xs: Any) -> Any:
    """Where the x of an array are in a grid that has all of them."""
    import numpy as np

    return slice(0, len(xs)) if np.array_equal(grid[: len(xs)], xs) else np.searchsorted(grid, xs)


def _band(key: Key, axis: str, columns: dict[str, Any], chart: Chart, left_out: Any) -> Band:
    import numpy as np

    part = visible_part(columns["x"], chart)
    columns = {name: column[part] for name, column in columns.items()}
    heights = np.where(np.isfinite(columns["mean"]), columns["mean"], 0.0)
    kept = downsampled(columns["x"], heights, chart.max_points)
    shown = {name: column[kept].tolist() for name, column in columns.items()}
    return Band(key, axis, points=len(heights), not_finite=chart.count_visible(left_out), **shown)

"""`Band`: a metric over the runs of a group as mean, spread and range along x, thinned out without losing a peak.

Over steps, runs are aligned as `aggregate` does it: a step has the values of the runs that recorded the metric there.
Over anything else no two runs have the same x, so runs are compared where both have been: at every x at which one of
them recorded something, each run that had begun and not ended counts with the value on the straight line between its
two points around there. Values that are not finite are left out, and counted.

Smoothing smooths each run over all its points; the band is that of the smoothed runs. So a value is the same at every
zoom, and how much is smoothed does not depend on how many runs there are.

Bands need an x that only grows in each run, and runs of a group that share some of it. Where they do not there is
no band, and `Bands.problem` says why; so it does where there is nothing to draw.

Mean, spread and range of a metric over runs, step by step.

Runs are aligned on the step: a step has the values of those runs that recorded the metric there. A run that recorded
it more than once at a step counts once, with the value that was recorded last. All numbers are those of the finite
values, of which there are ``n``: one diverged run must not erase the curve of its group. ``not_finite`` counts the
others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hookline._engine.errors import OptionError, closest
from hookline.store.query import Conditions
from hookline.store.run_info import RunInfo
from hookline.store.series import ELAPSED, Chart, RawLine, cut, raw_lines, smoothed, thinned
from hookline.store.store import Store
from hookline.store.tables import IN_ORDER, ORDER

BY = ("arm", "group", "experiment", "stage", "name", "project", "repeat", "seed", "status", "id")
"""What runs can be grouped by."""
_SPREADS = {0: "stddev_pop", 1: "stddev_samp"}


def checked_keys(by: str | Sequence[str]) -> list[str]:
    """What runs are grouped by, each once.

    Raises:
        OptionError: They cannot be grouped by that.
    """
    keys = [by] if isinstance(by, str) else list(dict.fromkeys(by))
    if not keys:
        raise OptionError(f"by={by!r}: give what to group by: {', '.join(BY)}.")
    for key in keys:
        if key not in BY:
            raise OptionError(f"by={key!r}: runs cannot be grouped by that. {closest(key, BY)}")
    return keys


def aggregate_query(by: str | Sequence[str], ddof: int, where: str) -> str:
    """The query, whose parameters are those of ``where``.

    Raises:
        OptionError: Runs cannot be grouped by that, or ``ddof`` is neither 0 nor 1.
    """
    keys = checked_keys(by)
    if ddof not in _SPREADS:
        raise OptionError(f"ddof={ddof!r}: give 0 (of a population) or 1 (of a sample).")
    groups = ", ".join(f'runs."{key}"' for key in keys)
    shown = ", ".join(f'runs."{key}" AS "{key}"' for key in keys)
    finite = "FILTER (isfinite(value))"
    return f"""
SELECT {shown}, latest.axis, latest.step,
    avg(value) {finite} AS mean,
    {_SPREADS[ddof]}(value) {finite} AS std,
    min(value) {finite} AS min,
    max(value) {finite} AS max,
    count(*) {finite} AS n,
    count(*) FILTER (NOT isfinite(value)) AS not_finite
FROM (
    SELECT run, axis, step, arg_max(value, {ORDER}) AS value
    FROM {IN_ORDER} {where} GROUP BY run, axis, step
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
        key: What the runs of the group have in common.
        points: How many places there are along x; ``x`` has them all, or a selection.
        not_finite: How many values of its runs are NaN or infinite, and left out.
        std: The standard deviation of a sample; NaN for a single run.
        n: How many runs have a finite value at each place.
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
    """The bands of a metric, or why there are none."""

    bands: list[Band] = field(default_factory=list)
    problem: str = ""


def bands(store: Store, runs: Sequence[RunInfo], chart: Chart, by: str | Sequence[str]) -> Bands:
    """A metric of groups of runs, group by group.

    Raises:
        OptionError: Runs cannot be grouped by that.
    """
    keys = checked_keys(by)
    if chart.x == "step" and not chart.smoothing:
        found = Bands(list(_over_steps(store, runs, chart, keys)))
    else:
        found = _over_lines(store, runs, chart, keys)
    if not found.bands and not found.problem:
        found.problem = _why_nothing(store, runs, chart)
    return found


def _over_lines(store: Store, runs: Sequence[RunInfo], chart: Chart, keys: list[str]) -> Bands:
    import numpy as np

    groups: dict[tuple[Key, str], list[RawLine]] = {}
    by_id = {info.id: _key(info, keys) for info in runs}
    for line in raw_lines(store, runs, chart, is_checkpoint=True):
        if not line.rises:
            return Bands(
                problem=f"{chart.x} does not only grow in {line.run}, so its values are no places to compare at"
            )
        if chart.smoothing:
            line.ys = smoothed(line.ys, chart.smoothing)
        groups.setdefault((by_id[line.run], line.axis), []).append(line)
    found = Bands()
    for (key, axis), lines in sorted(groups.items(), key=lambda item: _sortable(item[0])):
        drawn = [line for line in lines if len(line.xs)]
        if not drawn:
            continue
        left_out = np.concatenate([line.left_out for line in lines])
        if chart.x == "step":
            columns = _at_steps(drawn, left_out)
        elif len(drawn) > 1 and not _overlap(drawn):
            return Bands(problem=_apart(key, chart.x))
        else:
            columns = _resampled(drawn, chart)
        found.bands.append(_band(key, axis, columns, chart, left_out))
    return found


def _over_steps(store: Store, runs: Sequence[RunInfo], chart: Chart, keys: list[str]) -> Iterator[Band]:
    import numpy as np

    conditions = Conditions()
    conditions.equal("name", chart.names)
    conditions.equal("axis", chart.axis)
    conditions.add("value IS NOT NULL")
    groups = ", ".join(f'"{name}"' for name in (*keys, "axis"))
    query = (
        f"SELECT *, dense_rank() OVER (ORDER BY {groups}) AS place FROM ({aggregate_query(keys, 1, str(conditions))}) "
        "ORDER BY place, step"
    )
    with store.snapshot(runs, query) as cursor:
        found = cursor.execute(query, conditions.parameters).fetchnumpy()
    starts = np.unique(found["place"], return_index=True)[1].tolist()
    for begin, end in pairwise([*starts, len(found["place"])]):
        own = {name: np.ma.filled(found[name][begin:end].astype(np.float64), np.nan) for name in _NUMBERS}
        own |= {"x": found["step"][begin:end].astype(np.float64), "n": found["n"][begin:end]}
        *key, axis = (_text(found[name], begin) for name in (*keys, "axis"))
        yield _band(tuple(key), str(axis), own, chart, np.repeat(own["x"], found["not_finite"][begin:end]))


def _why_nothing(store: Store, runs: Sequence[RunInfo], chart: Chart) -> str:
    """Why there is nothing to draw."""
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


def _overlap(lines: list[RawLine]) -> bool:
    """Whether two of the lines share a part of x."""
    spans = sorted((line.xs[0], line.xs[-1]) for line in lines)
    return any(later[0] <= earlier[1] for earlier, later in pairwise(spans))


def _apart(key: Key, x: str) -> str:
    name = " · ".join(part for part in key if part is not None) or "the group"
    if x == "time":
        return f"the runs of {name} were not running at the same time: choose the time since their start"
    return f"the runs of {name} have no part of {x} in common"


def _resampled(lines: list[RawLine], chart: Chart) -> dict[str, Any]:
    """Mean, spread and range of lines at every x of one of them; of long ones at those of their peaks."""
    import numpy as np

    places = []
    for line in lines:
        part = cut(line.xs, chart.first_x, chart.last_x)
        xs, ys = line.xs[part], line.ys[part]
        places.append(xs[thinned(xs, ys, _GRID * chart.max_points)])
    grid = np.unique(np.concatenate(places))
    values = np.array([np.interp(grid, line.xs, line.ys, left=np.nan, right=np.nan) for line in lines])
    there = np.isfinite(values)
    n = there.sum(axis=0)
    held = n > 0  # between runs that follow one another there is nothing
    grid, values, there, n = grid[held], values[:, held], there[:, held], n[held]
    filled = np.where(there, values, 0.0)
    mean = filled.sum(axis=0) / n
    squares = np.where(there, (values - mean) ** 2, 0.0).sum(axis=0)
    std = np.where(n > 1, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)
    low, high = np.where(there, values, np.inf).min(axis=0), np.where(there, values, -np.inf).max(axis=0)
    return {"x": grid, "mean": mean, "std": std, "min": low, "max": high, "n": n}


def _at_steps(lines: list[RawLine], left_out: Any) -> dict[str, Any]:
    """Mean, spread and range of lines at every step of one of them, as `aggregate` has them."""
    import numpy as np

    last = [np.append(line.xs[1:] != line.xs[:-1], True) for line in lines]  # what a run recorded last at a step
    xs = np.concatenate([line.xs[own] for line, own in zip(lines, last, strict=True)])
    ys = np.concatenate([line.ys[own] for line, own in zip(lines, last, strict=True)])
    order = np.argsort(xs, kind="stable")
    xs, ys = xs[order], ys[order]
    places, starts, n = np.unique(xs, return_index=True, return_counts=True)
    mean = np.add.reduceat(ys, starts) / n
    with np.errstate(over="ignore"):
        squares = np.add.reduceat((ys - np.repeat(mean, n)) ** 2, starts)
    std = np.where(n > 1, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)
    low, high = np.minimum.reduceat(ys, starts), np.maximum.reduceat(ys, starts)
    columns = {"x": places, "mean": mean, "std": std, "min": low, "max": high, "n": n}
    gaps = np.setdiff1d(left_out, places)  # where no run has a finite value the line is interrupted
    if not len(gaps):
        return columns
    nothing = {name: np.full(len(gaps), np.nan) for name in _NUMBERS} | {"x": gaps, "n": np.zeros(len(gaps), n.dtype)}
    order = np.argsort(np.concatenate([places, gaps]))
    return {name: np.concatenate([column, nothing[name]])[order] for name, column in columns.items()}


def _band(key: Key, axis: str, columns: dict[str, Any], chart: Chart, left_out: Any) -> Band:
    import numpy as np

    low, high = (-np.inf if chart.first_x is None else chart.first_x, np.inf if chart.last_x is None else chart.last_x)
    not_finite = int(((left_out >= low) & (left_out <= high)).sum())
    kept = cut(columns["x"], chart.first_x, chart.last_x)
    columns = {name: column[kept] for name, column in columns.items()}
    heights = np.where(np.isfinite(columns["mean"]), columns["mean"], 0.0)
    chosen = thinned(columns["x"], heights, chart.max_points)
    shown = {name: column[chosen].tolist() for name, column in columns.items()}
    return Band(key, axis, points=len(heights), not_finite=not_finite, **shown)


_GRID = 2
"""How many times as many places as are drawn a run of a band gives at most."""


def _key(info: RunInfo, keys: list[str]) -> Key:
    values = (getattr(info, name) for name in keys)
    return tuple(None if value is None else str(value) for value in values)


def _sortable(group: tuple[Key, str]) -> list[tuple[bool, str]]:
    """By what groups have in common, those that lack it last, as the database sorts."""
    return [(part is None, part or "") for part in (*group[0], group[1])]


def _text(column: Any, place: int) -> str | None:
    import numpy as np

    value = column[place]
    return None if value is None or value is np.ma.masked else str(value)

"""`Series`: a metric of a run as points for a chart, thinned out without losing a peak.

The range of x is cut into equal pieces, and each piece gives its lowest and its highest point, so what is drawn looks
as if all points were drawn. The first and the last point are always there. Values that are not finite cannot be drawn:
they are left out and counted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hookline.core.errors import OptionError
from hookline.store.conditions import Conditions, Names
from hookline.store.run_info import RunInfo
from hookline.store.store import Store

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MAX_POINTS = 1000
LEAST_POINTS = 4


@dataclass(slots=True)
class Series:
    """A line of a chart.

    Attributes:
        points: How many values can be drawn; ``x`` and ``y`` have them all, or a selection.
        not_finite: How many values are NaN or infinite.
    """

    run: str
    name: str
    axis: str
    points: int = 0
    not_finite: int = 0
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn: which metrics over what, with how many points a line."""

    names: Names
    x: str = "step"
    axis: str | None = None
    max_points: int = MAX_POINTS

    def __post_init__(self) -> None:
        if self.max_points < LEAST_POINTS:
            raise OptionError(f"max_points={self.max_points!r}: give at least {LEAST_POINTS}.")


def series(store: Store, runs: Sequence[RunInfo], chart: Chart) -> list[Series]:
    """The lines of some runs, run by run."""
    with store.snapshot(runs, "metrics") as cursor:
        return [line for info in runs for line in _lines(cursor, store.rows_of("metrics", [info]), info.id, chart)]


def _lines(cursor: "DuckDBPyConnection", rows: str, run: str, chart: Chart) -> Iterator[Series]:
    conditions = Conditions()
    conditions.names("name", chart.names)
    conditions.equal("axis", chart.axis)
    found = f"SELECT DISTINCT name, axis FROM ({rows}) {conditions} ORDER BY ALL"
    for name, axis in cursor.execute(found, conditions.parameters).fetchall():
        xs, ys = _points(cursor, rows, name, axis, chart.x)
        yield _line(Series(run, name, axis), xs, ys, chart.max_points)


def _points(cursor: "DuckDBPyConnection", rows: str, name: str, axis: str, x: str) -> tuple[Any, Any]:
    own = f"SELECT step, time, value FROM ({rows}) WHERE name = ? AND axis = ? AND value IS NOT NULL"
    parameters = [name, axis]
    if x in ("step", "time"):
        query = f"SELECT CAST({x} AS DOUBLE) AS x, value AS y FROM ({own})"
    else:
        query = (
            f"SELECT other.x AS x, own.value AS y FROM ({own}) AS own JOIN (SELECT step, arg_max(value, time) AS x "
            f"FROM ({rows}) WHERE name = ? AND axis = ? GROUP BY step) AS other USING (step) WHERE x IS NOT NULL"
        )
        parameters += [x, axis]
    found = cursor.execute(query, parameters).fetchnumpy()
    return found["x"], found["y"]


def _line(line: Series, xs: Any, ys: Any, max_points: int) -> Series:
    import numpy as np

    xs, ys = np.ma.getdata(xs), np.ma.getdata(ys)
    finite = np.isfinite(ys) & np.isfinite(xs)
    line.not_finite, line.points = int((~finite).sum()), int(finite.sum())
    if line.not_finite:
        xs, ys = xs[finite], ys[finite]
    if (np.diff(xs) < 0).any():
        order = np.argsort(xs, kind="stable")
        xs, ys = xs[order], ys[order]
    kept = thinned(xs, ys, max_points)
    line.x, line.y = xs[kept].tolist(), ys[kept].tolist()
    return line


def thinned(xs: Any, ys: Any, max_points: int) -> Any:
    """Which points to keep, of many by rising x: at most so many, with the peaks."""
    import numpy as np

    if len(xs) <= max_points:
        return np.arange(len(xs))
    pieces = (max_points - 2) // 2
    bounds = np.linspace(xs[0], xs[-1], pieces + 1)[:-1]
    starts = np.unique(np.searchsorted(xs, bounds))
    starts = starts[starts < len(xs)]
    lengths = np.diff(np.append(starts, len(xs)))
    peaks = [
        _first_of_each(ys == np.repeat(pick.reduceat(ys, starts), lengths), starts) for pick in (np.minimum, np.maximum)
    ]
    return np.unique(np.concatenate([[0, len(xs) - 1], *peaks]))


def _first_of_each(matches: Any, starts: Any) -> Any:
    """The first match in each piece; every piece has one."""
    import numpy as np

    found = np.flatnonzero(matches)
    return found[np.searchsorted(found, starts)]

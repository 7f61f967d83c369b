"""`Series`: a metric of a run as points for a chart, thinned out without losing a peak.

The range of x is cut into equal pieces, and each piece gives its lowest and its highest point, so what is drawn looks
as if all points were drawn. The first and the last point are always there. Values that are not finite cannot be drawn:
they are left out and counted. A part of x can be asked for, which then has all the points to itself, and one more at
each side, so that lines go on to the edges.

Smoothing is computed over all points of a line before anything is cut or thinned, so a smoothed value is the same at
every zoom and in a chart of any width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hookline._engine.errors import OptionError
from hookline.store.query import Conditions, Names
from hookline.store.run_info import RunInfo
from hookline.store.store import Store
from hookline.store.tables import ORDER

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MAX_POINTS = 1000
LEAST_POINTS = 4
ELAPSED = "elapsed"
"""The x of seconds since a run began."""


@dataclass(slots=True)
class Series:
    """A line of a chart.

    Attributes:
        points: How many values can be drawn; ``x`` and ``y`` have them all, or a selection.
        not_finite: How many values are NaN or infinite.
        smoothed_x: Where the smoothed line has its points, which need not be those of the plain one: it has peaks of
            its own. Empty without smoothing.
    """

    run: str
    name: str
    axis: str
    points: int = 0
    not_finite: int = 0
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    smoothed_x: list[float] = field(default_factory=list)
    smoothed_y: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn: which metrics over what, with how many points a line, and which part of x."""

    names: Names
    x: str = "step"
    axis: str | None = None
    max_points: int = MAX_POINTS
    first_x: float | None = None
    last_x: float | None = None
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise OptionError(f"smoothing={self.smoothing!r}: give a number from 0 and below 1.")
        if self.max_points < LEAST_POINTS:
            raise OptionError(f"max_points={self.max_points!r}: give at least {LEAST_POINTS}.")


def series(store: Store, runs: Sequence[RunInfo], chart: Chart) -> list[Series]:
    """The lines of some runs, run by run."""
    return [_line(line, chart) for line in raw_lines(store, runs, chart)]


@dataclass(slots=True)
class RawLine:
    """All points of a metric of a run, by rising x.

    Attributes:
        xs: An array, as ``ys``.
        left_out: The x of the values that are not finite.
        rises: Whether x only grew while the run recorded. Steps and times do: their rows may come in any order.
    """

    run: str
    name: str
    axis: str
    xs: Any
    ys: Any
    left_out: Any
    rises: bool


def raw_lines(store: Store, runs: Sequence[RunInfo], chart: Chart, *, is_checkpoint: bool = False) -> Iterator[RawLine]:
    """All points of some runs, run by run.

    Args:
        is_checkpoint: The names are that of one metric, in which ``*`` is a letter as any other.
    """
    wanted = Conditions()
    if is_checkpoint:
        wanted.equal("name", chart.names)
    else:
        wanted.names("name", chart.names)
    wanted.equal("axis", chart.axis)
    with store.snapshot(runs, "metrics") as cursor:
        for info in runs:
            yield from _lines(cursor, store.metrics_in_order([info]), info, chart, wanted)


def _lines(
    cursor: "DuckDBPyConnection", rows: str, info: RunInfo, chart: Chart, wanted: Conditions
) -> Iterator[RawLine]:
    found = f"SELECT DISTINCT name, axis FROM ({rows}) {wanted} ORDER BY ALL"
    for name, axis in cursor.execute(found, wanted.parameters).fetchall():
        xs, ys = _points(cursor, rows, name, axis, "time" if chart.x == ELAPSED else chart.x)
        line = _sorted(info.id, name, axis, xs, ys)
        line.rises = line.rises or chart.x in ("step", "time", ELAPSED)
        if chart.x == ELAPSED:
            begin = info.started if info.started is not None else line.xs[0] if len(line.xs) else 0.0
            line.xs, line.left_out = line.xs - begin, line.left_out - begin
        yield line


def _points(cursor: "DuckDBPyConnection", rows: str, name: str, axis: str, x: str) -> tuple[Any, Any]:
    own = f"SELECT step, time, {ORDER}, value FROM ({rows}) WHERE name = ? AND axis = ? AND value IS NOT NULL"
    parameters = [name, axis]
    if x in ("step", "time"):
        # equal x in the order recorded: smoothing depends on it, and must not change when a run is compacted
        query = f"SELECT CAST({x} AS DOUBLE) AS x, value AS y FROM ({own}) ORDER BY {x}, {ORDER}"
    else:
        query = (
            f"SELECT other.x AS x, own.value AS y FROM ({own}) AS own JOIN (SELECT step, arg_max(value, {ORDER}) AS x "
            f"FROM ({rows}) WHERE name = ? AND axis = ? GROUP BY step) AS other USING (step) WHERE x IS NOT NULL "
            f"ORDER BY step, {ORDER}"
        )
        parameters += [x, axis]
    found = cursor.execute(query, parameters).fetchnumpy()
    return found["x"], found["y"]


def _sorted(run: str, name: str, axis: str, xs: Any, ys: Any) -> RawLine:
    import numpy as np

    xs, ys = np.ma.getdata(xs), np.ma.getdata(ys)
    finite = np.isfinite(ys) & np.isfinite(xs)
    left_out = xs[~finite]
    if len(left_out):
        xs, ys = xs[finite], ys[finite]
    rises = not (np.diff(xs) < 0).any()
    if not rises:
        order = np.argsort(xs, kind="stable")
        xs, ys = xs[order], ys[order]
    return RawLine(run, name, axis, xs, ys, left_out, rises)


def _line(raw: RawLine, chart: Chart) -> Series:
    import numpy as np

    part = cut(raw.xs, chart.first_x, chart.last_x)
    xs, ys = raw.xs[part], raw.ys[part]
    low, high = (-np.inf if chart.first_x is None else chart.first_x, np.inf if chart.last_x is None else chart.last_x)
    is_whole = chart.first_x is None and chart.last_x is None
    not_finite = len(raw.left_out) if is_whole else int(((raw.left_out >= low) & (raw.left_out <= high)).sum())
    kept = thinned(xs, ys, chart.max_points)
    line = Series(raw.run, raw.name, raw.axis, len(xs), not_finite, xs[kept].tolist(), ys[kept].tolist())
    if chart.smoothing:
        smooth = smoothed(raw.ys, chart.smoothing)[part]
        kept = thinned(xs, smooth, chart.max_points)
        line.smoothed_x, line.smoothed_y = xs[kept].tolist(), smooth[kept].tolist()
    return line


_BLOCK = 256


def smoothed(ys: Any, weight: float) -> Any:
    """The exponential moving average of finite values, without bias towards 0 at its beginning, as TensorBoard's.

    ``s = weight * s + (1 - weight) * y`` from 0 on, divided by ``1 - weight ** n`` after ``n`` values.
    """
    import numpy as np

    # Python would take 10 ms of the interpreter's lock for 100,000 values, at each refresh of each line: whole blocks
    # are averaged at once, each as if it began at 0, and then get what the blocks before them add.
    blocks = np.zeros((-(-len(ys) // _BLOCK), _BLOCK))
    blocks.ravel()[: len(ys)] = ys
    powers = weight ** np.arange(_BLOCK + 1)
    ages = np.subtract.outer(np.arange(_BLOCK), np.arange(_BLOCK))
    averages = blocks @ ((1 - weight) * np.tril(powers[np.abs(ages)])).T
    before, carried = np.empty(len(blocks)), 0.0
    for place, last in enumerate(averages[:, -1].tolist()):
        before[place] = carried
        carried = last + carried * powers[_BLOCK]
    averages += np.outer(before, powers[1:])
    return averages.ravel()[: len(ys)] / -np.expm1(np.arange(1, len(ys) + 1) * np.log(weight))


def cut(xs: Any, first: float | None, last: float | None) -> slice:
    """The part of rising x between two values, with the point before and the one behind it."""
    import numpy as np

    begin = 0 if first is None else max(0, int(np.searchsorted(xs, first)) - 1)
    end = len(xs) if last is None else int(np.searchsorted(xs, last, side="right")) + 1
    return slice(begin, max(begin, end))


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

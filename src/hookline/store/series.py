"""`Series`: a metric of a run as the points of a chart line, downsampled without losing a peak.

The range of x is cut into equal buckets, and each bucket keeps its lowest and its highest point, so the drawing looks
like that of all points. The first and the last point are always kept. Values that are not finite are left out and
counted. A part of x can be requested; it then gets all the points, plus one on each side so lines reach the edges.

Smoothing covers all points of a line before cutting and downsampling, so a smoothed value is the same at every zoom
level and chart width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError
from hookline.store.query import Conditions, Names
from hookline.store.run_info import RunInfo
from hookline.store.store import Store
from hookline.store.tables import ORDER_COLUMN

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MAX_POINTS = 1000
MIN_POINTS = 4
ELAPSED = "elapsed"
"""The x axis of seconds since the start of a run."""


@dataclass(slots=True)
class Series:
    """A line of a chart.

    Attributes:
        points: The number of drawable values; ``x`` and ``y`` have all of them, or a selection.
        not_finite: The number of values that are NaN or infinite.
        smoothed_x: The points of the smoothed line, which has peaks of its own. Empty without smoothing.
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
    """The options of a chart: metrics, x axis, points per line, the visible part of x, smoothing."""

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
        require_integer("max_points", self.max_points, minimum=MIN_POINTS)

    def count_visible(self, xs: Any) -> int:
        """How many of some x lie in the visible part."""
        import numpy as np

        low = -np.inf if self.first_x is None else self.first_x
        high = np.inf if self.last_x is None else self.last_x
        return int(((xs >= low) & (xs <= high)).sum())


def series(store: Store, runs: Sequence[RunInfo], chart: Chart) -> list[Series]:
    """The lines of some runs, run by run."""
    return [_downsampled_line(line, chart) for line in raw_lines(store, runs, chart)]


@dataclass(slots=True)
class RawLine:
    """All points of a metric of a run, sorted by x.

    Attributes:
        xs: An array, like ``ys``.
        left_out: The x of the values that are not finite.
        is_monotonic: Whether x only grew while the run recorded. Steps and times count as such.
    """

    run: str
    name: str
    axis: str
    xs: Any
    ys: Any
    left_out: Any
    is_monotonic: bool


def raw_lines(store: Store, runs: Sequence[RunInfo], chart: Chart, *, exact: bool = False) -> Iterator[RawLine]:
    """All points of some runs, run by run.

    Args:
        exact: The chart names a single metric, in which ``*`` is an ordinary character.
    """
    conditions = Conditions()
    if exact:
        conditions.equal("name", chart.names)
    else:
        conditions.names("name", chart.names)
    conditions.equal("axis", chart.axis)
    with store.snapshot(runs, "metrics") as cursor:
        for info in runs:
            rows = store.select_ordered_metrics([info])
            query = f"SELECT DISTINCT name, axis FROM ({rows}) {conditions} ORDER BY ALL"
            for name, axis in cursor.execute(query, conditions.parameters).fetchall():
                yield _raw_line(cursor, rows, info, name, axis, chart.x)


def _raw_line(cursor: "DuckDBPyConnection", rows: str, info: RunInfo, name: str, axis: str, x: str) -> RawLine:
    import numpy as np

    found_x, found_y = _points(cursor, rows, name, axis, "time" if x == ELAPSED else x)
    xs, ys = np.ma.getdata(found_x), np.ma.getdata(found_y)
    finite = np.isfinite(ys) & np.isfinite(xs)
    left_out = xs[~finite]
    if len(left_out):
        xs, ys = xs[finite], ys[finite]
    is_sorted = not (np.diff(xs) < 0).any()
    if not is_sorted:
        order = np.argsort(xs, kind="stable")
        xs, ys = xs[order], ys[order]
    if x == ELAPSED:
        start = info.started if info.started is not None else xs[0] if len(xs) else 0.0
        xs, left_out = xs - start, left_out - start
    return RawLine(info.id, name, axis, xs, ys, left_out, is_sorted or x in ("step", "time", ELAPSED))


def _points(cursor: "DuckDBPyConnection", rows: str, name: str, axis: str, x: str) -> tuple[Any, Any]:
    own = f"SELECT step, time, {ORDER_COLUMN}, value FROM ({rows}) WHERE name = ? AND axis = ? AND value IS NOT NULL"
    parameters = [name, axis]
    if x in ("step", "time"):
        # Equal x in the recorded order: smoothing depends on it, and must not change when a run is compacted.
        query = f"SELECT CAST({x} AS DOUBLE) AS x, value AS y FROM ({own}) ORDER BY {x}, {ORDER_COLUMN}"
    else:
        query = (
            f"SELECT other.x AS x, own.value AS y FROM ({own}) AS own "
            f"JOIN (SELECT step, arg_max(value, {ORDER_COLUMN}) AS x FROM ({rows}) "
            "WHERE name = ? AND axis = ? GROUP BY step) AS other USING (step) "
            f"WHERE x IS NOT NULL ORDER BY step, {ORDER_COLUMN}"
        )
        parameters += [x, axis]
    found = cursor.execute(query, parameters).fetchnumpy()
    return found["x"], found["y"]


def _downsampled_line(raw: RawLine, chart: Chart) -> Series:
    part = visible_part(raw.xs, chart)
    xs, ys = raw.xs[part], raw.ys[part]
    is_whole = chart.first_x is None and chart.last_x is None
    not_finite = len(raw.left_out) if is_whole else chart.count_visible(raw.left_out)
    kept = downsampled(xs, ys, chart.max_points)
    line = Series(raw.run, raw.name, raw.axis, len(xs), not_finite, xs[kept].tolist(), ys[kept].tolist())
    if chart.smoothing:
        smooth = smoothed(raw.ys, chart.smoothing)[part]
        kept = downsampled(xs, smooth, chart.max_points)
        line.smoothed_x, line.smoothed_y = xs[kept].tolist(), smooth[kept].tolist()
    return line


_BLOCK = 256


def smoothed(ys: Any, weight: float) -> Any:
    """The exponential moving average of finite values with bias correction, as in TensorBoard.

    ``s = weight * s + (1 - weight) * y`` starting from 0, divided by ``1 - weight ** n`` after ``n`` values.
    """
    import numpy as np

    # A Python loop would hold the interpreter's lock for 10 ms per 100,000 values, at each refresh of each line. So
    # whole blocks are averaged at once, each as if it started at 0, and then get the share of the blocks before them.
    blocks = np.zeros((-(-len(ys) // _BLOCK), _BLOCK))
    blocks.ravel()[: len(ys)] = ys
    powers = weight ** np.arange(_BLOCK + 1)
    ages = np.subtract.outer(np.arange(_BLOCK), np.arange(_BLOCK))
    averages = blocks @ ((1 - weight) * np.tril(powers[np.abs(ages)])).T
    before, carried = np.empty(len(blocks)), 0.0
    for block, last in enumerate(averages[:, -1].tolist()):
        before[block] = carried
        carried = last + carried * powers[_BLOCK]
    averages += np.outer(before, powers[1:])
    return averages.ravel()[: len(ys)] / -np.expm1(np.arange(1, len(ys) + 1) * np.log(weight))


def visible_part(xs: Any, chart: Chart) -> slice:
    """The visible part of sorted x, with one more point on each side."""
    import numpy as np

    first, last = chart.first_x, chart.last_x
    start = 0 if first is None else max(0, int(np.searchsorted(xs, first)) - 1)
    end = len(xs) if last is None else int(np.searchsorted(xs, last, side="right")) + 1
    return slice(start, max(start, end))


def downsampled(xs: Any, ys: Any, max_points: int) -> Any:
    """The indexes of the points to keep, of many sorted by x: at most ``max_points``, with the peaks."""
    import numpy as np

    if len(xs) <= max_points:
        return np.arange(len(xs))
    buckets = (max_points - 2) // 2
    bounds = np.linspace(xs[0], xs[-1], buckets + 1)[:-1]
    starts = np.unique(np.searchsorted(xs, bounds))
    starts = starts[starts < len(xs)]
    lengths = np.diff(np.append(starts, len(xs)))
    kept = [np.array([0, len(xs) - 1])]
    for pick in (np.minimum, np.maximum):
        peaks = np.flatnonzero(ys == np.repeat(pick.reduceat(ys, starts), lengths))
        kept.append(peaks[np.searchsorted(peaks, starts)])  # the first of each bucket; every bucket has one
    return np.unique(np.concatenate(kept))

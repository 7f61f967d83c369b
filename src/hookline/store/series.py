"""`Series`: a metric of a run as the points of a chart line, downsampled without losing a peak.

The range of x is cut into equal buckets, and each bucket keeps its lowest and its highest point, so the drawing looks
like that of all points. The first and the last point are always kept. Values that are not finite are left out and
counted. A part of x can be requested; it then gets all the points, plus one on each side so lines reach the edges.

Smoothing covers all points of a line before cutting and downsampling, so a smoothed value is the same at every zoom
level and chart width. Two averages are offered: TensorBoard's, which counts points, and W&B's, which weights by the
distance along x.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError, closest
from hookline.store.query import Names
from hookline.store.run_columns import Column, RunColumns
from hookline.store.run_info import RunInfo
from hookline.store.store import Store

MAX_POINTS = 1000
MIN_POINTS = 4
ELAPSED = "elapsed"
"""The x axis of seconds since the start of a run."""
SMOOTHERS = ("ema", "time_weighted")
"""The moving averages: TensorBoard's over points, and W&B's over x."""


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
    """The options of a chart: metrics, x axis, points per line, the visible part of x, smoothing.

    Attributes:
        raw_points: The points of the raw line beside a smoothed one; ``max_points`` by default.
    """

    names: Names
    x: str = "step"
    axis: str | None = None
    max_points: int = MAX_POINTS
    first_x: float | None = None
    last_x: float | None = None
    smoothing: float = 0.0
    smoother: str = "ema"
    raw_points: int | None = None

    def __post_init__(self) -> None:
        if self.smoother not in SMOOTHERS:
            raise OptionError(f"smoother={self.smoother!r} is not known. {closest(self.smoother, SMOOTHERS)}")
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
        extremes: Where the lowest and highest of ``ys`` are.
    """

    run: str
    name: str
    axis: str
    xs: Any
    ys: Any
    left_out: Any
    is_monotonic: bool
    extremes: "Extremes"
    _smoothed: "tuple[tuple[str, float], RawLine] | None" = None

    def smooth(self, chart: Chart) -> "RawLine":
        """The smoothed line; the last one is kept, because a chart is drawn many times with the same weight."""
        how = chart.smoother, chart.smoothing
        if self._smoothed is None or self._smoothed[0] != how:
            if chart.smoother == "ema":
                ys = smoothed(self.ys, chart.smoothing)
            else:
                ys = time_weighted(self.xs, self.ys, chart.smoothing)
            self._smoothed = how, replace(self, ys=ys, extremes=Extremes(False), _smoothed=None)
        return self._smoothed[1]


def raw_lines(store: Store, runs: Sequence[RunInfo], chart: Chart, *, exact: bool = False) -> Iterator[RawLine]:
    """All points of some runs, run by run.

    Args:
        exact: The chart names a single metric, in which ``*`` is an ordinary character.
    """
    names = [str(chart.names)] if exact else chart.names
    for info, columns in zip(runs, store.columns(runs), strict=True):
        # Not yielded under the lock: a caller that fails would keep it.
        with columns.lock:
            keys = matching_keys(columns, names, exact=exact)
            lines = [_raw_line(columns, info, *key, chart.x) for key in keys if chart.axis in (None, key[1])]
        yield from lines


def last_values(store: Store, runs: Sequence[RunInfo], chart: Chart) -> Iterator[RawLine]:
    """A metric over steps with the last value of each step only: a step whose last value is not finite has none."""
    import numpy as np

    for info, columns in zip(runs, store.columns(runs), strict=True):
        for name, axis in columns.keys([str(chart.names)]):
            if chart.axis in (None, axis):
                column = columns.column(name, axis)
                last = np.append(column.step[1:] != column.step[:-1], True)[: len(column.step)]
                steps, ys = column.step[last].astype(np.float64), column.value[last]
                finite = np.isfinite(ys)
                yield RawLine(info.id, name, axis, steps[finite], ys[finite], steps[~finite], True, Extremes(False))


def matching_keys(columns: RunColumns, names: Names, *, exact: bool = False) -> list[tuple[str, str]]:
    """The metrics of a run, by name and axis, whose names are wanted.

    Args:
        names: ``*`` matches anything, unless they are ``exact``.
    """
    if names is None:
        return columns.keys()
    given = [names] if isinstance(names, str) else [str(name) for name in names]
    if exact or not any("*" in name for name in given):
        return columns.keys(given)
    pattern = re.compile("|".join(".*".join(map(re.escape, name.split("*"))) for name in given), re.DOTALL)
    return [key for key in columns.keys() if pattern.fullmatch(key[0])]  # noqa: SIM118 - not a dict


_MAX_CACHED_LINES = 512
"""Lines of a run that are kept until it records something."""


def _raw_line(columns: RunColumns, info: RunInfo, name: str, axis: str, x: str) -> RawLine:
    base_x = "time" if x == ELAPSED else x
    key = (name, axis, base_x)
    version, known = columns.cache.get(key, (None, None))
    if version == columns.version:
        line: RawLine = known
    else:
        is_continued = version is not None and version[0] == columns.generation
        line = _make_line(columns, info.id, key, known if is_continued else None)
        if len(columns.cache) >= _MAX_CACHED_LINES:
            columns.clear_cache()
            known = None
        columns.cache[key] = (columns.version, line)
        columns.cached_bytes += int(line.xs.nbytes) - (0 if known is None else int(known.xs.nbytes))
    if x != ELAPSED:
        return line
    start = info.started if info.started is not None else line.xs[0] if len(line.xs) else 0.0
    return replace(line, xs=line.xs - start, left_out=line.left_out - start)


def _make_line(columns: RunColumns, run: str, key: tuple[str, str, str], earlier: RawLine | None) -> RawLine:
    import numpy as np

    name, axis, x = key
    column = columns.column(name, axis)
    ys, is_append_only = column.value, column.is_append_only
    if x == "step":
        xs = column.step.astype(np.float64)
    elif x == "time":
        xs = column.time
        if (xs[1:] < xs[:-1]).any():
            # Equal x in the recorded order: smoothing depends on it.
            order = np.lexsort((column.order, xs))
            xs, ys, is_append_only = xs[order], ys[order], False
    else:
        xs, ys = _joined(column, columns.column(x, axis))
        is_append_only = False
    finite = np.isfinite(ys) & np.isfinite(xs)
    left_out = xs[~finite]
    if len(left_out):
        xs, ys, is_append_only = xs[finite], ys[finite], False
    is_sorted = x in ("step", "time") or not (xs[1:] < xs[:-1]).any()
    if not is_sorted:
        order = np.argsort(xs, kind="stable")
        xs, ys = xs[order], ys[order]
    # The extremes of blocks that were full before are still right if points were only added behind them.
    is_continued = is_append_only and earlier is not None and earlier.extremes.is_append_only
    extremes = earlier.extremes if is_continued and earlier is not None else Extremes(is_append_only)
    return RawLine(run, name, axis, xs, ys, left_out, is_sorted, extremes)


def _joined(own: Column, other: Column) -> tuple[Any, Any]:
    """A metric over another one: each value with the last value of the other at its step, if there is one."""
    import numpy as np

    if not len(own.step) or not len(other.step):
        return np.empty(0), np.empty(0)
    last = np.append(other.step[1:] != other.step[:-1], True)
    steps, values = other.step[last], other.value[last]
    places = np.minimum(np.searchsorted(steps, own.step), len(steps) - 1)
    found = steps[places] == own.step
    return values[places[found]], own.value[found]


def _downsampled_line(raw: RawLine, chart: Chart) -> Series:
    part = visible_part(raw.xs, chart)
    is_whole = chart.first_x is None and chart.last_x is None
    not_finite = len(raw.left_out) if is_whole else chart.count_visible(raw.left_out)
    most = chart.raw_points if chart.smoothing and chart.raw_points else chart.max_points
    kept = downsampled(raw.xs, raw.ys, most, part, raw.extremes)
    points = part.stop - part.start
    line = Series(raw.run, raw.name, raw.axis, points, not_finite, raw.xs[kept].tolist(), raw.ys[kept].tolist())
    if chart.smoothing:
        smooth = raw.smooth(chart)
        kept = downsampled(raw.xs, smooth.ys, chart.max_points, part, smooth.extremes)
        line.smoothed_x, line.smoothed_y = raw.xs[kept].tolist(), smooth.ys[kept].tolist()
    return line


_BLOCK = 64
_NO_CORRECTION = -45.0
"""The logarithm of a number that does not change 1 when it is subtracted."""


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
    result = averages.ravel()[: len(ys)]
    # Behind these points the correction is 1 to the last bit.
    corrected = min(len(ys), int(np.ceil(_NO_CORRECTION / np.log(weight))))
    result[:corrected] /= -np.expm1(np.arange(1, corrected + 1) * np.log(weight))
    return result


_VIEWPORT = 1000.0
_MAX_WEIGHT = 0.999


def time_weighted(xs: Any, ys: Any, weight: float) -> Any:
    """W&B's exponential moving average, weighted by the distance along x.

    ``w = min(sqrt(weight), 0.999)`` is the share of a value that remains after a thousandth of the range of x:
    ``a = w ** (1000 * dx / range)``, ``s = a * s + y``, ``n = a * n + 1``, and ``s / n`` is drawn. The range is that of
    the line itself, so that other runs in a chart change nothing.
    """
    import numpy as np

    span = xs[-1] - xs[0] if len(xs) else 0.0
    if span <= 0:
        return ys.copy()
    # In doubling distances instead of point by point: a sum of two halves, in which all factors are at most 1.
    decay = min(weight**0.5, _MAX_WEIGHT) ** (np.diff(xs, prepend=xs[0]) * (_VIEWPORT / span))
    sums, counts = ys.astype(np.float64), np.ones(len(ys))
    distance = 1
    while distance < len(ys) and decay[distance:].any():
        carried = decay[distance:]
        sums[distance:] += carried * sums[:-distance]
        counts[distance:] += carried * counts[:-distance]
        decay[distance:] = carried * decay[:-distance]
        distance *= 2
    return sums / counts


def visible_part(xs: Any, chart: Chart) -> slice:
    """The visible part of sorted x, with one more point on each side."""
    import numpy as np

    first, last = chart.first_x, chart.last_x
    start = 0 if first is None else max(0, int(np.searchsorted(xs, first)) - 1)
    end = len(xs) if last is None else min(len(xs), int(np.searchsorted(xs, last, side="right")) + 1)
    return slice(start, max(start, end))


class Extremes:
    """The first lowest and the first highest point in blocks of a line, at several block sizes.

    They are found once for each block, so a chart of many points looks at few of them at any zoom. When points are
    added to a line, only its new blocks are searched.

    Args:
        is_append_only: Points are only added to the end of the line.
    """

    def __init__(self, is_append_only: bool) -> None:
        self.is_append_only = is_append_only
        self._levels: dict[int, tuple[Any, Any]] = {}

    def level(self, ys: Any, size: int) -> tuple[Any, Any]:
        """The indexes of the lowest and highest points of the full blocks of a size: `_BASE` times a power of four."""
        import numpy as np

        empty = np.empty(0, np.int64)
        known = self._levels.get(size, (empty, empty))
        start, end = len(known[0]), len(ys) // size
        if start >= end:
            return known
        found = []
        for place, pick in enumerate((np.argmin, np.argmax)):
            if size == _BASE:
                blocks = ys[start * size : end * size].reshape(-1, size)
                points = pick(blocks, axis=1) + np.arange(start, end) * size
            else:
                smaller = self.level(ys, size // _FACTOR)[place][start * _FACTOR : end * _FACTOR].reshape(-1, _FACTOR)
                points = smaller[np.arange(len(smaller)), pick(ys[smaller], axis=1)]
            found.append(np.concatenate([known[place], points]))
        self._levels[size] = found[0], found[1]
        return self._levels[size]

    def candidates(self, ys: Any, part: slice, starts: Any) -> Any:
        """Indexes in a part of a line that include the first lowest and highest point of each of its buckets.

        Args:
            starts: Where buckets begin, within the part.
        """
        import numpy as np

        first, last = part.start, part.stop
        # All points of a block in which a bucket begins are candidates; the other blocks have two each. This size
        # balances the two.
        ideal, size = (2 * (last - first) / len(starts)) ** 0.5, _BASE
        while size * _FACTOR <= ideal:
            size *= _FACTOR
        lows, highs = self.level(ys, size)
        begin, end = -(-first // size), min(last // size, len(lows))
        if end <= begin:
            return np.arange(first, last)
        # A flag per point is faster than sorting the candidates, though there are more points than candidates.
        is_candidate = np.zeros(last - first, dtype=bool)
        is_candidate[lows[begin:end] - first] = True
        is_candidate[highs[begin:end] - first] = True
        is_candidate[: begin * size - first] = is_candidate[end * size - first :] = True
        blocks = is_candidate[begin * size - first : end * size - first].reshape(-1, size)
        cut = starts[starts % size != 0] // size - begin
        blocks[cut[(cut >= 0) & (cut < end - begin)]] = True
        return np.flatnonzero(is_candidate) + first


_BASE, _FACTOR = 16, 4
_MIN_BLOCKS = 4
"""Shorter buckets are not worth the search for blocks."""


def downsampled(xs: Any, ys: Any, max_points: int, part: slice | None = None, extremes: Extremes | None = None) -> Any:
    """The indexes of the points to keep, of many sorted by x: at most ``max_points``, with the peaks.

    Args:
        part: Only points in this part of the line.
        extremes: Those of ``ys``; makes no difference to the result.
    """
    import numpy as np

    part = slice(0, len(xs)) if part is None else part
    count = part.stop - part.start
    if count <= max_points:
        return np.arange(part.start, part.stop)
    buckets = (max_points - 2) // 2
    bounds = np.linspace(xs[part.start], xs[part.stop - 1], buckets + 1)[:-1]
    starts = _distinct(np.searchsorted(xs[part], bounds)) + part.start
    starts = starts[starts < part.stop]
    if extremes is not None and count >= _MIN_BLOCKS * _BASE * buckets:
        points = extremes.candidates(ys, part, starts)
        places = np.searchsorted(points, starts)
    else:
        points = np.arange(part.start, part.stop)
        places = starts - part.start
    heights = ys[points]
    lengths = np.diff(np.append(places, len(points)))
    kept = [np.array([part.start, part.stop - 1])]
    for pick in (np.minimum, np.maximum):
        peaks = np.flatnonzero(heights == np.repeat(pick.reduceat(heights, places), lengths))
        kept.append(points[peaks[np.searchsorted(peaks, places)]])  # the first of each bucket; every bucket has one
    return _distinct(np.sort(np.concatenate(kept)))


def _distinct(indexes: Any) -> Any:
    """The different ones of some sorted indexes, in a third of the time of `np.unique`."""
    import numpy as np

    return indexes[np.append(True, indexes[1:] != indexes[:-1])]

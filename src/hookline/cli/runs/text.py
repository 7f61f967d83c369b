"""Text for runs on a terminal: statuses, values, times, sizes, metrics and sparklines.

Recorded text is never trusted: control characters are escaped.
"""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.text import Text

from hookline._record.records import clean
from hookline._record.terminal import one_line
from hookline.store.outcomes import main_metrics, outcomes
from hookline.store.run_info import RunInfo
from hookline.store.runs import Runs

STATUS_STYLES = {
    "running": "cyan",
    "stalled": "yellow",
    "finished": "green",
    "stopped": "yellow",
    "failed": "bold red",
    "killed": "bold red",
}
_UNITS = (("d", 86400), ("h", 3600), ("min", 60))


def status_text(status: str) -> Text:
    """A status in its colour."""
    return Text(one_line(status), style=STATUS_STYLES.get(status, ""))


def number(value: Any) -> str:
    """A metric's value with four digits."""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value).replace("nan", "NaN")
    return one_line(value)


def how_long(seconds: float | None) -> str:
    """A duration in its two largest units.

    >>> how_long(5), how_long(200), how_long(90000)
    ('5 s', '3 min 20 s', '1 d 1 h')
    """
    if seconds is None:
        return "-"
    rest, parts = max(0, round(seconds)), []
    for unit, size in _UNITS:
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
            rest %= size
    parts += [f"{rest} s"] if rest or not parts else []
    return " ".join(parts[:2])


def bytes_text(count: int) -> str:
    """A size in bytes.

    >>> bytes_text(900), bytes_text(2_500_000)
    ('900 B', '2.5 MB')
    """
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


def clock_text(at: float | None) -> str:
    """A point in time, in local time."""
    if at is None:
        return "-"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, OSError, ValueError):
        return str(at)


def steps_text(info: RunInfo) -> str:
    """A run's step, with the total if it is known."""
    return f"{info.step:,}" if info.num_steps is None else f"{info.step:,}/{info.num_steps:,}"


def seconds_of(info: RunInfo, now: float) -> float | None:
    """The duration of a run, up to now if it has not ended."""
    return None if info.started is None else (info.ended or now) - info.started


def belongs_to(info: RunInfo) -> str:
    """The experiment and the arm of a run."""
    return "/".join(one_line(part) for part in (info.experiment, info.arm or info.group) if part)


def metrics_text(metrics: dict[str, Any], count: int) -> str:
    """The first few metrics with their values."""
    names = main_metrics(name for name, value in metrics.items() if isinstance(value, int | float))[:count]
    return "  ".join(f"{one_line(name)} {number(metrics[name])}" for name in names)


def run_document(info: RunInfo) -> dict[str, Any]:
    """A run's information as JSON-compatible values."""
    fields = {name: getattr(info, name) for name in info.__slots__ if name not in ("facts", "directory", "records")}
    document: dict[str, Any] = clean(fields | {"directory": str(info.directory)})
    return document


def best_by(found: Runs, name: str, mode: Literal["min", "max"]) -> Mapping[str, float]:
    """The best value of a metric in each run that has it, on any axis."""
    pick = min if mode == "min" else max
    best: dict[str, float] = {}
    for run, own in outcomes(found).items():
        values = [value for metric, it in own.items() if metric.name == name and (value := it.best(mode)) is not None]
        if values:
            best[run] = pick(values)
    return best


BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-=+*#@"


def sparkline(values: Sequence[float], marks: str = BLOCKS) -> str:
    """Draw values as characters of eight heights, from the smallest to the largest.

    >>> sparkline([0, 1, 2, 4, 8])
    '▁▂▃▅█'
    >>> sparkline([3, 3], ASCII)
    '++'
    """
    if not values:
        return ""
    low, high = min(values), max(values)
    span = high - low
    if not 0 < span < float("inf"):  # all equal, or the difference overflows
        return marks[len(marks) // 2] * len(values)
    return "".join(marks[min(len(marks) - 1, int((value - low) / span * len(marks)))] for value in values)


def marks_for(encoding: str | None = None) -> str:
    """The characters that an output can encode: blocks, or ASCII."""
    try:
        BLOCKS.encode(encoding or getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS

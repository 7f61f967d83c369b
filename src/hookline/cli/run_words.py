"""How runs, values, times and sizes are put in words for a terminal.

What was recorded is never trusted with the terminal: control characters are shown, not obeyed.
"""

import math
import re
import time
from collections.abc import Iterable
from typing import Any

from rich.text import Text

from hookline.record.records import clean
from hookline.record.terminal import one_line
from hookline.store.run_info import RunInfo

STATUS_STYLES = {
    "running": "cyan",
    "stalled": "yellow",
    "finished": "green",
    "stopped": "yellow",
    "failed": "bold red",
    "killed": "bold red",
}
_HIDDEN = re.compile(r"^([a-z_]+\d+/)?(hooks|system|memory)/")
"""What is about the machine, of the main writer or of another one, e.g. ``rank1``."""
_FIRST = ("loss", "reward", "accuracy", "acc", "score", "return", "perplexity")
_UNITS = (("d", 86400), ("h", 3600), ("min", 60))


def status_text(status: str) -> Text:
    """A status in its colour."""
    return Text(one_line(status), style=STATUS_STYLES.get(status, ""))


def number(value: Any) -> str:
    """A metric's value: four digits are enough to look at."""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value).replace("nan", "NaN")
    return one_line(value)


def how_long(seconds: float | None) -> str:
    """A length of time, in the two largest units that matter.

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
    """A size.

    >>> bytes_text(900), bytes_text(2_500_000)
    ('900 B', '2.5 MB')
    """
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


def clock_text(at: float | None) -> str:
    """A time, as the clock on the wall shows it."""
    if at is None:
        return "-"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, OSError, ValueError):
        return str(at)


def steps_text(info: RunInfo) -> str:
    """How far a run is."""
    return f"{info.step:,}" if info.num_steps is None else f"{info.step:,}/{info.num_steps:,}"


def seconds_of(info: RunInfo, now: float) -> float | None:
    """How long a run took, or takes up to now."""
    return None if info.started is None else (info.ended or now) - info.started


def belongs_to(info: RunInfo) -> str:
    """The experiment and the arm of a run."""
    return "/".join(one_line(part) for part in (info.experiment, info.arm or info.group) if part)


def main_metrics(names: Iterable[str]) -> list[str]:
    """Names of metrics, those that people look at first in front, without what is only about the machine."""
    shown = [name for name in names if not _HIDDEN.search(name)]
    return sorted(shown, key=lambda name: (_rank(name), name.count("/"), name))


def _rank(name: str) -> int:
    words = re.split(r"[/_.-]", name.lower())
    return next((place for place, word in enumerate(_FIRST) if word in words or f"{word}s" in words), len(_FIRST))


def metrics_text(metrics: dict[str, Any], count: int) -> str:
    """The first few metrics with their values."""
    names = main_metrics(name for name, value in metrics.items() if isinstance(value, int | float))[:count]
    return "  ".join(f"{one_line(name)} {number(metrics[name])}" for name in names)


def run_document(info: RunInfo) -> dict[str, Any]:
    """What is known about a run, as JSON can hold it."""
    fields = {name: getattr(info, name) for name in info.__slots__ if name not in ("facts", "directory")}
    document: dict[str, Any] = clean(fields | {"directory": str(info.directory)})
    return document

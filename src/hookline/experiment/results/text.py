"""Numbers as people read them in tables and sentences.

A difference between two arms in a sentence.
"""

import math
from typing import Literal

from hookline._engine.costs import duration
from hookline.experiment.results.statistics import Difference

NOTHING = "—"


def shown(value: float | None) -> str:
    """A number with four digits that count.

    >>> shown(0.123456), shown(1234567.0), shown(None)
    ('0.1235', '1.235e+06', '—')
    """
    return NOTHING if value is None else f"{value:.4g}"


def mean_text(mean: float | None, std: float | None) -> str:
    """A mean with its spread, both to the same decimal.

    >>> mean_text(0.84312, 0.01234), mean_text(0.84312, None), mean_text(1.0, 0.0)
    ('0.843 ± 0.012', '0.8431', '1 ± 0')
    """
    if mean is None or std is None:
        return shown(mean)
    decimals = _decimals(std)
    if decimals is None or not math.isfinite(mean) or abs(mean) >= 1e6:
        return f"{shown(mean)} ± {std:.2g}"
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def signed(value: float) -> str:
    """A difference, with its sign also where it is positive.

    >>> signed(0.5), signed(-0.25)
    ('+0.5', '-0.25')
    """
    return f"{value:+.3g}"


def time_text(seconds: float) -> str:
    """A length of time, in the units that one would say it in.

    >>> time_text(12.34), time_text(754), time_text(7260)
    ('12.3 s', '12 min 34 s', '2 h 01 min')
    """
    if seconds < 60 or not math.isfinite(seconds):
        return duration(seconds) if math.isfinite(seconds) and seconds > 0 else f"{seconds:g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def count(number: int, noun: str) -> str:
    """How many there are of something.

    >>> count(1, "run"), count(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _decimals(std: float) -> int | None:
    """The decimals that show two digits of a spread; None where that is no way to write it."""
    if not math.isfinite(std) or std == 0.0:
        return None
    decimals = 1 - math.floor(math.log10(abs(std)))
    return None if decimals > 8 else max(0, decimals)


def sentence(row: Difference, mode: Literal["min", "max"]) -> str:
    """What a difference says: which arm is better and how surely, or what it would take to know.

    >>> sentence(Difference("low", "high", "accuracy", 0.12, (0.03, 0.21), 3, 3, True, 3), "max")
    'high beats low by 0.12 (95% interval 0.03 to 0.21).'
    """
    if row.difference is None:
        without = [name for name, n in ((row.a, row.n_a), (row.b, row.n_b)) if n == 0]
        return f"{row.a} and {row.b} cannot be compared: {' and '.join(without)} has no result."
    if row.difference != row.difference:
        return f"{row.a} and {row.b} cannot be compared: not all of their results are numbers."
    if row.interval is None:
        return _once(row, mode)
    return _beats(row, mode) if row.separated else _alike(row)


def _beats(row: Difference, mode: Literal["min", "max"]) -> str:
    winner, loser, by, interval = _facing(row, mode)
    low, high = interval or (by, by)
    if low == high:
        return f"{winner} beats {loser} by {by:.3g} (the repeats of each all gave the same)."
    return f"{winner} beats {loser} by {by:.3g} (95% interval {low:.3g} to {high:.3g})."


def _alike(row: Difference) -> str:
    low, high = row.interval or (0.0, 0.0)
    observed = f"the difference is {row.difference:.3g}, its 95% interval {low:.3g} to {high:.3g}"
    said = f"{row.a} and {row.b} cannot be told apart with {_repeats(row)}: {observed}"
    if row.repeats_to_separate is None:
        return f"{said}."
    return f"{said}; about {row.repeats_to_separate:,} of each would, if difference and spread stay as they are."


def _once(row: Difference, mode: Literal["min", "max"]) -> str:
    winner, loser, by, _ = _facing(row, mode)
    said = f"{winner} came out {by:.3g} better than {loser}" if by else f"{winner} and {loser} came out alike"
    if min(row.n_a, row.n_b) > 1:
        return f"{said}; how far that can be relied on cannot be said of these values."
    return f"{said}, with {_repeats(row)}: at least 2 of each are needed to say whether that is more than chance."


def _facing(row: Difference, mode: Literal["min", "max"]) -> tuple[str, str, float, tuple[float, float] | None]:
    """The better arm first, by how much, and the interval seen from there."""
    gap, interval = row.difference or 0.0, row.interval
    winner, loser = (row.b, row.a) if (gap > 0 if mode == "max" else gap < 0) else (row.a, row.b)
    if gap < 0 and interval is not None:
        interval = (-interval[1], -interval[0])
    return winner, loser, abs(gap), interval


def _repeats(row: Difference) -> str:
    return count(row.n_a, "repeat") if row.n_a == row.n_b else f"{row.n_a} and {row.n_b} repeats"

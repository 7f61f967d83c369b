"""A difference between two arms in a sentence."""

from typing import Literal

from hookline.experiment.results.differences import Difference
from hookline.experiment.results.number_text import count


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

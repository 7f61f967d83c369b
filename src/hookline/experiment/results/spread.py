"""The values of one metric over the repeats of an arm: how many, their mean, their spread.

A value that is not a number makes the mean one that is not a number, and nothing fails of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hookline.core.values import plain


@dataclass(frozen=True, slots=True)
class Spread:
    """How many values there are, their mean, and their standard deviation (of a sample; None for a single value)."""

    n: int = 0
    mean: float | None = None
    std: float | None = None

    @property
    def variance(self) -> float | None:
        """The square of the standard deviation."""
        return None if self.std is None else self.std * self.std


def spread(values: Sequence[float]) -> Spread:
    """The spread of some values.

    >>> spread([1.0, 2.0, 3.0])
    Spread(n=3, mean=2.0, std=1.0)
    """
    if not values:
        return Spread()
    n = len(values)
    if not all(map(math.isfinite, values)):
        return Spread(n, sum(values) / n, math.nan if n > 1 else None)
    if min(values) == max(values):  # equal values have no spread, not one of rounding errors
        return Spread(n, values[0], 0.0 if n > 1 else None)
    try:
        mean = math.fsum(values) / n
        return Spread(n, mean, math.sqrt(math.fsum((value - mean) * (value - mean) for value in values) / (n - 1)))
    except OverflowError:  # of sums: what they are divided by makes them numbers again
        return Spread(n, math.fsum(value / n for value in values), math.inf)


def number(value: Any) -> float | None:
    """A metric's value as a number, or None where it is something else."""
    value = plain(value)
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf

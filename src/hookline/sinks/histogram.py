"""Distributions of numbers, for destinations that show them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

BUCKETS = 30
LARGEST = 1e150
"""Values beyond are left out: their squares are no numbers."""


def finite(values: Iterable[Any]) -> list[float]:
    """The values that a histogram can hold."""
    return [float(value) for value in values if isinstance(value, int | float) and abs(value) <= LARGEST]


def mean(values: Sequence[float]) -> float:
    """The mean of values, of which there is at least one."""
    return math.fsum(values) / len(values)


def histogram(values: Sequence[float]) -> tuple[list[int], list[float]]:
    """How many values are in each bucket, and the edges of the buckets, one more than there are buckets."""
    low, high = min(values), max(values)
    width = (high - low) / BUCKETS or 1.0
    counts = [0] * BUCKETS
    for value in values:
        counts[min(int((value - low) / width), BUCKETS - 1)] += 1
    return counts, [low + width * place for place in range(BUCKETS)] + [max(high, low + width)]

"""Mean, spread and slope of plain lists of numbers."""

import math
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of the population of at least one value; exactly 0 where all are equal."""
    if min(values) == max(values):
        return 0.0
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / len(values))


def spread(prefix: str, values: Sequence[float]) -> dict[str, float]:
    """Mean, standard deviation, minimum and maximum under names that begin alike; nothing for no values."""
    if not values:
        return {}
    facts = {"mean": mean(values), "std": deviation(values), "min": min(values), "max": max(values)}
    return {prefix + name: value for name, value in facts.items()}


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """The slope of the straight line nearest to points; None where they do not determine one."""
    if len({x for x, _ in points}) < 2:
        return None
    middle_x, middle_y = mean([x for x, _ in points]), mean([y for _, y in points])
    across = math.fsum((x - middle_x) * (y - middle_y) for x, y in points)
    return across / math.fsum((x - middle_x) ** 2 for x, _ in points)

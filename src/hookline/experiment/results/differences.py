"""Whether two arms differ by more than their repeats do: Welch's t interval of the difference of the means.

Repeats of different arms share their seeds, but a seed rarely makes a good run good in both arms: a test of pairs
would lose half of the degrees of freedom for nothing, so the arms are treated as independent samples whose spreads
may differ. Each interval stands by itself: of twenty pairs that do not differ, about one looks as if it did.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from hookline.core.state import ArmResult
from hookline.experiment.results.arm_runs import last_stage, values
from hookline.experiment.results.spread import Spread, spread
from hookline.experiment.results.student_t import quantile

CONFIDENCE = 0.95
MOST_REPEATS = 100_000


@dataclass(frozen=True, slots=True)
class Difference:
    """How much larger a metric is in one arm than in another.

    Attributes:
        difference: The mean of ``b`` less that of ``a``; None where one has none.
        interval: Where the true difference lies in 95 of 100 such intervals; None with fewer than two repeats of one.
        separated: Whether the interval excludes zero.
        repeats_to_separate: How many repeats of each would make it exclude zero, if the difference and the spread
            stay as they are; None where that cannot be said.
    """

    a: str
    b: str
    metric: str
    difference: float | None
    interval: tuple[float, float] | None
    n_a: int
    n_b: int
    separated: bool
    repeats_to_separate: int | None


def pairwise(arms: Sequence[ArmResult], names: Sequence[str], metric: str) -> list[Difference]:
    """The differences of every two of the named arms, each taken in the order in which they are named."""
    spreads = _spreads(arms, set(names), metric)
    return [_difference(a, b, metric, spreads) for a, b in combinations(names, 2)]


def against(arms: Sequence[ArmResult], first: str, others: Sequence[str], metric: str) -> list[Difference]:
    """How much larger the metric is in each of the other arms than in the first."""
    spreads = _spreads(arms, {first, *others}, metric)
    return [_difference(first, other, metric, spreads) for other in others]


def _spreads(arms: Sequence[ArmResult], names: set[str], metric: str) -> dict[str, Spread]:
    stage = last_stage(arms)
    return {arm.name: spread(values(arm, metric, stage)) for arm in arms if arm.name in names}


def _difference(a: str, b: str, metric: str, spreads: dict[str, Spread]) -> Difference:
    first, second = spreads[a], spreads[b]
    known = first.mean is not None and second.mean is not None
    gap = second.mean - first.mean if known else None  # type: ignore[operator]  # both are there
    interval = welch_interval(first, second)
    return Difference(
        a=a,
        b=b,
        metric=metric,
        difference=gap,
        interval=interval,
        n_a=first.n,
        n_b=second.n,
        separated=interval is not None and (interval[0] > 0.0 or interval[1] < 0.0),
        repeats_to_separate=repeats_to_separate(first, second),
    )


def welch_interval(a: Spread, b: Spread) -> tuple[float, float] | None:
    """The interval of the difference of two means, ``b`` less ``a``; None where the spread of one is not known."""
    if a.mean is None or b.mean is None or a.variance is None or b.variance is None:
        return None
    gap = b.mean - a.mean
    half = _half_width(a.variance, a.n, b.variance, b.n)
    return None if math.isnan(half) or not math.isfinite(gap) else (gap - half, gap + half)


def repeats_to_separate(a: Spread, b: Spread) -> int | None:
    """The smallest number of repeats of each arm whose interval would exclude zero."""
    if a.mean is None or b.mean is None or a.variance is None or b.variance is None:
        return None
    gap = abs(b.mean - a.mean)
    if not math.isfinite(gap) or not _is_enough(MOST_REPEATS, gap, a.variance, b.variance):
        return None
    low, high = 1, 2
    while not _is_enough(high, gap, a.variance, b.variance):
        low, high = high, min(2 * high, MOST_REPEATS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _is_enough(middle, gap, a.variance, b.variance) else (middle, high)
    return high


def _is_enough(repeats: int, gap: float, variance_a: float, variance_b: float) -> bool:
    return _half_width(variance_a, repeats, variance_b, repeats) < gap


def _half_width(variance_a: float, n_a: int, variance_b: float, n_b: int) -> float:
    part_a, part_b = variance_a / n_a, variance_b / n_b
    both = part_a + part_b
    if both == 0.0 or not math.isfinite(both):
        return both
    share_a, share_b = part_a / both, part_b / both
    freedom = 1.0 / (share_a * share_a / (n_a - 1) + share_b * share_b / (n_b - 1))
    return quantile(0.5 + CONFIDENCE / 2.0, freedom) * math.sqrt(both)

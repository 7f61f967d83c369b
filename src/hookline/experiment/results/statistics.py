"""Statistics of an experiment's metrics: values per arm, their spread, and differences between arms.

Only completed runs count. If there are stages, an arm is judged by its last one. Means of values that are not finite
are not finite either; nothing raises.

Differences have Welch's t interval. Repeats of different arms share their seeds, but a seed rarely makes a good run
good in both arms: a paired test would lose half of the degrees of freedom for nothing, so arms are independent samples
whose spreads may differ. Each interval stands alone: of twenty pairs that do not differ, about one looks as if it did.

`quantile` is Student's t without scipy, to better than one part in a million for any degrees of freedom.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal

from hookline._engine.errors import OptionError
from hookline._engine.metrics import plain
from hookline._engine.state import ArmResult, RunResult

Mode = Literal["min", "max"]
"""Whether smaller or larger values of a metric are better."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The number of values, their mean, and their sample standard deviation (None for a single value)."""

    n: int = 0
    mean: float | None = None
    std: float | None = None

    @property
    def variance(self) -> float | None:
        """The square of the standard deviation."""
        return None if self.std is None else self.std * self.std


def spread(values: Sequence[float]) -> Spread:
    """Compute the spread of some values.

    >>> spread([1.0, 2.0, 3.0])
    Spread(n=3, mean=2.0, std=1.0)
    """
    if not values:
        return Spread()
    n = len(values)
    if not all(map(math.isfinite, values)):
        return Spread(n, sum(values) / n, math.nan if n > 1 else None)
    if min(values) == max(values):  # avoid a spread that is only rounding error
        return Spread(n, values[0], 0.0 if n > 1 else None)
    try:
        mean = math.fsum(values) / n
        return Spread(n, mean, math.sqrt(math.fsum((value - mean) * (value - mean) for value in values) / (n - 1)))
    except OverflowError:  # of the sums: divide first
        return Spread(n, math.fsum(value / n for value in values), math.inf)


def number(value: Any) -> float | None:
    """A metric's value as a number; None if it is not one."""
    value = plain(value)
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def stages(arms: Iterable[ArmResult]) -> list[str]:
    """The names of the stages in order; empty if there are none."""
    return list(dict.fromkeys(run.stage for arm in arms for run in arm.runs if run.stage is not None))


def last_stage(arms: Iterable[ArmResult]) -> str | None:
    """The stage that arms are judged by."""
    return next(reversed(stages(arms)), None)


def completed(arm: ArmResult, stage: str | None) -> list[RunResult]:
    """The runs of an arm that completed their training."""
    return [run for run in arm.runs if run.is_trained and stage in (None, run.stage)]


def value(run: RunResult, metric: str) -> float | None:
    """A metric of a run or of its benchmarks; None if it has none or it is not a number."""
    if metric in run.metrics:
        return number(run.metrics[metric])
    return next((number(value) for name, value in _benchmark_values(run) if name == metric), None)


def values(arm: ArmResult, metric: str | None, stage: str | None) -> list[float]:
    """A metric of all completed runs of an arm that have it."""
    if metric is None:
        return []
    found = (value(run, metric) for run in completed(arm, stage))
    return [value for value in found if value is not None]


def run_metrics(run: RunResult) -> dict[str, Any]:
    """All metrics of a run, those of its benchmarks included."""
    return dict(run.metrics) | {name: given for name, given in _benchmark_values(run) if name not in run.metrics}


def metric_names(runs: Iterable[RunResult]) -> list[str]:
    """The numeric metrics of some runs, without duplicates, in order of appearance."""
    found = ((name, given) for run in runs for name, given in run_metrics(run).items())
    return list(dict.fromkeys(name for name, given in found if number(given) is not None))


def benchmark_names(runs: Iterable[RunResult]) -> list[str]:
    """The metrics of the runs' benchmarks, without duplicates."""
    return list(dict.fromkeys(name for run in runs for name, _ in _benchmark_values(run)))


def _benchmark_values(run: RunResult) -> Iterator[tuple[str, float]]:
    for result in run.evals:
        for name, given in result.metrics.items():
            yield f"{result.name}/{name}", given


_NEARLY_NORMAL = 1e4
_STEPS = 10_000


@lru_cache(maxsize=4096)
def quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t distribution.

    >>> round(quantile(0.975, 4), 3), round(quantile(0.975, math.inf), 3)
    (2.776, 1.96)

    Args:
        freedom: The degrees of freedom, not necessarily whole.
    """
    if not 0.0 < probability < 1.0:
        raise OptionError(f"probability={probability!r}: give a number between 0 and 1.")
    if not freedom > 0.0:
        raise OptionError(f"freedom={freedom!r}: give a number above 0.")
    if probability == 0.5:
        return 0.0
    size = _upper(min(probability, 1.0 - probability), freedom)
    return size if probability > 0.5 else -size


def _upper(tail: float, freedom: float) -> float:
    """The value with the given upper tail, by Newton's method.

    The tail is convex, and the normal quantile lies below that of t: from there each step approaches from the left.
    """
    value = -NormalDist().inv_cdf(tail)
    if freedom >= _NEARLY_NORMAL:
        first, second = value**3 + value, 5.0 * value**5 + 16.0 * value**3 + 3.0 * value
        return value + first / (4.0 * freedom) + second / (96.0 * freedom * freedom)
    for _ in range(_STEPS):
        step = (_tail(value, freedom) - tail) / _density(value, freedom)
        value += step
        if step <= 1e-13 * value:  # a step back is rounding: the root has been reached
            break
    return value


def _tail(value: float, freedom: float) -> float:
    """The upper tail of a non-negative value."""
    square = value * value
    if square < 2.0:  # near the middle, the central part is the accurate one
        return 0.5 - 0.5 * _incomplete_beta(square / (freedom + square), 0.5, 0.5 * freedom)
    return 0.5 * _incomplete_beta(freedom / (freedom + square), 0.5 * freedom, 0.5)


def _density(value: float, freedom: float) -> float:
    logarithm = -0.5 * (freedom + 1.0) * math.log1p(value * value / freedom) - 0.5 * math.log(freedom)
    return math.exp(logarithm - _log_beta(0.5 * freedom, 0.5))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):  # the mirror image converges faster here
        return 1.0 - _incomplete_beta(1.0 - x, b, a)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - _log_beta(a, b)) / a
    return front * _beta_fraction(x, a, b)


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    upper, lower = 1.0, _nonzero(1.0 - (a + b) * x / (a + 1.0))
    lower = 1.0 / lower
    value = lower
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        lower, upper = 1.0 / _nonzero(1.0 + even * lower), _nonzero(1.0 + even / upper)
        value *= lower * upper
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        lower, upper = 1.0 / _nonzero(1.0 + odd * lower), _nonzero(1.0 + odd / upper)
        change = lower * upper
        value *= change
        if abs(change - 1.0) < 1e-15:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300


CONFIDENCE = 0.95
MOST_REPEATS = 100_000


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a metric between two arms.

    Attributes:
        difference: The mean of ``b`` minus that of ``a``; None if one has none.
        interval: The 95% confidence interval; None with fewer than two repeats of either arm.
        separated: Whether the interval excludes zero.
        repeats_to_separate: How many repeats of each would make it exclude zero, if the difference and the spread
            stay the same; None if unknown.
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


def arm_differences(arms: Sequence[ArmResult], pairs: Sequence[tuple[str, str]], metric: str) -> list[Difference]:
    """The differences of pairs of arms, given by their names: the second minus the first."""
    stage, names = last_stage(arms), {name for pair in pairs for name in pair}
    spreads = {arm.name: spread(values(arm, metric, stage)) for arm in arms if arm.name in names}
    return [_difference(a, b, metric, spreads) for a, b in pairs]


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
    """The interval of the difference of two means, ``b`` minus ``a``; None if a spread is unknown."""
    if a.mean is None or b.mean is None or a.variance is None or b.variance is None:
        return None
    gap = b.mean - a.mean
    half = _half_width(a.variance, a.n, b.variance, b.n)
    return None if math.isnan(half) or not math.isfinite(gap) else (gap - half, gap + half)


def repeats_to_separate(a: Spread, b: Spread) -> int | None:
    """The smallest number of repeats of each arm whose interval would exclude zero, by bisection."""
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

"""The bootstrap's percentile interval of a mean: how far it might move with other tasks of the same kind.

The bootstrap draws as many scores as there are, with repetition, and takes the mean; the interval holds the given
share of such means. It is the same each time, and needs neither the libraries' random states nor NumPy.

Scores of at most two values (right or wrong) are not drawn at all: their sum is binomial, so its quantiles are exact.
That also takes a hundredth of the time. Scores that are all alike give an interval without width, which says that
nothing was seen to differ, not that nothing could.
"""

import math
import random
from collections.abc import Iterator, Sequence

from hookline.core.errors import OptionError

RESAMPLES = 1_000
SEED = 0
ROUNDING = 1e-9
"""By how much a sum of probabilities may be off, with up to a million scores."""


def bootstrap_interval(
    scores: Sequence[float], *, confidence: float = 0.95, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """The lower and the upper end of the interval.

    >>> bootstrap_interval([1.0, 0.0] * 50)
    (0.4, 0.6)

    Raises:
        OptionError: There are no scores, or one of the options is out of range.
    """
    if not scores:
        raise OptionError("scores=[]: an interval needs at least one score.")
    if not 0 < confidence < 1:
        raise OptionError(f"confidence={confidence!r}: give a number between 0 and 1, such as 0.95.")
    if resamples < 1:
        raise OptionError(f"resamples={resamples!r}: give a whole number of at least 1.")
    tail = (1 - confidence) / 2
    different = sorted(set(scores))
    if len(different) <= 2:
        return _exact(scores, different[0], different[-1], tail)
    means = sorted(_means(scores, resamples))
    return means[_place(tail, resamples)], means[_place(1 - tail, resamples)]


def mean(scores: Sequence[float]) -> float:
    """The mean, whatever the order."""
    return math.fsum(scores) / len(scores)


def _means(scores: Sequence[float], resamples: int) -> Iterator[float]:
    rng = random.Random(SEED)  # noqa: S311 - resampling, not secrets
    for _ in range(resamples):
        yield math.fsum(rng.choices(scores, k=len(scores))) / len(scores)


def _place(quantile: float, count: int) -> int:
    """The place, in ascending order, of the smallest of ``count`` values that reaches a quantile."""
    return max(0, math.ceil((quantile - ROUNDING) * count) - 1)


def _exact(scores: Sequence[float], low: float, high: float, tail: float) -> tuple[float, float]:
    """The interval for scores that are each one of two values."""
    count = len(scores)
    share = sum(score == high for score in scores) / count
    ends = (_binomial_quantile(count, share, tail), _binomial_quantile(count, share, 1 - tail))
    lower, upper = (math.fsum([low * (count - highs), high * highs]) / count for highs in ends)
    return lower, upper


def _binomial_quantile(count: int, share: float, quantile: float) -> int:
    """The smallest number of successes in ``count`` trials whose cumulative probability reaches a quantile."""
    if share in (0.0, 1.0):
        return round(count * share)
    log_success, log_failure, log_all = math.log(share), math.log1p(-share), math.lgamma(count + 1)
    reached = 0.0
    for successes in range(count):
        failures = count - successes
        ways = log_all - math.lgamma(successes + 1) - math.lgamma(failures + 1)
        reached += math.exp(ways + successes * log_success + failures * log_failure)
        if reached + ROUNDING >= quantile:
            return successes
    return count

"""Quantiles of Student's t distribution, without a package for them.

Right to better than one part in a million for every probability and every number of degrees of freedom, whole or not.
"""

import math
from functools import lru_cache
from statistics import NormalDist

from hookline.core.errors import OptionError

_NEARLY_NORMAL = 1e4
_STEPS = 10_000


@lru_cache(maxsize=4096)
def quantile(probability: float, freedom: float) -> float:
    """The value that a t distributed number stays below with a probability.

    >>> round(quantile(0.975, 4), 3), round(quantile(0.975, math.inf), 3)
    (2.776, 1.96)

    Args:
        freedom: The degrees of freedom, which need not be whole.
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
    """The value above which the given share lies, by Newton's method.

    The tail is convex, and the normal quantile lies below that of t: from there each step comes closer from the left.
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
    """How much lies above a value that is not negative."""
    square = value * value
    if square < 2.0:  # where little lies beside the middle, the middle is the exact one of the two
        return 0.5 - 0.5 * _beta_share(square / (freedom + square), 0.5, 0.5 * freedom)
    return 0.5 * _beta_share(freedom / (freedom + square), 0.5 * freedom, 0.5)


def _density(value: float, freedom: float) -> float:
    logarithm = -0.5 * (freedom + 1.0) * math.log1p(value * value / freedom) - 0.5 * math.log(freedom)
    return math.exp(logarithm - _log_beta(0.5 * freedom, 0.5))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _beta_share(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):  # where the fraction converges slowly, its mirror image does so fast
        return 1.0 - _beta_share(1.0 - x, b, a)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - _log_beta(a, b)) / a
    return front * _beta_fraction(x, a, b)


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, evaluated from its front (Lentz's method)."""
    upper, lower = 1.0, _apart(1.0 - (a + b) * x / (a + 1.0))
    lower = 1.0 / lower
    value = lower
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        lower, upper = 1.0 / _apart(1.0 + even * lower), _apart(1.0 + even / upper)
        value *= lower * upper
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        lower, upper = 1.0 / _apart(1.0 + odd * lower), _apart(1.0 + odd / upper)
        change = lower * upper
        value *= change
        if abs(change - 1.0) < 1e-15:
            break
    return value


def _apart(value: float) -> float:
    """The value, kept off zero."""
    return value if abs(value) > 1e-300 else 1e-300

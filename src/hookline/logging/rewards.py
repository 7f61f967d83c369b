"""Metrics of the values that a reward function gave for a batch.

Pure computation. None (TRL's "does not apply") and values that are not finite are left out of every
statistic, and counted. A statistic without a value to compute it from is absent.

| metric | meaning |
|---|---|
| ``count`` | values that count |
| ``missing``, ``nonfinite`` | values left out: None, and NaN or infinite |
| ``mean``, ``std``, ``min``, ``max`` | the standard deviation is the population's |
| ``zero_std_groups`` | share of groups whose values are all equal, of those with at least two that count |
| ``trend`` | slope of the mean per step, over the last points recorded |
"""

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from hookline.core.errors import OptionError
from hookline.core.values import plain
from hookline.logging.statistics import slope, spread


def reward_metrics(
    values: Any, *, groups: Sequence[Hashable] | None = None, group_size: int | None = None
) -> dict[str, float]:
    """The metrics of one reward function's values, without the trend.

    Args:
        values: Numbers or None; a list, an array or a tensor.
        groups: Which group (prompt) each value belongs to.
        group_size: How many values in a row make a group, where ``groups`` is not given.

    Raises:
        OptionError: A value that is no number, or groups that do not fit.
    """
    given = reward_values(values)
    ids = _group_ids(len(given), groups, group_size)
    counted = [value for value in given if value is not None and math.isfinite(value)]
    missing = sum(value is None for value in given)
    metrics: dict[str, float] = {"count": len(counted), "missing": missing}
    metrics["nonfinite"] = len(given) - missing - len(counted)
    metrics |= spread("", counted)
    return metrics | (_zero_std_groups(given, ids) if ids is not None else {})


def reward_values(values: Any, name: str = "values") -> list[float | None]:
    """Values as a list of numbers and None; one number is a list of one.

    Raises:
        OptionError: There is something else among them.
    """
    given = values.tolist() if hasattr(values, "tolist") else values
    given = [given] if given is None or isinstance(given, int | float) else given
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise OptionError(f"{name}={values!r:.200}: give a list of numbers.")
    numbers = [plain(each) for each in given]
    for index, number in enumerate(numbers):
        if number is not None and not isinstance(number, int | float):
            raise OptionError(f"{name}[{index}]={number!r:.200}: give a number, or None where there is none.")
    return numbers


class Trend:
    """The slope of a metric over its last points.

    Args:
        window: How many points it looks back on.
    """

    def __init__(self, window: int) -> None:
        self._points: deque[tuple[int, float]] = deque(maxlen=window)

    def add(self, step: int, value: float) -> float | None:
        """Take a point, and give the slope per step; None while there is only one step.

        A step that comes again, after a resume, takes the place of what was known from there on.
        """
        while self._points and self._points[-1][0] >= step:
            self._points.pop()
        self._points.append((step, value))
        return slope(self._points)


def _group_ids(count: int, groups: Sequence[Hashable] | None, group_size: int | None) -> list[Hashable] | None:
    if groups is not None:
        ids = groups.tolist() if hasattr(groups, "tolist") else groups
        if isinstance(ids, str) or not isinstance(ids, Sequence) or len(ids) != count:
            raise OptionError(f"groups={groups!r:.200}: give a group for each of the {count} values.")
        return list(ids)
    if group_size is None:
        return None
    if isinstance(group_size, bool) or not isinstance(group_size, int) or group_size < 1:
        raise OptionError(f"group_size={group_size!r}: give a whole number of at least 1.")
    return [index // group_size for index in range(count)]


def _zero_std_groups(values: Sequence[float | None], ids: Sequence[Hashable]) -> dict[str, float]:
    grouped: dict[Hashable, list[float]] = {}
    for value, group in zip(values, ids, strict=True):
        if value is not None and math.isfinite(value):
            grouped.setdefault(group, []).append(value)
    usable = [group for group in grouped.values() if len(group) > 1]
    if not usable:
        return {}
    return {"zero_std_groups": sum(min(group) == max(group) for group in usable) / len(usable)}

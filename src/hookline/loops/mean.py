"""The mean of metrics, of which some may still be on their way from a device."""

from collections.abc import Sequence
from typing import Any

from hookline.core.values import Deferred, plain


def mean(values: list[Any], weights: Sequence[float] | None = None) -> Any:
    """The mean of numbers, once all of them are there; of anything else the last."""
    if any(isinstance(value, Deferred) for value in values):
        return Deferred(_MeanLater(values, weights))
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return values[-1]
    if weights is None or len(set(weights)) == 1:
        return sum(values) / len(values)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


class _MeanLater:
    """The mean of values of which some are still on their way."""

    def __init__(self, values: list[Any], weights: Sequence[float] | None) -> None:
        self._values, self._weights = values, weights
        self._sources = {value.source for value in values if isinstance(value, Deferred)}
        self.arrives = all(source.arrives for source in self._sources)

    def ready(self) -> bool:
        """Whether all are there."""
        return all(source.ready() for source in self._sources)

    def number(self, index: int) -> Any:
        """The mean, waiting if need be."""
        return mean(plain(self._values), self._weights)

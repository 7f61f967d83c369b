"""What each reward function gave so far in this process, kept whether or not anything is recorded."""

import math
import threading
from collections.abc import Iterable

_lock = threading.Lock()


class Tally:
    """Counts and moments of a function's values, without keeping them."""

    def __init__(self) -> None:
        self.calls = self.errors = self.count = self.missing = self.nonfinite = self.positive = 0
        self.odd_calls = self.unrecorded = 0
        self._mean = self._squares = 0.0
        self._least, self._most = math.inf, -math.inf

    def add(self, values: Iterable[float | None]) -> int:
        """Take the values of one call; how many of them were not finite."""
        with _lock:
            before = self.nonfinite
            self.calls += 1
            for value in values:
                self._add(value)
            odd = self.nonfinite - before
            self.odd_calls += odd > 0
            return odd

    def fail(self) -> int:
        """Take a call that gave no values; how many did so by now."""
        with _lock:
            self.calls += 1
            self.errors += 1
            return self.errors

    def miss(self) -> int:
        """Take a call whose samples nobody could make out; how many there are by now."""
        with _lock:
            self.unrecorded += 1
            return self.unrecorded

    def facts(self) -> dict[str, float]:
        """The numbers by name; without a value that counts there is no mean."""
        names = ("calls", "errors", "count", "missing", "nonfinite", "positive", "unrecorded")
        with _lock:
            facts: dict[str, float] = {name: getattr(self, name) for name in names}
            if self.count:
                deviation = math.sqrt(self._squares / self.count)
                facts |= {"mean": self._mean, "std": deviation, "min": self._least, "max": self._most}
        return facts

    def _add(self, value: float | None) -> None:
        if value is None:
            self.missing += 1
        elif not math.isfinite(value):
            self.nonfinite += 1
        else:
            self.count += 1
            self.positive += value > 0
            distance = value - self._mean
            self._mean += distance / self.count
            self._squares += distance * (value - self._mean)
            self._least, self._most = min(self._least, value), max(self._most, value)


_tallies: dict[str, Tally] = {}


def tally(name: str) -> Tally:
    """The tally of the functions of a name."""
    return _tallies.setdefault(name, Tally())


def statistics() -> dict[str, dict[str, float]]:
    """What each reward function gave in this process since its start, or since `reset_statistics`.

    By function: ``calls``; ``errors``, of calls that raised or returned something wrong; ``count`` of values that
    count, ``missing`` (None) and ``nonfinite`` ones; ``positive`` ones; ``unrecorded`` calls, whose samples nobody
    could make out; and ``mean``, ``std``, ``min`` and ``max`` of the values that count.
    """
    return {name: each.facts() for name, each in list(_tallies.items())}


def reset_statistics() -> None:
    """Begin to count anew."""
    _tallies.clear()

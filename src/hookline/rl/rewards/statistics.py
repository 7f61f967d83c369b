"""Counts over rewards: `statistics` of each reward function in this process, and `accuracy` over samples.

Statistics are kept whether or not anything is recorded. `accuracy` counts right answers sample by sample, because a
mean reward is not an accuracy: it changes with the scale of the reward, with penalties for wrong answers, and with
samples that could not be scored.
"""

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hookline._engine.metrics import plain
from hookline._record.records import Record, Sample

_lock = threading.Lock()


class RunningStatistics:
    """Counts and moments of a function's values, which are not kept."""

    def __init__(self) -> None:
        self.calls = self.errors = self.count = self.missing = self.nonfinite = self.positive = 0
        self.nonfinite_calls = self.unrecorded = 0
        self._mean = self._squares = 0.0
        self._min, self._max = math.inf, -math.inf

    def add(self, values: Iterable[float | None]) -> int:
        """Add the values of one call; returns how many were NaN or infinite."""
        with _lock:
            before = self.nonfinite
            self.calls += 1
            for value in values:
                if value is None:
                    self.missing += 1
                elif not math.isfinite(value):
                    self.nonfinite += 1
                else:
                    self.count += 1
                    self.positive += value > 0
                    distance = value - self._mean  # Welford's algorithm
                    self._mean += distance / self.count
                    self._squares += distance * (value - self._mean)
                    self._min, self._max = min(self._min, value), max(self._max, value)
            nonfinite = self.nonfinite - before
            self.nonfinite_calls += nonfinite > 0
            return nonfinite

    def add_error(self) -> int:
        """Count a call that failed; returns the number of failures so far."""
        with _lock:
            self.calls += 1
            self.errors += 1
            return self.errors

    def add_unrecorded(self) -> int:
        """Count a call whose samples could not be recognized; returns the number of such calls so far."""
        with _lock:
            self.unrecorded += 1
            return self.unrecorded

    def as_dict(self) -> dict[str, float]:
        """Return the numbers by name; moments are left out if there are no values."""
        names = ("calls", "errors", "count", "missing", "nonfinite", "positive", "unrecorded")
        with _lock:
            numbers: dict[str, float] = {name: getattr(self, name) for name in names}
            if self.count:
                deviation = math.sqrt(self._squares / self.count)
                numbers |= {"mean": self._mean, "std": deviation, "min": self._min, "max": self._max}
        return numbers


_by_function: dict[str, RunningStatistics] = {}


def statistics_of(name: str) -> RunningStatistics:
    """Return the statistics of the reward functions with a name."""
    return _by_function.setdefault(name, RunningStatistics())


def statistics() -> dict[str, dict[str, float]]:
    """Return the statistics of each reward function in this process, since its start or `reset_statistics`.

    By function: ``calls``; ``errors``, calls that raised or returned invalid values; the ``count`` of finite values,
    ``missing`` (None) and ``nonfinite`` ones; ``positive`` ones; ``unrecorded`` calls, whose samples could not be
    recognized; and ``mean``, ``std``, ``min`` and ``max`` of the finite values.
    """
    return {name: each.as_dict() for name, each in list(_by_function.items())}


def reset_statistics() -> None:
    """Reset the statistics of all reward functions."""
    _by_function.clear()


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Counts of right and wrong answers.

    Attributes:
        unscored: Samples without a finite reward, which count neither as right nor as wrong.
    """

    right: int = 0
    wrong: int = 0
    unscored: int = 0

    @property
    def total(self) -> int:
        """The number of scored samples."""
        return self.right + self.wrong

    @property
    def value(self) -> float | None:
        """The share of right answers among the scored samples; None if there are none."""
        return self.right / self.total if self.total else None

    def __add__(self, other: "Accuracy") -> "Accuracy":
        return Accuracy(self.right + other.right, self.wrong + other.wrong, self.unscored + other.unscored)


def accuracy(
    samples: Iterable[Any], *, function: str = "correctness", above: float = 0.0, axis: str | None = None
) -> Accuracy:
    """Count the right answers among samples: those whose reward for correctness is above a limit.

    >>> accuracy([2.0, 0.0, 2.0, None])
    Accuracy(right=2, wrong=1, unscored=1)

    Args:
        samples: Records, as returned by ``hl.read(directory)``, of which only samples are used; rows with ``rewards``;
            rollouts; or the rewards themselves.
        function: The name of the reward function that distinguishes right from wrong.
        above: A reward above this counts as a right answer.
        axis: Count only "train" or "eval" samples; None counts all.
    """
    right = wrong = unscored = 0
    for sample in samples:
        if isinstance(sample, Record) and not isinstance(sample, Sample):
            continue
        if axis is not None and _field(sample, "axis", "train") != axis:
            continue
        rewards = _field(sample, "rewards", None)
        reward = plain(rewards.get(function) if isinstance(rewards, Mapping) else sample)
        if not isinstance(reward, int | float) or not math.isfinite(float(reward)):
            unscored += 1
        elif reward > above:
            right += 1
        else:
            wrong += 1
    return Accuracy(right, wrong, unscored)


def _field(sample: Any, name: str, default: Any) -> Any:
    return sample.get(name, default) if isinstance(sample, Mapping) else getattr(sample, name, default)

"""`Scoring`: one call of a reward function, and what becomes of its result.

What each reward function gave so far in this process, kept whether or not anything is recorded.

How many answers are right, counted sample by sample.

A mean reward divided by a constant is no such count: it changes with the constant, with penalties for wrong answers,
and with samples that could not be scored.
"""

import logging
import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from hookline._engine.metrics import plain
from hookline._record.records import Record, Sample
from hookline.rl.rewards.batch import Batch, Call, Values, read
from hookline.rl.rewards.recording import Join, should_log

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


logger = logging.getLogger("hookline")

OnError = Literal["raise", "skip"]
ERROR_LENGTH = 1000
"""How much of an exception's text is recorded."""


class Scoring:
    """A call from its beginning to what is given back.

    Args:
        arguments: What the function is called with, by name.
        expected: The column that holds the right answers.
    """

    def __init__(
        self, name: str, on_error: OnError, join: Join, arguments: Mapping[str, Any], expected: str | None
    ) -> None:
        self._name, self._on_error, self._join = name, on_error, join
        self._batch: Batch | None = None
        try:
            call = Call.of(arguments, expected)
            self._batch = None if call is None else join.begin(name, call)
        except Exception as error:  # arguments that nobody foresaw: the function may know what to do with them
            if should_log(tally(name).miss()):
                logger.warning("%s: what this reward function scores cannot be recorded: %r", name, error)

    @property
    def _count(self) -> int | None:
        return None if self._batch is None else len(self._batch.call.completions)

    def finish(self, result: Any) -> Any:
        """Record what the function returned, and give it back."""
        try:
            handed_on, values = read(result, self._name, self._count)
        except Exception as error:
            return self.give_up(error)
        self._end(values)
        odd = tally(self._name).add(values)
        if not odd:
            return handed_on
        self._warn_of_values(odd, len(values))
        return _without_nonfinite(values) if self._on_error == "skip" else handed_on

    def give_up(self, error: BaseException) -> Values:
        """Record that the function failed; the error goes on, or None takes the place of each value."""
        if not isinstance(error, Exception):
            self._end(None, failed=True)
            raise error
        goes_on = self._on_error == "skip" and self._count is not None
        errors = tally(self._name).fail()
        self._end(None, error=_told(error), failed=not goes_on)
        if should_log(errors):
            self._warn_of(error, goes_on, errors)
        return [None] * (self._count or 0) if goes_on else _raise(error)

    def _end(self, values: Values | None, *, error: str | None = None, failed: bool = False) -> None:
        if self._batch is not None:
            self._join.end(self._batch, self._name, values, error=error, failed=failed)

    def _warn_of(self, error: Exception, goes_on: bool, errors: int) -> None:
        text = "%s: this reward function failed at step %s (%d failures so far)%s: %s"
        step = "?" if self._batch is None else self._batch.step
        what = " and gives None for the whole batch" if goes_on else ""
        logger.warning(text, self._name, step, errors, what, _told(error))

    def _warn_of_values(self, odd: int, count: int) -> None:
        if should_log(tally(self._name).odd_calls):
            what = "None is given instead" if self._on_error == "skip" else "they are handed on as they are"
            logger.warning("%s: %d of %d rewards are NaN or infinite; %s.", self._name, odd, count, what)


def _without_nonfinite(values: Values) -> Values:
    return [value if value is not None and math.isfinite(value) else None for value in values]


def _told(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:ERROR_LENGTH]
    except Exception:  # an exception that cannot be told must not take the place of itself
        return type(error).__name__


def _raise(error: Exception) -> NoReturn:
    raise error


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Counts of answers.

    Attributes:
        unscored: Samples that the function gave nothing for, or no finite number: they are neither right nor wrong.
    """

    right: int = 0
    wrong: int = 0
    unscored: int = 0

    @property
    def total(self) -> int:
        """How many were scored."""
        return self.right + self.wrong

    @property
    def value(self) -> float | None:
        """The share of right answers among those that were scored; None where none was."""
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
        samples: Records, as ``hl.read(directory)`` gives them, of which those that are no samples are passed over;
            rows with ``rewards``; rollouts; or the rewards themselves.
        function: The reward function that tells right from wrong.
        above: A reward above this is that of a right answer.
        axis: Count only "train" or "eval" samples; all of them where it is None.
    """
    right = wrong = unscored = 0
    for sample in samples:
        if isinstance(sample, Record) and not isinstance(sample, Sample):
            continue
        if axis is not None and _field(sample, "axis", "train") != axis:
            continue
        reward = _reward(sample, function)
        if reward is None or not math.isfinite(reward):
            unscored += 1
        elif reward > above:
            right += 1
        else:
            wrong += 1
    return Accuracy(right, wrong, unscored)


def _reward(sample: Any, function: str) -> float | None:
    rewards = _field(sample, "rewards", None)
    value = plain(rewards.get(function) if isinstance(rewards, Mapping) else sample)
    return float(value) if isinstance(value, int | float) else None


def _field(sample: Any, name: str, default: Any) -> Any:
    return sample.get(name, default) if isinstance(sample, Mapping) else getattr(sample, name, default)

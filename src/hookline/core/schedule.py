"""When a subscriber is due, in completed counts of the moment's axis.

A schedule answers two questions: `due()` (now?) and `next()` (from which count on is it worth
asking again?). The second lets the engine skip a subscriber that is not due without calling
anything. Schedules combine with ``&``, ``|`` and ``~``.

>>> schedule = Every(10) & ~At(20)
>>> [count for count in range(1, 41) if schedule.due(count)]
[10, 30, 40]
"""

import copy
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from hookline.core.errors import OptionError

NEVER = 2**63


class Schedule(ABC):
    """Decides at which counts a subscriber is due. Subclasses give `due` and, if they can, `next`."""

    @abstractmethod
    def due(self, count: int, subject: Any = None) -> bool:
        """Whether ``count`` is one; ``subject`` is the moment's first argument."""

    def next(self, count: int) -> int:
        """The first count after ``count`` that may be due."""
        return count + 1

    def settle(self, count: int, subject: Any = None) -> bool:
        """Decide, and remember a count that was due."""
        answer = self.due(count, subject)
        if answer:
            self.fired(count)
        return answer

    def fired(self, count: int) -> None:  # noqa: B027 - most schedules have nothing to remember
        """Told once for each count that was due, so that `Once` and `Seconds` can remember."""

    def copy(self) -> "Schedule":
        """The same schedule with a memory of its own."""
        return copy.copy(self)

    @staticmethod
    def together(schedules: "Sequence[Schedule]") -> "Schedule":
        """The schedule that is due when all of them are."""
        return functools.reduce(_All, schedules)

    def __and__(self, other: "Schedule") -> "Schedule":
        return _All(self, other)

    def __or__(self, other: "Schedule") -> "Schedule":
        return _Any(self, other)

    def __invert__(self) -> "Schedule":
        return _Not(self)


class Every(Schedule):
    """Every ``n`` completed steps, after the first ``start`` of them.

    >>> [count for count in range(1, 50) if Every(10, start=20).due(count)]
    [30, 40]
    """

    def __init__(self, n: int, start: int = 0) -> None:
        self.n = _whole("every", n, least=1)
        self.start = _whole("start", start, least=0)

    def due(self, count: int, subject: Any = None) -> bool:
        return count > self.start and count % self.n == 0

    def next(self, count: int) -> int:
        passed = max(count, self.start)
        return passed + self.n - passed % self.n

    def __repr__(self) -> str:
        return f"Every({self.n})" if not self.start else f"Every({self.n}, start={self.start})"


class At(Schedule):
    """At these counts and no others."""

    def __init__(self, *counts: int) -> None:
        self.counts = frozenset(_whole("at", count, least=0) for count in counts)

    def due(self, count: int, subject: Any = None) -> bool:
        return count in self.counts

    def next(self, count: int) -> int:
        return min((at for at in self.counts if at > count), default=NEVER)

    def __repr__(self) -> str:
        return f"At({', '.join(map(str, sorted(self.counts)))})"


class Once(Schedule):
    """The first time that it is asked, and never again in this process."""

    def __init__(self) -> None:
        self.done = False

    def due(self, count: int, subject: Any = None) -> bool:
        return not self.done

    def next(self, count: int) -> int:
        return NEVER if self.done else count + 1

    def fired(self, count: int) -> None:
        self.done = True

    def __repr__(self) -> str:
        return "Once()"


class Seconds(Schedule):
    """At the first opportunity after each ``interval`` seconds."""

    def __init__(self, interval: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        if not isinstance(interval, int | float) or isinstance(interval, bool) or not interval > 0:
            raise OptionError(f"Seconds({interval!r}): give a number of seconds above 0.")
        self.interval = interval
        self.clock = clock
        self.last: float | None = None

    def due(self, count: int, subject: Any = None) -> bool:
        now = self.clock()
        if self.last is None:
            self.last = now
        return now - self.last >= self.interval

    def fired(self, count: int) -> None:
        self.last = self.clock()

    def __repr__(self) -> str:
        return f"Seconds({self.interval})"


class When(Schedule):
    """Whenever ``predicate(loop)`` is true; asked right before the subscriber would be called."""

    def __init__(self, predicate: Callable[[Any], object]) -> None:
        if not callable(predicate):
            raise OptionError(f"when={predicate!r}: give a function that takes the loop and returns a bool.")
        self.predicate = predicate

    def due(self, count: int, subject: Any = None) -> bool:
        return bool(self.predicate(subject))

    def __repr__(self) -> str:
        return f"When({getattr(self.predicate, '__name__', self.predicate)})"


class _Pair(Schedule):
    sign = ""

    def __init__(self, left: Schedule, right: Schedule) -> None:
        for side in (left, right):
            if not isinstance(side, Schedule):
                raise OptionError(f"{side!r} cannot be combined with a schedule; give Every, At, Seconds, When, ...")
        self.left, self.right = left, right

    def fired(self, count: int) -> None:
        self.left.fired(count)
        self.right.fired(count)

    def copy(self) -> Schedule:
        return type(self)(self.left.copy(), self.right.copy())

    def __repr__(self) -> str:
        return f"({self.left!r} {self.sign} {self.right!r})"


class _All(_Pair):
    sign = "&"

    def settle(self, count: int, subject: Any = None) -> bool:
        # What is negated decides last: only then may it remember that its inside was due.
        sides = (self.left, self.right)
        straight = [side for side in sides if not isinstance(side, _Not)]
        negated = [side for side in sides if isinstance(side, _Not)]
        if not all(side.due(count, subject) for side in straight):
            return False
        if not all(side.settle(count, subject) for side in negated):
            return False
        for side in straight:
            side.fired(count)
        return True

    def due(self, count: int, subject: Any = None) -> bool:
        return self.left.due(count, subject) and self.right.due(count, subject)

    def next(self, count: int) -> int:
        return max(self.left.next(count), self.right.next(count))


class _Any(_Pair):
    sign = "|"

    def settle(self, count: int, subject: Any = None) -> bool:
        answers = [side.settle(count, subject) for side in (self.left, self.right)]
        return any(answers)

    def due(self, count: int, subject: Any = None) -> bool:
        return self.left.due(count, subject) or self.right.due(count, subject)

    def next(self, count: int) -> int:
        return min(self.left.next(count), self.right.next(count))


class _Not(Schedule):
    def __init__(self, inner: Schedule) -> None:
        self.inner = inner

    def due(self, count: int, subject: Any = None) -> bool:
        return not self.inner.due(count, subject)

    def settle(self, count: int, subject: Any = None) -> bool:
        return not self.inner.settle(count, subject)

    def copy(self) -> Schedule:
        return _Not(self.inner.copy())

    def __repr__(self) -> str:
        return f"~{self.inner!r}"


def cadence(
    every: "int | Schedule | None", start: int = 0, when: Callable[[Any], object] | None = None
) -> Schedule | None:
    """The schedule that the options ``every``, ``start`` and ``when`` describe together; None if always due."""
    parts: list[Schedule] = [every] if isinstance(every, Schedule) else [] if every is None else [Every(every, start)]
    if _whole("start", start, least=0) and not isinstance(every, int):
        parts.append(Every(1, start))
    if when is not None:
        parts.append(When(when))
    return Schedule.together(parts) if parts else None


class Gate:
    """A schedule's decision for one subscriber on one axis, made once per count.

    All moments of a step (its start, its batches, its end) get the same answer, so that a
    subscriber never sees an end without its start.
    """

    __slots__ = ("answer", "axis", "key", "schedule")

    def __init__(self, schedule: Schedule, axis: str) -> None:
        self.schedule, self.axis = schedule, axis
        self.key: object = None
        self.answer = False

    def __call__(self, count: int, subject: Any) -> bool:
        key = self._key(count, subject)
        if key is None or key != self.key:
            self.key, self.answer = key, False
            self.answer = self.schedule.settle(count, subject)
        return self.answer

    def _key(self, count: int, subject: Any) -> object:
        """What an answer holds for; None where each question is a new one."""
        if self.axis == "validation":  # counted from zero in each validation: the step tells those apart
            return count, getattr(subject, "step", None)
        return None if self.axis == "hook" else count


def _whole(what: str, value: object, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{what}={value!r}: give a whole number of at least {least}.")
    return value

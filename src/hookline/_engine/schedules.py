"""Schedules: when a subscriber is due, in completed counts of the moment's axis.

A schedule answers two questions: `due()` (at this count?) and `next()` (the first later count that may be due). The
second lets the engine skip a subscriber without calling anything. Schedules combine with ``&``, ``|`` and ``~``.

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

from hookline._engine.checks import require_integer, require_number
from hookline._engine.errors import OptionError

NEVER = 2**63
_UNDECIDED = object()


class Schedule(ABC):
    """Decides at which counts a subscriber is due. Subclasses define `due` and, if they can, `next`."""

    @abstractmethod
    def due(self, count: int, subject: Any = None) -> bool:
        """Return whether ``count`` is due; ``subject`` is the moment's first argument."""

    def next(self, count: int) -> int:
        """Return the first count after ``count`` that may be due."""
        # Always safe: asking too often costs time, a count that is skipped is lost.
        return count + 1

    def settle(self, count: int, subject: Any = None) -> bool:
        """Decide for a count, and call `fired` if it is due."""
        # Deciding and remembering are apart: in a combination a part may be due when the whole is not, and must stay
        # due.
        answer = self.due(count, subject)
        if answer:
            self.fired(count)
        return answer

    def _parts_due(self, count: int, subject: Any = None) -> "list[Schedule] | None":
        """Return the parts whose `fired` to call if the whole schedule is due; None if this one is not due."""
        return [self] if self.due(count, subject) else None

    def _begin(self) -> None:  # noqa: B027 - most schedules count, and have no clock to start
        """Called before the first decision, so that `Seconds` can start its clock; may be called again."""

    def fired(self, count: int) -> None:  # noqa: B027 - most schedules have nothing to remember
        """Called once for each count that was due, so that `Once` and `Seconds` can remember it."""

    def copy(self) -> "Schedule":
        """Return the same schedule with its own memory."""
        return copy.copy(self)

    @staticmethod
    def together(schedules: "Sequence[Schedule]") -> "Schedule":
        """Combine schedules into one that is due when all of them are."""
        return functools.reduce(_All, schedules)

    def __and__(self, other: "Schedule") -> "Schedule":
        return _All(self, other)

    def __or__(self, other: "Schedule") -> "Schedule":
        return _Any(self, other)

    def __invert__(self) -> "Schedule":
        return _Not(self)


class Every(Schedule):
    """Every ``n`` completed steps, after the first ``start`` steps.

    >>> [count for count in range(1, 50) if Every(10, start=20).due(count)]
    [30, 40]
    """

    def __init__(self, n: int, start: int = 0) -> None:
        self.n = require_integer("every", n)
        self.start = require_integer("start", start, minimum=0)

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
        self.counts = frozenset(require_integer("at", count, minimum=0) for count in counts)

    def due(self, count: int, subject: Any = None) -> bool:
        return count in self.counts

    def next(self, count: int) -> int:
        return min((at for at in self.counts if at > count), default=NEVER)

    def __repr__(self) -> str:
        return f"At({', '.join(map(str, sorted(self.counts)))})"


class Once(Schedule):
    """The first time, and never again in this process."""

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
    """At the first opportunity after each ``interval`` seconds, counted from the first moment that it schedules."""

    def __init__(self, interval: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval = require_number("interval", interval, above=0)
        self.clock = clock
        self.last: float | None = None

    def _begin(self) -> None:
        # Only the first time: after a reset of the gate the interval continues.
        if self.last is None:
            self.last = self.clock()

    def due(self, count: int, subject: Any = None) -> bool:
        now = self.clock()
        if self.last is None:
            self.last = now
        return now - self.last >= self.interval

    def fired(self, count: int) -> None:
        self.last = self.clock()

    def __repr__(self) -> str:
        return f"Seconds({self.interval:g})"


class When(Schedule):
    """Whenever ``predicate(loop)`` is true; evaluated right before the subscriber would be called."""

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

    def settle(self, count: int, subject: Any = None) -> bool:
        # Only the parts that were due are notified: a Once that did not contribute must not count as used.
        parts = self._parts_due(count, subject)
        for schedule in parts or ():
            schedule.fired(count)
        return parts is not None

    def _begin(self) -> None:
        self.left._begin()
        self.right._begin()

    def fired(self, count: int) -> None:
        self.left.fired(count)
        self.right.fired(count)

    def copy(self) -> Schedule:
        # copy.copy would share the sides, and with them their memory.
        return type(self)(self.left.copy(), self.right.copy())

    def __repr__(self) -> str:
        return f"({self.left!r} {self.sign} {self.right!r})"


class _All(_Pair):
    sign = "&"

    def __init__(self, left: Schedule, right: Schedule) -> None:
        super().__init__(left, right)
        # A negated part remembers while it decides. It decides last, so that it remembers only if all others are due.
        parts = [part for side in (left, right) for part in (side.parts if isinstance(side, _All) else [side])]
        self.parts: list[Schedule] = sorted(parts, key=_negates)

    def _parts_due(self, count: int, subject: Any = None) -> list[Schedule] | None:
        found: list[Schedule] = []
        for part in self.parts:
            due = part._parts_due(count, subject)
            if due is None:
                return None
            found += due
        return found

    def due(self, count: int, subject: Any = None) -> bool:
        return self.left.due(count, subject) and self.right.due(count, subject)

    def next(self, count: int) -> int:
        # All must be due, so nothing can happen before the latest of them.
        return max(self.left.next(count), self.right.next(count))


class _Any(_Pair):
    sign = "|"

    def _parts_due(self, count: int, subject: Any = None) -> list[Schedule] | None:
        # Both sides are asked, without a short cut: each that is due must remember, e.g. restart its interval.
        left, right = self.left._parts_due(count, subject), self.right._parts_due(count, subject)
        return None if left is None and right is None else (left or []) + (right or [])

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
        # The inner schedule remembers although the whole is not due: otherwise ~Once() would be false for ever.
        return not self.inner.settle(count, subject)

    def _parts_due(self, count: int, subject: Any = None) -> list[Schedule] | None:
        return [] if self.settle(count, subject) else None

    def _begin(self) -> None:
        self.inner._begin()

    def copy(self) -> Schedule:
        return _Not(self.inner.copy())

    def __repr__(self) -> str:
        return f"~{self.inner!r}"


def _negates(schedule: Schedule) -> bool:
    """Whether a part of it remembers while it decides."""
    if isinstance(schedule, _Pair):
        return _negates(schedule.left) or _negates(schedule.right)
    return isinstance(schedule, _Not)


def cadence(
    every: "int | Schedule | None", start: int = 0, when: Callable[[Any], object] | None = None
) -> Schedule | None:
    """Return the schedule of the options ``every``, ``start`` and ``when`` together; None if always due."""
    parts: list[Schedule] = [every] if isinstance(every, Schedule) else [] if every is None else [Every(every, start)]
    # Checked first, also where it is part of `Every` already: a bad value is refused whatever `every` is.
    if require_integer("start", start, minimum=0) and (every is None or isinstance(every, Schedule)):
        parts.append(Every(1, start))
    if when is not None:
        parts.append(When(when))
    return Schedule.together(parts) if parts else None


class Gate:
    """A schedule's decision for one subscriber on one axis, made once per count.

    All moments of a step (its start, its batches, its end) get the same answer, so a subscriber never sees an end
    without its start.
    """

    __slots__ = ("answer", "axis", "key", "schedule")

    def __init__(self, schedule: Schedule, axis: str) -> None:
        self.schedule, self.axis = schedule, axis
        self.key: object = _UNDECIDED
        self.answer = False

    def __call__(self, count: int, subject: Any) -> bool:
        key = self._key(count, subject)
        if key is None or key != self.key:
            # `Seconds` after an `Every` may be asked much later; its interval begins with the first question to the
            # gate.
            if self.key is _UNDECIDED:
                self.schedule._begin()
            # Set before asking: a predicate that raises is not due for the rest of the count, instead of raising at
            # each moment.
            self.key, self.answer = key, False
            self.answer = self.schedule.settle(count, subject)
        return self.answer

    def next(self, count: int) -> int:
        """Return the first count after ``count`` that may be due."""
        return self.schedule.next(count)

    def reset(self) -> None:
        """Decide again even at the latest count: after a resume its step is repeated."""
        self.key, self.answer = _UNDECIDED, False

    def _key(self, count: int, subject: Any) -> object:
        """Return the key that an answer is valid for; None if every call is decided again."""
        if self.axis == "validation":  # counted from zero in each validation: the step distinguishes them
            return count, getattr(subject, "step", None)
        # Each run of a manager's hooks is a decision of its own, also twice at one step.
        return None if self.axis == "hook" else count


class RowGate(Gate):
    """The gate of `on_log`: a row of the current step gets that step's answer; other rows do not change it.

    Args:
        step: The gate of the other moments on the axis.
    """

    __slots__ = ("step",)

    def __init__(self, step: Gate) -> None:
        super().__init__(step.schedule, step.axis)
        self.step = step

    def __call__(self, count: int, subject: Any) -> bool:
        if count == self.step.key:
            return self.step.answer
        # The row may come before any other moment of its step. Deciding in the step's gate makes both agree.
        if count == getattr(subject, "step", count) + bool(getattr(subject, "in_step", False)):
            return self.step(count, subject)
        # A row of another step is decided apart: it must not overwrite the answer that the step's end still needs.
        return super().__call__(count, subject)

    def next(self, count: int) -> int:
        following, current = self.schedule.next(count), self.step.key
        if self.step.answer and isinstance(current, int) and current > count:  # its own row is still to come
            return min(following, current)
        return following

"""`Abuser`: works through a plan of faults, some of them at the same time."""

import time
from collections import Counter
from dataclasses import dataclass, field

from soak.faults import Arena, Fault
from soak.plan import Plan

PATIENCE_SECONDS = 20.0
"""How long a fault waits for a session to record rows before it is injected anyway."""


@dataclass
class Abuser:
    """Begins and ends faults when they are due.

    Attributes:
        counts: How often each fault came.
        story: What was done when, in words.
    """

    arena: Arena
    plan: Plan
    patience_seconds: float = PATIENCE_SECONDS
    counts: Counter = field(default_factory=Counter)
    story: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._planned = iter(self.plan)
        self._began = 0.0
        self._under_way: list[tuple[float, Fault]] = []

    def begin(self) -> None:
        """Begin to count the time."""
        self._began = time.monotonic()
        self._turn()

    def tick(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        for entry in [entry for entry in self._under_way if self._is_over(*entry, now)]:
            self._under_way.remove(entry)
            entry[1].end(self.arena)
            self._due = max(self._due, now + self._next.pause_seconds) if entry[1].is_alone else self._due  # type: ignore[has-type]
        for _, fault in self._under_way:
            fault.hold(self.arena)
        if now >= self._due and not self._must_wait(now):
            self._begin()

    def do(self, fault: Fault) -> None:
        """Begin a fault, and note it."""
        done = fault.begin(self.arena)
        self.counts[fault.name] += 1
        self.story.append(f"{time.monotonic() - self._began:7.1f} s  {fault.name}: {done}")

    def end_all(self) -> None:
        """Make everything good again."""
        for _, fault in self._under_way:
            fault.end(self.arena)
        self._under_way = []

    @property
    def under_way(self) -> list[str]:
        return [fault.name for _, fault in self._under_way]

    def _must_wait(self, now: float) -> bool:
        fault = self._next.fault
        if any(other.is_alone or other.name == fault.name or fault.is_alone for _, other in self._under_way):
            return True
        if any(getattr(other, "server", "") == getattr(fault, "server", None) for _, other in self._under_way):
            return True
        if fault.waits_for_steps and not self.arena.layout.has_begun:
            return True
        needs_steps = fault.waits_for_steps and now < self._due + self.patience_seconds
        supervisor = self.arena.supervisor
        return needs_steps and (supervisor.pid is None or supervisor.rows_acknowledged() < max(1, self._next.rows))

    def _is_over(self, due: float, fault: Fault, now: float) -> bool:
        return now >= due and (fault.may_end(self.arena) or now >= due + self.patience_seconds)

    def _begin(self) -> None:
        planned = self._next
        self.do(planned.fault)
        if planned.seconds:
            self._under_way.append((time.monotonic() + planned.seconds, planned.fault))
        self._turn()

    def _turn(self) -> None:
        self._next = next(self._planned)
        self._due = time.monotonic() + self._next.pause_seconds

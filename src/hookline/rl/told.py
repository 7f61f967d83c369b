"""`Told`: what hooks have logged themselves lately, so that one that logs and returns the same is recorded once."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from hookline.core.hook_results import HookValue

STEPS = 32
"""For so many steps it is known what was logged: a hook on another thread may return later than it logs."""


class Entry(NamedTuple):
    """A value that was logged."""

    step: int
    axis: str | None
    value: Any

    def covers(self, step: int) -> bool:
        """Whether it was logged for this step; an evaluation on another thread is, at the step that is current then."""
        return self.step == step or (self.axis == "eval" and self.step > step)


class Told:
    """The values that were logged in the last steps, by name."""

    def __init__(self) -> None:
        self._steps: deque[dict[str, list[Entry]]] = deque([{}], maxlen=STEPS)
        self._paused_on: int | None = None

    def next_step(self) -> None:
        """Begin a step, and forget the oldest one."""
        self._steps.append({})

    def note(self, step: int, metrics: dict[str, Any], axis: str | None) -> None:
        """Keep what is logged."""
        if threading.get_ident() != self._paused_on:
            for name, value in dict.items(metrics):  # without waiting for those on a device
                self._steps[-1].setdefault(name, []).append(Entry(step, axis, value))

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What this thread logs meanwhile is no hook's."""
        self._paused_on = threading.get_ident()
        try:
            yield
        finally:
            self._paused_on = None

    def has(self, given: HookValue) -> bool:
        """Whether a value was logged under one of its names."""
        entries = [entry for told in self._steps for name in (given.key, given.name) for entry in told.get(name, ())]
        return any(entry.covers(given.step) and _same(entry.value, given.value) for entry in entries)


def _same(told: Any, value: Any) -> bool:
    return told is value or (isinstance(value, str | int | float) and type(told) is type(value) and told == value)

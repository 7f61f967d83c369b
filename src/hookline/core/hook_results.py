"""What hooks gave, until somebody takes it: each value with its hook, its step and its name.

A hook on another thread gives its results when it has them, which may be steps later. None of them is lost and none
takes another's place. The names of one step are settled when they are taken: a key that two hooks give is the first
one's, and ``<hook's name>/<key>`` for the other, also where one of the two comes later from another thread.
"""

import threading
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class HookResult(NamedTuple):
    """What one hook gave at one step; ``is_late`` says that it came from another thread."""

    hook: str
    step: int
    values: dict[str, Any]
    is_late: bool


class HookValue(NamedTuple):
    """One value of a result, and the name it has among those of its step."""

    hook: str
    step: int
    key: str
    name: str
    value: Any


class HookResults:
    """The results of a manager's hooks; they may be added on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[HookResult] = []
        self._owners: dict[str, HookResult] = {}

    def add(self, result: HookResult) -> None:
        """Keep a result until it is taken."""
        with self._lock:
            self._waiting.append(result)

    def take(self) -> list[HookValue]:
        """The values since the last time, each with its step: first those of the asking thread, then the others."""
        with self._lock:
            results, self._waiting = self._waiting, []
        taken: set[tuple[int, str]] = set()
        values = []
        for result in sorted(results, key=lambda result: result.is_late):
            for key, value in dict.items(result.values):  # without waiting for those on a device
                is_anothers = (result.step, key) in taken or self._is_anothers(key, result)
                name = f"{result.hook}/{key}" if is_anothers else key
                taken.add((result.step, name))
                values.append(HookValue(result.hook, result.step, key, name, value))
        return values

    def _is_anothers(self, key: str, result: HookResult) -> bool:
        """Whether the key is that of another hook whose value of this step may have come before, or may come yet."""
        owner = self._owners.setdefault(key, result._replace(values={}))
        return owner.hook != result.hook and (owner.is_late or result.is_late)


def merged(values: Iterable[HookValue]) -> dict[str, Any]:
    """All values in one dict: the newest of each hook by its name, earlier ones as ``<hook's name>/<key>@<step>``."""
    found: dict[str, Any] = {}
    newest: set[tuple[str, str]] = set()
    for each in sorted(values, key=lambda each: each.step, reverse=True):
        name = each.name if (each.hook, each.key) not in newest else f"{each.hook}/{each.key}@{each.step}"
        newest.add((each.hook, each.key))
        found[_free(name, f"{each.hook}/{each.key}", found)] = each.value
    return found


def _free(name: str, other: str, taken: Mapping[str, Any]) -> str:
    """The name, or where it is taken the other one, with a number if need be."""
    if name not in taken:
        return name
    number, free = 1, other
    while free in taken:
        number += 1
        free = f"{other}_{number}"
    return free

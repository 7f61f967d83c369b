"""Metrics that are reduced over the processes of a run: what each asked for, and what comes of it.

The processes need not log the same names, nor log at the same steps: what each has is exchanged where they
meet anyway, and a name is reduced over those that logged it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hookline.core.errors import OptionError
from hookline.core.values import plain

Asked = dict[str, tuple[str, Any]]
"""By name: how to reduce it, and this process's value."""


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


REDUCTIONS: Mapping[str, Callable[[list[float]], float]] = {"mean": _mean, "sum": sum, "min": min, "max": max}


NOT_REDUCED = "none"
"""Says that each process's own value is recorded."""


class Reductions:
    """What this process logged for reduction since the processes last met."""

    def __init__(self) -> None:
        self._asked: Asked = {}

    def __bool__(self) -> bool:
        return bool(self._asked)

    @staticmethod
    def takes(reduce: Any, world_size: int) -> bool:
        """Whether there is something to reduce over.

        Raises:
            OptionError: There is no such reduction.
        """
        if reduce not in REDUCTIONS:
            known = ", ".join(map(repr, (*REDUCTIONS, NOT_REDUCED)))
            raise OptionError(f"log(reduce={reduce!r}): give {known}, or leave it out.")
        return world_size > 1

    def add(self, metrics: Mapping[str, Any], reduce: str) -> None:
        """Keep values until the processes meet; of several under one name the last counts."""
        items = dict.items(metrics) if isinstance(metrics, dict) else metrics.items()
        self._asked.update({name: (reduce, value) for name, value in items})

    def take(self) -> Asked:
        """Hand over what was kept, as plain numbers."""
        asked, self._asked = self._asked, {}
        return {name: (reduce, plain(value)) for name, (reduce, value) in asked.items()}


def reduced(everyones: Iterable[Asked]) -> dict[str, Any]:
    """Each name reduced over the processes that have it; of what is no number the first."""
    gathered: dict[str, tuple[str, list[Any]]] = {}
    for asked in everyones:
        for name, (reduce, value) in asked.items():
            gathered.setdefault(name, (reduce, []))[1].append(value)
    return {name: _reduce(reduce, values) for name, (reduce, values) in gathered.items()}


def _reduce(reduce: str, values: list[Any]) -> Any:
    numbers = all(isinstance(value, int | float) for value in values)
    return REDUCTIONS[reduce](values) if numbers else values[0]

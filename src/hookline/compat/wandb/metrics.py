"""`define_metric`: sets a metric's x-axis and the value that the summary shows.

A definition holds for a name or, as ``val/*``, for all names that begin so. The definition of the name itself wins;
of several patterns, the longest. A metric with a ``step_metric`` gets that metric's last value in its row where the
row has none.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from hookline._engine.metrics import Deferred
from hookline.compat.wandb.errors import Error

SUMMARIES = ("min", "max", "mean", "best", "last", "copy", "none", "first")
GOALS = ("minimize", "maximize")


@dataclass(frozen=True)
class Metric:
    """A definition of a metric, as `define_metric` returns it.

    Attributes:
        name: The metric's name, or the beginning of names with ``*`` at its end.
        step_metric: The metric on its x-axis.
        step_sync: Whether the last value of the x-axis is added to rows that have none.
        hidden: Whether charts leave it out.
        summary: What the summary shows: ``min``, ``max``, ``mean``, ``best``, ``first``, ``last``, ``copy``, ``none``.
        goal: Whether ``best`` is the smallest or the largest value.
    """

    name: str
    step_metric: str | None = None
    step_sync: bool | None = None
    hidden: bool | None = None
    summary: tuple[str, ...] | None = None
    goal: str | None = None

    @classmethod
    def from_plain(cls, fields: Mapping[str, Any]) -> "Metric":
        """Return the definition in plain data; malformed entries are left out."""
        texts = {key: fields[key] for key in ("name", "step_metric", "goal") if isinstance(fields.get(key), str)}
        flags = {key: fields[key] for key in ("step_sync", "hidden") if isinstance(fields.get(key), bool)}
        shown = fields.get("summary")
        summary = tuple(each for each in shown if each in SUMMARIES) if isinstance(shown, list | tuple) else None
        return cls(**texts, **flags, summary=summary)

    def merged(self, earlier: "Metric | None") -> "Metric":
        """Return this definition, completed by the earlier one."""
        if earlier is None:
            return self
        own = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(earlier, **own)


def checked_metric(
    name: Any, step_metric: Any, step_sync: Any, hidden: Any, summary: Any, goal: Any, overwrite: Any
) -> Metric:
    """Return the definition for the arguments of `define_metric`.

    Raises:
        Error: An argument is not accepted.
    """
    if not name:
        raise Error("define_metric() requires non-empty name argument")
    step_metric = step_metric.name if isinstance(step_metric, Metric) else step_metric
    texts = {"name": name, "step_metric": step_metric, "summary": summary, "goal": goal}
    flags = {"step_sync": step_sync, "hidden": hidden, "overwrite": overwrite}
    for given, kind in ((texts, str), (flags, bool)):
        for each, value in given.items():
            if value is not None and not isinstance(value, kind):
                raise Error(f"Unhandled define_metric() arg: {each} type: {type(value).__name__}")
    if "*" in name.removesuffix("*"):
        raise Error(f"Unhandled define_metric() arg: name (glob suffixes only): {name}")
    shown = tuple(summary.lower().split(",")) if summary else None
    for each in shown or ():
        if each not in SUMMARIES:
            raise Error(f"Unhandled define_metric() arg: summary op: {each}")
    if goal is not None and goal not in GOALS:
        raise Error(f"Unhandled define_metric() arg: goal: {goal}")
    synced = step_metric is not None if step_sync is None else step_sync
    return Metric(name, step_metric, synced or None, hidden, shown, goal)


class Definitions:
    """The definitions of a run."""

    def __init__(self) -> None:
        self._by_name: dict[str, Metric] = {}
        self._globs: list[Metric] = []
        self._found: dict[str, Metric | None] = {}
        self._steps: dict[str, str | None] = {}
        self.have_summaries = False
        """Whether a definition selects the summary's value."""

    def __bool__(self) -> bool:
        return bool(self._by_name or self._globs)

    def __iter__(self) -> Iterator[Metric]:
        yield from self._by_name.values()
        yield from self._globs

    def add(self, metric: Metric, *, overwrite: bool) -> None:
        """Add a definition: in place of an earlier one of the same name, or merged with it."""
        self._found.clear()
        self._steps.clear()
        is_glob = metric.name.endswith("*")
        known = {each.name: each for each in self._globs} if is_glob else self._by_name
        known[metric.name] = metric if overwrite else metric.merged(known.get(metric.name))
        if is_glob:
            self._globs = sorted(known.values(), key=lambda each: len(each.name), reverse=True)
        self.have_summaries = any(each.summary for each in self)

    def find(self, name: str) -> Metric | None:
        """Return the definition that holds for a metric."""
        try:
            return self._found[name]
        except KeyError:
            globs = (each for each in self._globs if name.startswith(each.name[:-1]))
            found = self._found[name] = self._by_name.get(name) or next(globs, None)
            return found

    def missing_steps(self, row: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of x-axes that a row lacks.

        Args:
            row: The row.
            last: The last value of each metric.
        """
        try:
            steps = {self._steps[name] for name in row}
        except KeyError:
            steps = {self._step_of(name) for name in row}
        return {step: last.get(step, 0) for step in steps if step is not None and step not in row}

    def _step_of(self, name: str) -> str | None:
        metric = self.find(name)
        found = self._steps[name] = metric.step_metric if metric is not None and metric.step_sync else None
        return found

    def plain(self) -> list[dict[str, Any]]:
        """Return all definitions as plain data, for the record."""
        return [{key: value for key, value in asdict(each).items() if value is not None} for each in self]


class Statistics:
    """The statistics of one metric's numbers; those that are not finite are left out."""

    def __init__(self) -> None:
        self.first: Any = None
        self.last: Any = None
        self.low, self.high = math.inf, -math.inf
        self._total, self._count = 0.0, 0

    def add(self, value: Any) -> None:
        """Add a value."""
        value = value.get() if type(value) is Deferred else value
        if value is None:
            return
        self.first = value if self.first is None else self.first
        self.last = value
        if isinstance(value, int | float) and math.isfinite(value):
            self.low, self.high = min(self.low, value), max(self.high, value)
            self._total += value
            self._count += 1

    def shown(self, metric: Metric) -> Any:
        """Return the summary's values of the metric; None for none."""
        kinds = metric.summary or ("copy",)
        if "none" in kinds:
            return None
        if "copy" in kinds:
            return self.last
        best = self.high if metric.goal == "maximize" else self.low
        numbers = {"min": self.low, "max": self.high, "mean": self._total / max(1, self._count), "best": best}
        values = numbers if self._count else {}
        values |= {"first": self.first, "last": self.last}
        return {kind: values[kind] for kind in kinds if kind in values and values[kind] is not None} or None

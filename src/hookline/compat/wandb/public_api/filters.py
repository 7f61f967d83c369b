"""Filters and orders of ``Api.runs``: those of MongoDB that wandb accepts.

    {"config.lr": {"$gt": 1e-4}, "tags": {"$in": ["baseline"]}, "$or": [{"state": "finished"}, {"group": "a"}]}

A field is a fact of the run (``state``, ``display_name``, ``group``, ``jobType``, ``tags``, ``created_at``, ...), a
setting (``config.lr``, ``config.lr.value``), or a value of the summary (``summary_metrics.acc``).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from hookline._engine.errors import closest
from hookline.compat.wandb.errors import UsageError

MISSING = object()
"""Stands for a field that a run does not have."""
_ALIASES = {
    "displayName": "display_name",
    "jobType": "job_type",
    "createdAt": "created_at",
    "heartbeatAt": "heartbeat_at",
    "username": "user",
    "user.username": "user",
    "summaryMetrics": "summary",
    "summary_metrics": "summary",
    "sweep.name": "sweep",
    "description": "notes",
    "name": "id",
}
_TIMES = ("created_at", "heartbeat_at")


class Described(Protocol):
    """A run, as filters look at it."""

    def fact(self, name: str) -> Any:
        """Return a fact, or `MISSING`."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Its settings."""

    @property
    def summary_values(self) -> Mapping[str, Any]:
        """The values of its summary."""


def matches(run: Described, filters: Mapping[str, Any]) -> bool:
    """Return whether a run satisfies a filter.

    Raises:
        UsageError: The filter has an unknown operator.
    """
    for key, wanted in filters.items():
        if key in ("$and", "$or", "$nor"):
            found = [matches(run, each) for each in _listed(key, wanted)]
            fits = all(found) if key == "$and" else any(found) if key == "$or" else not any(found)
        elif key == "$not":
            fits = not matches(run, wanted)
        elif key.startswith("$"):
            raise UsageError(f"The filter has the operator {key!r}. {closest(key, ['$and', '$or', '$nor', '$not'])}")
        else:
            fits = _fits(field(run, key), wanted, is_time=_ALIASES.get(key, key) in _TIMES)
        if not fits:
            return False
    return True


def field(run: Described, name: str) -> Any:
    """Return the value of a field of a run, or `MISSING`."""
    name = _ALIASES.get(name, name)
    kind, _, rest = name.partition(".")
    kind = _ALIASES.get(kind, kind)
    if kind == "config" and rest:
        found = _inside(run.config, rest)
        return found if found is not MISSING else _inside(run.config, rest.removesuffix(".value"))
    if kind == "summary" and rest:
        return _inside(run.summary_values, rest)
    return run.fact(name)


def _inside(values: Any, path: str) -> Any:
    """Return a value by its path; names may have dots themselves."""
    if not isinstance(values, Mapping):
        return MISSING
    if path in values:
        return values[path]
    for position, letter in enumerate(path):
        if letter == "." and path[:position] in values:
            found = _inside(values[path[:position]], path[position + 1 :])
            if found is not MISSING:
                return found
    return MISSING


def _fits(value: Any, wanted: Any, *, is_time: bool) -> bool:
    if isinstance(wanted, re.Pattern):
        return isinstance(value, str) and wanted.search(value) is not None
    if not isinstance(wanted, Mapping) or not any(str(key).startswith("$") for key in wanted):
        return _equals(value, wanted, is_time)
    for operator, operand in wanted.items():
        if operator == "$not":
            if _fits(value, operand, is_time=is_time):
                return False
            continue
        if operator == "$options":  # belongs to $regex
            continue
        test = _OPERATORS.get(operator)
        if test is None:
            raise UsageError(f"The filter has the operator {operator!r}. {closest(str(operator), _OPERATORS)}")
        if operator == "$regex" and "i" in str(wanted.get("$options", "")):
            operand = f"(?i){operand}"
        if not test(value, operand, is_time):
            return False
    return True


def _equals(value: Any, wanted: Any, is_time: bool) -> bool:
    if value is MISSING:
        return wanted is None
    if isinstance(value, list | tuple) and not isinstance(wanted, list | tuple):
        return wanted in value  # a list such as tags: one element has to match
    if is_time:
        return _time(value) == _time(wanted)
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)


def _compared(test: Callable[[Any, Any], bool]) -> Callable[[Any, Any, bool], bool]:
    def compare(value: Any, operand: Any, is_time: bool) -> bool:
        if value is MISSING or value is None or operand is None:
            return False
        left, right = (_time(value), _time(operand)) if is_time else (value, operand)
        try:
            return bool(test(left, right))
        except TypeError:  # a text and a number
            return False

    return compare


def _is_in(value: Any, operand: Any, is_time: bool) -> bool:
    return any(_equals(value, each, is_time) for each in _listed("$in", operand))


def _has_pattern(value: Any, operand: Any, is_time: bool) -> bool:
    return isinstance(value, str) and re.search(str(operand), value) is not None


_OPERATORS: dict[str, Callable[[Any, Any, bool], bool]] = {
    "$eq": _equals,
    "$ne": lambda value, operand, is_time: not _equals(value, operand, is_time),
    "$gt": _compared(lambda left, right: left > right),
    "$gte": _compared(lambda left, right: left >= right),
    "$lt": _compared(lambda left, right: left < right),
    "$lte": _compared(lambda left, right: left <= right),
    "$in": _is_in,
    "$nin": lambda value, operand, is_time: not _is_in(value, operand, is_time),
    "$exists": lambda value, operand, is_time: (value is not MISSING) == bool(operand),
    "$regex": _has_pattern,
}


def _listed(operator: str, given: Any) -> Sequence[Any]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UsageError(f"{operator}: {given!r:.200} is not a list.")
    return list(given)


def _time(value: Any) -> float:
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, datetime):
        return value.timestamp()
    try:
        return datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()
    except ValueError:
        raise UsageError(f"{value!r:.80} is not a time. Give one in ISO form, e.g. '2026-11-19T12:00:00'.") from None


def ordered(runs: Sequence[Any], order: str | None) -> list[Any]:
    """Return runs in an order: ``+created_at``, ``-summary_metrics.acc``, ...; those without a value come last."""
    text = order or "+created_at"
    is_descending, name = text.startswith("-"), text.lstrip("+-")
    found = [(field(run, name), run) for run in runs]
    there = [(value, run) for value, run in found if value is not MISSING and value is not None and value == value]
    gone = [run for value, run in found if value is MISSING or value is None or value != value]
    there.sort(key=lambda pair: _sort_key(pair[0]), reverse=is_descending)
    return [run for _, run in there] + gone


def _sort_key(value: Any) -> tuple[int, Any]:
    if isinstance(value, bool | int | float):
        return 0, float(value)
    return 1, str(value)

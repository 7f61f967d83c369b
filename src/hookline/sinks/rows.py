"""Converts records for destinations: to flat rows for tables, and to histograms."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from hookline._engine.errors import OptionError, closest
from hookline._record.reader import MAIN, JournalEntry
from hookline._record.records import AnyRecord

KINDS = tuple(str(kind.__struct_config__.tag) for kind in get_args(AnyRecord))
BUCKETS = 30
MOST_MAGNITUDE = 1e150
"""Larger values are left out of histograms: their squares overflow."""
_FIRST = ("step", "axis", "time")
_RESERVED = (*_FIRST, "writer")


def require_kinds(given: Iterable[str] | str) -> tuple[str, ...]:
    """Check the names of kinds of records."""
    kinds = (given,) if isinstance(given, str) else tuple(given)
    for kind in kinds:
        if kind not in KINDS:
            raise OptionError(f"{kind!r} is not a kind of record. {closest(kind, KINDS)}")
    return kinds


def flat_row(entry: JournalEntry) -> dict[str, Any]:
    """The fields of a record in one dict, with nested names joined by ``/``; metrics keep their own names.

    ``writer`` is included unless it is the run's main one. A metric named like one of these columns becomes
    ``values/<name>``.
    """
    record = entry.record
    flat = {name: getattr(record, name) for name in _FIRST if hasattr(record, name)}
    if entry.file.name != MAIN:
        flat["writer"] = entry.file.name
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name in ("values", "extra") and isinstance(value, Mapping):
            _flatten(flat, "", {f"{name}/{key}" if key in _RESERVED else key: item for key, item in value.items()})
        elif isinstance(value, Mapping):
            _flatten(flat, f"{name}/", value)
        elif name not in _FIRST:
            flat[name] = value
    return flat


def _flatten(flat: dict[str, Any], prefix: str, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            _flatten(flat, f"{prefix}{key}/", value)
        else:
            flat.setdefault(prefix + key, value)


def finite(values: Iterable[Any]) -> list[float]:
    """The numbers that a histogram can hold."""
    return [float(value) for value in values if isinstance(value, int | float) and abs(value) <= MOST_MAGNITUDE]


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return math.fsum(values) / len(values)


def histogram(values: Sequence[float]) -> tuple[list[int], list[float]]:
    """The number of values in each bucket, and the edges of the buckets, of which there is one more."""
    low, high = min(values), max(values)
    width = (high - low) / BUCKETS or 1.0
    counts = [0] * BUCKETS
    for value in values:
        counts[min(int((value - low) / width), BUCKETS - 1)] += 1
    return counts, [low + width * index for index in range(BUCKETS)] + [max(high, low + width)]

"""A record as one flat row of named values, for tables."""

from collections.abc import Mapping
from typing import Any

from hookline.record.reader import MAIN, Parcel

_FIRST = ("step", "axis", "time")
_OURS = (*_FIRST, "writer")


def row(parcel: Parcel) -> dict[str, Any]:
    """The fields of a record, with what is nested in them joined by ``/``; metrics go by their own names.

    The writer stands in it where it is not the run's main one. A metric called like one of our own
    columns is ``values/step``.
    """
    record = parcel.record
    flat = {name: getattr(record, name) for name in _FIRST if hasattr(record, name)}
    if parcel.file.name != MAIN:
        flat["writer"] = parcel.file.name
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name in ("values", "extra") and isinstance(value, Mapping):
            _join(flat, "", {f"{name}/{key}" if key in _OURS else key: item for key, item in value.items()})
        elif isinstance(value, Mapping):
            _join(flat, f"{name}/", value)
        elif name not in _FIRST:
            flat[name] = value
    return flat


def _join(flat: dict[str, Any], prefix: str, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            _join(flat, f"{prefix}{key}/", value)
        else:
            flat.setdefault(prefix + key, value)

"""Changes to a configuration, by dotted paths: what grids and stages make of an arm's settings.

The configuration itself is never changed: every change gives a new one, checked as if it had been made that way.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hookline.core.errors import OptionError, closest
from hookline.record.description import fields_of


def changed(config: Any, changes: Mapping[str, Any]) -> Any:
    """The configuration with values put in at their paths.

    >>> changed({"train": {"lr": 1.0, "steps": 5}}, {"train.lr": 0.1})
    {'train': {'lr': 0.1, 'steps': 5}}

    Raises:
        OptionError: There is no such setting, or it does not accept the value.
    """
    for path, value in changes.items():
        config = _put(config, path.split("."), value, path)
    return config


def _put(inside: Any, parts: list[str], value: Any, path: str) -> Any:
    part, rest = parts[0], parts[1:]
    if isinstance(inside, Mapping):
        return {**inside, part: _put(inside.get(part, {}), rest, value, path) if rest else value}
    fields = fields_of(inside)
    if part not in fields:
        raise OptionError(f"{path}={value!r}: {_unknown(inside, part, path)}")
    new = _put(fields[part], rest, value, path) if rest else value
    return type(inside)(**{**fields, part: new})


def _unknown(inside: Any, part: str, path: str) -> str:
    if inside is None:
        return f"what {path.rpartition('.')[0]!r} stands for is None; give all of it."
    deeper = [other for other in paths_in(inside) if other.rpartition(".")[2] == part]
    known = closest(part, fields_of(inside)) if not deeper else f"Did you mean {deeper[0]!r}?"
    return f"{type(inside).__name__} has no {part!r}. {known}"


def paths_in(config: Any) -> Iterator[str]:
    """The dotted paths of all settings in structs inside structs."""
    for name, value in fields_of(config).items():
        yield name
        yield from (f"{name}.{deeper}" for deeper in paths_in(value))

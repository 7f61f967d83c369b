"""Settings in layers, an arm's on top of a base's, that know where in their file each of them stands.

Mappings of two layers are merged; any other value takes the place of what lies below it. An error about a merged value
is told at the place that the value came from: in the arm, in the base, or on the command line.
"""

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hookline._engine.errors import ConfigError
from hookline.config.sources import Source
from hookline.config.structs import COMMAND_LINE

_NOTHING = object()


@dataclass(frozen=True, slots=True)
class ExperimentSource(Source):
    """A file, with the paths that the command line set, or made on the way to what it set."""

    overrides: Sequence[str] = ()

    def error(self, path: str, message: str) -> ConfigError:
        """An error at a path: of the command line, where that set what stands there."""
        at = parts_of(path)
        if any(at[: len(names)] == names for names in map(parts_of, self.overrides)):
            return COMMAND_LINE.error(path, message)
        return Source(self.data, self.file, self._lines_with(path)).error(path, message)

    def _lines_with(self, path: str) -> Mapping[str, int]:
        """The lines, with that of a path that is only the beginning of a dotted one in the file."""
        beneath = (line for place, line in self.lines.items() if place.startswith(f"{path}."))
        return self.lines if path in self.lines else {path: next(beneath, 0)}


@dataclass(frozen=True, slots=True)
class Layer:
    """Some settings.

    Attributes:
        origin: The path in the file that they stand at.
        at: Where they go in what they are settings of.
    """

    values: Any
    origin: str
    at: tuple[str, ...] = ()

    def tree(self) -> Any:
        """The settings from the top."""
        return functools.reduce(lambda inner, part: {part: inner}, reversed(self.at), self.values)

    def place(self, parts: tuple[str, ...]) -> str | None:
        """Where a path of the merged settings stands in the file; None where it does not come from here."""
        depth = len(self.at)
        if len(parts) < depth:
            return self.origin if parts and parts == self.at[: len(parts)] else None
        if parts[:depth] != self.at or not _has(self.values, parts[depth:]):
            return None
        return self.origin + "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in parts[depth:])


@dataclass(frozen=True, slots=True)
class LayeredSource(Source):
    """Layers of settings, the first one at the bottom, as what errors point into."""

    source: ExperimentSource = field(default_factory=lambda: ExperimentSource({}))
    layers: Sequence[Layer] = ()

    def error(self, path: str, message: str) -> ConfigError:
        """An error at a path of the merged settings, told at its place in the file."""
        places = (layer.place(parts_of(path)) for layer in reversed(self.layers))
        return self.source.error(next((place for place in places if place is not None), path), message)


def merged(layers: Sequence[Layer]) -> Any:
    """The settings of all layers in one."""
    return functools.reduce(_merge, (layer.tree() for layer in layers))


def expanded(values: Mapping[Any, Any], source: Source, path: str, *, names: Collection[str] = ()) -> dict[Any, Any]:
    """Settings by dotted paths as nested mappings.

    >>> expanded({"train.lr": 0.1, "train": {"steps": 5}}, Source({}), "arms.low")
    {'train': {'lr': 0.1, 'steps': 5}}

    Args:
        names: The keys of mappings by names, which may have dots.

    Raises:
        ConfigError: Two of them are about one setting.
    """
    made: dict[Any, Any] = {}
    for key, value in values.items():
        parts = key.split(".") if isinstance(key, str) else [key]
        inside = expanded_each if key in names else _expanded
        _enter(made, parts, inside(value, source, f"{path}.{key}"), source, f"{path}.{key}")
    return made


def expanded_each(given: Any, source: Source, path: str) -> Any:
    """Settings by names, each of them expanded; anything else as it is."""
    if not isinstance(given, Mapping):
        return given
    return {name: _expanded(value, source, f"{path}.{name}") for name, value in given.items()}


def first_missing(values: Any, path: str) -> str:
    """The shortest part of a dotted path from its start that values do not have, or the path where they have it.

    >>> first_missing({"arms": {"low": None}}, "arms.low.train.lr")
    'arms.low.train'
    """
    parts = path.split(".")
    for length, part in enumerate(parts, 1):
        values = _inside(values, part)
        if values is _NOTHING:
            return ".".join(parts[:length])
    return path


def parts_of(path: str) -> tuple[str, ...]:
    """The parts of a path such as ``stages[1].train.callbacks[0]``; an index is one too."""
    return tuple(part for part in re.sub(r"\[(\d+)\]", r".\1", path).split(".") if part)


def _expanded(value: Any, source: Source, path: str) -> Any:
    return expanded(value, source, path) if isinstance(value, Mapping) else value


def _enter(made: dict[Any, Any], parts: list[Any], value: Any, source: Source, path: str) -> None:
    """Put a value in, where nothing stands yet."""
    part, rest = parts[0], parts[1:]
    if not rest and part not in made:
        made[part] = value
        return
    inside = made.setdefault(part, {})
    if not isinstance(inside, dict) or not (rest or isinstance(value, dict)):
        raise source.error(path, "is given twice, by its path and inside a mapping.")
    for keys, each in [(rest, value)] if rest else [([key], each) for key, each in value.items()]:
        _enter(inside, keys, each, source, path)


def _merge(below: Any, above: Any) -> Any:
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: _merge(below[key], value) if key in below else value for key, value in above.items()}}


def _inside(values: Any, part: str) -> Any:
    """What stands at a key, or at the index of a list; nothing is not None, which a file can say."""
    if isinstance(values, list):
        return values[int(part)] if part.isdecimal() and int(part) < len(values) else _NOTHING
    return values.get(part, _NOTHING) if isinstance(values, Mapping) else _NOTHING


def _has(values: Any, parts: tuple[str, ...]) -> bool:
    if not parts:
        return True
    if isinstance(values, Mapping):
        return parts[0] in values and _has(values[parts[0]], parts[1:])
    return isinstance(values, list) and parts[0].isdecimal() and int(parts[0]) < len(values)

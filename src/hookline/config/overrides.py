"""Configuration files for a worker's entry: a file, with overrides from the command line on top.

Errors name the file, and its line where that is known, or the command line; the path; what was given and what is
accepted. Nothing is read from the environment.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hookline._engine.errors import ConfigError, closest
from hookline.config.sources import Entries, Source, read_source, yaml_loader
from hookline.config.structs import COMMAND_LINE, OverriddenSource, Parts, dotted, to_struct

T = TypeVar("T")

READ_LATER = ("callbacks", "sinks")
"""Lists whose entries are looked up when training is put together: by then names may have been registered."""
SUFFIXES = (".json", ".toml", ".yaml", ".yml")
_SCALARS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float")}


def load_config(path: str | Path, kind: type[T], arguments: Sequence[str] = ()) -> T:
    """A file with the overrides of a command line on top, as a struct."""
    source = read_config_source(path)
    paths = [path for path, _ in parse_overrides(arguments)]
    place = OverriddenSource({}, source.file, source.lines, paths)
    values = {key: _placed(value, (key,), place) for key, value in overridden(source.data, arguments).items()}
    return to_struct(values, kind, source=source, overridden=paths)


def read_config(path: str | Path) -> dict[str, Any]:
    """What a file holds; its suffix says how it is written."""
    return dict(read_config_source(path).data)


def parse_overrides(arguments: Sequence[str]) -> list[tuple[str, Any]]:
    """Paths and values from ``train.epochs=3``, ``--train.epochs=3`` and ``--train.epochs 3``.

    A value in quotes, brackets or braces is YAML; any other is null, true, a number or text.

    >>> parse_overrides(["train.lr=1e-4", "--sizes", "[1, 2]", "--files=*.txt"])
    [('train.lr', 0.0001), ('sizes', [1, 2]), ('files', '*.txt')]
    """
    pairs = []
    remaining = iter(arguments)
    for argument in remaining:
        key, equals, text = argument.removeprefix("--").partition("=")
        path = re.sub(r"\[(\d+)\]", r".\1", key.strip())
        if path.startswith("-") or not all(path.split(".")) or not (equals or argument.startswith("--")):
            raise COMMAND_LINE.error("", f"{argument!r} is no override: give train.epochs=3 or --train.epochs 3.")
        if not equals:
            text = next(remaining, "--")
            if text.startswith("--"):
                raise COMMAND_LINE.error(path, f"a value is needed: give {argument}=VALUE.")
        pairs.append((path, _value(path, text)))
    return pairs


def overridden(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The values with overrides put in, the last one winning; what was given stays as it is.

    Mappings on a path are made where there are none; an item of a list goes by its index: ``callbacks.0.patience=3``.
    """
    changed = dict(values)
    for path, value in parse_overrides(overrides):
        changed = _put(changed, tuple(path.split(".")), value)
    return changed


def read_config_source(path: str | Path) -> Source:
    """What a file holds, a mapping, and where in the file each of its values stands."""
    path = Path(path)
    if not path.exists():
        names = [each.name for each in path.parent.glob("*") if each.suffix in SUFFIXES]
        hint = closest(path.name, names) if names else f"{path.parent.resolve()} has none."
        raise ConfigError(f"{path}: there is no such configuration file. {hint}")
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: the suffix {path.suffix!r} was given, {', '.join(SUFFIXES)} are accepted.")
    source = read_source(path)
    if source.data is None:
        return replace(source, data={})
    if not isinstance(source.data, Mapping):
        raise source.error("", f"{source.data!r:.200} was given, a mapping is needed at the top.")
    return source


def _placed(value: Any, parts: Parts, source: Source) -> Any:
    """A value in which lists that are read later, when they are used, know where they stand."""
    if isinstance(value, Mapping):
        return {key: _placed(item, (*parts, key), source) for key, item in value.items()}
    return Entries(value, source, dotted(parts)) if isinstance(value, list) and parts[-1] in READ_LATER else value


def _value(path: str, text: str) -> Any:
    """An override's value; a plain one is never a comment, an alias or a mapping, whatever signs it has."""
    import yaml

    text = text.strip()
    try:
        if text.startswith(("[", "{", '"', "'")):
            return yaml.load(text, Loader=yaml_loader())  # noqa: S506 - a safe loader
        loader = yaml_loader()("")
        tag = loader.resolve(yaml.ScalarNode, text, (True, False))
        return loader.construct_object(yaml.ScalarNode(tag, text)) if tag in _SCALARS else text
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or error
        raise COMMAND_LINE.error(path, f"{text} was given, which is not valid YAML: {problem}.") from error


def _put(inside: Any, parts: Parts, value: Any, before: Parts = ()) -> Any:
    """A copy of ``inside`` with a value at a path."""
    if not parts:
        return value
    part, rest, path = parts[0], parts[1:], (*before, parts[0])
    if inside is None or isinstance(inside, Mapping):
        inside = inside or {}
        key = next((known for known in inside if str(known) == part), part)  # YAML has keys that are no text
        return {**inside, key: _put(inside.get(key), rest, value, path)}
    if not isinstance(inside, list):
        message = f"{dotted(before)} is {inside!r:.200}, which is neither a mapping nor a list."
        raise COMMAND_LINE.error(dotted((*before, *parts)), message)
    if not part.isdecimal() or int(part) >= len(inside):
        message = f"{dotted(before)} is a list of {len(inside)}: {part!r} was given, an index below that is accepted."
        raise COMMAND_LINE.error(dotted((*before, *parts)), message)
    index = int(part)
    return [*inside[:index], _put(inside[index], rest, value, path), *inside[index + 1 :]]

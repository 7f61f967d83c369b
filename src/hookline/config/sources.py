"""Reads YAML, TOML and JSON files, with the line of each value in a YAML file, and layers settings.

Nothing in a file is run. A key given twice is an error. In YAML ``1e-4`` is a number without quotes and text with
them, and dates are text.

A layer lies on another: an arm's settings on a base's, a command line's on a file's. Mappings of two layers are merged;
any other value replaces the one below. An error about a merged value points to the layer that the value came from.
"""

import functools
import json
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hookline._engine.errors import ConfigError, closest
from hookline._engine.factories import COMMAND_LINE, Source, join_path, split_path

SUFFIXES = (".json", ".toml", ".yaml", ".yml")

_EXPONENT = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")
_MISSING = object()  # None is a value that a file can give
_YAML_SCALARS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float")}


def read_source(source: Any) -> Source:
    """Read a YAML, TOML or JSON file, or wrap a dict or a list."""
    if isinstance(source, Mapping | list | tuple):
        return Source(source)
    if not isinstance(source, str | Path):
        raise ConfigError(f"{source!r} is not a configuration: give a path, a dict or a list.")
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start}).") from error
    read = {".json": _read_json, ".toml": _read_toml}.get(path.suffix, _read_yaml)
    return read(text, str(path))


def read_config_source(path: str | Path) -> Source:
    """Read a file with a mapping at the top; an empty file is an empty mapping."""
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


def read_config(path: str | Path) -> dict[str, Any]:
    """Read the values of a file with a mapping at the top."""
    return dict(read_config_source(path).data)


def _read_json(text: str, file: str) -> Source:
    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        read: dict[str, Any] = {}
        for key, value in pairs:
            if key in read:
                raise ConfigError(f"{file}: {key} is given twice.")
            read[key] = value
        return read

    try:
        return Source(json.loads(text, object_pairs_hook=without_duplicates), file)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}:{error.lineno}: not valid JSON: {error.msg}.") from error


def _read_toml(text: str, file: str) -> Source:
    try:
        return Source(tomllib.loads(text), file)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        raise ConfigError(f"{file}{f':{line[1]}' if line else ''}: not valid TOML: {error}.") from error


def _read_yaml(text: str, file: str) -> Source:
    import yaml

    lines: dict[str, int] = {}
    try:
        root = yaml.compose(text, Loader=yaml_loader())
        _collect_lines(root, "", lines, file)
        return Source(yaml.load(text, Loader=yaml_loader()), file, lines)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        opened = f" ({error.context} on line {error.context_mark.line + 1})" if error.context_mark else ""
        raise ConfigError(f"{file}:{line}: not valid YAML: {error.problem}{opened}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not valid YAML: {error}.") from error


@functools.cache
def yaml_loader() -> Any:
    """Return YAML's safe loader, with numbers such as 1e-4 and without dates."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {  # noqa: RUF012 - an attribute of the base class
            first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    return Loader


def _collect_lines(node: Any, path: str, lines: dict[str, int], file: str, around: tuple[Any, ...] = ()) -> None:
    """Note the line of each path, and refuse a key given twice and a value that contains itself."""
    if node is None:
        return
    if any(node is outer for outer in around):
        raise ConfigError(f"{file}:{node.start_mark.line + 1}: {path} contains itself.")
    around = (*around, node)
    lines[path] = node.start_mark.line + 1
    if node.id == "sequence":
        for index, item in enumerate(node.value):
            _collect_lines(item, f"{path}[{index}]", lines, file, around)
    elif node.id == "mapping":
        seen = set()
        for key, item in node.value:
            inner = f"{path}.{key.value}" if path else str(key.value)
            if inner in seen:
                raise ConfigError(f"{file}:{key.start_mark.line + 1}: {inner} is given twice.")
            seen.add(inner)
            _collect_lines(item, inner, lines, file, around)
            lines[inner] = key.start_mark.line + 1


def with_overrides(source: Source, arguments: Sequence[str]) -> Source:
    """Apply the overrides of a command line. Errors about what they set or created name the command line."""
    created = [first_missing(source.data, path) for path, _ in parse_overrides(arguments)]
    return replace(source, data=overridden(source.data, arguments), overridden=created)


def parse_overrides(arguments: Sequence[str]) -> list[tuple[str, Any]]:
    """Parse ``train.epochs=3``, ``--train.epochs=3`` and ``--train.epochs 3`` into paths and values.

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
            raise COMMAND_LINE.error("", f"{argument!r} is not an override: give train.epochs=3 or --train.epochs 3.")
        if not equals:
            text = next(remaining, "--")
            if text.startswith("--"):
                raise COMMAND_LINE.error(path, f"a value is needed: give {argument}=VALUE.")
        pairs.append((path, _parse_value(path, text)))
    return pairs


def _parse_value(path: str, text: str) -> Any:
    import yaml

    text = text.strip()
    try:
        if text.startswith(("[", "{", '"', "'")):
            return yaml.load(text, Loader=yaml_loader())  # noqa: S506 - a safe loader
        # Not simply yaml.load(): a plain value such as *.txt or #fff is neither an alias nor a comment here.
        loader = yaml_loader()("")
        tag = loader.resolve(yaml.ScalarNode, text, (True, False))
        return loader.construct_object(yaml.ScalarNode(tag, text)) if tag in _YAML_SCALARS else text
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or error
        raise COMMAND_LINE.error(path, f"{text} was given, which is not valid YAML: {problem}.") from error


def overridden(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of the values with overrides applied, the last one winning.

    Mappings on a path are created where there are none. An index selects an item of a list:
    ``callbacks.0.patience=3``.
    """
    changed = dict(values)
    for path, value in parse_overrides(overrides):
        changed = _put(changed, tuple(path.split(".")), value)
    return changed


def _put(inside: Any, parts: tuple[str, ...], value: Any, before: tuple[str, ...] = ()) -> Any:
    if not parts:
        return value
    part, rest, path = parts[0], parts[1:], (*before, parts[0])
    if inside is None or isinstance(inside, Mapping):
        inside = inside or {}
        key = next((known for known in inside if str(known) == part), part)  # a key in YAML may be a number
        return {**inside, key: _put(inside.get(key), rest, value, path)}
    if not isinstance(inside, list):
        message = f"{join_path(before)} is {inside!r:.200}, which is neither a mapping nor a list."
        raise COMMAND_LINE.error(join_path((*before, *parts)), message)
    if not part.isdecimal() or int(part) >= len(inside):
        message = (
            f"{join_path(before)} is a list of {len(inside)}: {part!r} was given, an index below that is accepted."
        )
        raise COMMAND_LINE.error(join_path((*before, *parts)), message)
    index = int(part)
    return [*inside[:index], _put(inside[index], rest, value, path), *inside[index + 1 :]]


def first_missing(values: Any, path: str) -> str:
    """Return the shortest beginning of a dotted path that is not in the values, or the path if all of it is.

    >>> first_missing({"arms": {"low": None}}, "arms.low.train.lr")
    'arms.low.train'
    """
    parts = path.split(".")
    for length, part in enumerate(parts, 1):
        if isinstance(values, list):
            values = values[int(part)] if part.isdecimal() and int(part) < len(values) else _MISSING
        else:
            values = values.get(part, _MISSING) if isinstance(values, Mapping) else _MISSING
        if values is _MISSING:
            return ".".join(parts[:length])
    return path


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings from one place of a file.

    Attributes:
        origin: The path of the settings in the file.
        at: The path in the merged settings that they belong to.
    """

    values: Any
    origin: str
    at: tuple[str, ...] = ()

    def tree(self) -> Any:
        """Return the settings as nested mappings from the top of the merged settings."""
        return functools.reduce(lambda inner, part: {part: inner}, reversed(self.at), self.values)

    def path_in_file(self, parts: tuple[str, ...]) -> str | None:
        """Return the path in the file of a path of the merged settings, or None if it is not from this layer."""
        depth = len(self.at)
        if len(parts) < depth:
            return self.origin if parts and parts == self.at[: len(parts)] else None
        if parts[:depth] != self.at or not _has(self.values, parts[depth:]):
            return None
        return self.origin + "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in parts[depth:])


def _has(values: Any, parts: Sequence[str]) -> bool:
    """Whether settings contain a path; a list replaces the one below as a whole, so all of an item's paths count."""
    if not parts:
        return True
    if isinstance(values, Mapping):
        return parts[0] in values and _has(values[parts[0]], parts[1:])
    return isinstance(values, list) and parts[0].isdecimal() and int(parts[0]) < len(values)


@dataclass(frozen=True, slots=True)
class LayeredSource(Source):
    """Merged layers, the lowest first; an error points to the file position of the topmost layer with the value."""

    source: Source = field(default_factory=lambda: Source({}))
    layers: Sequence[Layer] = ()

    def error(self, path: str, message: str) -> ConfigError:
        """Make an error about the value at a path of the merged settings."""
        places = (layer.path_in_file(split_path(path)) for layer in reversed(self.layers))
        return self.source.error(next((place for place in places if place is not None), path), message)


def merge_layers(layers: Sequence[Layer]) -> Any:
    """Merge layers, the lowest first."""
    return functools.reduce(_merge, (layer.tree() for layer in layers))


def _merge(below: Any, above: Any) -> Any:
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: _merge(below[key], value) if key in below else value for key, value in above.items()}}


def expand_dotted(
    values: Mapping[Any, Any], source: Source, path: str, *, names: Collection[str] = ()
) -> dict[Any, Any]:
    """Expand settings by dotted paths to nested mappings.

    >>> expand_dotted({"train.lr": 0.1, "train": {"steps": 5}}, Source({}), "arms.low")
    {'train': {'lr': 0.1, 'steps': 5}}

    Args:
        names: Keys of mappings whose own keys are names, which may contain dots.

    Raises:
        ConfigError: One setting is given twice.
    """
    expanded: dict[Any, Any] = {}
    for key, value in values.items():
        inner_path = f"{path}.{key}"
        if key in names:
            value = expand_each(value, source, inner_path)
        elif isinstance(value, Mapping):
            value = expand_dotted(value, source, inner_path)
        _insert(expanded, key.split(".") if isinstance(key, str) else [key], value, source, inner_path)
    return expanded


def expand_each(given: Any, source: Source, path: str) -> Any:
    """Expand each mapping of settings in a mapping by names; return anything else unchanged."""
    if not isinstance(given, Mapping):
        return given
    return {
        name: expand_dotted(value, source, f"{path}.{name}") if isinstance(value, Mapping) else value
        for name, value in given.items()
    }


def _insert(target: dict[Any, Any], parts: list[Any], value: Any, source: Source, path: str) -> None:
    part, rest = parts[0], parts[1:]
    if not rest and part not in target:
        target[part] = value
        return
    inside = target.setdefault(part, {})
    if not isinstance(inside, dict) or not (rest or isinstance(value, dict)):
        raise source.error(path, "is given twice, by its path and inside a mapping.")
    for keys, each in [(rest, value)] if rest else [([key], each) for key, each in value.items()]:
        _insert(inside, keys, each, source, path)

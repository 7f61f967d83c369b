"""Reads YAML, TOML and JSON files, with the line of each value in a YAML file.

Nothing in a file is run. A key given twice is an error. In YAML ``1e-4`` is a number without quotes and text with
them, and dates are text.
"""

import functools
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hookline._engine.errors import ConfigError, closest
from hookline._engine.factories import Source

SUFFIXES = (".json", ".toml", ".yaml", ".yml")

_EXPONENT = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")


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

"""Configuration files: YAML, TOML or JSON, and where in them something stands.

They are read safely: nothing in a file is run. A key given twice is an error. In YAML ``1e-4`` is a number without
quotes and text with them, and dates are text.

`Entries`: a list of a configuration that knows where it stands, so that errors about an entry can say so.
"""

import functools
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookline._engine.errors import ConfigError

_EXPONENT = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")


@dataclass(frozen=True, slots=True)
class Source:
    """A configuration and where it came from, so that errors can point into it."""

    data: Any
    file: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)

    def error(self, path: str, message: str) -> ConfigError:
        """An error at a path such as ``callbacks[1].with.threshold``."""
        line = self.lines.get(path) or self.lines.get(path.removeprefix("callbacks"))  # a list at the top has no key
        where = f"{self.file}:{line}: " if self.file and line else f"{self.file}: " if self.file else ""
        return ConfigError(f"{where}{path}: {message}" if path else f"{where}{message}")


def read_source(source: Any) -> Source:
    """Read a YAML, TOML or JSON file, or take a dict or list as it is."""
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


def _read_json(text: str, file: str) -> Source:
    def without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        read: dict[str, Any] = {}
        for key, value in pairs:
            if key in read:
                raise ConfigError(f"{file}: {key} is given twice.")
            read[key] = value
        return read

    try:
        return Source(json.loads(text, object_pairs_hook=without_twins), file)
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
        _note_lines(root, "", lines, file)
        return Source(yaml.load(text, Loader=yaml_loader()), file, lines)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        opened = f" ({error.context} on line {error.context_mark.line + 1})" if error.context_mark else ""
        raise ConfigError(f"{file}:{line}: not valid YAML: {error.problem}{opened}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not valid YAML: {error}.") from error


@functools.cache
def yaml_loader() -> Any:
    """YAML's safe loader, with numbers such as 1e-4 and without dates."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {  # noqa: RUF012 - the name and the kind are the base's
            first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    return Loader


def _note_lines(node: Any, path: str, lines: dict[str, int], file: str, around: tuple[Any, ...] = ()) -> None:
    """Remember on which line each path stands, and refuse a key given twice and a value that holds itself."""
    if node is None:
        return
    if any(node is outer for outer in around):
        raise ConfigError(f"{file}:{node.start_mark.line + 1}: {path} holds itself.")
    around = (*around, node)
    lines[path] = node.start_mark.line + 1
    if node.id == "sequence":
        for index, item in enumerate(node.value):
            _note_lines(item, f"{path}[{index}]", lines, file, around)
    elif node.id == "mapping":
        seen = set()
        for key, item in node.value:
            inner = f"{path}.{key.value}" if path else str(key.value)
            if inner in seen:
                raise ConfigError(f"{file}:{key.start_mark.line + 1}: {inner} is given twice.")
            seen.add(inner)
            _note_lines(item, inner, lines, file, around)
            lines[inner] = key.start_mark.line + 1


class Entries(list[Any]):
    """Entries, such as callbacks or sinks, and their place.

    Args:
        entries: What is in the list.
        source: What it was read from; None where it was given in Python.
        path: Where in that, such as ``train.callbacks``.
    """

    def __init__(self, entries: Iterable[Any], source: "Source | None" = None, path: str = "callbacks") -> None:
        super().__init__(entries)
        self.source, self.path = source, path

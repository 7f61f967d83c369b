"""Configuration files for a worker's entry: YAML, TOML or JSON, overrides from the command line, typed structs.

A key that the structs do not know is an error, except under what is typed as a dict or as anything. Errors name the
file, and its line where that is known, or the command line; the path; what was given and what is accepted.
``1e-4`` is a number without quotes and text with them; dates are text, unless a struct wants a date.
Nothing is read from the environment.
"""

import functools
import itertools
import operator
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from hookline.core.config import Source, read_source
from hookline.core.errors import ConfigError, closest

T = TypeVar("T")
Parts = tuple[Any, ...]

SUFFIXES = (".json", ".toml", ".yaml", ".yml")
_COMMAND_LINE = Source({}, "command line")
_EXPONENT = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")
_SCALARS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float")}


def load_config(path: str | Path, kind: type[T], arguments: Sequence[str] = ()) -> T:
    """A file with the overrides of a command line on top, as a struct."""
    source = _read(Path(path))
    return to_struct(overridden(source.data, arguments), kind, source=source, overrides=arguments)


def read_config(path: str | Path) -> dict[str, Any]:
    """What a file holds; its suffix says how it is written."""
    return dict(_read(Path(path)).data)


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
            raise _COMMAND_LINE.error("", f"{argument!r} is no override: give train.epochs=3 or --train.epochs 3.")
        if not equals:
            text = next(remaining, "--")
            if text.startswith("--"):
                raise _COMMAND_LINE.error(path, f"a value is needed: give {argument}=VALUE.")
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


def to_struct(
    values: Mapping[str, Any], kind: type[T], *, source: Source | str | Path, overrides: Sequence[str] = ()
) -> T:
    """The values as a struct.

    Args:
        source: What they were read from, for errors.
        overrides: What `overridden` put into them, so that errors about it name the command line.
    """
    source = source if isinstance(source, Source) else Source(values, str(source))
    origin = _Origin(source, [path for path, _ in parse_overrides(overrides)])
    converted: T = _checked(values, kind, (), origin)
    return converted


def _read(path: Path) -> Source:
    if not path.exists():
        names = [each.name for each in path.parent.glob("*") if each.suffix in SUFFIXES]
        raise ConfigError(f"{path}: there is no such configuration file. {closest(path.name, names)}")
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: the suffix {path.suffix!r} was given, {', '.join(SUFFIXES)} are accepted.")
    read = {".toml": _read_toml, ".json": read_source}.get(path.suffix, _read_yaml)
    source = read(path)
    if not isinstance(source.data, Mapping):
        raise source.error("", f"{source.data!r:.200} was given, a mapping is needed at the top.")
    return source


def _read_yaml(path: Path) -> Source:
    import yaml

    try:
        source = read_source(path)  # for the lines, and for errors of syntax and keys given twice
    except ConfigError:
        raise
    except ValueError as error:  # such as a date with 13 months
        raise ConfigError(f"{path}: not valid YAML: {error}.") from error
    data = yaml.load(path.read_text(encoding="utf-8"), Loader=_loader())  # noqa: S506 - a safe loader
    return replace(source, data={} if data is None else data)


def _read_toml(path: Path) -> Source:
    try:
        return Source(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        raise ConfigError(f"{path}{f':{line[1]}' if line else ''}: not valid TOML: {error}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text: {error}.") from error


@functools.cache
def _loader() -> Any:
    """YAML's safe loader, with numbers such as 1e-4 and without dates."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {  # noqa: RUF012 - the name and the kind are the base's
            first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    return Loader


def _value(path: str, text: str) -> Any:
    """An override's value; a plain one is never a comment, an alias or a mapping, whatever signs it has."""
    import yaml

    text = text.strip()
    try:
        if text.startswith(("[", "{", '"', "'")):
            return yaml.load(text, Loader=_loader())  # noqa: S506 - a safe loader
        loader = _loader()("")
        tag = loader.resolve(yaml.ScalarNode, text, (True, False))
        return loader.construct_object(yaml.ScalarNode(tag, text)) if tag in _SCALARS else text
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or error
        raise _COMMAND_LINE.error(path, f"{text} was given, which is not valid YAML: {problem}.") from error


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
        message = f"{_dotted(before)} is {inside!r:.200}, which is neither a mapping nor a list."
        raise _COMMAND_LINE.error(_dotted((*before, *parts)), message)
    if not part.isdecimal() or int(part) >= len(inside):
        message = f"{_dotted(before)} is a list of {len(inside)}: {part!r} was given, an index below that is accepted."
        raise _COMMAND_LINE.error(_dotted((*before, *parts)), message)
    index = int(part)
    return [*inside[:index], _put(inside[index], rest, value, path), *inside[index + 1 :]]


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where values came from: a file, and the paths that overrides set."""

    source: Source
    paths: Sequence[str]

    def error(self, parts: Parts, message: str, *, made_on_the_way: bool = False) -> ConfigError:
        """An error at a path: about the command line where an override set what is there, or made it on its way."""
        at = tuple(map(str, parts))
        for names in (path.split(".") for path in self.paths):
            if (made_on_the_way or len(names) <= len(at)) and all(map(operator.eq, at, names)):
                return _COMMAND_LINE.error(_dotted(parts), message)
        return self.source.error(_dotted(parts), message)


def _dotted(parts: Parts) -> str:
    """A path as the errors of callbacks write it: ``callbacks[0].patience``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _checked(value: Any, kind: Any, parts: Parts, origin: _Origin) -> Any:
    """The value as its type wants it; what is inside goes first, so that an error is about the innermost."""
    import msgspec

    for key, item, inner in itertools.chain(_items(value, kind), _entries(value, kind, parts, origin)):
        _checked(item, inner, (*parts, key), origin)
    try:
        return msgspec.convert(value, kind, dec_hook=_with_path)
    except msgspec.ValidationError as error:
        raise origin.error(parts, _message(value, kind, str(error))) from None


def _with_path(kind: Any, value: Any) -> Any:
    return Path(value) if kind is Path and isinstance(value, str) else value


def _items(value: Any, kind: Any) -> Iterator[tuple[int, Any, Any]]:
    """Indices, items and the types wanted of them."""
    for member in _members(kind) if isinstance(value, list) else ():
        holder, types = get_origin(member), get_args(member)
        if isinstance(holder, type) and issubclass(holder, Collection) and not issubclass(holder, Mapping):
            each = types if holder is tuple and types[-1] is not ... else types[:1] * len(value)
            yield from zip(itertools.count(), value, each, strict=False)


def _entries(value: Any, kind: Any, parts: Parts, origin: _Origin) -> Iterator[tuple[str, Any, Any]]:
    """Keys, values and the types wanted of them; keys that are unknown are refused."""
    if not isinstance(value, Mapping):
        return
    members = _members(kind)
    structs = [fields for member in members if (fields := _fields(member, value)) is not None]
    for member in members:
        holder = get_origin(member)
        if isinstance(holder, type) and issubclass(holder, Mapping):
            yield from ((str(key), item, get_args(member)[1]) for key, item in value.items())
    for fields in structs if len(structs) == 1 else ():  # several: a tag is missing, which msgspec says
        if unknown := [str(key) for key in value if key not in fields]:
            message = f"unknown key. {closest(unknown[0], fields)}"
            raise origin.error((*parts, unknown[0]), message, made_on_the_way=True)
        yield from ((str(key), item, fields[key]) for key, item in value.items())


def _members(kind: Any) -> list[Any]:
    """The types of a union, or the one type; without annotations."""
    if get_origin(kind) is Annotated:
        return _members(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [member for each in get_args(kind) for member in _members(each)]
    return [kind]


def _fields(kind: Any, value: Mapping[Any, Any]) -> dict[str, Any] | None:
    """The keys that a type takes and their types; None for one without, and for a struct with another tag."""
    import msgspec

    plain = get_origin(kind) or kind
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
        config = plain.__struct_config__
        if value.get(config.tag_field, config.tag) != config.tag:
            return None
        tags = {config.tag_field: Any} if config.tag_field else {}
        return tags | {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    return get_type_hints(plain) if is_dataclass(plain) or is_typeddict(plain) else None


def _message(value: Any, kind: Any, said: str) -> str:
    """What msgspec says of a value itself, in terms of a file."""
    choices = ", ".join(repr(choice) for member in _members(kind) for choice in _choices(member))
    if missing := re.fullmatch(r"Object missing required field `(.+)`", said):
        return f"{missing[1]} is missing and has no default: give it."
    if tag := re.fullmatch(r"Invalid value (.+) - at `\$\.(.+)`", said):
        return f"{tag[2]} {tag[1]} was given, one of {choices} is accepted."
    if said.startswith("Invalid enum value"):
        return f"{value!r:.200} was given, one of {choices} is accepted."
    if not (expected := re.fullmatch(r"Expected (.+?)(, got `?\w+`?)?( - at `key` in `\$`)?", said)):
        return said  # a struct's own check
    wanted = re.sub(r"\barray\b", "list", re.sub(r"\bobject\b", "mapping", expected[1].replace("`", "")))
    if expected[3]:
        return f"keys {list(value)!r:.200} were given, {wanted} is accepted for each."
    quotes = wanted.startswith("str") and isinstance(value, bool | int | float)
    advice = " Put it in quotes to give text (in a shell: '\"...\"')." if quotes else ""
    return f"{value!r:.200} was given, {wanted} is accepted.{advice}"


def _choices(kind: Any) -> Sequence[Any]:
    """The values of a literal or an enumeration, or the tag of a struct."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [each.value for each in kind]
    tag = getattr(getattr(kind, "__struct_config__", None), "tag", None)
    return get_args(kind) if get_origin(kind) is Literal else () if tag is None else (tag,)

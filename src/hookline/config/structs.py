"""Values of a configuration as a typed struct, with errors that say what is wrong in terms of the file.

A key that the struct does not know is an error, except under what is typed as a dict or as anything.

`CheckedStruct`: settings whose types are checked when they are made in Python, not only when read from a file.
"""

import itertools
import operator
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec

from hookline._engine.errors import ConfigError, OptionError, closest, reworded
from hookline._engine.metrics import whole
from hookline.config.sources import Source

T = TypeVar("T")
Parts = tuple[Any, ...]

COMMAND_LINE = Source({}, "command line")


def to_struct(
    values: Mapping[str, Any], kind: type[T], *, source: Source | str | Path, overridden: Sequence[str] = ()
) -> T:
    """The values as a struct.

    Args:
        source: What they were read from, for errors.
        overridden: The paths that the command line set, so that errors about them name it.
    """
    source = source if isinstance(source, Source) else Source(values, str(source))
    origin = _Origin(source, overridden)
    converted: T = _checked(values, kind, (), origin)
    return converted


def fault_in(value: Any, kind: Any) -> str | None:
    """What is wrong with a value of a type, and where inside it; None where nothing is."""
    try:
        _checked(value, kind, (), _Origin(Source({}), ()))
    except ConfigError as error:
        return str(error)
    return None


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
                return COMMAND_LINE.error(dotted(parts), message)
        return self.source.error(dotted(parts), message)


@dataclass(frozen=True, slots=True)
class OverriddenSource(Source):
    """A file of whose values the command line set some."""

    overrides: Sequence[str] = ()

    def error(self, path: str, message: str) -> ConfigError:
        """An error at a path: of the command line, where that set what stands there."""
        parts = (int(part) if part.isdecimal() else part for part in re.findall(r"[^.\[\]]+", path))
        return _Origin(Source({}, self.file, self.lines), self.overrides).error(tuple(parts), message)


def dotted(parts: Parts) -> str:
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
    wanted = reworded(re.sub(r"\bobject\b", "mapping", expected[1].replace("`", "")))
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


class _NamesChecked(msgspec.StructMeta):
    """Makes a setting that does not exist an error that suggests another."""

    if not TYPE_CHECKING:  # to whom a call is that of the struct's own constructor

        def __call__(self, *args: Any, **settings: Any) -> Any:
            for name in settings.keys() - set(self.__struct_fields__):
                raise OptionError(f"{self.__name__} has no {name!r}. {closest(name, self.__struct_fields__)}")
            return super().__call__(*args, **settings)


class CheckedStruct(msgspec.Struct, forbid_unknown_fields=True, metaclass=_NamesChecked):
    """The base of the settings; a field of a wrong type is an error that names it."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            value = getattr(self, name)
            number = whole(value)  # msgspec does not know those of NumPy
            try:
                setattr(self, name, msgspec.convert(value if number is None else number, kind, strict=True))
            except msgspec.ValidationError as error:
                raise OptionError(f"{type(self).__name__}({name}={value!r}): {_said(value, kind, error)}") from None


def _said(value: Any, kind: Any, error: msgspec.ValidationError) -> str:
    """What is wrong with a value, or with what is inside it; where it is one of a few, which these are."""
    choices = [choice for each in (kind, *get_args(kind)) if get_origin(each) is Literal for choice in get_args(each)]
    if choices:
        return f"give one of {', '.join(map(repr, choices))}."

    inside = fault_in(value, kind) if isinstance(value, Mapping | list) else None
    return inside or f"{reworded(str(error))}."

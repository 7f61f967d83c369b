"""Converts plain values, as a file, a command line or a caller gives them, to annotated types.

Only what a file cannot express is converted: a whole number to a float, a list to a tuple or a set, text to a path, a
date or an enum member, a mapping to a data class or a msgspec struct. A boolean is not a number. A key that a class
does not have is an error. Types that cannot come from a file, such as callables and protocols, are not checked.

The first error is about the innermost value. Its message states what was given and what is accepted.
"""

import dataclasses
import numbers
import operator
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from hookline._engine.errors import closest

Parts = tuple[Any, ...]
"""The keys and indices that lead to a value."""

_LIMITS = {"gt": (">", operator.gt), "ge": (">=", operator.ge), "lt": ("<", operator.lt), "le": ("<=", operator.le)}
"""The limits of an annotation, such as ``msgspec.Meta(ge=1)``."""
_LISTS = (list, tuple, set, frozenset)


def convert(value: Any, kind: Any, error: Callable[[Parts, str], Exception]) -> Any:
    """Convert a value to an annotated type.

    Args:
        error: Makes the exception to raise, from the path inside the value and the message.

    >>> convert([1, 2], tuple[float, ...], lambda parts, message: ValueError(message))
    (1.0, 2.0)
    """
    try:
        return _convert(value, kind, ())
    except _Mismatch as mismatch:
        raise error(mismatch.parts, mismatch.message) from mismatch.__cause__


class _Mismatch(Exception):
    def __init__(self, parts: Parts, message: str) -> None:
        super().__init__(message)
        self.parts, self.message = parts, message


def _convert(value: Any, kind: Any, parts: Parts) -> Any:
    origin = get_origin(kind)
    if origin is Annotated:
        return _convert_limited(value, kind, parts)
    if origin in (Union, UnionType):
        return _convert_union(value, kind, parts)
    if origin is Literal:
        # The types are compared too: True == 1, and a file can say either.
        if any(value == choice and type(value) is type(choice) for choice in get_args(kind)):
            return value
        raise _unaccepted(value, kind, parts)
    holder = origin or kind
    if not isinstance(holder, type) or holder in (object, Callable):
        return value
    shape = _shape(kind)
    if shape == "list":
        return _convert_list(value, kind, holder, parts)
    if shape == "mapping" and _fields(holder) is None:
        return _convert_mapping(value, kind, parts)
    if holder not in _SCALARS and not issubclass(holder, Enum):
        return _convert_object(value, kind, holder, parts)
    try:
        return _SCALARS.get(holder, holder)(value)
    except (TypeError, ValueError, OverflowError):
        raise _unaccepted(value, kind, parts) from None


def _convert_limited(value: Any, kind: Any, parts: Parts) -> Any:
    plain, *notes = get_args(kind)
    converted = _convert(value, plain, parts)
    for note in notes:
        for name, (_, holds) in _LIMITS.items():
            limit = getattr(note, name, None)
            if limit is not None and not holds(converted, limit):
                raise _unaccepted(value, kind, parts)
    return converted


def _convert_union(value: Any, kind: Any, parts: Parts) -> Any:
    members = _members(kind)
    if type(value) in members:  # before any conversion: 1 stays whole for float | int
        return value
    # Where one member has the value's shape, an error inside the value says more than one about the union.
    shape = "mapping" if isinstance(value, Mapping) else "list" if isinstance(value, _LISTS) else None
    alike = [member for member in members if shape is not None and _shape(member) == shape]
    if len(alike) > 1 and isinstance(value, Mapping) and (tagged := _tags(alike)):
        field, tags = tagged
        if field not in value:
            raise _Mismatch(parts, _missing(field))
        if value[field] not in tags:
            accepted = ", ".join(map(repr, tags))
            raise _Mismatch(parts, f"{field} {value[field]!r:.200} was given, one of {accepted} is accepted.")
        alike = [tags[value[field]]]
    if len(alike) == 1:
        return _convert(value, alike[0], parts)
    for member in members:
        try:
            return _convert(value, member, parts)
        except _Mismatch:
            continue
    raise _unaccepted(value, kind, parts)


def _convert_mapping(value: Any, kind: Any, parts: Parts) -> Any:
    if not isinstance(value, Mapping):
        raise _unaccepted(value, kind, parts)
    key_kind, item_kind = get_args(kind) or (Any, Any)
    converted = {key: _convert(item, item_kind, (*parts, str(key))) for key, item in value.items()}
    try:
        return {_convert(key, key_kind, parts): item for key, item in converted.items()}
    except _Mismatch:
        message = f"keys {list(value)!r:.200} were given, {describe(key_kind)} is accepted for each."
        raise _Mismatch(parts, message) from None


def _convert_list(value: Any, kind: Any, holder: type, parts: Parts) -> Any:
    if not isinstance(value, _LISTS):
        raise _unaccepted(value, kind, parts)
    kinds = get_args(kind) or (Any,)
    items = list(value)
    if holder is tuple and get_args(kind) and kinds[-1] is not ...:
        if len(items) != len(kinds):
            raise _unaccepted(value, kind, parts)
        each = kinds
    else:
        each = kinds[:1] * len(items)
    converted = [
        _convert(item, wanted, (*parts, index)) for index, (item, wanted) in enumerate(zip(items, each, strict=True))
    ]
    return converted if holder not in (tuple, set, frozenset) else holder(converted)


def _convert_object(value: Any, kind: Any, holder: type, parts: Parts) -> Any:
    """A data class, a struct or a typed dict from a mapping; of any other class, an instance."""
    if is_typeddict(holder):
        accepted = isinstance(value, dict)
    else:
        try:
            if isinstance(value, holder):
                return value
        except TypeError:  # a protocol that is not checked at run time
            return value
        accepted = isinstance(value, Mapping)
    fields = _fields(holder)
    if fields is None or not accepted:
        raise _unaccepted(value, kind, parts)
    for key in value:
        if key not in fields:
            raise _Mismatch((*parts, str(key)), f"unknown key. {known_as(str(key), holder, fields)}")
    converted = {
        fields[key].name: _convert(item, fields[key].kind, (*parts, str(key)))
        for key, item in value.items()
        if fields[key].name
    }
    for key, field in fields.items():
        if field.required and key not in value:
            raise _Mismatch(parts, _missing(key))
    try:
        return holder(**converted)
    except (TypeError, ValueError) as error:  # the class's own check
        raise _Mismatch(parts, str(error)) from error


def known_as(name: str, holder: Any, names: Iterable[str]) -> str:
    """Return a sentence with the name that a class has for a setting: its new name, or the closest one."""
    new = getattr(holder, "renamed", {}).get(name)
    return closest(name, names) if new is None else f"It is called {new}."


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    """A field of a class; one without a name is the tag of a struct."""

    name: str
    kind: Any
    required: bool


def _fields(holder: Any) -> dict[str, _Field] | None:
    """The fields of a data class, a typed dict or a struct by their keys in a file; None for other classes."""
    if not isinstance(holder, type):
        return None
    if hasattr(holder, "__struct_fields__"):
        msgspec = sys.modules["msgspec"]  # not imported: the module that defines a struct has done so
        config = holder.__struct_config__  # type: ignore[attr-defined]
        tag = {config.tag_field: _Field("", Literal[config.tag], False)} if config.tag_field else {}
        fields = msgspec.structs.fields(holder)
        return tag | {field.encode_name: _Field(field.name, field.type, field.required) for field in fields}
    if not dataclasses.is_dataclass(holder) and not is_typeddict(holder):
        return None
    try:
        hints = get_type_hints(holder, include_extras=True)
    except (NameError, TypeError):  # an annotation that only type checkers can resolve
        hints = {}
    if is_typeddict(holder):
        required = holder.__required_keys__  # type: ignore[attr-defined]
        return {name: _Field(name, hint, name in required) for name, hint in hints.items()}
    missing = dataclasses.MISSING
    return {
        field.name: _Field(
            field.name, hints.get(field.name, Any), field.default is missing and field.default_factory is missing
        )
        for field in dataclasses.fields(holder)
        if field.init
    }


def _whole(value: Any) -> int:
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):  # those of NumPy too
        return int(value)
    raise TypeError


def _real(value: Any) -> float:
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    raise TypeError


def _exactly(kind: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        raise TypeError

    return check


def _from_text(kind: Any) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        return value if isinstance(value, kind) else kind.fromisoformat(value)

    return read


_SCALARS: dict[type, Callable[[Any], Any]] = {
    bool: _exactly(bool),
    int: _whole,
    float: _real,
    str: _exactly(str),
    bytes: _exactly(bytes),
    NoneType: _exactly(NoneType),
    Path: Path,
    date: _from_text(date),
    datetime: _from_text(datetime),
    time: _from_text(time),
}


def _members(kind: Any) -> list[Any]:
    if get_origin(kind) in (Union, UnionType):
        return [member for each in get_args(kind) for member in _members(each)]
    return [kind]


def _shape(kind: Any) -> str | None:
    """Whether values of a type are written as a list or as a mapping."""
    if get_origin(kind) is Annotated:
        return _shape(get_args(kind)[0])
    holder = get_origin(kind) or kind
    if not isinstance(holder, type) or holder in _SCALARS:
        return None
    if issubclass(holder, Mapping) or _fields(holder) is not None:
        return "mapping"
    is_list = holder in _LISTS or (holder.__module__ == "collections.abc" and issubclass(list, holder))
    return "list" if is_list else None


def _tags(kinds: list[Any]) -> tuple[str, dict[Any, Any]] | None:
    """The key that tells structs apart, and the struct of each tag; None where they have no common one."""
    fields = {getattr(getattr(kind, "__struct_config__", None), "tag_field", None) for kind in kinds}
    if len(fields) != 1 or None in fields:
        return None
    return str(fields.pop()), {kind.__struct_config__.tag: kind for kind in kinds}


def describe(kind: Any) -> str:
    """Name a type in the words of a configuration file.

    >>> describe(list[int] | None), describe(dict[str, int]), describe(Literal["min", "max"])
    ('list | null', 'mapping', "one of 'min', 'max'")
    """
    choices, others = [], []
    for member in _members(kind):
        if get_origin(member) is Literal:
            choices += [repr(choice) for choice in get_args(member)]
        elif isinstance(member, type) and issubclass(member, Enum):
            choices += [repr(choice.value) for choice in member]
        else:
            others.append(_name(member))
    if choices:
        return f"one of {', '.join([*choices, *others])}"
    return " | ".join(dict.fromkeys(others))


def _name(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        plain, *notes = get_args(kind)
        limits = [
            f"{sign} {getattr(note, name)}"
            for note in notes
            for name, (sign, _) in _LIMITS.items()
            if getattr(note, name, None) is not None
        ]
        return f"{_name(plain)} {' and '.join(limits)}".strip()
    if kind is NoneType:
        return "null"
    shape = _shape(kind)
    if shape == "list" and get_origin(kind) is tuple and get_args(kind)[-1] is not ...:
        return f"list of length {len(get_args(kind))}"
    return shape or str(getattr(kind, "__name__", kind))


def _unaccepted(value: Any, kind: Any, parts: Parts) -> _Mismatch:
    wanted = describe(kind)
    quotes = wanted.startswith("str") and isinstance(value, bool | int | float)
    advice = " Put it in quotes to give text (in a shell: '\"...\"')." if quotes else ""
    return _Mismatch(parts, f"{value!r:.200} was given, {wanted} is accepted.{advice}")


def _missing(key: str) -> str:
    return f"{key} is missing and has no default: give it."

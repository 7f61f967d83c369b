"""Conversion of plain values to annotated types."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypedDict

import msgspec
import pytest

from hookline._engine.errors import OptionError
from hookline._engine.validation import convert, describe


class Color(Enum):
    RED = "red"


@dataclass
class Point:
    x: float
    y: float = 0.0


class Row(TypedDict):
    name: str


class Sized(Protocol):
    def size(self) -> int: ...


class Small(msgspec.Struct, tag="small"):
    n: int = 1


class Large(msgspec.Struct, tag="large"):
    n: int = 9


def refusal(value, kind):
    with pytest.raises(OptionError) as caught:
        convert(value, kind, lambda parts, message: OptionError(f"{list(parts)}: {message}"))
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (1, float, 1.0),
        (1, float | int, 1),
        ("a", str | Path, "a"),
        ("a", Path | None, Path("a")),
        (None, int | None, None),
        ("red", Color, Color.RED),
        ([1, 2], set[int], {1, 2}),
        ((1, 2), Sequence[float], [1.0, 2.0]),
        (["a"], Iterable[str], ["a"]),
        ({"a": 1}, Mapping[str, float], {"a": 1.0}),
        ({"x": 1}, Point, Point(1.0)),
        ({"name": "a"}, Row, {"name": "a"}),
        ({"type": "large"}, Small | Large, Large()),
        ("not called", Callable[[int], int], "not called"),
        ("unchecked", int | Callable[[int], int], "unchecked"),
        ("unchecked", Sized, "unchecked"),
        (object, Any, object),
    ],
)
def test_convert_value_that_fits_returns_the_annotated_type(value, kind, expected):
    converted = convert(value, kind, lambda parts, message: AssertionError(message))
    assert (converted, type(converted)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (True, int, "[]: True was given, int is accepted."),
        (True, Literal[1], "[]: True was given, one of 1 is accepted."),
        (10**400, float, f"[]: {str(10**400)[:200]} was given, float is accepted."),
        (5, Annotated[int, msgspec.Meta(gt=0, le=4)], "[]: 5 was given, int > 0 and <= 4 is accepted."),
        ("a", list[str] | None, "[]: 'a' was given, list | null is accepted."),
        (["a", 1], list[str] | None, "[1]: 1 was given, str is accepted. Put it in quotes to give text"),
        ({"x": "a"}, Point, "['x']: 'a' was given, float is accepted."),
        ({"z": 1, "x": "a"}, Point, "['z']: unknown key."),
        ({}, Point, "[]: x is missing and has no default: give it."),
        ({}, Row, "[]: name is missing and has no default: give it."),
        ({"type": "tiny"}, Small | Large, "[]: type 'tiny' was given, one of 'small', 'large' is accepted."),
    ],
)
def test_convert_value_that_does_not_fit_names_the_innermost_value(value, kind, message):
    assert refusal(value, kind).startswith(message)


def test_describe_union_of_choices_and_types_lists_all():
    assert describe(Literal["min", "max"] | Color | int | None) == "one of 'min', 'max', 'red', int, null"

"""Writes ``docs/json.md``, the schemas of what ``--json`` prints: ``python scripts/json_reference.py``."""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from json_schemas import SCHEMAS, WITHOUT, Document, Number

PAGE = Path(__file__).parents[1] / "docs" / "json.md"
_INTRODUCTION = """\
# JSON output

Every command with `--json` prints one JSON document on standard output, and nothing else there. `runs tail` and
`runs log` print one for each line, as they come. If the input is wrong, the document is `{"error": "..."}`, and the
exit status is not 0.

Numbers that JSON does not have are the texts `"NaN"`, `"Infinity"` and `"-Infinity"`. Times are in seconds since 1970.
Fields are only added: ignore those that you do not know. Fields marked as optional may be missing.

<!-- made by scripts/json_reference.py -->
"""
_WORDS = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null", Any: "any"}


def alternatives(schema: Any) -> tuple[Any, ...]:
    """The documents that a command may print."""
    return get_args(schema) if get_origin(schema) in (Union, types.UnionType) else (schema,)


def page() -> str:
    """The page: what each command prints, and the types that this refers to."""
    named: dict[str, Any] = {}
    lines = [_INTRODUCTION, "## Commands", "", "| command | prints |", "|---|---|"]
    for command, schema in sorted(SCHEMAS.items()):
        lines.append(f"| `hookline {command}` | {' or '.join(_text(each, named) for each in alternatives(schema))} |")
    lines += ["", "These commands have no `--json`:", ""]
    lines += [f"- `hookline {command}`: {why}" for command, why in sorted(WITHOUT.items())]
    lines += ["", "## Types", ""]
    described: set[str] = set()
    while waiting := [name for name in named if name not in described]:
        described.update(waiting)
        for name in waiting:  # describing one may name further ones
            list(_type(name, named[name], named))
    for name in sorted(named):
        lines += [*_type(name, named[name], named), ""]
    return "\n".join(lines).rstrip() + "\n"


def _type(name: str, kind: Any, named: dict[str, Any]) -> Iterator[str]:
    summary, attributes = _documented(kind)
    yield f"### {name}"
    yield ""
    if summary:
        yield from [summary, ""]
    yield from ["| field | type | |", "|---|---|---|"]
    hints = typing.get_type_hints(kind)
    for field in msgspec.structs.fields(kind) if issubclass(kind, msgspec.Struct) else dataclasses.fields(kind):
        optional = "Optional. " if _may_be_missing(kind, field) else ""
        about = f"{optional}{attributes.get(field.name, '')}".strip()
        yield f"| `{field.name}` | {_text(hints[field.name], named)} | {about} |"


def _may_be_missing(kind: Any, field: Any) -> bool:
    if not issubclass(kind, msgspec.Struct):
        return False  # a dataclass is written with all of its fields
    return not field.required and (issubclass(kind, Document) or kind.__struct_config__.omit_defaults)


def _documented(kind: Any) -> tuple[str, dict[str, str]]:
    """The summary of a class, and the meanings of its attributes."""
    own = [each for each in kind.__mro__ if each.__module__ not in ("builtins", "msgspec")]
    attributes: dict[str, str] = {}
    for each in reversed(own):
        _, _, section = inspect.cleandoc(each.__dict__.get("__doc__") or "").partition("Attributes:\n")
        entries = re.findall(r"^ *(\w+): (.+(?:\n {8,}.+)*)", section, re.MULTILINE)
        attributes |= {name: _plain(" ".join(text.split())) for name, text in entries}
    text = inspect.cleandoc(kind.__dict__.get("__doc__") or "").partition("Attributes:")[0]
    return _plain(" ".join(text.split("\n\n")[0].split())), attributes


def _plain(text: str) -> str:
    """A docstring's text for the page, with JSON's word for None."""
    return re.sub(r"\bNone\b", "null", text.replace("``", "`").replace("|", "\\|"))


def _text(kind: Any, named: dict[str, Any]) -> str:
    """A type in words; types with fields are links and are added to ``named``."""
    if kind in _WORDS:
        return _WORDS[kind]
    origin, inside = get_origin(kind), get_args(kind)
    if kind == Number:
        return "number"
    if origin in (Union, types.UnionType):
        rest = [each for each in inside if each not in get_args(Number)[1:] and get_origin(each) is not Literal]
        literals = [each for each in inside if get_origin(each) is Literal and each != get_args(Number)[1]]
        return " or ".join(_text(each, named) for each in [*rest, *literals])
    if origin is Literal:
        return " or ".join(f"`{value!r}`".replace("'", '"') for value in inside)
    if origin in (list, tuple, get_origin(Sequence[int])):
        inner = [each for each in inside if each is not Ellipsis]
        return f"array of {' and '.join(dict.fromkeys(_text(each, named) for each in inner))}"
    if origin is not None:  # a mapping
        return "object" if inside[1] is Any else f"object of {_text(inside[1], named)}"
    if kind is object or not (hasattr(kind, "__struct_fields__") or hasattr(kind, "__dataclass_fields__")):
        return "any"
    named[kind.__name__] = kind
    return f"[{kind.__name__}](#{kind.__name__.lower()})"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

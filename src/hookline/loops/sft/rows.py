"""Rows for supervised fine-tuning: read from a file, and taken apart into text that is trained on and text that is not.

Three formats are accepted, looked for in this order; further keys of a row are left alone:

    {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
    {"prompt": "2+2=", "completion": "4"}
    {"text": "2+2=4"}
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hookline.core.errors import OptionError

Row = Mapping[str, Any]

FORMATS = "{'prompt': text, 'completion': text}, {'messages': [{'role': text, 'content': text}, ...]} or {'text': text}"


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a ``.jsonl`` file (one object a line) or a ``.json`` file (a list of objects).

    Raises:
        OptionError: The file cannot be read, is empty, or has something else in it; with the file and the line.
    """
    path = Path(path)
    if path.suffix not in (".jsonl", ".json"):
        raise OptionError(f"{path}: rows are read from a .jsonl or a .json file.")
    text = _text_of(path)
    rows = list(_lines(text, path)) if path.suffix == ".jsonl" else _listed(text, path)
    if not rows:
        raise OptionError(f"{path}: has no rows. Each is one of {FORMATS}.")
    return rows


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise OptionError(f"{path}: cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"{path}: is not UTF-8 text (byte {error.start}).") from error


def _lines(text: str, path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):  # splitlines() would split at U+2028 inside a string
        if line.strip():
            yield _object(_parsed(line, path, number), f"{path}:{number}")


def _listed(text: str, path: Path) -> list[dict[str, Any]]:
    rows = _parsed(text, path, 1)
    if not isinstance(rows, list):
        raise OptionError(f"{path}: holds {_kind(rows)}, where a list of rows is accepted. One row a line is .jsonl.")
    return [_object(row, f"{path}: row {index}") for index, row in enumerate(rows)]


def _parsed(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"{path}:{line + error.lineno - 1}: not valid JSON: {error.msg}.") from error


def _object(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise OptionError(f"{where}: {_kind(row)}, where an object is accepted: {FORMATS}.")
    return row


def row_format(row: Any, index: int) -> str:
    """``messages``, ``prompt`` or ``text``, with the values checked.

    Raises:
        OptionError: The row has none of the formats, or a value of another type; with its index.
    """
    if not isinstance(row, Mapping):
        raise OptionError(f"row {index}: {_kind(row)} was given, {FORMATS} is accepted.")
    if "messages" in row:
        _require_messages(row["messages"], index)
        return "messages"
    if "prompt" in row and "completion" in row:
        _require_text(row, ("prompt", "completion"), index)
        return "prompt"
    if "text" in row:
        _require_text(row, ("text",), index)
        return "text"
    keys = ", ".join(map(repr, row)) or "none"
    raise OptionError(f"row {index}: the keys are {keys}; {FORMATS} is accepted.")


def _require_text(row: Row, keys: tuple[str, ...], index: int) -> None:
    for key in keys:
        if not isinstance(row[key], str):
            hint = " A conversation goes under 'messages'." if isinstance(row[key], list) else ""
            raise OptionError(f"row {index}: {key!r} is {_kind(row[key])}, text is accepted.{hint}")


def _require_messages(messages: Any, index: int) -> None:
    if not isinstance(messages, list | tuple) or not messages:
        raise OptionError(f"row {index}: 'messages' is {_kind(messages)}, a list of at least one message is accepted.")
    for number, message in enumerate(messages):
        where = f"row {index}: messages[{number}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise OptionError(f"{where} is {message!r}, {{'role': text, 'content': text}} is accepted.")
        if not isinstance(message.get("content"), str) and not message.get("tool_calls"):
            raise OptionError(f"{where} has the content {message.get('content')!r}, text is accepted.")


def _kind(value: object) -> str:
    if isinstance(value, list | tuple | str | Mapping) and not value:
        return f"an empty {type(value).__name__}"
    return "None" if value is None else f"a value of type {type(value).__name__}"

"""Rows of supervised fine-tuning, read from a file and turned into token ids and labels.

Three formats are accepted, checked in this order; further keys of a row are ignored:

    {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
    {"prompt": "2+2=", "completion": "4"}
    {"text": "2+2=4"}

**Masking is exact.** The tokens of a prompt are those that the model sees when it gets the prompt alone: no token
spans the border, and the label of every token before it is -100. A text is tokenized as a whole where that leaves the
prompt's tokens unchanged, and in two pieces where it does not.

**Beginnings and ends.** An example begins with BOS where the tokenizer adds one; prompt and completion, and text, end
with EOS, which is trained on, so that the model learns to stop. For messages, the chat template decides both. The label
of an example's first token is always -100: nothing precedes it that could predict it.

**The assistant's turns** in a conversation come from the template's ``{% generation %}`` marks where it has them, and
otherwise from rendering the conversation up to each turn.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError, closest

Truncate = Literal["right", "left", "drop", "error"]


class SFTOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """The options of supervised fine-tuning.

    Args:
        max_length: The most tokens of an example, and of a packed row.
        packing: Put several short examples into one row, without attention between them.
        train_on_prompt: Train on every token, not only on completions and the assistant's turns.
        truncate: What happens to a longer example: its end (``right``) or its beginning (``left``) is cut off,
            it is left out (``drop``), or it is an error. One warning counts those that are cut or left out.
        pad_to_multiple_of: Pad batches to a multiple of this, e.g. 8 for tensor cores.
        chat_template: For rows with ``messages``: a Jinja template, or a file with one; the tokenizer's by default.
    """

    max_length: int = 512
    packing: bool = False
    train_on_prompt: bool = False
    truncate: Truncate = "right"
    pad_to_multiple_of: int | None = None
    chat_template: str | None = None

    def __post_init__(self) -> None:
        require_integer("max_length", self.max_length, minimum=2)
        require_integer("pad_to_multiple_of", self.pad_to_multiple_of, optional=True)
        for name in ("packing", "train_on_prompt"):
            if not isinstance(value := getattr(self, name), bool):
                raise OptionError(f"{name}={value!r}: give true or false.")
        if self.truncate not in get_args(Truncate):
            ways = get_args(Truncate)
            raise OptionError(
                f"truncate={self.truncate!r}: give one of {', '.join(ways)}. {closest(str(self.truncate), ways)}"
            )


def template_text(given: str) -> str:
    """Return the chat template of the options, or of the file that they name."""
    if "{" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except OSError as error:
        message = f"chat_template={given!r} is neither a Jinja template nor a file that can be read: {error.strerror}."
        raise OptionError(message) from None


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


IGNORED = -100
"""The label of a token that is not trained on."""

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")

Piece = tuple[str, bool]
"""Text, and whether it is trained on."""


class Tokens(NamedTuple):
    """An example before truncation: ids, and for each whether it is trained on."""

    ids: list[int]
    trained: list[bool]

    def labels(self) -> list[int]:
        """Return the labels: the ids that are trained on, except the first."""
        chosen = [token if trained else IGNORED for token, trained in zip(self.ids, self.trained, strict=True)]
        return [IGNORED, *chosen[1:]] if chosen else []


class RowEncoder:
    """Turns rows into tokens with any Hugging Face tokenizer."""

    def __init__(self, tokenizer: Any, *, train_on_prompt: bool = False) -> None:
        if not callable(tokenizer) or not hasattr(tokenizer, "eos_token_id"):
            raise OptionError(f"tokenizer={tokenizer!r}: give a Hugging Face tokenizer.")
        self.tokenizer = tokenizer
        self.train_on_prompt = train_on_prompt
        self._adds_bos = tokenizer.bos_token_id is not None and _first(tokenizer("a")) == tokenizer.bos_token_id

    def encode(self, row: Row, index: int) -> Tokens:
        """Return the tokens of a row; ``index`` is its number, for errors."""
        match row_format(row, index):
            case "messages":
                tokens = self._conversation(row, index)
            case "prompt":
                tokens = self._closed([(row["prompt"], False), (row["completion"], True)])
            case _:
                tokens = self._closed([(row["text"], True)])
        return Tokens(tokens.ids, [True] * len(tokens.ids)) if self.train_on_prompt else tokens

    def _closed(self, pieces: Sequence[Piece]) -> Tokens:
        """Join the pieces, with BOS and EOS around them unless the text has them already."""
        ids, trained = self._joined(pieces)
        bos, eos = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        if eos is None:
            raise OptionError("The tokenizer has no EOS token, so a model could not learn to stop: set its eos_token.")
        if self._adds_bos and ids[:1] != [bos]:
            ids, trained = [bos, *ids], [False, *trained]
        if not trained or not trained[-1] or ids[-1] != eos:
            ids, trained = [*ids, eos], [*trained, True]
        return Tokens(ids, trained)

    def _joined(self, pieces: Sequence[Piece]) -> Tokens:
        text, ids, trained = "", list[int](), list[bool]()
        for piece, is_trained in pieces:
            whole = self._ids(text + piece)
            added = whole[len(ids) :] if whole[: len(ids)] == ids else self._ids(piece)
            text, ids = text + piece, ids + added
            trained += [is_trained] * len(added)
        return Tokens(ids, trained)

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) if text else []

    def _conversation(self, row: Row, index: int) -> Tokens:
        if not getattr(self.tokenizer, "chat_template", None):
            raise OptionError(
                f"row {index}: has messages, but the tokenizer has no chat template: set sft.chat_template or "
                "tokenizer.chat_template, or give rows with 'prompt' and 'completion'."
            )
        if self.train_on_prompt:
            return self._joined([(self._rendered(row, index), True)])
        if _MARKS.search(self.tokenizer.get_chat_template(tools=row.get("tools"))):
            marked = self._rendered(row, index, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
            return Tokens(list(marked["input_ids"]), [bool(mark) for mark in marked["assistant_masks"]])
        return self._joined(self._turns(row, index))

    def _turns(self, row: Row, index: int) -> list[Piece]:
        """Return the rendered conversation in pieces: the assistant's turns, and the text between them."""
        messages, whole = list(row["messages"]), self._rendered(row, index)
        pieces, at = list[Piece](), 0
        for number in (n for n, message in enumerate(messages) if message["role"] == "assistant"):
            before = self._rendered(row, index, messages[:number], add_generation_prompt=True)
            after = self._rendered(row, index, messages[: number + 1])
            if not (whole.startswith(before) and whole.startswith(after) and at <= len(before) <= len(after)):
                raise OptionError(
                    f"row {index}: the chat template renders messages[{number}] differently once more follow, so its "
                    "tokens cannot be identified. Mark the assistant's part of the template with "
                    "{% generation %} ... {% endgeneration %}, or set train_on_prompt."
                )
            pieces += [(whole[at : len(before)], False), (whole[len(before) : len(after)], True)]
            at = len(after)
        return [*pieces, (whole[at:], False)]

    def _rendered(self, row: Row, index: int, messages: Sequence[Any] | None = None, **how: Any) -> Any:
        chosen = list(row["messages"] if messages is None else messages)
        try:
            return self.tokenizer.apply_chat_template(chosen, tools=row.get("tools"), **{"tokenize": False, **how})
        except ImportError:
            raise  # jinja2 is missing: not the row's fault
        except Exception as error:  # templates raise errors of their own
            raise OptionError(
                f"row {index}: the chat template rejects its messages: {type(error).__name__}: {error}"
            ) from error


def _first(encoded: Mapping[str, Any]) -> int | None:
    return next(iter(encoded["input_ids"]), None)

"""`Tokens`: what is known about each token of a completion, and the blob that holds it.

A blob is a zlib stream of MessagePack: the texts of the tokens, and their ids and numbers as little-endian arrays of 32
bits. It needs no tokenizer to be shown. It is encoded and written off the training thread. `read_tokens` trusts nothing
in it: sizes are bounded, and columns of another length are refused.

Texts are redacted as a whole: where the completion holds a secret, its tokens are recorded without texts and ids.
"""

import math
import sys
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import msgspec

from hookline._engine.errors import HooklineError, OptionError
from hookline._record.media import Captured, Encoded, Invalid, invalid
from hookline._record.media_encoding import stage
from hookline._record.records import valid_text
from hookline._record.redaction import Redactor

MAX_TOKENS = 1 << 18
MAX_COLUMNS = 16
MAX_CONTENT_BYTES = 256 << 20
"""The most that a blob may unpack to."""
COLUMNS = ("logprobs", "sampled_logprobs", "old_logprobs", "ref_logprobs", "entropy", "ratio", "advantage", "mask")
"""The columns that the page knows."""
_MAX_NAME = 60


class Tokens:
    """Values for each token of a completion; the value of ``tokens`` in a row of ``log_samples``.

    Give each column a number per token: a list, a NumPy array, or a tensor on any device, which is copied without
    waiting for it. None and NaN stand for a value that is missing.

    Args:
        texts: The text of each token; put together, they are the completion, or the prompt and the completion.
        ids: The id of each token in the vocabulary.
        logprobs: The log-probability of each token under the model.
        sampled_logprobs: The same under the distribution it was sampled from.
        old_logprobs: The same under the policy before the update.
        ref_logprobs: The same under the reference model.
        entropy: The entropy of the distribution of each token.
        ratio: The ratio of the probabilities of the new policy and of the old one.
        advantage: The advantage of each token.
        mask: 1 for a token that is part of the loss, 0 for another one.
        columns: Other numbers, by their names.
    """

    def __init__(
        self,
        texts: Sequence[str] | None = None,
        *,
        ids: Any = None,
        logprobs: Any = None,
        sampled_logprobs: Any = None,
        old_logprobs: Any = None,
        ref_logprobs: Any = None,
        entropy: Any = None,
        ratio: Any = None,
        advantage: Any = None,
        mask: Any = None,
        **columns: Any,
    ) -> None:
        known = (logprobs, sampled_logprobs, old_logprobs, ref_logprobs, entropy, ratio, advantage, mask)
        given = dict(zip(COLUMNS, known, strict=True)) | columns
        self.texts, self.ids = texts, ids
        self.columns = {name: values for name, values in given.items() if values is not None}

    def capture(self, redactor: Redactor) -> Captured | Invalid:
        """Copy what the caller may change. Never raises."""
        try:
            return self._capture(redactor)
        except Exception as error:
            return invalid("tokens", "tokens", error)

    def _capture(self, redactor: Redactor) -> Captured:
        if self.texts is None and self.ids is None and not self.columns:
            raise OptionError("give the texts of the tokens, their ids, or a column of numbers")
        if isinstance(self.texts, str):
            raise OptionError("texts is one text; give a list with the text of each token")
        texts = None if self.texts is None else [str(text) for text in self.texts]
        given = {name: _copied(values) for name, values in self.columns.items()}
        ids = None if self.ids is None else _copied(self.ids, "i")
        lengths = {name: _length(values) for name, values in given.items()}
        lengths |= {} if texts is None else {"texts": len(texts)}
        lengths |= {} if ids is None else {"ids": _length(ids)}
        count = next(iter(lengths.values()))
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise OptionError(f"the columns have different lengths: {shown}; give a value for each token")
        if count > MAX_TOKENS or len(given) > MAX_COLUMNS or any(len(name) > _MAX_NAME for name in given):
            raise OptionError(f"give at most {MAX_TOKENS:,} tokens and {MAX_COLUMNS} columns with short names")
        size = sum(map(len, texts or ())) + 4 * count * (len(given) + 1)
        return Captured("tokens", partial(_encode, texts, ids, given, count, redactor), size)


def _copied(values: Any, kind: str = "f") -> Any:
    """Copy a column; arrays and tensors through `stage`, which does not wait for a device."""
    if isinstance(values, list | tuple):  # no NumPy needed for these
        missing = -1 if kind == "i" else math.nan
        return array(kind, [missing if value is None else value for value in values])
    staged = stage(values)
    if len(staged.shape) != 1:
        raise OptionError(f"a column has the shape {staged.shape}; give one number for each token")
    return staged


def _length(values: Any) -> int:
    return len(values) if isinstance(values, array) else int(values.shape[0])


class _Content(msgspec.Struct):
    """The content of a blob. Lengths are limits of the types: a small blob must not become millions of objects."""

    count: int
    texts: Annotated[list[str], msgspec.Meta(max_length=MAX_TOKENS)] | None = None
    ids: bytes | None = None
    columns: Annotated[dict[str, bytes], msgspec.Meta(max_length=MAX_COLUMNS)] = {}
    version: int = 1


def _encode(texts: list[str] | None, ids: Any, columns: Mapping[str, Any], count: int, redactor: Redactor) -> Encoded:
    texts = None if texts is None else [valid_text(text) for text in texts]
    is_redacted = texts is not None and redactor("".join(texts)) != "".join(texts)
    content = _Content(
        count,
        None if is_redacted else texts,
        None if is_redacted or ids is None else _bytes(ids, "<i4", "i"),
        {name: _bytes(values, "<f4", "f") for name, values in columns.items()},
    )
    facts: dict[str, Any] = {"count": count, "columns": list(columns)} | ({"redacted": True} if is_redacted else {})
    return Encoded(zlib.compress(msgspec.msgpack.encode(content), 6), "tokens", facts)


def _bytes(values: Any, dtype: str, kind: str) -> bytes:
    if not isinstance(values, array):
        content: bytes = values.fetch().astype(dtype).tobytes()
        return content
    return _swapped(values).tobytes()


def _swapped(values: "array[Any]") -> "array[Any]":
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values


class TokensError(HooklineError, ValueError):
    """A blob does not hold tokens."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The tokens of a sample.

    Attributes:
        texts: The text of each token; None if they were not recorded, or hold a secret.
        columns: A number for each token, by the name of the column.
    """

    count: int
    texts: list[str] | None
    ids: list[int] | None
    columns: dict[str, list[float]]


def read_tokens(content: bytes) -> TokenTable:
    """Read a blob, which may come from anywhere.

    Raises:
        TokensError: It does not hold tokens.
    """
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(content, MAX_CONTENT_BYTES)
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise TokensError("The tokens are truncated, or larger than accepted.")
        found = msgspec.msgpack.decode(unpacked, type=_Content)
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TokensError(f"The tokens cannot be read: {error}") from None
    sizes = {len(column) for column in found.columns.values()} | ({len(found.ids)} if found.ids is not None else set())
    is_valid = 0 <= found.count <= MAX_TOKENS and sizes <= {4 * found.count} and len(found.columns) <= MAX_COLUMNS
    if not is_valid or (found.texts is not None and len(found.texts) != found.count):
        raise TokensError("The columns of the tokens have different lengths.")
    ids = None if found.ids is None else _numbers(found.ids, "i")
    return TokenTable(found.count, found.texts, ids, {name: _numbers(c, "f") for name, c in found.columns.items()})


def _numbers(content: bytes, kind: str) -> list[Any]:
    values = array(kind)
    values.frombytes(content)
    return _swapped(values).tolist()


def token_texts(ids: Sequence[int], decode: Callable[[list[int]], str]) -> list[str]:
    """Return the text of each token, such that they add up to the text of all.

    A tokenizer may need several tokens for one character, and the tokens before a token for its leading space: each
    text is what a token adds to the text of a few tokens before it. A token that only begins a character has an empty
    text.

    Args:
        decode: Returns the text of a list of ids.
    """
    texts: list[str] = []
    start = known = 0  # the window: from the start of the last complete text, and up to which token is known
    for end in range(1, len(ids) + 1):
        before, after = decode(list(ids[start:known])), decode(list(ids[start:end]))
        if after.endswith("�") and end < len(ids):
            texts.append("")
            continue
        texts.append(after[len(before) :])
        start, known = known, end
    return texts

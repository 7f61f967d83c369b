"""Converts rows of ``log_samples`` to the fields of a `Sample`, and to the blobs written before it.

Chats are recorded as structure beside their text, and images in them and `Tokens` as blobs: the record refers to them
and is written after them, by `MediaWriter`. A value that is not of a field's type is kept in ``extra``.
"""

import math
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookline._record.chats import as_chat, completion_text, prompt_text, recorded_messages
from hookline._record.records import Sample, SampleUse

if TYPE_CHECKING:
    from hookline._record.redaction import Redactor

_FIELDS = frozenset(Sample.__struct_fields__) - {"time", "truncated", "axis", "extra"}
_TYPED = {
    "finish": str,
    "version": int,
    "length": int,
    "rollout": str,
    "parent": str,
    "prompt_length": int,
    "last_version": int,
}
_MAX_IMAGES = 64
_INTEGERS = range(-(1 << 63), 1 << 63)


class BlobFacts(dict[str, Any]):
    """A record's facts about a blob; empty until the blob is written."""


class CapturedSample:
    """A sample, or what was done with samples, that is recorded when its tokens and images are written.

    Attributes:
        blobs: The place of each in the sample, and the captured value; later the encoded one.
    """

    __slots__ = ("blobs", "nbytes", "sample")
    type = "sample"

    def __init__(self, sample: Sample | SampleUse, blobs: list[tuple[BlobFacts, Any]]) -> None:
        self.sample, self.blobs = sample, blobs
        self.nbytes = sum(getattr(cell, "nbytes", 0) for _, cell in blobs)


def sample_fields(
    row: Mapping[str, Any], redactor: "Redactor"
) -> tuple[dict[str, Any], dict[str, Any], list[tuple[BlobFacts, Any]]]:
    """Return the fields of a sample, what belongs into its ``extra``, and its blobs."""
    known = {name: value for name, value in row.items() if name in _FIELDS}
    extra = {name: value for name, value in row.items() if name not in _FIELDS and name not in ("axis", "extra")}
    blobs: list[tuple[BlobFacts, Any]] = []

    def record_image(image: Any) -> BlobFacts:
        from hookline._record.media import Image, Invalid

        facts = BlobFacts()
        captured = Image(image).capture("messages") if len(blobs) < _MAX_IMAGES else Invalid("image", "too many images")
        blobs.append((facts, captured))
        return facts

    for name, text_of in (("prompt", prompt_text), ("completion", completion_text)):
        chat, own = as_chat(known.get(name)), f"{name}_messages"
        given = known.pop(own, None)
        if given is not None and as_chat(given) is None:
            extra[own] = given
            given = None
        if chat is not None:
            known[name] = text_of(chat)
        chat = as_chat(given) or chat
        if chat is not None:
            known[own] = recorded_messages(chat, record_image)
            known.setdefault(name, text_of(chat))
    extra |= _take_untyped(known)
    if "timings" in known and not _are_timings(known["timings"]):
        extra["timings"] = known.pop("timings")
    if "tokens" in known:
        value = known.pop("tokens")
        facts = _captured_tokens(value, redactor, blobs)
        if facts is not None:
            known["tokens"] = facts
        elif value is not None:
            extra["tokens"] = value
    return known, extra, blobs


def _take_untyped(known: dict[str, Any]) -> dict[str, Any]:
    """Remove the values that are not of their field's type, and return those that are worth keeping."""
    others: dict[str, Any] = {}
    for name, kind in _TYPED.items():
        value: Any = known.pop(name, None)
        if kind is int and not isinstance(value, bool) and hasattr(value, "__index__"):  # also NumPy's
            value = operator.index(value)
        if type(value) is kind and (kind is str or value in _INTEGERS):
            known[name] = value
        elif value is not None:
            others[name] = value
    return others


def _are_timings(value: Any) -> bool:
    is_mapping = isinstance(value, dict) and all(type(name) is str for name in value)
    return is_mapping and all(type(seconds) in (int, float) and math.isfinite(seconds) for seconds in value.values())


def _captured_tokens(value: Any, redactor: "Redactor", blobs: list[tuple[BlobFacts, Any]]) -> BlobFacts | None:
    from hookline._record.tokens import Tokens

    if not isinstance(value, Tokens):
        return None
    facts = BlobFacts()
    blobs.append((facts, value.capture(redactor)))
    return facts

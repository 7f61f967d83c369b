"""What stands on `hookline serve` in the place of a record, or of facts, that are more than it takes with one request.

A line of a journal is replaced by one of exactly as many bytes, so that everything behind it keeps its place: an event
``left_out`` that says what kind of record it was, and how large, and spaces, which gzip packs to nothing. A status
keeps its word, because that says how the run ended. A row with more metrics than the server takes is replaced by one
without them. The journal here stays as it is.
"""

import gzip
import itertools
import json
from dataclasses import dataclass

import msgspec

from hookline.record.records import DamagedLineError, Event, Status, encode, line_number, sealed

MOST_PACKED_BYTES = 8 << 20
"""How much the server takes with one request, as it is sent."""
MOST_FACTS_BYTES = 4 << 20
"""How much it takes of a ``run.json``, unpacked."""
LEFT_OUT = "left_out"
"""What the event is called, and what a shortened ``run.json`` has the sizes of what is missing under."""
_LARGE_FACT = MOST_FACTS_BYTES // 64
_LEVEL = 1
_WORD = 100


class _Head(msgspec.Struct):
    """What is told of a record that is left out."""

    kind: str = "unknown"
    time: float = 0.0
    step: int | None = None
    name: str = ""
    status: str = ""


class _Row(msgspec.Struct, tag_field="kind", tag="metrics"):
    """A row of metrics whose values stay the bytes that they are."""

    step: msgspec.Raw
    values: dict[str, msgspec.Raw]
    time: msgspec.Raw = msgspec.Raw(b"0.0")
    axis: str = "train"


_row = msgspec.json.Decoder(_Row)


@dataclass(frozen=True, slots=True)
class TakenNames:
    """Which metrics a server takes.

    Args:
        per_row: How many of a row.
        names: Which of the run; None as long as it takes any.
    """

    per_row: int
    names: frozenset[str] | None = None

    def fitting(self, lines: bytes) -> tuple[bytes, int]:
        """Lines of a journal with those metrics only, each as long as before; and how many values are left out."""
        whole = lines.split(b"\n")
        left_out = 0
        for place, line in enumerate(whole):
            try:
                row = _row.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # another kind of record, or none
                continue
            first = itertools.islice(row.values.items(), self.per_row)
            kept = {name: value for name, value in first if self.names is None or name in self.names}
            if len(kept) < len(row.values):
                left_out += len(row.values) - len(kept)
                row.values = kept
                whole[place] = _in_as_many_bytes(msgspec.json.encode(row), line)
        return b"\n".join(whole), left_out


def packed(content: bytes) -> bytes:
    """Content as it is sent: journals become a fifth of their size, at 100 MB a second."""
    return gzip.compress(content, _LEVEL, mtime=0)


def fitting_lines(lines: bytes) -> bytes:
    """Lines of a journal, or where they are one line that is too large, the line in its place."""
    if len(lines) <= MOST_PACKED_BYTES // 2 or len(packed(lines)) <= MOST_PACKED_BYTES:
        return lines
    return _in_as_many_bytes(encode(_in_the_place_of(lines)), lines[:-1]) + b"\n"


def _in_as_many_bytes(line: bytes, before: bytes) -> bytes:
    """A line that is to stand in the place of a longer one, with its number."""
    try:
        number = line_number(before)
    except DamagedLineError:
        number = None
    return line.ljust(len(before)) if number is None else _sealed_to(line, number, len(before))


def _sealed_to(line: bytes, number: int, size: int) -> bytes:
    """A line with its number and checksum, filled up to a size: the server finds no gap where it stands."""
    missing = size - len(sealed(line, number))
    while True:  # the checksum has a digit less for some of the fillings
        whole = sealed(line[:-1] + b" " * missing + b"}", number)
        if len(whole) >= size:
            return whole if len(whole) == size else line.ljust(size)
        missing += size - len(whole)


def fitting_facts(description: bytes) -> bytes:
    """What ``run.json`` has; where that is too much, without what is large in it, most likely the configuration."""
    if len(description) <= MOST_FACTS_BYTES:
        return description
    facts = json.loads(description)
    sizes = {name: len(json.dumps(value)) for name, value in facts.items()}
    large = {name: size for name, size in sizes.items() if size > _LARGE_FACT}
    kept = {name: value for name, value in facts.items() if name not in large}
    return json.dumps(kept | {LEFT_OUT: large}).encode()


def _in_the_place_of(line: bytes) -> Event | Status:
    try:
        head = msgspec.json.decode(line, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        head = _Head()
    data = {"kind": head.kind[:_WORD], "bytes": len(line)} | ({"name": head.name[:_WORD]} if head.name else {})
    if head.kind == "status":
        return Status(time=head.time, status=head.status[:_WORD], step=head.step, data={LEFT_OUT: data})
    return Event(time=head.time, name=LEFT_OUT, step=head.step, data=data)

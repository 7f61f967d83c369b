"""What stands on `hookline serve` in the place of a record, or of facts, that are more than it takes with one request.

A line of a journal is replaced by one of exactly as many bytes, so that everything behind it keeps its place: an event
``left_out`` that says what kind of record it was, and how large, and spaces, which gzip packs to nothing. A status
keeps its word, because that says how the run ended. The journal here stays as it is.
"""

import gzip
import json

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


def packed(content: bytes) -> bytes:
    """Content as it is sent: journals become a fifth of their size, at 100 MB a second."""
    return gzip.compress(content, _LEVEL, mtime=0)


def fitting_lines(lines: bytes) -> bytes:
    """Lines of a journal, or where they are one line that is too large, the line in its place."""
    if len(lines) <= MOST_PACKED_BYTES // 2 or len(packed(lines)) <= MOST_PACKED_BYTES:
        return lines
    line, size = encode(_in_the_place_of(lines)), len(lines) - 1
    try:
        number = line_number(lines[:-1])
    except DamagedLineError:
        number = None
    return (line.ljust(size) if number is None else _sealed_to(line, number, size)) + b"\n"


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

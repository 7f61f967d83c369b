"""Bodies of requests, within limits: how large, how slow, and how many at a time.

A body is taken whole before anything is done with it: one that breaks off has no effect. What is packed with gzip is
unpacked piece by piece, never to more than the limit. What is held of all bodies together, as they were sent and
unpacked, stays within a limit, too: each counts until the request that it came with has been answered.

How deep JSON may be that others send: what is nested without end would end every reader of it, for everybody.

What runs and files of other machines may be called: each name is one plain component of a path, and nothing else.

Names of runs come from arms of experiments as well, so they may have spaces, ``=`` or letters of any language. They
may not have what could lead elsewhere or deceive whoever reads them: no separators, no control or invisible characters,
no dot at the beginning (so neither ``..`` nor the server's own hidden files), no second spelling of the same letters,
and nothing that stands for bytes which are no text.

How many names metrics may have that others send: in one row, and in one run.

Everybody who looks at a run pays for its names, in lists, charts and queries. Which names a run has is kept in a file
beside its journal, so that any server on the same root knows. Memory for the check is bounded: a row is decoded only
once it is known to have few enough names.
"""

import contextlib
import io
import itertools
import re
import threading
import unicodedata
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec
from starlette.requests import Request

from hookline._engine.errors import HooklineError, OptionError
from hookline._record.records import MAX_DEPTH, is_too_deep

MOST_BYTES = 8 << 20
MOST_UNPACKED_BYTES = 64 << 20
_GZIP = 16 + zlib.MAX_WBITS
_PACKED_PIECE = 64 << 10
_PIECE = 1 << 20


class BodyError(HooklineError, ValueError):
    """A body that is not taken, with the status that says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class Bodies:
    """Takes the bodies of requests.

    Args:
        most_bytes: The size of a body, as it is sent.
        in_all_bytes: The size of all that are held at a time, as they were sent and unpacked.
        chunk_seconds: How long a sender may say nothing.
        body_seconds: How long it may take in all.
    """

    most_bytes: int = MOST_BYTES
    in_all_bytes: int = 256 << 20
    chunk_seconds: float = 15.0
    body_seconds: float = 120.0
    held: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextlib.asynccontextmanager
    async def take(self, request: Request, limit: int) -> AsyncIterator["Body"]:
        """The body of a request, which counts as held until the context is left.

        Raises:
            BodyError: It is too large or too slow, or there are too many others.
        """
        limit = min(limit, self.most_bytes)
        _check_announced(request, limit)
        body = Body(self)
        try:
            body.sent = await self._read(request, body, limit)
            yield body
        finally:
            self.hold(-body.held)

    def hold(self, count: int) -> None:
        """Count bytes as held, or with a minus as no longer held; may be called from any thread.

        Raises:
            BodyError: It would be too much; nothing is counted then.
        """
        with self._lock:
            if count > 0 and self.held + count > self.in_all_bytes:
                raise BodyError(503, "Too much is being sent at a time. Send it again in a moment.")
            self.held += count

    async def _read(self, request: Request, body: "Body", limit: int) -> bytes:
        chunks: list[bytes] = []
        try:
            with anyio.fail_after(self.body_seconds):
                stream = request.stream().__aiter__()
                while True:
                    with anyio.fail_after(self.chunk_seconds):
                        chunk = await anext(stream, None)
                    if chunk is None:
                        return b"".join(chunks)
                    if body.held + len(chunk) > limit:
                        raise _too_large(limit)
                    body.hold(len(chunk))
                    chunks.append(chunk)
        except TimeoutError:
            raise BodyError(408, f"The body did not come in time; {body.held:,} bytes did. Send it again.") from None


@dataclass(slots=True)
class Body:
    """A body that was taken.

    Args:
        sent: What was sent, as it was sent.
        held: How many bytes are held of it.
    """

    _bodies: Bodies
    sent: bytes = b""
    held: int = 0

    def hold(self, count: int) -> None:
        """Count more bytes of it as held.

        Raises:
            BodyError: There are too many others.
        """
        self._bodies.hold(count)
        self.held += count

    def unpacked(self, encoding: str, limit: int) -> bytes:
        """What its sender packed.

        Raises:
            BodyError: It is packed in a way that is not known, broken, or too large; or there are too many others.
        """
        kind = encoding.strip().lower()
        if kind in ("", "identity"):
            return self.sent
        if kind != "gzip":
            raise BodyError(415, f"Content-Encoding: {encoding!r:.40} is not known here. Use gzip, or none.")
        unpacked = io.BytesIO()  # gives out what it holds without a copy
        for piece in _pieces(self.sent):
            if unpacked.tell() + len(piece) > limit:
                raise _too_large(limit)
            self.hold(len(piece))
            unpacked.write(piece)
        return unpacked.getvalue()


def _pieces(packed: bytes) -> Iterator[bytes]:
    """What was packed with gzip, in pieces of a bounded size."""
    unpacking = zlib.decompressobj(_GZIP)
    try:
        for begin in range(0, len(packed), _PACKED_PIECE):
            rest = packed[begin : begin + _PACKED_PIECE]
            while rest and not unpacking.eof:
                yield unpacking.decompress(rest, _PIECE)
                rest = unpacking.unconsumed_tail
            if unpacking.eof and (unpacking.unused_data or begin + _PACKED_PIECE < len(packed)):
                break
        else:
            if unpacking.eof:
                return
    except zlib.error as error:
        raise BodyError(400, f"The body is no gzip: {error}.") from None
    raise BodyError(400, "The body is no gzip: it is cut off, or something is behind its end.")


def _check_announced(request: Request, limit: int) -> None:
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced[:18]) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> BodyError:
    return BodyError(413, f"The body is too large: at most {limit:,} bytes are taken at a time. Send less.")


_UP_AND_DOWN = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEPTH_PIECE = 128 << 10


def check_depth(what: str, value: Any) -> None:
    """Refuse a value that is nested too deeply.

    Raises:
        OptionError: It is.
    """
    if is_too_deep(value):
        raise OptionError(f"{what} is nested more than {MAX_DEPTH} levels deep.")


def check_lines_depth(lines: bytes, *, piece_bytes: int = _DEPTH_PIECE) -> None:
    """Refuse lines of JSON of which one is nested too deeply, by their brackets alone: decoding takes up more.

    Args:
        piece_bytes: How much is looked at at a time: between the pieces other threads have their turn.

    Raises:
        OptionError: One is.
    """
    if _brackets(lines) <= MAX_DEPTH:
        return
    line = _Line()
    for begin in range(0, len(lines), piece_bytes):
        end_of_line, *others = lines[begin : begin + piece_bytes].split(b"\n")
        depths = [line.pass_by(end_of_line)]
        depths += [_Line().pass_by(whole) for whole in others[:-1] if len(whole) > MAX_DEPTH < _brackets(whole)]
        if others:
            line = _Line()
            depths.append(line.pass_by(others[-1]))
        if max(depths) > MAX_DEPTH:
            raise OptionError(f"A line is nested more than {MAX_DEPTH} levels deep.")


@dataclass(slots=True)
class _Line:
    """Where a line stands, as far as it was looked at.

    Outside of strings no JSON has a backslash. What has one there is decoded by nobody beyond it.
    """

    depth: int = 0
    is_in_string: bool = False
    begun: bytes = b""
    """A backslash at the end of a piece, of which the next one says what it escapes."""

    def pass_by(self, piece: bytes) -> int:
        """Look at the next piece of it; how deep it is in there."""
        unescaped = (self.begun + piece).replace(b"\\\\", b"").replace(b'\\"', b"")
        self.begun = b"\\" if unescaped.endswith(b"\\") else b""
        parts = unescaped.split(b'"')  # every second one is in a string
        outside = b"".join(parts[self.is_in_string :: 2]).translate(_UP_AND_DOWN, _NO_BRACKETS)
        self.is_in_string ^= len(parts) % 2 == 0
        steps = memoryview(outside).cast("b")
        deepest = self.depth + max(itertools.accumulate(steps), default=0)
        self.depth += sum(steps)
        return deepest


def _brackets(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")


LONGEST_NAME = 200
_MOST_BYTES = 255
_FILE = re.compile(r"(?P<name>[^-]{1,100})-[0-9]{1,9}-[0-9]{1,10}-[0-9a-z]{1,32}-[0-9]{1,6}\.jsonl")
WHOLE_FILES = ("git.diff", "result.json")
"""Files beside the journal that are sent whole, and replace what was there."""


def check_name(what: str, name: str) -> str:
    """The name of a project or of a run.

    Raises:
        OptionError: It is none that is accepted.
    """
    plain = name.isprintable() and not set(name) & set("/\\\ufffd") and unicodedata.is_normalized("NFC", name)
    short = 0 < len(name) <= LONGEST_NAME and len(name.encode("utf-8", "surrogatepass")) <= _MOST_BYTES
    if not (plain and short) or name[0] == "." or name != name.strip():
        raise OptionError(
            f"{what}={name!r:.80} is no name: give 1 to {LONGEST_NAME} letters, digits, '_', '-', '.', '=' and the "
            "like, without '/' and not beginning with '.'."
        )
    return name


def check_file(name: str) -> str:
    """The name of a file that can be received.

    Raises:
        OptionError: It is none of a journal.
    """
    found = _FILE.fullmatch(name)
    if name in WHOLE_FILES or (found and found["name"].isidentifier() and len(name.encode()) <= _MOST_BYTES):
        return name
    raise OptionError(
        f"file={name!r:.80} cannot be received: give a journal's, <name>-<session>-<pid>-<token>-<number>.jsonl, "
        f"or {' or '.join(WHOLE_FILES)}."
    )


ROW_NAMES = 10_000
RUN_NAMES = 20_000
RUN_NAMES_BYTES = 2 << 20
"""How long the names of a run are, in all."""
NAMES_FILE = ".metric-names.json"
_OTHER_TEXTS = 16
"""More than a row has besides its metrics: names of fields, its kind and its axis."""


class NamesError(HooklineError, ValueError):
    """Rows have more metrics than are taken; ``facts`` says which are, for programs."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = {"names_per_row": ROW_NAMES} | facts


class _Kind(msgspec.Struct):
    kind: str = ""


class _Row(msgspec.Struct):
    kind: str = ""
    values: dict[str, msgspec.Raw] = {}


_kind = msgspec.json.Decoder(_Kind)
_row = msgspec.json.Decoder(_Row)


def names_of(lines: bytes) -> dict[str, None]:
    """The names of the metrics in lines of a journal, in their order; no more than a run may have, and one.

    Raises:
        NamesError: A row has too many.
    """
    names: dict[str, None] = {}
    for line in io.BytesIO(lines):
        try:
            if line.count(b'"') > 4 * ROW_NAMES:
                _check_texts(line)
            row = _row.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # readers pass over it
            continue
        if row.kind != "metrics" or row.values.keys() <= names.keys():
            continue
        if len(row.values) > ROW_NAMES:
            raise _too_many_in_a_row(f"{len(row.values):,}")
        names |= dict.fromkeys(row.values)
        if len(names) > RUN_NAMES:
            break
    return names


def _check_texts(line: bytes) -> None:
    """Refuse a row with so many texts in it that it has too many metrics, before it is decoded."""
    texts = line.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"') // 2
    if texts > 2 * ROW_NAMES + _OTHER_TEXTS and _kind.decode(line).kind == "metrics":  # a metric has two at most
        raise _too_many_in_a_row(f"more than {ROW_NAMES:,}")


def _too_many_in_a_row(count: str) -> NamesError:
    return NamesError(f"A row has {count} metrics: no more than {ROW_NAMES:,} are taken.")


def joined(known: list[str], names: Iterable[str]) -> tuple[list[str], bool]:
    """The names of a run with those of new rows, as many as it may have, and whether those are all."""
    own, size = dict.fromkeys(known), sum(map(len, known))
    for name in names:
        if name in own:
            continue
        size += len(name)
        if len(own) >= RUN_NAMES or size > RUN_NAMES_BYTES:
            return list(own), False
        own[name] = None
    return list(own), True


def too_many_in_a_run(names: list[str]) -> NamesError:
    """What is said where a run has all the names that it may have."""
    return NamesError(f"The run has {len(names):,} names of metrics: no others are taken.", names=names)

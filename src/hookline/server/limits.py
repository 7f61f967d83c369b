"""Limits on what clients send: sizes, speed and memory of bodies, depth of JSON, file and run names, metric names.

- A body is read completely before it is used: an aborted one has no effect. Gzip is unpacked in pieces, never beyond
  the limit. All bodies together, as sent and unpacked, stay within a limit, until their requests are answered.
- Deeply nested JSON is refused: it would crash every later reader.
- A name of a project or run is one plain path component. It may have spaces, ``=`` and letters of any language, because
  names come from the arms of experiments. It may not contain separators, control or invisible characters, or
  undecodable bytes, start with a dot (``..``, the server's hidden files), or be spelled in two forms (NFC only).
- Uploads of files share a number of places, which slow ones cannot keep for themselves (`UploadSlots`).
- Senders that have nothing to send ask less often the more of them there are (`RecentSenders`).
- The number of metric names is limited per row and per run, because every viewer pays for them. A run's names are kept
  in a file beside its journal, shared by all servers on the root. A row is decoded only once it is known to have few
  enough names, so the check needs bounded memory.
"""

import asyncio
import contextlib
import functools
import io
import itertools
import math
import re
import threading
import unicodedata
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from hookline._engine.errors import HooklineError, OptionError
from hookline._record.records import MAX_DEPTH, is_too_deep

if TYPE_CHECKING:  # the command line needs this module also without the extra `ui`
    from starlette.requests import Request

MAX_BODY_BYTES = 8 << 20
MAX_UNPACKED_BYTES = 64 << 20
MAX_INTEGER = 1 << 53
"""Larger integers are not exact in a browser."""
_GZIP = 16 + zlib.MAX_WBITS
_PACKED_CHUNK = 64 << 10
_UNPACKED_CHUNK = 1 << 20


class BodyError(HooklineError, ValueError):
    """A body that is not accepted, with the status of the response and when to try again."""

    def __init__(self, status: int, message: str, *, retry_seconds: float = 2.0) -> None:
        super().__init__(message)
        self.status, self.retry_seconds = status, retry_seconds


@dataclass(slots=True)
class BodyLimits:
    """Reads the bodies of requests within limits.

    Args:
        max_bytes: The maximum size of a body as sent.
        total_bytes: The maximum size of all bodies held at a time, as sent and unpacked.
        chunk_seconds: How long a sender may pause.
        body_seconds: How long a body may take in all.
        min_rate: Bytes per second. If no more fits into the total, the slowest body that comes at less is ended.
        grace_seconds: How long a body has to have come before its rate counts.
    """

    max_bytes: int = MAX_BODY_BYTES
    total_bytes: int = 256 << 20
    chunk_seconds: float = 15.0
    body_seconds: float = 120.0
    min_rate: float = 64 << 10
    grace_seconds: float = 5.0
    held: int = 0
    # Bodies of which more is to come, with the time of their first bytes; used on the event loop only.
    _incoming: "dict[asyncio.Timeout, tuple[float, Body]]" = field(default_factory=dict, repr=False)
    # Bodies are counted on the event loop while they are read, and on other threads while they are unpacked.
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def read(self, request: "Request", limit: int) -> "_BodyReader":
        """Read the body of a request on entry of a context; it counts as held until the context exits.

        Raises:
            BodyError: On entry, if it is too large or too slow, or there are too many others.
        """
        return _BodyReader(self, request, min(limit, self.max_bytes))

    def hold(self, count: int) -> None:
        """Add to the number of held bytes, or subtract from it; may be called from any thread.

        Raises:
            BodyError: It would exceed the total limit; nothing is added then.
        """
        with self._lock:
            if count > 0 and self.held + count > self.total_bytes:
                raise BodyError(503, "Too much is being sent at once. Try again in a moment.")
            self.held += count

    async def receive(self, request: "Request", body: "Body", limit: int) -> bytes:
        """Receive what a client sends, and count it as held for a body."""
        announced = request.headers.get("content-length", "")
        # Only an early refusal: the header may be missing or wrong, so the bytes are counted as they come.
        if announced.isascii() and announced.isdigit() and int(announced[:18]) > limit:
            raise _too_large(limit)
        chunks: list[bytes] = []
        clock = asyncio.get_running_loop().time
        start = clock()
        deadline = start + self.body_seconds
        # One timer for both limits: every request pays for it.
        timer = asyncio.timeout_at(min(deadline, start + self.chunk_seconds))
        try:
            async with timer:
                while True:
                    # Not `Request.stream`, which yields the chunks and an empty one: most bodies come in one piece.
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        from starlette.requests import ClientDisconnect

                        raise ClientDisconnect
                    chunk = message.get("body", b"")
                    if body.held + len(chunk) > limit:
                        raise _too_large(limit)
                    try:
                        body.hold(len(chunk))
                    except BodyError:
                        self._end_slowest(clock())
                        raise
                    chunks.append(chunk)
                    if not message.get("more_body", False):
                        break
                    self._incoming[timer] = (start, body)
                    timer.reschedule(min(deadline, clock() + self.chunk_seconds))
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        except TimeoutError:
            raise BodyError(408, f"The body timed out after {body.held:,} bytes. Send it again.") from None
        finally:
            self._incoming.pop(timer, None)

    def _end_slowest(self, now: float) -> None:
        """Make room for the next body, so that slow senders, however many, do not keep the memory for themselves.

        By rate and not by client: behind a proxy, all senders have the same address.
        """
        rates = {
            timer: body.held / (now - since)
            for timer, (since, body) in self._incoming.items()
            if now - since > self.grace_seconds
        }
        slowest = min(rates, key=rates.__getitem__, default=None)
        if slowest is not None and rates[slowest] < self.min_rate:
            del self._incoming[slowest]  # at once: more requests may come before its task runs
            with contextlib.suppress(RuntimeError):  # it is ending already
                slowest.reschedule(now)


@dataclass(slots=True)
class Body:
    """A body that was read.

    Args:
        sent: The bytes as sent.
        held: The number of bytes that count as held for it.
    """

    _limits: BodyLimits
    sent: bytes = b""
    held: int = 0

    def hold(self, count: int) -> None:
        """Count more bytes as held for this body.

        Raises:
            BodyError: There are too many other bodies.
        """
        self._limits.hold(count)
        self.held += count

    def unpack(self, encoding: str, limit: int) -> bytes:
        """The content without its encoding.

        Raises:
            BodyError: The encoding is unknown, the content is broken or too large, or there are too many others.
        """
        kind = encoding.strip().lower()
        if kind in ("", "identity"):
            return self.sent
        if kind != "gzip":
            raise BodyError(415, f"Content-Encoding: {encoding!r:.40} is not supported. Use gzip, or none.")
        unpacked = io.BytesIO()  # its getvalue does not copy
        for chunk in _gunzip(self.sent):
            if unpacked.tell() + len(chunk) > limit:
                raise _too_large(limit)
            self.hold(len(chunk))
            unpacked.write(chunk)
        return unpacked.getvalue()


class _BodyReader:
    """The context of `BodyLimits.read`; a class, because every request pays for it."""

    def __init__(self, limits: BodyLimits, request: "Request", limit: int) -> None:
        self._limits, self._request, self._limit = limits, request, limit
        self._body = Body(limits)

    async def __aenter__(self) -> Body:
        try:
            self._body.sent = await self._limits.receive(self._request, self._body, self._limit)
        except BaseException:
            self._limits.hold(-self._body.held)
            raise
        return self._body

    async def __aexit__(self, *_: object) -> None:
        self._limits.hold(-self._body.held)


def _gunzip(packed: bytes) -> Iterator[bytes]:
    """Unpack gzip in chunks of a bounded size."""
    decompressor = zlib.decompressobj(_GZIP)
    try:
        for start in range(0, len(packed), _PACKED_CHUNK):
            rest = packed[start : start + _PACKED_CHUNK]
            while rest and not decompressor.eof:
                yield decompressor.decompress(rest, _UNPACKED_CHUNK)
                rest = decompressor.unconsumed_tail
            if decompressor.eof and (decompressor.unused_data or start + _PACKED_CHUNK < len(packed)):
                break
        else:
            if decompressor.eof:
                return
    except zlib.error as error:
        raise BodyError(400, f"The body is not valid gzip: {error}.") from None
    raise BodyError(400, "The body is not valid gzip: it is cut off, or has data past its end.")


def _too_large(limit: int) -> BodyError:
    return BodyError(413, f"The body is too large: send at most {limit:,} bytes at a time.")


_BRACKET_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEPTH_CHUNK = 128 << 10


def check_depth(what: str, value: Any) -> None:
    """Refuse a value that is nested too deeply.

    Raises:
        OptionError: It is.
    """
    if is_too_deep(value):
        raise OptionError(f"{what} is nested more than {MAX_DEPTH} levels deep.")


def check_lines_depth(lines: bytes, *, chunk_bytes: int = _DEPTH_CHUNK) -> None:
    """Refuse lines of JSON if one is nested too deeply. Only brackets are counted: decoding would take more memory.

    Args:
        chunk_bytes: How much is checked at a time; between the chunks, other threads can run.

    Raises:
        OptionError: One is.
    """
    if _count_brackets(lines) <= MAX_DEPTH:
        return
    line = _LineDepth()
    for start in range(0, len(lines), chunk_bytes):
        end_of_line, *others = lines[start : start + chunk_bytes].split(b"\n")
        depths = [line.add(end_of_line)]
        depths += [_LineDepth().add(each) for each in others[:-1] if len(each) > MAX_DEPTH < _count_brackets(each)]
        if others:
            line = _LineDepth()
            depths.append(line.add(others[-1]))
        if max(depths) > MAX_DEPTH:
            raise OptionError(f"A line is nested more than {MAX_DEPTH} levels deep.")


@dataclass(slots=True)
class _LineDepth:
    """The nesting depth of a line, chunk by chunk.

    Outside of strings JSON has no backslash; no decoder reads beyond one there.
    """

    depth: int = 0
    is_in_string: bool = False
    pending: bytes = b""
    """A backslash at the end of a chunk; the next chunk shows what it escapes."""

    def add(self, chunk: bytes) -> int:
        """Add the next chunk; returns the maximum depth in it."""
        unescaped = (self.pending + chunk).replace(b"\\\\", b"").replace(b'\\"', b"")
        self.pending = b"\\" if unescaped.endswith(b"\\") else b""
        parts = unescaped.split(b'"')  # every second one is in a string
        outside = b"".join(parts[self.is_in_string :: 2]).translate(_BRACKET_STEPS, _NO_BRACKETS)
        self.is_in_string ^= len(parts) % 2 == 0
        steps = memoryview(outside).cast("b")
        deepest = self.depth + max(itertools.accumulate(steps), default=0)
        self.depth += sum(steps)
        return deepest


def _count_brackets(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")


_MAX_SENDERS = 100_000


class RecentSenders:
    """Counts the senders of requests that each of them repeats: the more there are, the less often they may ask.

    All methods may be called from any thread.

    Args:
        seconds: How long a sender counts after a request.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._times: dict[str, float] = {}
        self._lock = threading.Lock()

    def count(self, name: str, now: float) -> int:
        """Note a request of a sender, and return the number of senders."""
        with self._lock:
            self._times.pop(name, None)
            self._times[name] = now  # last: the oldest come first
            # Bounded, whatever names somebody makes up.
            while len(self._times) > _MAX_SENDERS or now - next(iter(self._times.values())) > self._seconds:
                del self._times[next(iter(self._times))]
            return len(self._times)


class UploadSlots:
    """Shares the places for large uploads, so that many or slow ones of some clients keep no others out.

    A client has at most `per_client` at a time. If all places are in use, a new upload replaces the slowest of those
    below `min_rate`, whose client is asked to send the file again. While places are free, uploads may be slow.

    All methods are called on the event loop.

    Args:
        places: The maximum number of uploads.
        per_client: The maximum number of one client.
        min_rate: Bytes per second that keep an upload its place.
        grace_seconds: How long the server has to have waited for an upload's data before its rate counts.
    """

    def __init__(
        self, places: int = 16, *, per_client: int = 12, min_rate: float = 64 << 10, grace_seconds: float = 5.0
    ) -> None:
        self._places, self._per_client = places, per_client
        self._min_rate, self._grace_seconds = min_rate, grace_seconds
        self._uploads: set[UploadSlot] = set()

    @contextlib.contextmanager
    def hold(self, client: str) -> Iterator["UploadSlot"]:
        """Occupy a place until the context exits.

        Raises:
            BodyError: There is none.
        """
        if sum(upload.client == client for upload in self._uploads) >= self._per_client:
            raise BodyError(503, f"You are sending {self._per_client} files already. Try again when one is complete.")
        if len(self._uploads) >= self._places:
            slow = [each for each in self._uploads if each.rate(self._grace_seconds) < self._min_rate]
            if not slow:
                raise BodyError(503, "Too many files are being sent at once. Try again in a moment.")
            slowest = min(slow, key=lambda each: each.rate(self._grace_seconds))
            # At once, not only when its task ends: more uploads may begin before.
            self._uploads.discard(slowest)
            slowest.end()
        upload = UploadSlot(client)
        self._uploads.add(upload)
        try:
            yield upload
        finally:
            self._uploads.discard(upload)


class UploadSlot:
    """An upload that occupies a place of `UploadSlots`.

    Args:
        client: Who sends it.
    """

    def __init__(self, client: str) -> None:
        self.client = client
        self.size = 0
        self._waited = 0.0
        self._waits_since: float | None = None
        self._timer: asyncio.Timeout | None = None
        self._has_ended = False

    def rate(self, grace_seconds: float) -> float:
        """Bytes per second of waiting for the client: time in which this server writes does not count."""
        if self._waits_since is None:  # it is being written or stored: it will be done without its client
            return math.inf
        waited = self._waited + asyncio.get_running_loop().time() - self._waits_since
        return self.size / waited if waited > grace_seconds else math.inf

    def end(self) -> None:
        """Give the place to another upload."""
        self._has_ended = True
        if self._timer is not None:
            self._timer.reschedule(asyncio.get_running_loop().time())

    async def receive(
        self, chunks: AsyncIterator[bytes], *, chunk_seconds: float, seconds: float
    ) -> AsyncIterator[bytes]:
        """The chunks of the upload.

        Args:
            chunk_seconds: How long a sender may pause.
            seconds: How long all of it may take.

        Raises:
            BodyError: It comes too slowly.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while True:
            self._waits_since = clock()
            try:
                async with asyncio.timeout_at(min(deadline, clock() + chunk_seconds)) as self._timer:
                    chunk = await anext(chunks, None)
            except TimeoutError:
                problem = "made room for another one" if self._has_ended else "timed out"
                raise BodyError(408, f"The file {problem} after {self.size:,} bytes. Send it again.") from None
            finally:
                self._timer = None
                self._waited += clock() - self._waits_since
                self._waits_since = None
            if chunk is None:
                return
            self.size += len(chunk)
            yield chunk


MAX_NAME_LENGTH = 200
_MAX_NAME_BYTES = 255
_FILE = re.compile(r"(?P<name>[^-]{1,100})-[0-9]{1,9}-[0-9]{1,10}-[0-9a-z]{1,32}-[0-9]{1,6}\.jsonl")
WHOLE_FILES = ("git.diff", "environment.json", "result.json")
"""Files beside the journal that are sent whole and replaced."""


@functools.lru_cache(4096)
def check_name(what: str, name: str) -> str:
    """Check the name of a project or of a run.

    Raises:
        OptionError: It is not accepted.
    """
    plain = name.isprintable() and not set(name) & set("/\\\ufffd") and unicodedata.is_normalized("NFC", name)
    short = 0 < len(name) <= MAX_NAME_LENGTH and len(name.encode("utf-8", "surrogatepass")) <= _MAX_NAME_BYTES
    if not (plain and short) or name[0] == "." or name != name.strip():
        raise OptionError(
            f"{what}={name!r:.80} is not a valid name: give 1 to {MAX_NAME_LENGTH} letters, digits, '_', '-', '.', '=' "
            "and the like, without '/' and not starting with '.'."
        )
    return name


def check_file(name: str) -> str:
    """Check the name of a received file.

    Raises:
        OptionError: It is not a journal file, nor one of `WHOLE_FILES`.
    """
    found = _FILE.fullmatch(name)
    if name in WHOLE_FILES or (found and found["name"].isidentifier() and len(name.encode()) <= _MAX_NAME_BYTES):
        return name
    raise OptionError(
        f"file={name!r:.80} cannot be received: give a journal file, <name>-<session>-<pid>-<token>-<number>.jsonl, "
        f"or {' or '.join(WHOLE_FILES)}."
    )


ROW_NAMES = 10_000
RUN_NAMES = 20_000
RUN_NAMES_BYTES = 2 << 20
"""The maximum total length of a run's metric names."""
NAMES_FILE = ".metric-names.json"
_OTHER_TEXTS = 16
"""More texts than a row has besides its metrics: field names, its kind and its axis."""


class NamesError(HooklineError, ValueError):
    """Rows have too many metrics; ``facts`` tells programs which are accepted."""

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


def metric_names(lines: bytes) -> dict[str, None]:
    """The metric names in lines of a journal, in order; at most one more than a run may have.

    Raises:
        NamesError: A row has too many.
    """
    names: dict[str, None] = {}
    for line in io.BytesIO(lines):
        try:
            if line.count(b'"') > 4 * ROW_NAMES:
                # Refuse a row with too many metrics before decoding it, by the number of texts in it.
                texts = line.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"') // 2
                # A metric has at most two.
                if texts > 2 * ROW_NAMES + _OTHER_TEXTS and _kind.decode(line).kind == "metrics":
                    raise _too_many_in_row(f"more than {ROW_NAMES:,}")
            row = _row.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # readers skip it
            continue
        if row.kind != "metrics" or row.values.keys() <= names.keys():
            continue
        if len(row.values) > ROW_NAMES:
            raise _too_many_in_row(f"{len(row.values):,}")
        names |= dict.fromkeys(row.values)
        if len(names) > RUN_NAMES:
            break
    return names


def _too_many_in_row(count: str) -> NamesError:
    return NamesError(f"A row has {count} metrics; at most {ROW_NAMES:,} are accepted.")


def merge_names(known: list[str], names: Iterable[str]) -> tuple[list[str], bool]:
    """Add the names of new rows to those of a run, as far as the limits allow; also returns whether all fit."""
    merged, size = dict.fromkeys(known), sum(map(len, known))
    for name in names:
        if name in merged:
            continue
        size += len(name)
        if len(merged) >= RUN_NAMES or size > RUN_NAMES_BYTES:
            return list(merged), False
        merged[name] = None
    return list(merged), True


def too_many_names_error(names: list[str]) -> NamesError:
    """The error for a run that has reached its limit."""
    return NamesError(f"The run has {len(names):,} metric names; no others are accepted.", names=names)

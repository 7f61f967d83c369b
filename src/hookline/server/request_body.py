"""Bodies of requests, within limits: how large, how slow, and how many at a time.

A body is taken whole before anything is done with it: one that breaks off has no effect. What is packed with gzip is
unpacked piece by piece, never to more than the limit. What is held of all bodies together, as they were sent and
unpacked, stays within a limit, too: each counts until the request that it came with has been answered.
"""

import contextlib
import io
import threading
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import anyio
from starlette.requests import Request

from hookline.core.errors import HooklineError

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

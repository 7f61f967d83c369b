"""Bodies of requests, within limits: how large, how slow, and how many at a time.

A body is taken whole before anything is done with it: one that breaks off has no effect. What is packed with gzip is
unpacked piece by piece, never to more than the limit.
"""

import zlib
from dataclasses import dataclass

import anyio
from starlette.requests import Request

from hookline.core.errors import HooklineError

MOST_BYTES = 8 << 20
MOST_UNPACKED_BYTES = 16 << 20
_GZIP = 16 + zlib.MAX_WBITS


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
        in_all_bytes: The size of all that are being taken at a time.
        chunk_seconds: How long a sender may say nothing.
        body_seconds: How long it may take in all.
    """

    most_bytes: int = MOST_BYTES
    in_all_bytes: int = 256 << 20
    chunk_seconds: float = 15.0
    body_seconds: float = 120.0
    held: int = 0

    async def take(self, request: Request, limit: int) -> bytes:
        """The body of a request as it was sent.

        Raises:
            BodyError: It is too large or too slow, or there are too many others.
        """
        self._check_announced(request, limit)
        chunks: list[bytes] = []
        taken = 0
        try:
            with anyio.fail_after(self.body_seconds):
                stream = request.stream().__aiter__()
                while True:
                    with anyio.fail_after(self.chunk_seconds):
                        chunk = await anext(stream, None)
                    if chunk is None:
                        return b"".join(chunks)
                    taken, self.held = taken + len(chunk), self.held + len(chunk)
                    self._check_taken(taken, limit)
                    chunks.append(chunk)
        except TimeoutError:
            raise BodyError(408, f"The body did not come in time; {taken:,} bytes did. Send it again.") from None
        finally:
            self.held -= taken

    def _check_announced(self, request: Request, limit: int) -> None:
        announced = request.headers.get("content-length", "")
        if announced.isascii() and announced.isdigit() and int(announced[:18]) > min(limit, self.most_bytes):
            raise _too_large(min(limit, self.most_bytes))

    def _check_taken(self, taken: int, limit: int) -> None:
        if taken > min(limit, self.most_bytes):
            raise _too_large(min(limit, self.most_bytes))
        if self.held > self.in_all_bytes:
            raise BodyError(503, "Too much is being sent at a time. Send it again in a moment.")


def unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    """A body as its sender had it.

    Raises:
        BodyError: It is packed in a way that is not known, broken, or too large.
    """
    kind = encoding.strip().lower()
    if kind in ("", "identity"):
        return body
    if kind != "gzip":
        raise BodyError(415, f"Content-Encoding: {encoding!r:.40} is not known here. Use gzip, or none.")
    unpacking = zlib.decompressobj(_GZIP)
    try:
        data = unpacking.decompress(body, limit + 1)
    except zlib.error as error:
        raise BodyError(400, f"The body is no gzip: {error}.") from None
    if len(data) > limit:
        raise _too_large(limit)
    if not unpacking.eof or unpacking.unused_data:
        raise BodyError(400, "The body is no gzip: it is cut off, or something is behind its end.")
    return data


def _too_large(limit: int) -> BodyError:
    return BodyError(413, f"The body is too large: at most {limit:,} bytes are taken at a time. Send less.")

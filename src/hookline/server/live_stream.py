"""The live stream: tells each viewer, as server-sent events, which runs changed since it was last told.

A viewer that was away gets all runs first, so nothing is missed. When nothing happens a beat is sent, by which a page
knows that the server lives.

How many streams there are is limited, in all and for each client address: a stream holds a connection for as long as
its client likes. One too many is answered with 503, and the page asks again after a while.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from hookline.server.endpoint import json_response
from hookline.server.listing import Listed, Listing, RunRow

POLL_SECONDS = 1.0
BEAT_SECONDS = 10.0
MOST_STREAMS = 256


class RunsChanged(msgspec.Struct):
    """The runs that are new or changed, the ids of those that are gone, all of them at first; and the store's notes."""

    time: float
    whole: bool
    changed: list[RunRow]
    removed: list[str]
    notes: list[str]


class Beat(msgspec.Struct):
    """Nothing happened; the server's time."""

    time: float


@dataclass(slots=True)
class Viewer:
    """What one viewer was told, and what it must be told next."""

    told: dict[str, RunRow] | None = None
    notes: list[str] = field(default_factory=list)
    silent_since: float = field(default_factory=time.monotonic)

    def news(self, rows: dict[str, RunRow], notes: list[str]) -> RunsChanged | None:
        """What this viewer does not know yet."""
        is_new = self.told is None or notes != self.notes
        is_first, before, self.told, self.notes = self.told is None, self.told or {}, rows, notes
        changed = [row for id_, row in rows.items() if before.get(id_) is not row]
        removed = [id_ for id_ in before if id_ not in rows]
        if not (changed or removed or is_new):
            return None
        return RunsChanged(time.time(), is_first, changed, removed, notes)


@dataclass(frozen=True, slots=True)
class LiveStream:
    """The endpoint of the stream.

    Args:
        is_closing: Whether the server is about to end, when streams must end too.
        most: How many streams there are at a time; a client address may have a quarter of them.
    """

    listing: Listing
    is_closing: Callable[[], bool] = lambda: False
    most: int = MOST_STREAMS
    poll_seconds: float = POLL_SECONDS
    beat_seconds: float = BEAT_SECONDS
    _open: Counter[str] = field(default_factory=Counter)
    _turn: anyio.Lock = field(default_factory=anyio.Lock)
    _thread: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))

    async def respond(self, request: Request) -> Response:
        """Begin to tell a viewer."""
        client = request.client.host if request.client else ""
        if self._open.total() >= self.most or self._open[client] >= max(1, self.most // 4):
            whose = "of this server" if self._open.total() >= self.most else f"of {client}"
            answer = json_response({"error": f"Every live stream {whose} is in use. Close a page, or try later."}, 503)
            answer.headers["Retry-After"] = "10"
            return answer
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return _Counted(self._open, client, self._events(), headers=headers, media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        viewer = Viewer()
        yield _event("beat", Beat(time.time()))
        while not self.is_closing():
            listed = await self._listed()
            news = viewer.news(listed.rows, listed.notes)
            if news is not None:
                viewer.silent_since = time.monotonic()
                yield _event("runs", news)
            elif time.monotonic() - viewer.silent_since >= self.beat_seconds:
                viewer.silent_since = time.monotonic()
                yield _event("beat", Beat(time.time()))
            await anyio.sleep(self.poll_seconds)

    async def _listed(self) -> Listed:
        """The runs, listed by one viewer for all, on a thread of the stream's own: charts may keep the others busy."""
        async with self._turn:
            fresh = self.listing.fresh()
            if fresh is not None:
                return fresh
            return await anyio.to_thread.run_sync(self.listing.now, limiter=self._thread)


class _Counted(StreamingResponse):
    """A stream that counts as open until it ends, also where its client has gone before the first event."""

    def __init__(self, counts: Counter[str], client: str, events: AsyncIterator[bytes], **options: Any) -> None:
        super().__init__(events, **options)
        self._counts, self._client = counts, client
        counts[client] += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._counts[self._client] -= 1
            if not self._counts[self._client]:
                del self._counts[self._client]


def _event(name: str, data: msgspec.Struct) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"

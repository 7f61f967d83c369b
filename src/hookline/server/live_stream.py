"""The live stream: sends each viewer the runs that changed, as server-sent events.

A viewer gets all runs first, so a reconnecting one misses nothing. When nothing changes, a heartbeat shows that the
server is alive.

The number of streams is limited, in all and per client address, because a stream holds a connection for as long as its
client likes. Beyond the limit the response is 503, and the page tries again later.
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
from hookline.server.listing import ListedRuns, Listing, RunRow

POLL_SECONDS = 1.0
HEARTBEAT_SECONDS = 10.0
MAX_STREAMS = 256


class RunsChanged(msgspec.Struct):
    """New and changed runs, the ids of removed ones, and the store's notes; ``whole`` if these are all runs."""

    time: float
    whole: bool
    changed: list[RunRow]
    removed: list[str]
    notes: list[str]


class Heartbeat(msgspec.Struct):
    """The server's time, sent when nothing changes."""

    time: float


@dataclass(slots=True)
class Viewer:
    """What was sent to one viewer."""

    rows: dict[str, RunRow] | None = None
    notes: list[str] = field(default_factory=list)
    last_sent: float = field(default_factory=time.monotonic)

    def update(self, rows: dict[str, RunRow], notes: list[str]) -> RunsChanged | None:
        """The changes since the last update; None if there are none."""
        is_first, before, has_new_notes = self.rows is None, self.rows or {}, notes != self.notes
        self.rows, self.notes = rows, notes
        changed = [row for id_, row in rows.items() if before.get(id_) is not row]
        removed = [id_ for id_ in before if id_ not in rows]
        if not (changed or removed or is_first or has_new_notes):
            return None
        return RunsChanged(time.time(), is_first, changed, removed, notes)


@dataclass(frozen=True, slots=True)
class LiveStream:
    """The endpoint of the stream.

    Args:
        is_closing: Whether the server is shutting down; streams end then.
        max_streams: The maximum number of streams; one client address may have a quarter of them.
    """

    listing: Listing
    is_closing: Callable[[], bool] = lambda: False
    max_streams: int = MAX_STREAMS
    poll_seconds: float = POLL_SECONDS
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    _open: Counter[str] = field(default_factory=Counter)
    _list_lock: anyio.Lock = field(default_factory=anyio.Lock)
    _limiter: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(1))

    async def respond(self, request: Request) -> Response:
        """Start a stream, or refuse it."""
        client = request.client.host if request.client else ""
        if self._open.total() >= self.max_streams or self._open[client] >= max(1, self.max_streams // 4):
            scope = "of this server" if self._open.total() >= self.max_streams else f"of {client}"
            response = json_response({"error": f"Every live stream {scope} is in use. Close a page or try later."}, 503)
            response.headers["Retry-After"] = "10"
            return response
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return _CountedStream(self._open, client, self._events(), headers=headers, media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        viewer = Viewer()
        yield _event("beat", Heartbeat(time.time()))
        while not self.is_closing():
            listed = await self._listed()
            update = viewer.update(listed.rows, listed.notes)
            if update is not None:
                viewer.last_sent = time.monotonic()
                yield _event("runs", update)
            elif time.monotonic() - viewer.last_sent >= self.heartbeat_seconds:
                viewer.last_sent = time.monotonic()
                yield _event("beat", Heartbeat(time.time()))
            await anyio.sleep(self.poll_seconds)

    async def _listed(self) -> ListedRuns:
        """The runs, listed by one viewer for all; on a separate thread, because charts may keep the others busy."""
        async with self._list_lock:
            fresh = self.listing.fresh()
            if fresh is not None:
                return fresh
            return await anyio.to_thread.run_sync(self.listing.now, limiter=self._limiter)


class _CountedStream(StreamingResponse):
    """A stream that counts as open until it ends, even if its client disconnects before the first event."""

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

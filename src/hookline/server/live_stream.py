"""The live stream: tells each viewer, as server-sent events, which runs changed since it was last told.

A viewer that was away gets all runs first, so nothing is missed. When nothing happens a beat is sent, by which a page
knows that the server lives.
"""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import anyio
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse

from hookline.server.listing import Listing
from hookline.server.run_rows import RunRow

POLL_SECONDS = 1.0
BEAT_SECONDS = 10.0


class RunsChanged(msgspec.Struct):
    """The runs that are new or changed, and the ids of those that are gone; all of them at first."""

    time: float
    whole: bool
    changed: list[RunRow]
    removed: list[str]


class Beat(msgspec.Struct):
    """Nothing happened; the server's time."""

    time: float


@dataclass(slots=True)
class Viewer:
    """What one viewer was told, and what it must be told next."""

    told: dict[str, RunRow] | None = None
    silent_since: float = field(default_factory=time.monotonic)

    def news(self, rows: dict[str, RunRow]) -> RunsChanged | None:
        """What this viewer does not know yet."""
        is_first, before, self.told = self.told is None, self.told or {}, rows
        changed = [row for id_, row in rows.items() if before.get(id_) is not row]
        removed = [id_ for id_ in before if id_ not in rows]
        return RunsChanged(time.time(), is_first, changed, removed) if changed or removed or is_first else None


@dataclass(frozen=True, slots=True)
class LiveStream:
    """The endpoint of the stream.

    Args:
        is_closing: Whether the server is about to end, when streams must end too.
    """

    listing: Listing
    is_closing: Callable[[], bool] = lambda: False
    poll_seconds: float = POLL_SECONDS
    beat_seconds: float = BEAT_SECONDS

    async def respond(self, request: Request) -> StreamingResponse:
        """Begin to tell a viewer."""
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._events(), headers=headers, media_type="text/event-stream")

    async def _events(self) -> AsyncIterator[bytes]:
        viewer = Viewer()
        yield _event("beat", Beat(time.time()))
        while not self.is_closing():
            listed = await run_in_threadpool(self.listing.now)
            news = viewer.news(listed.rows)
            if news is not None:
                viewer.silent_since = time.monotonic()
                yield _event("runs", news)
            elif time.monotonic() - viewer.silent_since >= self.beat_seconds:
                viewer.silent_since = time.monotonic()
                yield _event("beat", Beat(time.time()))
            await anyio.sleep(self.poll_seconds)


def _event(name: str, data: msgspec.Struct) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"

"""The live stream: sends each viewer the runs that changed, as server-sent events.

A viewer gets all runs first, so a reconnecting one misses nothing. Later events have only the runs that changed and, of
a run that is known already, its id and the fields that changed. When nothing changes, a heartbeat shows that the server
is alive.

One task lists the runs for all viewers: every second while runs change, less often when nothing happens, and not at all
without viewers. Each event is encoded once and shared. Viewers that read slowly do not collect a backlog: one that has
missed more than the last few events gets all runs again.

The number of streams is limited, in all and per client address, because a stream holds a connection for as long as its
client likes. Beyond the limit the response is 503, and the page tries again later.
"""

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from hookline.server.endpoint import json_response, principal_of, visible_scope
from hookline.server.listing import ListedRuns, Listing, RunRow
from hookline.server.tokens import Principal, ProjectScope

logger = logging.getLogger("hookline")

STREAM_PATH = "/api/stream"
POLL_SECONDS = 1.0
IDLE_SECONDS, MAX_IDLE_SECONDS = 3.0, 10.0
"""The pause between two listings when nothing has changed for a while: longer with very many runs."""
IDLE_SHARE = 0.01
"""The share of a core that listings take when nothing changes, within these limits."""
HEARTBEAT_SECONDS = 10.0
MAX_STREAMS = 256
MAX_EVENTS = 16
MAX_BACKLOG_BYTES = 4 << 20
"""How many events are kept for viewers that read slowly, and their size."""
RUNS_PREFIX = b"event: runs\ndata: "
_IDLE_FACTOR = 1.5
_PIECE_SECONDS = 0.5
_FIELDS = tuple(name for name in RunRow.__struct_fields__ if name != "id")


class RunsChanged(msgspec.Struct):
    """New and changed runs, the ids of removed ones, and the store's notes; ``whole`` if these are all runs.

    Unless ``whole``, a run that was sent before has only its id and the fields that changed.
    """

    time: float
    whole: bool
    changed: list[Any]
    removed: list[str]
    notes: list[str]


class Heartbeat(msgspec.Struct):
    """The server's time, sent when nothing changes."""

    time: float


class Broadcast:
    """The events of all viewers that may see the same runs. Use it on the event loop only.

    Attributes:
        rows: The runs as of the last event; `RunRow` or plain objects.
        viewers: The number of viewers.
        is_over: Whether the streams have to end.
    """

    def __init__(self, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BACKLOG_BYTES) -> None:
        self.rows: Mapping[str, Any] | None = None
        self.notes: list[str] = []
        self.viewers = 0
        self.is_over = False
        self.last_sent = time.monotonic()
        self._max_events, self._max_bytes = max_events, max_bytes
        self._events: deque[bytes] = deque()
        self._bytes = 0
        self._position = 0  # of the last event
        self._whole: tuple[int, bytes] | None = None
        self._published = asyncio.Event()

    def update(self, rows: Mapping[str, RunRow], notes: list[str]) -> bool:
        """Publish what changed since the last event; returns whether anything did."""
        before = self.rows
        if rows is before and notes == self.notes:
            return False
        changed = list(_changes(before or {}, rows))
        removed = [id_ for id_ in before or {} if id_ not in rows]
        has_changed = bool(before is None or changed or removed or notes != self.notes)
        self.rows, self.notes = rows, notes
        if has_changed:
            self.publish(_event("runs", RunsChanged(time.time(), before is None, changed, removed, notes)))
        return has_changed

    def apply(self, change: RunsChanged, event: bytes) -> None:
        """Publish an event of another broadcast, and apply it to the rows."""
        rows = {} if change.whole or self.rows is None else dict(self.rows)
        for row in change.changed:
            rows[row["id"]] = {**rows.get(row["id"], {}), **row}
        for id_ in change.removed:
            rows.pop(id_, None)
        self.rows, self.notes = rows, change.notes
        self.publish(event)

    @staticmethod
    def decode(event: bytes) -> RunsChanged:
        """Decode an event with runs."""
        return msgspec.json.decode(event.removeprefix(RUNS_PREFIX), type=RunsChanged)

    def beat(self) -> None:
        """Publish a heartbeat."""
        self.publish(_event("beat", Heartbeat(time.time())))

    def publish(self, event: bytes) -> None:
        """Give an event to all viewers."""
        self.last_sent = time.monotonic()
        self._position += 1
        self._events.append(event)
        self._bytes += len(event)
        while len(self._events) > self._max_events or self._bytes > self._max_bytes:
            self._bytes -= len(self._events.popleft())
        self.wake()

    def close(self) -> None:
        """End all streams."""
        self.is_over = True
        self.wake()

    async def events(self, is_allowed: Callable[[], bool] = lambda: True) -> AsyncIterator[bytes]:
        """The events for one viewer: all runs, and then what changes, for as long as it is allowed to see them."""
        position = -1
        while not self.is_over and is_allowed():
            missed = self._position - position
            if self.rows is not None and missed:
                is_behind = position < 0 or missed > len(self._events)
                data = self.whole() if is_behind else b"".join(list(self._events)[-missed:])
                position = self._position  # before the viewer takes its time
                yield data
            else:
                await self._published.wait()

    def whole(self) -> bytes:
        """An event with all runs, encoded at most once until the next change."""
        if self._whole is None or self._whole[0] != self._position:
            rows = list((self.rows or {}).values())
            self._whole = self._position, _event("runs", RunsChanged(time.time(), True, rows, [], self.notes))
        return self._whole[1]

    def wake(self) -> None:
        """Wake all viewers to check for new events and for revoked access."""
        self._published.set()
        self._published = asyncio.Event()


def _changes(before: Mapping[str, RunRow], rows: Mapping[str, RunRow]) -> Iterator[RunRow | dict[str, Any]]:
    for id_, row in rows.items():
        old = before.get(id_)
        if old is None:
            yield row
        elif old is not row:
            changed = {name: value for name in _FIELDS if (value := getattr(row, name)) != getattr(old, name)}
            yield {"id": id_} | changed


class LiveStream(ABC):
    """The endpoint of the stream; `ListedStream` and the one of a query process say where the events come from.

    Args:
        is_closing: Whether the server is shutting down; streams end then.
        max_streams: The maximum number of streams; one client address may have a quarter of them.

    Attributes:
        is_current: Whether a viewer's token is still accepted; its stream ends when it is not.
    """

    def __init__(self, is_closing: Callable[[], bool] = lambda: False, max_streams: int = MAX_STREAMS) -> None:
        self.is_closing, self.max_streams = is_closing, max_streams
        self.is_current: Callable[[Principal], bool] = lambda principal: True
        self._open: Counter[str] = Counter()
        self._broadcasts: dict[ProjectScope, Broadcast] = {}
        self._tasks: dict[ProjectScope, asyncio.Task[None]] = {}

    @abstractmethod
    async def follow(self, visible: ProjectScope, broadcast: Broadcast) -> None:
        """Publish events for those who may see some runs, while there are viewers and the server is not closing."""

    async def respond(self, request: Request) -> Response:
        """Start a stream, or refuse it."""
        client = request.client.host if request.client else ""
        if self._open.total() >= self.max_streams or self._open[client] >= max(1, self.max_streams // 4):
            scope = "of this server" if self._open.total() >= self.max_streams else f"of {client}"
            response = json_response({"error": f"Every live stream {scope} is in use. Close a page or try later."}, 503)
            response.headers["Retry-After"] = "10"
            return response
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        viewing, principal = self._viewing(client, visible_scope(request)), principal_of(request)
        is_allowed = partial(self.is_current, principal)
        return _ViewerResponse(viewing, is_allowed, headers=headers, media_type="text/event-stream")

    @contextlib.contextmanager
    def _viewing(self, client: str, visible: ProjectScope) -> Iterator[Broadcast]:
        """Count a viewer for as long as it is connected; the first one has events published."""
        broadcast = self._broadcasts.get(visible)
        if broadcast is None:
            broadcast = self._broadcasts[visible] = Broadcast()
            self._tasks[visible] = asyncio.create_task(self._run(visible, broadcast))
        self._open[client] += 1
        broadcast.viewers += 1
        try:
            yield broadcast
        finally:
            broadcast.viewers -= 1
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    async def _run(self, visible: ProjectScope, broadcast: Broadcast) -> None:
        ticks = asyncio.create_task(_tick(broadcast))
        try:
            await self.follow(visible, broadcast)
        except Exception:
            logger.exception("The live stream failed; its viewers connect again.")
        finally:
            ticks.cancel()
            # First forgotten, then closed: a viewer that comes back at once gets a new one.
            if self._broadcasts.get(visible) is broadcast:
                del self._broadcasts[visible], self._tasks[visible]
            broadcast.close()


class ListedStream(LiveStream):
    """A stream of the runs in a listing."""

    def __init__(
        self, listing: Listing, is_closing: Callable[[], bool] = lambda: False, max_streams: int = MAX_STREAMS
    ) -> None:
        super().__init__(is_closing, max_streams)
        self.listing = listing
        self._received = 0
        self._limiter: anyio.CapacityLimiter | None = None

    def notify(self) -> None:
        """Report that records were received, so that the next listing need not wait; call it on the event loop."""
        self._received += 1

    async def follow(self, visible: ProjectScope, broadcast: Broadcast) -> None:
        """List the runs again and again."""
        listing = self.listing.scoped(visible)
        pause = POLL_SECONDS
        while broadcast.viewers and not self.is_closing():
            start = time.monotonic()
            listed = await self._listed(listing)
            took = time.monotonic() - start
            if broadcast.update(listed.rows, listed.notes):
                pause = POLL_SECONDS
            else:
                pause = min(max(IDLE_SECONDS, min(MAX_IDLE_SECONDS, took / IDLE_SHARE)), pause * _IDLE_FACTOR)
            if time.monotonic() - broadcast.last_sent >= HEARTBEAT_SECONDS:
                broadcast.beat()
            # A count and not an event: each scope has a task of its own that waits.
            before, rested = self._received, 0.0
            while rested < pause and not self.is_closing():
                # In short pieces: on shutdown, streams have to end soon.
                piece = min(_PIECE_SECONDS, pause - rested)
                await anyio.sleep(piece)
                rested += piece
                if self._received != before and rested >= POLL_SECONDS:
                    break

    async def _listed(self, listing: Listing) -> ListedRuns:
        """The runs, listed on a separate thread, because charts may keep the others busy."""
        fresh = listing.fresh()
        if fresh is not None:
            return fresh
        if self._limiter is None:  # must be created on its event loop
            self._limiter = anyio.CapacityLimiter(1)
        return await anyio.to_thread.run_sync(listing.now, limiter=self._limiter)


class _ViewerResponse(StreamingResponse):
    """A stream that counts as open until it ends, even if its client disconnects before the first event."""

    def __init__(
        self, viewing: contextlib.AbstractContextManager[Broadcast], is_allowed: Callable[[], bool], **options: Any
    ) -> None:
        self._stack = contextlib.ExitStack()
        super().__init__(_viewer_events(self._stack.enter_context(viewing), is_allowed), **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._stack:
            await super().__call__(scope, receive, send)


async def _viewer_events(broadcast: Broadcast, is_allowed: Callable[[], bool]) -> AsyncIterator[bytes]:
    yield _event("beat", Heartbeat(time.time()))
    async for event in broadcast.events(is_allowed):
        yield event


async def _tick(broadcast: Broadcast) -> None:
    while True:
        await asyncio.sleep(POLL_SECONDS)
        broadcast.wake()


def _event(name: str, data: msgspec.Struct) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"

"""Limits on connections: what a client can cost the server before it has presented a token.

Guarantees, whatever bytes arrive:

- The head of a request (request line and headers) has at most `HEAD_BYTES` and `HEADERS` fields, and comes within
  ``head_seconds`` of the connection or of the last response. Larger heads get 431, slower ones are closed.
- A connection handles one request at a time. Pipelined requests wait unparsed, in one read of the transport (262 kB).
- Data that a client sends after its request was refused is discarded, up to `DISCARDED_BYTES` and `DISCARD_SECONDS`, so
  that it can read the response; then the connection is closed.
- A client that does not read its response is disconnected after ``stalled_seconds`` without progress.
- At most ``connections`` are open. If all are in use, a new one replaces one that waits for its client: the oldest of
  the client address with the most connections. So idle or slow clients, however many, keep no one out.

Bodies (`BodyLimits`) and live streams (`LiveStream`) have their own limits.

Requests are always parsed by h11: unlike httptools, it stops at the second pipelined request and limits its buffer.
"""

import asyncio
import contextlib
import functools
import http
import resource
import select
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import h11
import msgspec
from starlette.types import Message
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 100
HEAD_SECONDS = 15.0
DISCARDED_BYTES = 16 << 20
DISCARD_SECONDS = 10.0
STALLED_SECONDS = 30.0
MAX_CONNECTIONS = 512
SMALL_CHUNKS = 1000
SMALL_CHUNK_BYTES = 64
"""A body of more chunks than this, smaller than this on average, is refused: parsing them is expensive."""

_SLICE = 16 << 10
"""How much h11 gets at a time: it checks its limit between slices, so a head exceeds it by at most one slice."""


def default_connections() -> int:
    """The number of connections that fit into a third of the file descriptors: runs and the index need some, too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(8, min(MAX_CONNECTIONS, soft // 3))


@dataclass(slots=True)
class ConnectionLimits:
    """The limits of one server, and its open connections.

    Args:
        connections: The maximum number; by default what the file descriptors allow, at most 512.
        head_seconds: The time limit for the head of a request.
        stalled_seconds: How long a client may read nothing of its response.
    """

    connections: int = field(default_factory=default_connections)
    head_seconds: float = HEAD_SECONDS
    stalled_seconds: float = STALLED_SECONDS
    _open: "set[LimitedProtocol]" = field(default_factory=set, repr=False)

    @property
    def backlog(self) -> int:
        """The size of the accept queue; asyncio accepts all of it at once, before connections are counted."""
        return max(64, self.connections * 3 // 4)

    def protocol(self) -> type[asyncio.Protocol]:
        """The protocol class, which uvicorn instantiates for each connection."""
        return type("Protocol", (LimitedProtocol,), {"limits": self})

    def admit(self, newcomer: "LimitedProtocol") -> bool:
        """Register a new connection, replacing a waiting one if necessary.

        Returns:
            False if every connection is handling a request.
        """
        if len(self._open) >= self.connections:
            waiting = [connection for connection in self._open if connection.waits_for_client]
            if not waiting:
                return False
            per_client = Counter(connection.address for connection in self._open)
            waiting.sort(key=lambda each: (-per_client[each.address], each.since))
            victim = next((each for each in waiting if not each.has_sent_more()), waiting[0])
            # At once, not only in `connection_lost`: that is called later, and more connections may come before.
            self._open.discard(victim)
            victim.transport.abort()
        self._open.add(newcomer)
        return True

    def release(self, connection: "LimitedProtocol") -> None:
        """Unregister a connection."""
        self._open.discard(connection)


class _Parser(h11.Connection):
    """h11 with limits on the number of headers and on small chunks."""

    status = 400
    """The status of the response to the error that ended parsing."""
    _chunks = _chunk_bytes = 0

    def next_event(self) -> Any:
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.status = error.error_status_hint
            raise
        if isinstance(event, h11.Request):
            self._chunks = self._chunk_bytes = 0
            if len(event.headers) > MAX_HEADERS:
                self.status = 431
                raise h11.RemoteProtocolError("There are too many headers.")
        elif isinstance(event, h11.Data):
            self._chunks, self._chunk_bytes = self._chunks + 1, self._chunk_bytes + len(event.data)
            if self._chunks > SMALL_CHUNKS and self._chunk_bytes < SMALL_CHUNK_BYTES * self._chunks:
                raise h11.RemoteProtocolError("The chunks of the body are too small.")
        return event


@functools.lru_cache(512)
def _head(status: int, headers: tuple[tuple[bytes, bytes], ...]) -> h11.Response:
    """The head of a response. h11 checks every header, and most responses have the same dozen as another one."""
    return h11.Response(status_code=status, headers=list(headers), reason=STATUS_PHRASES[status])


class _Response:
    """Sends the response to a request, in place of uvicorn's own method.

    uvicorn writes the head and the body one after the other: two system calls, and two packets that wake up the client
    twice. Here the head waits for the start of the body.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._unsent = b""

    async def send(self, message: Message) -> None:
        cycle = self._cycle
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        if message["type"] == "http.response.start" and not cycle.response_started:
            cycle.response_started, cycle.waiting_for_100_continue = True, False
            headers = (*cycle.default_headers, *map(tuple, message["headers"]))
            if CLOSE_HEADER in cycle.scope["headers"] and CLOSE_HEADER not in headers:
                headers = (*headers, CLOSE_HEADER)
            self._unsent = cycle.conn.send(_head(message["status"], headers)) or b""
            return
        if message["type"] != "http.response.body" or not cycle.response_started or cycle.response_complete:
            raise RuntimeError(f"Unexpected ASGI message {message['type']!r}.")
        body = b"" if cycle.scope["method"] == "HEAD" else message.get("body", b"")
        data, self._unsent = self._unsent + (cycle.conn.send(h11.Data(data=body)) or b""), b""
        if message.get("more_body", False):
            cycle.transport.write(data)
            return
        cycle.response_complete = True
        cycle.message_event.set()
        cycle.transport.write(data + (cycle.conn.send(h11.EndOfMessage()) or b""))
        if cycle.conn.our_state is h11.MUST_CLOSE or not cycle.keep_alive:
            cycle.conn.send(h11.ConnectionClosed())
            cycle.transport.close()
        cycle.on_response()


class LimitedProtocol(H11Protocol):
    """A connection that enforces the limits."""

    limits: ConnectionLimits
    """Set on the subclass created by `ConnectionLimits.protocol`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn: _Parser = _Parser(h11.SERVER, MAX_HEAD_BYTES - _SLICE)
        self.address = ""
        self.since = 0.0  # when it started to wait for its client
        self._deadline: asyncio.TimerHandle | None = None
        self._stall_check: asyncio.TimerHandle | None = None
        self._unwritten = 0
        self._to_discard: int | None = None  # bytes of a refused request still accepted
        self._is_refused = False

    @property
    def is_answering(self) -> bool:
        """Whether a request is being handled."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def waits_for_client(self) -> bool:
        """Whether it waits for the next request, or for the rest of one."""
        return not self.is_answering or self.conn.their_state is h11.SEND_BODY

    def has_sent_more(self) -> bool:
        """Whether its client has sent unread data: many connections may be accepted before the first one is read."""
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if self.limits.admit(self):
            self._wait_for_client(self.limits.head_seconds)
            self._check_stall()
        else:
            self._refuse(503, "Every connection of this server is in use. Try again in a moment.")
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.release(self)
        for timer in (self._deadline, self._stall_check):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._to_discard is not None:
            self._to_discard -= len(data)
            if self._to_discard < 0:
                self.transport.abort()
            if self._is_refused or self._is_chunked():  # parsing chunks costs far more than sending them
                return
        for start in range(0, len(data), _SLICE):
            if self._is_refused or self.transport.is_closing():
                return
            super().data_received(data[start : start + _SLICE])
        if self._to_discard is not None and self.conn.their_state is not h11.SEND_BODY:
            self._to_discard = None
            if not self.is_answering:
                self._wait_for_client(self.limits.head_seconds)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            # The application has not run yet: it starts with the next turn of the event loop.
            self.cycle.send = _Response(self.cycle).send  # type: ignore[method-assign, assignment]
            if self._deadline is not None:
                self._deadline.cancel()

    def on_response_complete(self) -> None:
        # In place of uvicorn's, whose timer would always be later than the one here.
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.conn.our_state is h11.DONE and self.conn.their_state is h11.DONE:
            self.conn.start_next_cycle()
            self.handle_events()
        if self.transport.is_closing() or self.is_answering:  # a pipelined request
            return
        if self.conn.their_state is h11.SEND_BODY:
            self._discard()
        else:
            self._wait_for_client(self.limits.head_seconds)

    def send_400_response(self, msg: str) -> None:
        """Respond to an invalid request, unless a response has started: uvicorn would send a second one into it."""
        if self.cycle is None or (self.cycle.response_complete and self.conn.our_state is h11.IDLE):
            error = "This is not a valid HTTP request."
            if self.conn.status == 431:
                error = f"The head of a request may have {MAX_HEAD_BYTES:,} bytes and {MAX_HEADERS} headers. Send less."
            self._refuse(self.conn.status, error)
        else:
            self.transport.close()

    def _wait_for_client(self, seconds: float) -> None:
        self.since = self.loop.time()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.transport.close)

    def _discard(self) -> None:
        """Accept more data within limits: after an immediate close the client might not get the response."""
        self._to_discard = DISCARDED_BYTES
        self._wait_for_client(min(DISCARD_SECONDS, self.limits.head_seconds))

    def _check_stall(self) -> None:
        """Abort if the client read nothing since the last check; `close` would wait for it."""
        unwritten = self.transport.get_write_buffer_size()
        if unwritten and unwritten == self._unwritten:
            self.transport.abort()
            return
        self._unwritten = unwritten
        self._stall_check = self.loop.call_later(self.limits.stalled_seconds, self._check_stall)

    def _is_chunked(self) -> bool:
        return any(name == b"transfer-encoding" for name, _ in self.headers or ())

    def _refuse(self, status: int, error: str) -> None:
        """Respond without the application; nothing more is parsed."""
        body = msgspec.json.encode({"error": error})
        retry = "retry-after: 2\r\n" if status == 503 else ""
        head = (
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nx-content-type-options: nosniff\r\nconnection: close\r\n"
            f"{retry}\r\n"
        )
        self.transport.write(head.encode() + body)
        with contextlib.suppress(OSError):  # the client is gone
            self.transport.write_eof()
        self._is_refused = True
        self._discard()

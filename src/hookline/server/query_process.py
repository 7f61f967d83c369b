"""`QueryProcess`: a process of its own for everything that reads runs, so that viewers never slow down senders.

`hookline serve` receives runs, serves the page and holds the connections in its own process. It forwards requests for
runs, charts and samples to this one, which lists the runs and owns the index.

- The list of runs, which every viewer requests again and again, is kept here for as long as it is current there.
- Each forwarded request has its own connection over a Unix socket in a folder that only this user can enter. Closing it
  cancels the request; a client that reads slowly slows down only its own response.
- If the process ends, it is started again: at once, and less often if it keeps ending. A request that it was working on
  is repeated once, and answered with 503 if that fails, too. Senders do not notice.
- It ends with its parent, however that ends: it reads from a socket that then closes.

`hookline.server.query_worker` is the other side. Frames on the wire have their length in four bytes. A request is one
frame. A response is a head and its body: one frame if it is known as a whole, else any number of them and an empty one,
so a body that is cut off is noticed.
"""

import asyncio
import contextlib
import importlib.util
import logging
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hookline._engine.errors import ConfigError, HooklineError, MissingExtraError
from hookline.server.answers import accepts_gzip, cancelled_by_disconnect, wait_while_connected
from hookline.server.endpoint import visible_scope
from hookline.server.listing import MAX_REST_SECONDS
from hookline.server.live_stream import HEARTBEAT_SECONDS, RUNS_PREFIX, STREAM_PATH, Broadcast, LiveStream
from hookline.server.root_tokens import READ_VARIABLE, WRITE_VARIABLE, Tokens
from hookline.server.tokens import ProjectScope

logger = logging.getLogger("hookline")

WORKER = "hookline.server.query_worker"
START_SECONDS = 20.0
"""How long a request waits for a process that starts; a large index takes a moment to open."""
STOP_SECONDS = 10.0
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 10.0
"""The pause before another start doubles while the process ends within `STEADY_SECONDS`."""
STEADY_SECONDS = 30.0
NOTIFY_SECONDS = 0.25
BUFFER_BYTES = 1 << 20
SHARED_PATHS = frozenset({"/api/runs"})
"""Their answers depend on the listing only, so all viewers that may see the same runs share one."""
STALE_SECONDS = 0.5
"""How long an outdated list is given while a new one is fetched."""
_MAX_SHARED = 32
_UNSHARED_SECONDS = 5.0
"""How long a list that is too large to keep is not tried again."""
_PIECE_SECONDS = 0.5
_FORWARDED_HEADERS = frozenset({b"accept-encoding", b"if-none-match", b"if-range", b"range"})
_FAILED = (OSError, EOFError)  # asyncio.IncompleteReadError is an EOFError


class QueryProcessError(HooklineError, ConnectionError):
    """The process that answers queries has ended."""


class Settings(msgspec.Struct):
    """What the process needs to know; see `WebServer`."""

    root: str
    stall_seconds: float
    since: float | None = None
    compress_after_days: float | None = None


class Ready(msgspec.Struct):
    """Sent by the process when it answers requests."""

    runs: int
    note: str


class ForwardedRequest(msgspec.Struct, array_like=True):
    """A request as it is forwarded."""

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    visible: tuple[str, ...]


class ResponseHead(msgspec.Struct, array_like=True):
    """Status and headers of a response.

    Attributes:
        is_whole: Its body follows in one frame.
        fresh_seconds: How long the listing of the process stays the current one.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    is_whole: bool
    fresh_seconds: float = 0.0


_head_decoder = msgspec.msgpack.Decoder(ResponseHead)


def frame(content: bytes) -> bytes:
    """A frame with some content."""
    return len(content).to_bytes(4, "big") + content


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The content of the next frame.

    Raises:
        EOFError: The other side has closed the connection.
    """
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size) if size else b""


class QueryProcess:
    """Starts the process, starts it again if it ends, and forwards requests to it.

    Args:
        tokens: Removed from error messages, which may repeat what a client sent.

    Raises:
        MissingExtraError: DuckDB is not installed.
        ConfigError: The process does not start.
    """

    def __init__(self, settings: Settings, tokens: Tokens | None = None) -> None:
        for package in ("duckdb", "numpy"):
            if importlib.util.find_spec(package) is None:
                raise MissingExtraError("Querying runs", "ui")
        self._settings, self._tokens = settings, tokens
        self._folder = Path(tempfile.mkdtemp(prefix="hookline-"))  # only this user may enter it
        self._path = str(self._folder / "queries")
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(self._path)
        self._listening.listen(1024)
        self._notified = 0.0
        self._is_up: asyncio.Event | None = None
        self._shared: OrderedDict[Hashable, _SharedAnswer] = OrderedDict()
        self._sharing: dict[Hashable, asyncio.Task[_SharedAnswer]] = {}
        self._process, self._control = self._spawn()
        found = self._read_ready()
        if found is None:
            self.close()
            raise ConfigError("The process that answers queries did not start; the reason is printed above.")
        self.ready = found

    @property
    def is_up(self) -> bool:
        """Whether the process answers requests."""
        return self._is_up is None or self._is_up.is_set()

    @property
    def pid(self) -> int:
        """The id of the current process."""
        return self._process.pid

    def notify(self) -> None:
        """Report that records were received, so that viewers see them soon."""
        now = time.monotonic()
        if now - self._notified >= NOTIFY_SECONDS:
            self._notified = now
            with contextlib.suppress(OSError):  # it is being started again, or is busy: it lists the runs anyway
                self._control.send(b"\n", socket.MSG_DONTWAIT)

    @contextlib.asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """Keep the process running within the context."""
        self._is_up = asyncio.Event()
        self._is_up.set()
        watcher = asyncio.create_task(self._watch(self._is_up))
        try:
            yield
        finally:
            watcher.cancel()

    def close(self) -> None:
        """End the process. May be called repeatedly."""
        self._control.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listening.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def respond(self, request: Request) -> Response:
        """Forward a request; repeats it once if the process ends meanwhile."""
        forwarded = ForwardedRequest(
            request.method,
            request.scope["path"],  # not of the address, which depends on the Host header
            request.scope["query_string"],
            [(name, value) for name, value in request.scope["headers"] if name in _FORWARDED_HEADERS],
            visible_scope(request).patterns,
        )
        for is_last in (False, True):
            task = asyncio.create_task(self._ask(forwarded))
            try:
                response = await wait_while_connected(request, task)
            except _FAILED as error:
                if is_last or isinstance(error, TimeoutError):
                    raise QueryProcessError(
                        "The process that answers queries has ended and is being started again. Try again in a moment."
                    ) from error
            else:
                return Response(status_code=503) if response is None else response
            finally:
                task.cancel()  # closes the connection if the client is gone
        raise AssertionError("the loop returns or raises")

    async def respond_shared(self, request: Request) -> Response:
        """Respond with an answer for all viewers that may see the same runs, at most a moment older than a new one."""
        if request.method != "GET" or request.scope["query_string"]:
            return await self.respond(request)
        path, scope, encoding = request.scope["path"], visible_scope(request), accepts_gzip(request)
        key = path, scope, encoding
        known, now = self._shared.get(key), time.monotonic()
        if known is None or now >= known.until:
            task = self._sharing.get(key)
            is_first = task is None
            if task is None:
                headers = [(b"accept-encoding", b"gzip")] if encoding else []
                forwarded = ForwardedRequest("GET", path, b"", headers, scope.patterns)
                task = self._sharing[key] = asyncio.create_task(self._share(key, forwarded))
                task.add_done_callback(lambda done: done.cancelled() or done.exception())  # it is retrieved
            # As in the process itself, one waits for the new list, and others only if the last one is really old. With
            # many viewers not even that one: the list is fetched as soon as it is outdated.
            outdated = math.inf if known is None else now - known.until
            if known is None or outdated > (STALE_SECONDS if is_first else MAX_REST_SECONDS):
                try:
                    found = await wait_while_connected(request, task)
                except _FAILED:
                    return await self.respond(request)
                if found is None:
                    return Response(status_code=503)  # the client is gone
                known = found
        return await self.respond(request) if known.body is None else known.response(request)

    async def _share(self, key: Hashable, forwarded: ForwardedRequest) -> "_SharedAnswer":
        try:
            async with self.connect(forwarded) as reader:
                head = _head_decoder.decode(await read_frame(reader))
                # What cannot be kept is read by those who request it, each at its own speed.
                is_kept = head.status == 200 and head.is_whole
                body = await read_frame(reader) if is_kept else None
            now = time.monotonic()
            found = _SharedAnswer(now + (head.fresh_seconds if is_kept else _UNSHARED_SECONDS), head.headers, body)
            self._shared[key] = found
            self._shared.move_to_end(key)
            while len(self._shared) > _MAX_SHARED:
                self._shared.popitem(last=False)
            return found
        finally:
            del self._sharing[key]

    @contextlib.asynccontextmanager
    async def connect(self, request: ForwardedRequest) -> AsyncIterator[asyncio.StreamReader]:
        """Send a request; the response can be read within the context.

        Raises:
            OSError: The process has ended, or does not start in time.
        """
        if self._is_up is not None:
            async with asyncio.timeout(START_SECONDS):  # TimeoutError is an OSError
                await self._is_up.wait()
        reader, writer = await asyncio.open_unix_connection(self._path, limit=BUFFER_BYTES)
        try:
            writer.write(frame(msgspec.msgpack.encode(request)))
            yield reader
        finally:
            writer.close()

    async def _ask(self, forwarded: ForwardedRequest) -> Response:
        async with contextlib.AsyncExitStack() as stack:
            reader = await stack.enter_async_context(self.connect(forwarded))
            head = _head_decoder.decode(await read_frame(reader))
            if not head.is_whole:
                return _ForwardedResponse(head, reader, stack.pop_all())
            body = await read_frame(reader)
        if head.status >= 400 and self._tokens is not None:
            body = self._tokens.redact(body.decode("utf-8", "replace")).encode()
        response = Response(body, head.status)
        headers = [(name, value) for name, value in head.headers if name != b"content-length"]
        response.raw_headers = [*headers, (b"content-length", b"%d" % len(body))]
        return response

    def _spawn(self) -> tuple["subprocess.Popen[bytes]", socket.socket]:
        own, other = socket.socketpair()
        try:
            # It needs no token.
            environment = {name: value for name, value in os.environ.items() if name not in _SECRETS}
            process = subprocess.Popen(  # noqa: S603 - this program
                # Without the current directory on its path: a file there must not stand in for a module.
                [sys.executable, "-P", "-m", WORKER, str(other.fileno()), str(self._listening.fileno())],
                pass_fds=(other.fileno(), self._listening.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the server, which then ends this one
            )
            own.sendall(msgspec.json.encode(self._settings) + b"\n")
        except BaseException:
            own.close()
            raise
        finally:
            other.close()
        return process, own

    def _read_ready(self) -> Ready | None:
        """Wait until the first process answers requests; None if it ended."""
        line = b""
        with contextlib.suppress(OSError):
            while not line.endswith(b"\n"):
                piece = self._control.recv(4096)
                if not piece:
                    return None
                line += piece
            return msgspec.json.decode(line, type=Ready)
        return None

    async def _watch(self, is_up: asyncio.Event) -> None:
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE_SECONDS
        while True:
            # Read on the event loop: a thread that waits here would keep the server from ending.
            self._control.setblocking(False)
            started = loop.time()
            with contextlib.suppress(OSError):
                while await loop.sock_recv(self._control, 4096):
                    is_up.set()  # it has sent that it is ready, and sends nothing else
            is_up.clear()
            code = await asyncio.to_thread(self._process.wait)
            logger.error("The query process exited (%s); restarting it.", _describe(code))
            pause = FIRST_PAUSE_SECONDS if loop.time() - started > STEADY_SECONDS else min(pause * 2, MAX_PAUSE_SECONDS)
            self._control.close()
            while True:
                await asyncio.sleep(pause)
                try:
                    self._process, self._control = self._spawn()
                    break
                except OSError as error:  # no memory, no descriptors, or the interpreter is being replaced
                    logger.error("The query process cannot be started: %s. It is tried again.", error)  # noqa: TRY400
                    pause = min(pause * 2, MAX_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class _SharedAnswer:
    """An answer of the process, kept for all viewers.

    Args:
        until: When it is outdated, by the monotonic clock.
        body: None if it is too large to keep, or an error.
    """

    until: float
    headers: list[tuple[bytes, bytes]]
    body: bytes | None

    def response(self, request: Request) -> Response:
        """The response to a request: 304 if its client has this answer."""
        tag = next((value for name, value in self.headers if name == b"etag"), b"")
        if tag and tag.decode() in request.headers.get("if-none-match", ""):
            response = Response(status_code=304)
            response.raw_headers = [each for each in self.headers if each[0] in _NOT_MODIFIED_HEADERS]
            return response
        response = Response(self.body)
        response.raw_headers = self.headers
        return response


_NOT_MODIFIED_HEADERS = (b"cache-control", b"etag", b"vary")
_SECRETS = frozenset({WRITE_VARIABLE, READ_VARIABLE})


def _describe(code: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name if code < 0 else f"status {code}"
    return f"signal {-code}"


class _ForwardedResponse(Response):
    """A response whose body comes in pieces; closes its connection at the end."""

    def __init__(self, head: ResponseHead, reader: asyncio.StreamReader, stack: contextlib.AsyncExitStack) -> None:
        super().__init__(status_code=head.status)
        self.raw_headers = head.headers
        self._reader, self._stack = reader, stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack, cancelled_by_disconnect(receive):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while piece := await read_frame(self._reader):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class ForwardedStream(LiveStream):
    """The live stream of a server with a query process: one stream of that process serves all viewers."""

    def __init__(self, queries: QueryProcess, is_closing: Callable[[], bool], max_streams: int) -> None:
        super().__init__(is_closing, max_streams)
        self._queries = queries

    async def follow(self, visible: ProjectScope, broadcast: Broadcast) -> None:
        """Follow the stream of the query process, also across its restarts."""
        request = ForwardedRequest("GET", STREAM_PATH, b"", [], visible.patterns)
        while broadcast.viewers and not self.is_closing():
            connected = asyncio.create_task(self._follow(request, broadcast))
            try:
                while not connected.done() and broadcast.viewers and not self.is_closing():
                    await asyncio.wait({connected}, timeout=_PIECE_SECONDS)
                    # Also while the process is started again.
                    if time.monotonic() - broadcast.last_sent >= HEARTBEAT_SECONDS:
                        broadcast.beat()
            finally:
                connected.cancel()
                with contextlib.suppress(asyncio.CancelledError, *_FAILED):
                    await connected
            if broadcast.viewers and not self.is_closing():
                await asyncio.sleep(_PIECE_SECONDS)

    async def _follow(self, request: ForwardedRequest, broadcast: Broadcast) -> None:
        async with self._queries.connect(request) as reader:
            head = msgspec.msgpack.decode(await read_frame(reader), type=ResponseHead)
            if head.status != 200:  # tried again by the caller
                return
            rest = b""  # a long event comes in several pieces
            while piece := await read_frame(reader):
                *events, rest = (rest + piece).split(b"\n\n")
                for event in events:
                    if event.startswith(RUNS_PREFIX):
                        broadcast.apply(Broadcast.decode(event), event + b"\n\n")

"""The process that reads runs for a server: lists them, owns the index, and answers what `QueryProcess` forwards.

It runs the application of one process, but without its connections, checks and receiving, which are in the server's
process. It ends when the server closes their common socket, or ends itself.
"""

import asyncio
import contextlib
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Scope

from hookline.server.application import query_application
from hookline.server.live_stream import ListedStream
from hookline.server.query_process import (
    BUFFER_BYTES,
    ForwardedRequest,
    Ready,
    ResponseHead,
    Settings,
    frame,
    read_frame,
)
from hookline.server.tokens import PRINCIPAL, VIEWER, VISIBLE, ProjectScope
from hookline.server.web_server import shorten_pauses
from hookline.store import Runs
from hookline.store.background import BackgroundIngest
from hookline.store.compression import BackgroundCompression
from hookline.store.run_summary import Liveness
from hookline.store.store import open_store

MAX_STREAMS = 4096
"""The server's process has one for all viewers that may see the same runs; one client may have a quarter of them."""
WHOLE_BYTES = 1 << 20
"""A larger body is sent in pieces, as fast as its client reads: the server does not hold it."""
_PIECE_BYTES = 256 << 10
_decoder = msgspec.msgpack.Decoder(ForwardedRequest)


class _Connection:
    """A forwarded request in the query process, as an ASGI connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fresh_seconds: Callable[[], float]
    ) -> None:
        self._reader, self._writer, self._fresh_seconds = reader, writer, fresh_seconds
        self._start: Message = {}
        self._is_streamed = self._is_received = False

    async def receive(self) -> Message:
        if not self._is_received:
            self._is_received = True
            return {"type": "http.request", "body": b"", "more_body": False}
        while await self._reader.read(1):
            pass
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if not self._is_streamed:
            headers = [(bytes(name), bytes(value)) for name, value in self._start["headers"]]
            is_whole = not more and len(body) <= WHOLE_BYTES
            head = frame(
                msgspec.msgpack.encode(ResponseHead(self._start["status"], headers, is_whole, self._fresh_seconds()))
            )
            self._is_streamed = True
            self._writer.write(head + (frame(body) if is_whole else b""))
            if is_whole:
                with contextlib.suppress(ConnectionError):  # nobody waits any more, and nothing is left to send
                    await self._writer.drain()
                return
        for start in range(0, len(body), _PIECE_BYTES):
            self._writer.write(frame(body[start : start + _PIECE_BYTES]))
            await self._writer.drain()
        if not more:
            self._writer.write(frame(b""))
            await self._writer.drain()


def _scope(request: ForwardedRequest) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode(),
        "root_path": "",
        "query_string": request.query,
        "headers": request.headers,
        "client": None,
        "server": None,
        PRINCIPAL: VIEWER,  # the server has checked the token
        VISIBLE: ProjectScope(request.visible),
    }


async def _serve(
    app: ASGIApp, control: socket.socket, listening: socket.socket, ready: Ready, stream: ListedStream
) -> None:
    """Answer requests until the server closes the control socket. It sends there that it has received records."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Errors of the application are logged by it, and those of the connection mean that nobody waits any more.
        with contextlib.suppress(Exception):
            connection = _Connection(reader, writer, lambda: stream.listing.fresh_seconds)
            request = _decoder.decode(await read_frame(reader))
            await app(_scope(request), connection.receive, connection.send)
        writer.close()

    server = await asyncio.start_unix_server(answer, sock=listening, limit=BUFFER_BYTES)
    reader, writer = await asyncio.open_connection(sock=control)
    writer.write(msgspec.json.encode(ready) + b"\n")
    with contextlib.suppress(OSError):  # the server was killed
        while await reader.read(4096):
            stream.notify()
    server.close()
    writer.close()


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run the event loop: that of uvloop where it is installed, as uvicorn does; it needs less CPU time."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work)


def main() -> None:
    """Run the process: its arguments are the descriptors of the two sockets."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control, listening = (socket.socket(fileno=int(text)) for text in sys.argv[1:3])
    address = listening.getsockname()
    with control.makefile("rb", buffering=0) as lines:
        settings = msgspec.json.decode(lines.readline(), type=Settings)
    since = -math.inf if settings.since is None else settings.since
    liveness = Liveness(settings.stall_seconds, since=since)
    runs = Runs(open_store(settings.root), liveness)
    compression: BackgroundCompression | None = None
    if settings.compress_after_days is not None:
        # A listing of its own: that of the requests is refreshed by them.
        listed = Runs(open_store(settings.root), liveness)
        compression = BackgroundCompression(listed.refresh, settings.compress_after_days)
        compression.start()
    ingest = BackgroundIngest(open_store(settings.root), liveness)
    ingest.start()
    # Its streams end with their connections, which the server closes.
    app, stream = query_application(runs, is_closing=lambda: False, max_streams=MAX_STREAMS)
    shorten_pauses()
    try:
        _run(_serve(app, control, listening, Ready(len(runs), runs.note), stream))
    finally:
        ingest.stop()
        if compression is not None:
            compression.stop()
        runs.close()
        # A server that was killed cannot remove its socket.
        path = Path(os.fsdecode(address))
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.parent.rmdir()


if __name__ == "__main__":
    main()

"""A real HTTP server on loopback that can be stopped with all its connections, and come back on its port."""

import contextlib
import json
import random
import socket
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def free_port() -> int:
    """Return a port that stays free: it is below those that the system gives to connections and to other servers."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass(frozen=True)
class Request:
    """What came: the path, the headers by lower-case name, the body."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]


class LoopbackServer:
    """Listens at once, on a port that it can come back on. Subclasses set `handler`, which answers."""

    handler: type["Handler"]

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connections: set[socket.socket] = set()
        self.port = free_port()
        self._server: _Server | None = None
        self.listen()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def listen(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), self)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Close the port and drop every connection. May be called again."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        with self.lock:
            for connection in self.connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], owner: LoopbackServer) -> None:
        self.owner: Any = owner
        super().__init__(address, owner.handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is what the tests are about."""


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection; ``self.server.owner`` is the `LoopbackServer`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        with self.server.owner.lock:
            self.server.owner.connections.add(self.connection)

    def finish(self) -> None:
        with self.server.owner.lock:
            self.server.owner.connections.discard(self.connection)
        super().finish()

    def read_request(self) -> Request:
        """The request with its body, which is JSON without NaN and infinities."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Request(self.path, headers, json.loads(body, parse_constant=_no_constants))

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


def _no_constants(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")

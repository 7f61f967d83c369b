"""A real HTTP server on loopback that can fail in every way that matters, and come back on its port."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWERS = {"error": 500, "refused": 401, "rejected": 400, "missing": 404, "busy": 429}


@dataclass(frozen=True)
class Request:
    """What came: the path, the headers by lower-case name, the body."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]


class StatusServer:
    """Takes JSON by POST. A key that it has seen is answered like the first time, and counts once.

    `fail` takes: ``unreachable`` (the port is closed), ``hanging`` (no answer), ``half_closed`` (what came is taken,
    the answer breaks off), ``error`` (500), ``refused`` (401), ``rejected`` (400), ``missing`` (404), ``busy`` (429).
    """

    def __init__(self) -> None:
        self.fault = ""
        self.gate = threading.Event()
        self.arrived = threading.Event()
        self.attempts: list[Request] = []
        self.retry_after = ""
        self.rejects: Callable[[dict[str, Any]], bool] = lambda body: False
        self._taken: dict[str, Request] = {}
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._server: _Server | None = None
        self.port = 0
        self.listen()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/status"

    @property
    def requests(self) -> list[Request]:
        """What was taken, each key once, in the order of arrival."""
        with self._lock:
            return list(self._taken.values())

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]

    def told(self, *kinds: str) -> list[dict[str, Any]]:
        """The bodies of some kinds."""
        return [body for body in self.bodies if body["kind"] in kinds]

    def fail(self, fault: str) -> None:
        self.arrived.clear()
        self.fault = fault
        if fault == "unreachable":
            self.close()

    def heal(self) -> None:
        fault, self.fault = self.fault, ""
        self.gate.set()
        self.gate = threading.Event()
        if fault == "unreachable":
            self.listen()

    def listen(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), self)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Stop listening and drop every connection. May be called again."""
        self.gate.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def take(self, request: Request) -> bool:
        """Whether it is taken; seen before or not."""
        with self._lock:
            if self.rejects(request.body):
                return False
            self._taken.setdefault(request.key, request)
            return True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], status: StatusServer) -> None:
        self.status = status
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        with self.server.status._lock:
            self.server.status._open.add(self.connection)

    def finish(self) -> None:
        with self.server.status._lock:
            self.server.status._open.discard(self.connection)
        super().finish()

    def do_POST(self) -> None:
        status, body = self.server.status, self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.path, headers, json.loads(body, parse_constant=_no_constants))
        status.attempts.append(request)
        fault, gate = status.fault, status.gate
        status.arrived.set()
        if fault == "hanging":
            gate.wait()
        if fault in ANSWERS:
            self._answer(ANSWERS[fault])
        elif not status.take(request):
            self._answer(400, b"no such thing")
        elif fault == "half_closed":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nbr")
            self.close_connection = True
        else:
            self._answer(200, b"{}")

    def _answer(self, code: int, body: bytes = b"") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        if self.server.status.retry_after:
            self.send_header("Retry-After", self.server.status.retry_after)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


def _no_constants(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")

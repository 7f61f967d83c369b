"""A real HTTP server on loopback that can fail in every way that matters, and come back on its port."""

import threading
from collections.abc import Callable
from typing import Any

from loopback_server import Handler, LoopbackServer, Request

ANSWERS = {"error": 500, "refused": 401, "rejected": 400, "missing": 404, "busy": 429}


class StatusHandler(Handler):
    def do_POST(self) -> None:
        status, request = self.server.owner, self.read_request()
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
        if self.server.owner.retry_after:
            self.send_header("Retry-After", self.server.owner.retry_after)
        self.end_headers()
        self.wfile.write(body)


class StatusServer(LoopbackServer):
    """Takes JSON by POST. A key that it has seen is answered like the first time, and counts once.

    `fail` takes: ``unreachable`` (the port is closed), ``hanging`` (no answer), ``half_closed`` (what came is taken,
    the answer breaks off), ``error`` (500), ``refused`` (401), ``rejected`` (400), ``missing`` (404), ``busy`` (429).
    """

    handler = StatusHandler

    def __init__(self) -> None:
        self.fault = ""
        self.gate = threading.Event()
        self.arrived = threading.Event()
        self.attempts: list[Request] = []
        self.retry_after = ""
        self.rejects: Callable[[dict[str, Any]], bool] = lambda body: False
        self._taken: dict[str, Request] = {}
        super().__init__()

    @property
    def url(self) -> str:
        return f"{super().url}/status"

    @property
    def requests(self) -> list[Request]:
        """What was taken, each key once, in the order of arrival."""
        with self.lock:
            return list(self._taken.values())

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]

    def reported(self, *kinds: str) -> list[dict[str, Any]]:
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

    def close(self) -> None:
        """Release the requests that hang, and stop. May be called again."""
        self.gate.set()
        self.stop()

    def take(self, request: Request) -> bool:
        """Whether it is taken; seen before or not."""
        with self.lock:
            if self.rejects(request.body):
                return False
            self._taken.setdefault(request.key, request)
            return True

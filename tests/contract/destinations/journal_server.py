"""A real `hookline serve` on loopback, behind a server of its own that passes everything on, or fails."""

import http.client
import socket
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from destinations.http_server import ANSWERS, StatusServer, _Handler, _Server
from hookline.server import WebServer
from hookline.server.tokens import Tokens

TOKEN = "write-token-of-the-tests"


class JournalServer(StatusServer):
    """`fail` takes what `StatusServer` takes, and ``truncated``: half of a body is passed on, then all breaks off.

    ``half_closed`` means here that the server takes what came, and its answer breaks off.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.passed: list[str] = []
        self.start()
        super().__init__()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.behind = WebServer(self.root, tokens=Tokens(TOKEN)).__enter__()

    def restart(self) -> None:
        """End the real server, and start another one over the same directory."""
        self.behind.__exit__(None, None, None)
        self.start()

    def listen(self) -> None:
        self._server = _Passing(("127.0.0.1", self.port), self)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def end(self) -> None:
        self.close()
        self.behind.__exit__(None, None, None)


class _Passing(_Server):
    def __init__(self, address: tuple[str, int], status: JournalServer) -> None:
        self.status = status
        ThreadingHTTPServer.__init__(self, address, _Passer)


class _Passer(_Handler):
    def do_PUT(self) -> None:
        server, body = self.server.status, self.rfile.read(int(self.headers["Content-Length"]))
        fault, gate = server.fault, server.gate
        server.passed.append(f"{self.command} {self.path}")  # type: ignore[attr-defined]
        server.arrived.set()
        if fault == "hanging":
            gate.wait()
            self.close_connection = True
        elif fault in ANSWERS:
            self._answer(ANSWERS[fault])
        elif fault == "truncated":
            self._pass_half(body)
        else:
            code, answer = self._pass(body)
            if fault == "half_closed":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nbr")
                self.close_connection = True
            else:
                self._answer(code, answer)

    do_POST = do_PUT

    def _place(self) -> tuple[str, int]:
        parts = urlsplit(self.server.status.behind.url)  # type: ignore[attr-defined]
        return parts.hostname, parts.port  # type: ignore[return-value]

    def _pass(self, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self._place())
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host",)}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _pass_half(self, body: bytes) -> None:
        host, port = self._place()
        with socket.create_connection((host, port)) as connection:
            head = f"{self.command} {self.path} HTTP/1.1\r\nHost: {host}:{port}\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in self.headers.items() if name.lower() != "host")
            connection.sendall(head.encode() + b"\r\n" + body[: len(body) // 2])
        self.close_connection = True

"""A real `hookline serve` on loopback, behind a server of its own that passes everything on, or fails."""

import gzip
import http.client
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from destinations.http_server import ANSWERS, StatusHandler, StatusServer
from hookline._record.blobs import references_in
from hookline.server import WebServer
from hookline.server.root_tokens import Tokens

TOKEN = "write-token-of-the-tests"


class _Passer(StatusHandler):
    def do_PUT(self) -> None:
        server: JournalServer = self.server.owner
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.command == "PUT" and urlsplit(self.path).path.endswith("/blobs"):
            if len(server.blob_bytes) == server.hangs_after:
                server.fault = "hanging"
            server.blob_bytes.append(len(body) - len(body.partition(b"\n")[0]) - 1)
        elif self.command == "PUT" and (".jsonl" in self.path or "/environment.json" in self.path):
            named = references_in(gzip.decompress(body))
            server.early += [digest for digest in named if not any(server.root.glob(f".blobs/??/{digest}"))]
        fault, gate = server.fault, server.gate
        server.passed.append(f"{self.command} {self.path}")
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
        parts = urlsplit(self.server.owner.behind.url)
        return parts.hostname, parts.port

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


class JournalServer(StatusServer):
    """`fail` takes what `StatusServer` takes, and ``truncated``: half of a body is passed on, then all breaks off.

    ``half_closed`` means here that the server takes what came, and its answer breaks off.
    """

    handler = _Passer

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.options = options
        self.passed: list[str] = []
        self.blob_bytes: list[int] = []  # of each request with blobs
        self.early: list[str] = []  # blobs whose records came before them
        self.hangs_after: int | None = None  # requests with blobs
        self.start()
        super().__init__()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.behind = WebServer(self.root, tokens=Tokens(TOKEN), **self.options).__enter__()

    def restart(self) -> None:
        """End the real server, and start another one over the same directory."""
        self.behind.__exit__(None, None, None)
        self.start()

    def end(self) -> None:
        self.close()
        self.behind.__exit__(None, None, None)

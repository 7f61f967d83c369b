"""A status endpoint in a separate process, which keeps its messages on disk and can be killed at any moment.

``python -m soak.endpoint_server PORT FILE``. A message is a line in the file before it is answered. A key that stands
in the file is answered like the first time and counts once, also after a restart: that is what the key is for.
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class EndpointServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, path: Path) -> None:
        self.lock = threading.Lock()
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self.keys = {message["key"] for message in messages(path)}
        super().__init__(("127.0.0.1", port), Handler)

    def take(self, key: str, body: dict) -> None:
        with self.lock:
            if key not in self.keys:
                os.write(self.file, f"{json.dumps({'key': key, 'body': body})}\n".encode())
                self.keys.add(key)

    def handle_error(self, request, client_address) -> None:
        """A client that was killed is what this is about."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.take(self.headers["Idempotency-Key"], body)  # type: ignore[attr-defined]
        self._answer(b"{}")

    def do_GET(self) -> None:
        self._answer(b"up")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args) -> None:
        """Say nothing."""


def messages(path: Path) -> list[dict]:
    """What was taken, without a line that a kill cut off."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


if __name__ == "__main__":
    EndpointServer(int(sys.argv[1]), Path(sys.argv[2])).serve_forever()

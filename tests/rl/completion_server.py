"""A real HTTP server on loopback that answers as vLLM does, and can fail in every way that matters."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    """What came: the path, the headers by lower-case name, the body."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What goes back."""

    code: int = 200
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    breaks_off: bool = False

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def choice(index: int, text: str, **more: Any) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": "stop", **more}


def as_vllm(body: dict[str, Any]) -> Reply:
    """Completes a prompt with its length and the number of the completion, a token for each character."""
    choices = []
    for index in range(body["n"]):
        text = f"{len(body['prompt'])}.{index}"
        ids = [ord(character) for character in text]
        logprobs = {"tokens": [f"token_id:{each}" for each in ids], "token_logprobs": [-0.5] * len(ids)}
        prompt_ids = [ord(character) for character in body["prompt"]]
        choices.append(choice(index, text, logprobs=logprobs, token_ids=ids, prompt_token_ids=prompt_ids))
    return Reply(body={"object": "text_completion", "choices": choices, "usage": {}})


class CompletionServer:
    """Answers with `respond`, which gets the body of a request and may wait.

    `stop` closes the port and drops every connection, `listen` comes back on the same one.
    """

    def __init__(self) -> None:
        self.respond: Callable[[dict[str, Any]], Reply] = as_vllm
        self.requests: list[Request] = []
        self.port = 0
        self.lock = threading.Lock()
        self.connections: set[socket.socket] = set()
        self._server: _Server | None = None
        self.listen()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def prompts(self) -> list[str]:
        return [request.body["prompt"] for request in self.requests]

    def listen(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), self)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """May be called again."""
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

    def __init__(self, address: tuple[str, int], owner: CompletionServer) -> None:
        self.owner = owner
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
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

    def do_POST(self) -> None:
        owner, body = self.server.owner, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        with owner.lock:
            owner.requests.append(Request(self.path, headers, body))
        reply = owner.respond(body)
        self.send_response(reply.code)
        self.send_header("Content-Length", str(len(reply.content) + (10 if reply.breaks_off else 0)))
        for name, value in reply.headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.content)
        self.close_connection = self.close_connection or reply.breaks_off

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

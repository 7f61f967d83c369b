"""A small client of `hookline serve` for load: it costs little, so that the server is measured and not the client.

`Connection` sends requests over one kept connection, without a library for HTTP. `SentRun` is a run as the server sees
one: claimed, sent in batches of whole lines with their offset, and sent again from where the server is after a fault,
so that every batch is stored exactly once.
"""

import asyncio
import contextlib
import functools
import gzip
import hashlib
import json
import random
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from journals import metric_line, status_line

PROJECT = "load"
FILE = "main-0000-1-abcdef-000000.jsonl"
SECONDS = 30.0
"""How long a response may take."""
_POOL = 1024
"""How many different rows there are: making new values for each would take most of the client's time. A compressor does
not look back as far as the next equal one, so the lines compress as those of real runs do."""


class RequestError(Exception):
    """A request without a usable response; it may be repeated."""


class Connection:
    """One kept connection to a server.

    Args:
        url: The address of the server.
        token: Its write token.
    """

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self._head = f"Host: {self.host}:{self.port}\r\nAuthorization: Bearer {token}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def request(self, method: str, path: str, body: bytes = b"", *, is_packed: bool = False) -> Any:
        """Send a request and return the decoded JSON.

        Raises:
            RequestError: The connection failed, or the status is not 200.
        """
        packing = "Content-Encoding: gzip\r\n" if is_packed else ""
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{packing}Content-Length: {len(body)}\r\n\r\n"
        try:
            async with asyncio.timeout(SECONDS):
                status, content = await self._exchange(head.encode() + body)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            self.close()
            raise RequestError(f"{method} {path}: {error!r}") from error
        if status != 200:
            raise RequestError(f"{method} {path}: status {status}: {content[:200]!r}")
        return json.loads(content)

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self.host, self.port)
        reader, writer = self._streams
        writer.write(request)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        fields = dict(line.split(b": ", 1) for line in head[1:] if b": " in line)
        content = await reader.readexactly(int(fields[b"content-length"]))
        if fields.get(b"connection") == b"close":
            self.close()
        return int(head[0].split()[1]), content


@functools.cache
def _value_pool(scalars: int) -> list[str]:
    """The members of the JSON objects of rows; all runs share them."""
    noise = random.Random(0)
    names = ["loss", *(f"layer{number}/norm" for number in range(1, scalars))]
    return [",".join(f'"{each}":{noise.random():.9f}' for each in names) for _ in range(_POOL)]


class SentRun:
    """A run that is sent.

    Args:
        name: Its name on the server.
        scalars: The values in a row.
    """

    def __init__(self, name: str, scalars: int) -> None:
        self.name, self.scalars = name, scalars
        # From the name, so that another process can continue the run.
        self.origin = hashlib.blake2s(name.encode(), digest_size=16).hexdigest()
        self.rows = self.batches = self.faults = 0
        self._offset = self._lines = 0
        self._values = _value_pool(scalars)

    @property
    def path(self) -> str:
        """Where the server has it."""
        return f"/api/journals/{PROJECT}/{self.name}"

    async def claim(self, connection: Connection) -> int:
        """Claim the run, and return how many bytes of its journal the server has."""
        facts = {"id": self.name, "name": self.name, "project": PROJECT, "started": 1.7e9, "git": None}
        answer = await connection.request("PUT", f"{self.path}?origin={self.origin}", json.dumps(facts).encode())
        return int(answer["files"].get(FILE, 0))

    async def beat(self, connection: Connection, every_seconds: float) -> float:
        """Send a heartbeat, and return in how many seconds the server wants the next one."""
        body = json.dumps({"every_seconds": every_seconds}).encode()
        answer = await connection.request("POST", f"{self.path}/beat?origin={self.origin}", body)
        return float(answer["every_seconds"])

    async def start(self, connection: Connection) -> None:
        """Claim the run, and send that it runs."""
        await self.claim(connection)
        await self.send(connection, self._line(status_line("running", 0, self._lines)))

    async def finish(self, connection: Connection) -> None:
        """Send that it is finished."""
        await self.send(connection, self._line(status_line("finished", self.rows, self._lines)))

    def batch(self, rows: int) -> bytes:
        """The lines of the next rows."""
        lines = []
        for _ in range(rows):
            self.rows += 1
            lines.append(metric_line(self.rows, self._values[self.rows % _POOL], self._lines))
            self._lines += 1
        return b"".join(lines)

    async def send(self, connection: Connection, lines: bytes) -> None:
        """Send lines after those that were sent before.

        Raises:
            RequestError: The request failed. Whether the server has the lines is not known: see `send_again`.
        """
        await self._put(connection, lines)
        self._passed(lines)

    async def send_again(self, connection: Connection, lines: bytes) -> None:
        """Send what the server does not have of lines whose sending failed."""
        self.faults += 1
        held = await self.claim(connection) - self._offset
        if not 0 <= held <= len(lines):
            raise AssertionError(f"{self.name}: the server has {held} bytes of {len(lines)} beyond {self._offset}")
        if held < len(lines):
            await self._put(connection, lines[held:], held)
        self._passed(lines)

    async def _put(self, connection: Connection, lines: bytes, beyond: int = 0) -> None:
        # On a thread: it releases the interpreter, so that other runs can be sent meanwhile.
        packed = await asyncio.to_thread(gzip.compress, lines, 1) if len(lines) > 1 << 16 else gzip.compress(lines, 1)
        path = f"{self.path}/{FILE}?origin={self.origin}&offset={self._offset + beyond}"
        await connection.request("PUT", path, packed, is_packed=True)

    def _passed(self, lines: bytes) -> None:
        self._offset += len(lines)
        self.batches += 1

    def _line(self, line: bytes) -> bytes:
        self._lines += 1
        return line


async def follow(url: str, over: asyncio.Event) -> int:
    """Hold a live stream open, and return the number of its events."""
    parts, events = urlsplit(url), 0
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=64 << 20)
    writer.write(f"GET /api/stream HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    waiting = asyncio.create_task(over.wait())
    try:
        while not over.is_set():
            reading = asyncio.create_task(reader.readline())
            await asyncio.wait([reading, waiting], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
                break
            line = await reading
            if not line:
                break
            events += line.startswith(b"event:")
    finally:
        waiting.cancel()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return events

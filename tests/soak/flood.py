"""Raw bytes against a web server: what no HTTP client would send, from many sockets at a time.

Each attack opens sockets of its own and goes on until the server closes them, or until it has sent or waited enough.
What an attack does is the same for the same seed.
"""

import contextlib
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit

HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /api/runs HTTP/1.1\r\n" + HOST
GARBAGE = (
    b"GET / HTTP/1.1\r\n\r\n\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET http://[::1/%zz?\xff HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"X\x00Y: \x00\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"POST /api/login HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nx\r\n",
    b"POST /api/login HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n",
    b"POST /api/login HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999999999999999\r\n\r\nx",
    b"POST /api/login HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    b"PUT /api/journals/p/r HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
)
SECONDS = 10.0
"""No socket waits longer."""


class Flood:
    """Attacks on one server, from threads, until it is left.

    Args:
        url: Where the server is.
        megabytes: How much each endless attack sends at most.
        sockets: How many sockets an attack that waits holds open.

    Attributes:
        counts: How often each attack was made.
    """

    def __init__(self, url: str, *, seed: int, megabytes: int = 8, sockets: int = 100, threads: int = 3) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._megabytes, self._sockets = megabytes, sockets
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(seed * 100 + i,), daemon=True) for i in range(threads)
        ]
        self.attacks: list[Callable[[random.Random], None]] = [
            self.endless_header,
            self.endless_headers,
            self.endless_address,
            self.endless_chunks,
            self.tiny_chunks,
            self.pipelined,
            self.unread,
            self.idle,
            self.half_heads,
            self.streams,
            self.garbage,
            self.mutated,
        ]
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def once(self, seed: int) -> None:
        """Make each attack once, one after the other."""
        rng = random.Random(seed)
        for attack in self.attacks:
            self._make(attack, rng)

    def _work(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self._is_over.is_set():
            for attack in rng.sample(self.attacks, len(self.attacks)):
                if not self._is_over.is_set():
                    self._make(attack, rng)

    def _make(self, attack: Callable[[random.Random], None], rng: random.Random) -> None:
        with contextlib.suppress(OSError):  # the server has every right to hang up, or to be down
            attack(rng)
        self.counts[attack.__name__] += 1

    # Too much

    def endless_header(self, rng: random.Random) -> None:
        self._send_endlessly(GET + b"X-Long: ", b"x" * (1 << 20))

    def endless_headers(self, rng: random.Random) -> None:
        self._send_endlessly(GET, b"x: y\r\n" * (1 << 17))

    def endless_address(self, rng: random.Random) -> None:
        self._send_endlessly(b"GET /", b"%41" * (1 << 18))

    def endless_chunks(self, rng: random.Random) -> None:
        head = b"PUT /api/journals/p/r HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
        self._send_endlessly(head, b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")

    def tiny_chunks(self, rng: random.Random) -> None:
        for path in (b"/api/login", b"/api/status"):
            head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
            self._send_endlessly(head + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * (1 << 17))

    def pipelined(self, rng: random.Random) -> None:
        self._send_endlessly(b"", (GET + b"\r\n") * (1 << 14))

    # Too slow, and too many

    def unread(self, rng: random.Random) -> None:
        """Ask for files of the page again and again, and read nothing."""
        with self._opened(self._sockets // 10) as opened:
            for each in opened:
                each.setblocking(False)
                with contextlib.suppress(OSError):
                    each.send((b"GET /static/js/chart.js HTTP/1.1\r\n" + HOST + b"\r\n") * 500)
            self._wait(rng)

    def idle(self, rng: random.Random) -> None:
        with self._opened(self._sockets):
            self._wait(rng)

    def half_heads(self, rng: random.Random) -> None:
        with self._opened(self._sockets) as opened:
            for _ in range(3):
                for each in opened:
                    with contextlib.suppress(OSError):
                        each.sendall(GET[: rng.randrange(1, 9)])
                self._wait(rng)

    def streams(self, rng: random.Random) -> None:
        with self._opened(self._sockets) as opened:
            for each in opened:
                with contextlib.suppress(OSError):
                    each.sendall(b"GET /api/stream HTTP/1.1\r\n" + HOST + b"\r\n")
            self._wait(rng)

    # Nonsense

    def garbage(self, rng: random.Random) -> None:
        for text in (*GARBAGE, rng.randbytes(1 << 16), b"\n" * 10_000, b"\r" * 10_000, b" " * 10_000):
            with contextlib.suppress(OSError):
                self._exchange(text)

    def mutated(self, rng: random.Random) -> None:
        """Requests in which bytes were changed, left out or said twice."""
        for _ in range(20):
            text = bytearray(GET + b"Content-Length: 3\r\nAuthorization: Bearer x\r\nCookie: a=b\r\n\r\nabc")
            for _ in range(rng.randrange(1, 6)):
                place = rng.randrange(len(text))
                text[place : place + rng.randrange(3)] = rng.randbytes(rng.randrange(3)) + text[place : place + 1] * 2
            with contextlib.suppress(OSError):
                self._exchange(bytes(text))

    # How

    def _connected(self) -> socket.socket:
        return socket.create_connection(self._address, timeout=SECONDS)

    @contextlib.contextmanager
    def _opened(self, number: int):
        with contextlib.ExitStack() as stack:
            opened: list[socket.socket] = []
            for _ in range(number):
                with contextlib.suppress(OSError):
                    opened.append(stack.enter_context(self._connected()))
            yield opened

    def _send_endlessly(self, head: bytes, rest: bytes) -> None:
        with self._connected() as opened:
            opened.sendall(head)
            end = time.monotonic() + SECONDS
            for _ in range(max(1, (self._megabytes << 20) // len(rest))):
                if self._is_over.is_set() or time.monotonic() > end:
                    return
                opened.sendall(rest)

    def _exchange(self, text: bytes) -> None:
        with self._connected() as opened:
            opened.settimeout(1.0)
            opened.sendall(text)
            opened.shutdown(socket.SHUT_WR)
            opened.recv(1 << 16)

    def _wait(self, rng: random.Random) -> None:
        self._is_over.wait(rng.uniform(0.1, 1.0))

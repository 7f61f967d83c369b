"""`Answers`: each answer is computed and encoded once for everyone who asks the same.

- **Single flight.** Equal requests share one computation. A request joins only one that has not started yet, so an
  answer always has everything that was recorded before its request. At most one computation per question runs; those
  who come meanwhile share the next one.
- **Kept answers.** An answer is kept with a version of the data it was computed from, taken before the computation
  began. It is given again only while the version is the same, so it is never outdated.
- **Bounded.** Kept answers have at most ``max_bytes`` in all; the ones not asked for longest are dropped. Questions
  about much data and questions about little have their own threads, so a search never delays a chart.
- A computation is cancelled when it takes too long, or when all who wait for it have disconnected.

An answer has an ``ETag``: a client that has the same content already gets 304 without a body. Large answers are packed
with gzip, once, for clients that accept it.
"""

import asyncio
import contextlib
import gzip
import hashlib
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from hookline.store.query_limits import INTERRUPT_SECONDS, QueryLimit

MAX_BYTES = 64 << 20
PACKED_BYTES = 16 << 10
"""Smaller answers are not packed: on a fast network, packing takes longer than sending."""
THREADS = 8
"""For each of the two kinds of questions. More would only wait for the interpreter and for each other's locks."""
_SHARE = 8
"""An answer with more than this fraction of the memory is not kept: it would displace too many others."""
_WATCH_SECONDS = 0.1
"""Most answers come sooner; only after this time it is worth noticing that a client disconnects."""


class Answer:
    """An encoded answer."""

    __slots__ = ("body", "packed", "tag")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.packed: bytes | None = None
        # Weak, because the packed and the plain body share it.
        self.tag = f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'

    def pack(self) -> None:
        """Pack the body, unless it is small or packed already."""
        if self.packed is None and len(self.body) >= PACKED_BYTES:
            self.packed = gzip.compress(self.body, compresslevel=1, mtime=0)

    def response(self, request: Request) -> Response:
        """The response to a request: 304 if its client has this answer."""
        headers = {"Cache-Control": "no-store", "ETag": self.tag, "Vary": "Accept-Encoding"}
        if self.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if self.packed is not None and accepts_gzip(request):
            headers["Content-Encoding"] = "gzip"
            return Response(self.packed, headers=headers, media_type="application/json")
        return Response(self.body, headers=headers, media_type="application/json")


def accepts_gzip(request: Request) -> bool:
    """Whether the client of a request unpacks gzip."""
    for each in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = each.partition(";")
        if name.strip() == "gzip":
            return weight.strip().removeprefix("q=").rstrip("0") not in ("0.", ".", "") or not weight.strip()
    return False


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Args:
        key: Equal for equal questions of clients that may see the same runs.
        version: Returns the version of the data that the answer depends on; None if the answer is not to be kept.
        compute: Returns the encoded answer.
        seconds: How long its queries may take.
        is_slow: Whether it may read much.
    """

    key: Hashable
    version: Callable[[], Hashable] | None
    compute: Callable[[], bytes]
    seconds: float
    is_slow: bool = False


class _Flight:
    """A computation and those who wait for it."""

    __slots__ = ("has_started", "limit", "packs", "task", "waiting")

    def __init__(self, seconds: float) -> None:
        self.has_started = self.packs = False
        self.waiting = 0
        self.limit = QueryLimit(seconds)
        self.task: asyncio.Task[Answer] | None = None


@dataclass(slots=True)
class Answers:
    """Shares and keeps answers.

    Args:
        max_bytes: The maximum size of all kept answers.
    """

    max_bytes: int = MAX_BYTES
    _kept: "OrderedDict[Hashable, tuple[Hashable, Answer, int]]" = field(default_factory=OrderedDict)
    _bytes: int = 0
    # Answers are found and kept on the threads that compute them; flights are used on the event loop only.
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _flights: dict[Hashable, _Flight] = field(default_factory=dict)
    _limiters: dict[bool, anyio.CapacityLimiter] = field(default_factory=dict)

    @property
    def kept_bytes(self) -> int:
        """The size of all kept answers."""
        return self._bytes

    async def respond(self, request: Request, question: Question) -> Response:
        """Answer a request."""
        flight = self._flights.get(question.key)
        if flight is None or flight.has_started:
            before = None if flight is None else flight.task
            flight = self._flights[question.key] = _Flight(question.seconds)
            flight.task = asyncio.create_task(self._run(flight, question, before))
            flight.task.add_done_callback(_retrieve)
        flight.waiting += 1
        flight.packs = flight.packs or accepts_gzip(request)
        assert flight.task is not None
        try:
            answer = await wait_while_connected(request, flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                self._abandon(flight, question.key)
        if answer is None:
            return Response(status_code=503)  # the client is gone
        return answer.response(request)

    def _abandon(self, flight: _Flight, key: Hashable) -> None:
        flight.limit.cancel()
        if not flight.has_started:
            if self._flights.get(key) is flight:  # nobody may join it any more
                del self._flights[key]
            assert flight.task is not None
            flight.task.cancel()

    async def _run(self, flight: _Flight, question: Question, before: "asyncio.Task[Answer] | None") -> Answer:
        try:
            if before is not None:
                await asyncio.wait({before})
            if question.is_slow not in self._limiters:  # must be created on its event loop
                self._limiters[question.is_slow] = anyio.CapacityLimiter(THREADS)
            async with self._limiters[question.is_slow]:
                flight.has_started = True
                return await _on_thread(flight.limit, lambda: self._answer(flight, question))
        finally:
            if self._flights.get(question.key) is flight:
                del self._flights[question.key]

    def _answer(self, flight: _Flight, question: Question) -> Answer:
        with flight.limit:
            # Before computing: records that come meanwhile make the answer newer than its version, never older.
            version = None if question.version is None else question.version()
            answer = self._find(question.key, version)
            if answer is None:
                answer = Answer(question.compute())
            if flight.packs:
                answer.pack()
            if version is not None:
                self._keep(question.key, version, answer)
            return answer

    def _find(self, key: Hashable, version: Hashable) -> Answer | None:
        with self._lock:
            known = self._kept.get(key)
            if known is None or version is None or known[0] != version:
                return None
            return known[1]

    def _keep(self, key: Hashable, version: Hashable, answer: Answer) -> None:
        with self._lock:
            self._drop(key)
            if _size(answer) > self.max_bytes // _SHARE:
                return
            # The size is kept, too: an answer that is packed later gets larger.
            self._kept[key] = (version, answer, _size(answer))
            self._bytes += _size(answer)
            while self._bytes > self.max_bytes:
                self._drop(next(iter(self._kept)))

    def _drop(self, key: Hashable) -> None:
        known = self._kept.pop(key, None)
        if known is not None:
            self._bytes -= known[2]


_Result = TypeVar("_Result")
_OVERHEAD = 2048
"""What a kept answer takes besides its body: its key, with the ids of the runs, and its version."""


def _size(answer: Answer) -> int:
    return len(answer.body) + len(answer.packed or b"") + _OVERHEAD


async def _on_thread(limit: QueryLimit, work: Callable[[], Answer]) -> Answer:
    """Run work on a thread, and interrupt its queries when their limit is reached."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    # Not a task: on shutdown all tasks are cancelled, but the queries have to be interrupted until the thread ends.
    def enforce() -> None:
        nonlocal timer
        limit.enforce()
        timer = loop.call_later(INTERRUPT_SECONDS, enforce)

    timer = loop.call_later(INTERRUPT_SECONDS, enforce)
    try:
        # The caller holds one of a limited number of places already.
        return await anyio.to_thread.run_sync(work, limiter=anyio.CapacityLimiter(1))
    except asyncio.CancelledError:
        limit.cancel()
        raise
    finally:
        timer.cancel()


async def wait_while_connected(request: Request, task: "asyncio.Task[_Result]") -> _Result | None:
    """Wait for a task; None if the client of a request disconnects before. The task continues."""
    done, _ = await asyncio.wait({task}, timeout=_WATCH_SECONDS)
    if not done:
        gone = asyncio.create_task(_disconnect(request))
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if not task.done():
            return None
    return task.result()


async def _disconnect(request: Request) -> None:
    message = await request.receive()
    while message["type"] != "http.disconnect":
        if message.get("more_body"):  # an unexpected body is not read
            await asyncio.Event().wait()
        message = await request.receive()


@contextlib.asynccontextmanager
async def cancelled_by_disconnect(receive: Receive) -> AsyncIterator[None]:
    """End what is sent within the context when its client disconnects: sending alone does not notice that."""

    async def watch() -> None:
        message = await receive()
        while message["type"] != "http.disconnect":
            if message.get("more_body"):  # an unexpected body is not read
                await asyncio.Event().wait()
            message = await receive()
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        yield
        group.cancel_scope.cancel()


def _retrieve(task: "asyncio.Task[Answer]") -> None:
    """Mark a failure as seen: if all who waited are gone, asyncio would log it."""
    if not task.cancelled():
        task.exception()

"""`Endpoint` and `WriteEndpoint`: the routes of the JSON API with their parameters, reply types and handlers.

A `Parameter` is declared once, checked on each request, and documented in the OpenAPI document. Undeclared parameters
are refused, so a misspelled name is never silently ignored.

A read handler runs on a thread, once for all clients that ask the same at the same time (see `Answers`). Its queries
are cancelled after `QUERY_SECONDS`, or when all of its clients have disconnected, so an abandoned request does not keep
the processor busy. An endpoint with a ``version`` has its answers kept until the version changes.

The body of a write request is read on the event loop, within limits. Its handler runs on threads reserved for writing,
so slow reads never delay senders.
"""

import asyncio
import contextlib
import hashlib
import math
import re
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hookline._engine.errors import HooklineError, OptionError, closest
from hookline.server.answers import Answers, Question
from hookline.server.audit import AuditLog
from hookline.server.limits import (
    MAX_BODY_BYTES,
    MAX_INTEGER,
    MAX_UNPACKED_BYTES,
    BodyError,
    BodyLimits,
    RecentSenders,
)
from hookline.server.listing import Listing
from hookline.server.received_artifacts import ReceivedArtifacts
from hookline.server.received_blobs import ReceivedBlobs
from hookline.server.received_control import ReceivedControl
from hookline.server.received_runs import ReceivedRuns
from hookline.server.status_runs import StatusRuns
from hookline.server.tokens import PRINCIPAL, VISIBLE, Principal, ProjectScope
from hookline.store import DamagedIndexError
from hookline.store.query_limits import INTERRUPT_SECONDS, QueryLimit

Values: TypeAlias = dict[str, Any]
"""The values of a request by parameter name."""

MAX_TEXT = 4000
MAX_REPEATS = 500
QUERY_SECONDS = 60.0
WRITE_THREADS = 16
"""Writers wait for the disk, not for each other."""
MAX_WAIT_SECONDS = 5.0
"""A request that would wait longer for a thread is refused; senders give up after ten seconds."""
MAX_RETRY_SECONDS = 30.0
_MEAN_WEIGHT = 0.05
BEATS_PER_SECOND, MAX_BEAT_SECONDS = 50, 40.0
"""How many heartbeats come in a second before each run has to send fewer; and a limit, so that a death is noticed."""
_BEATING_SECONDS = 2 * MAX_BEAT_SECONDS


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter.

    Args:
        description: For the OpenAPI document and for errors.
        repeated: May be given several times; its value is a list.
        choices: The accepted texts; anything by default.
        pattern: A regular expression that a text has to match.
        low: The smallest accepted number.
        high: The largest accepted number.
    """

    name: str
    kind: Literal["string", "integer", "number"]
    description: str
    required: bool = False
    repeated: bool = False
    default: Any = None
    choices: Sequence[str] = ()
    pattern: str = ""
    low: float | None = None
    high: float | None = None

    def read(self, given: list[str]) -> Any:
        """Parse the given texts.

        Raises:
            OptionError: They are not accepted.
        """
        if not given:
            if self.required:
                raise OptionError(f"The parameter {self.name!r} is missing: {self.description}")
            return [] if self.repeated else self.default
        parse = self._text if self.kind == "string" else self._number
        if self.repeated:
            if len(given) > MAX_REPEATS:
                raise OptionError(f"{self.name} is given {len(given)} times; at most {MAX_REPEATS} are accepted.")
            return [parse(text) for text in given]
        if len(given) > 1:
            raise OptionError(f"{self.name} is given {len(given)} times; give it once.")
        return parse(given[0])

    def document(self) -> dict[str, Any]:
        """The OpenAPI description."""
        schema: dict[str, Any] = {"type": self.kind}
        if self.kind == "string":
            schema |= {"pattern": f"^{self.pattern}$"} if self.pattern else {}
            schema |= {"enum": list(self.choices)} if self.choices else {"maxLength": MAX_TEXT}
        else:
            low, high = self._limits()
            schema |= ({} if low is None else {"minimum": low}) | ({} if high is None else {"maximum": high})
        if self.repeated:
            schema = {"type": "array", "items": schema, "maxItems": MAX_REPEATS}
            schema |= {"minItems": 1} if self.required else {}
        elif self.default is not None:
            schema["default"] = self.default
        own: dict[str, Any] = {"name": self.name, "in": "query", "required": self.required}
        return own | {"description": self.description, "schema": schema}

    def _limits(self) -> tuple[float | None, float | None]:
        if self.kind == "number":
            return self.low, self.high
        return (-MAX_INTEGER if self.low is None else self.low, MAX_INTEGER if self.high is None else self.high)

    def _text(self, text: str) -> str:
        if self.choices and text not in self.choices:
            raise OptionError(f"{self.name}={text!r:.80} is not accepted. {closest(text, self.choices)}")
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise OptionError(f"{self.name}={text!r:.80} is not accepted: {self.description}")
        if len(text) > MAX_TEXT or "\0" in text:
            raise OptionError(f"{self.name}={text!r:.80}: give a text of at most {MAX_TEXT:,} characters without NUL.")
        return text

    def _number(self, text: str) -> float | int:
        is_integer = self.kind == "integer"
        try:
            value: float | int = int(text) if is_integer else float(text)
        except ValueError:
            kind = "whole number" if is_integer else "number"
            raise OptionError(f"{self.name}={text!r:.80}: give a {kind}.") from None
        low, high = self._limits()
        if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
            limits = ("" if low is None else f" from {low:,}") + ("" if high is None else f" up to {high:,}")
            raise OptionError(f"{self.name}={text!r:.80}: give a number{limits}.")
        return value


def read_parameters(declared: Sequence[Parameter], given: Iterable[tuple[str, str]]) -> Values:
    """Parse the parameters of a query.

    Raises:
        OptionError: One is unknown or not accepted.
    """
    texts: dict[str, list[str]] = {parameter.name: [] for parameter in declared}
    for name, text in given:
        if name not in texts:
            raise OptionError(f"There is no parameter {name!r:.80}. {closest(name[:80], texts)}")
        texts[name].append(text)
    return {parameter.name: parameter.read(texts[parameter.name]) for parameter in declared}


def _query_items(request: Request) -> list[tuple[str, str]]:
    # As `Request.query_params`, which makes a multidict first.
    return parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)


def principal_of(request: Request) -> Principal:
    """Who makes a request; `hookline.server.application.Guard` has determined it."""
    principal: Principal = request.scope[PRINCIPAL]
    return principal


def visible_scope(request: Request) -> ProjectScope:
    """The projects that the client of a request may see; requests with different scopes never share an answer."""
    scope: ProjectScope = request.scope[VISIBLE]
    return scope


class OutOfScopeError(HooklineError, ValueError):
    """A token is not for a project."""


def check_project(scope: ProjectScope, project: str) -> None:
    """Refuse a project that is not in a scope, whether or not it exists.

    Raises:
        OutOfScopeError: It is not.
    """
    if not scope.allows(project):
        raise OutOfScopeError(f"This token is not for the project {project!r:.80}. Use another project or token.")


RUN = Parameter("run", "string", "Ids of runs, as returned by /api/runs.", required=True, repeated=True)
METRIC = Parameter("name", "string", "The name of a metric.", required=True)
FIRST_STEP = Parameter("first_step", "integer", "The first step.")
LAST_STEP = Parameter("last_step", "integer", "The last step.")


def version_of_runs(listing: Listing, values: Values) -> Hashable:
    """The version of answers that depend only on the journals and the descriptions of the runs they name."""
    given = values["run"]
    return listing.version([given] if isinstance(given, str) else given)


@dataclass(frozen=True, slots=True)
class Responder:
    """A function from requests to responses as an ASGI application.

    A route wraps a plain function with handlers of exceptions, through which every message goes. `Guard` handles them.
    """

    respond: Callable[[Request], Awaitable[Response]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request."""
        response = await self.respond(Request(scope, receive, send))
        await response(scope, receive, send)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A route that answers GET with JSON.

    Args:
        reply: The type of the reply; gives its schema.
        answer: Computes the reply on a thread.
        version: Returns the version of the data that the reply depends on. Without it, replies are not kept: they
            depend on the clock, or on files that nothing watches.
        is_slow: Whether it may read much: such requests have their own threads.
    """

    path: str
    summary: str
    reply: Any
    answer: Callable[[Listing, Values], Any]
    parameters: Sequence[Parameter] = ()
    version: Callable[[Listing, Values], Hashable] | None = None
    is_slow: bool = False

    def route(self, listing: Listing, answers: Answers | None = None) -> Route:
        """The Starlette route."""
        shared = Answers() if answers is None else answers

        async def respond(request: Request) -> Response:
            values = read_parameters(self.parameters, _query_items(request))
            scope = visible_scope(request)
            visible = listing.scoped(scope)

            def compute() -> bytes:
                try:
                    return msgspec.json.encode(self.answer(visible, values))
                except DamagedIndexError:  # it is rebuilt on the second attempt
                    return msgspec.json.encode(self.answer(visible, values))

            digest = hashlib.blake2b(msgspec.msgpack.encode(values), digest_size=16).digest()
            version = self.version
            question = Question(
                (self.path, digest, scope),
                None if version is None else lambda: version(visible, values),
                compute,
                QUERY_SECONDS,
                self.is_slow,
            )
            return await shared.respond(request, question)

        return Route(self.path, Responder(respond), methods=["GET"], name=self.path)


def records_endpoint(
    path: str,
    summary: str,
    reply: Any,
    answer: Callable[[Listing, Values], Any],
    parameters: Sequence[Parameter] = (),
) -> Endpoint:
    """An endpoint whose replies depend only on the records of the runs it names, of which it may read many."""
    return Endpoint(path, summary, reply, answer, parameters, version_of_runs, is_slow=True)


async def run_cancellable(request: Request, answer: Callable[[], Response]) -> Response:
    """Compute a response on a thread; cancels its queries on a timeout or when the client disconnects."""
    limit = QueryLimit(QUERY_SECONDS)
    response: Response | None = None
    failure: Exception | None = None

    def answer_within_limit() -> Response:
        with limit:
            return answer()

    async def watch_client() -> None:
        message = await request.receive()
        while message["type"] != "http.disconnect":
            if message.get("more_body"):  # an unexpected body is not read
                return
            message = await request.receive()
        limit.cancel()

    async def watch_queries() -> None:
        try:
            while True:
                await anyio.sleep(INTERRUPT_SECONDS)
                limit.enforce()
        finally:  # also on shutdown, which waits for the thread
            limit.cancel()

    async with anyio.create_task_group() as watchers:
        watchers.start_soon(watch_client)
        watchers.start_soon(watch_queries)
        try:
            response = await anyio.to_thread.run_sync(answer_within_limit)
        except Exception as error:  # raised below: a task group would wrap it
            failure = error
        watchers.cancel_scope.cancel()
    if failure is not None:
        raise failure
    assert response is not None
    return response


def json_response(document: Any, status: int = 200) -> Response:
    """A JSON response that browsers do not cache."""
    headers = {"Cache-Control": "no-store"}
    return Response(msgspec.json.encode(document), status, headers, media_type="application/json")


@dataclass(slots=True)
class WriteContext:
    """What all write endpoints share.

    Args:
        on_received: Called on the event loop when something was received.
    """

    received: ReceivedRuns
    statuses: StatusRuns
    blobs: ReceivedBlobs
    artifacts: ReceivedArtifacts
    control: ReceivedControl
    bodies: BodyLimits = field(default_factory=BodyLimits)
    audit: AuditLog | None = None
    on_received: Callable[[], None] = lambda: None
    threads: int = WRITE_THREADS
    _beating: RecentSenders = field(default_factory=lambda: RecentSenders(_BEATING_SECONDS))
    _pool: ThreadPoolExecutor | None = None
    _pending: int = 0
    _mean_seconds: float = 0.0
    _last_done: float = 0.0

    def beat_seconds(self, name: str, every_seconds: float) -> float:
        """How often the sender of a run has to send a heartbeat that offers to do so every few seconds.

        All together send at most `BEATS_PER_SECOND`, or each one every `MAX_BEAT_SECONDS` if they are very many. The
        interval doubles with their number, instead of changing with each of them: a run's interval is kept in a file.
        """
        wanted = min(MAX_BEAT_SECONDS, self._beating.count(name, time.monotonic()) / BEATS_PER_SECOND)
        while every_seconds < wanted:
            every_seconds *= 2
        return every_seconds

    def check_load(self) -> None:
        """Refuse a request before its body is read, if it would have to wait too long for a thread.

        A sender that waits in vain for its timeout sends the same again, which makes a slow disk slower.

        Raises:
            BodyError: It would; the error tells how long to wait before the next attempt.
        """
        waiting = self._pending - self.threads
        if waiting < 0:
            return
        # What it takes to come through the queue or, if the disk hangs and nothing is completed, how long it has.
        wait = max(waiting * self._mean_seconds / self.threads, time.monotonic() - self._last_done)
        if wait > MAX_WAIT_SECONDS:
            retry = min(MAX_RETRY_SECONDS, max(1.0, wait))
            raise BodyError(503, "The server has a write backlog. Try again later.", retry_seconds=retry)

    async def run(self, work: Callable[[], Any]) -> Any:
        """Run blocking work on a thread reserved for writing."""
        # Of the standard library: a hop to one of anyio's threads and back takes three times the CPU time.
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, "hookline-write")
        if not self._pending:
            self._last_done = time.monotonic()  # nothing was to be done before
        self._pending += 1

        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Any, float]] = loop.create_future()
        try:
            # Not `run_in_executor`: chaining two futures costs more than the work of a small batch.
            job = self._pool.submit(_work_on_thread, work, loop, done)
            try:
                result, seconds = await done
            except asyncio.CancelledError:
                job.cancel()  # it may not have a thread yet
                raise
            self._mean_seconds += _MEAN_WEIGHT * (seconds - self._mean_seconds)
            return result
        finally:
            self._pending -= 1
            self._last_done = time.monotonic()
            del done  # an exception in it would refer to itself through this frame, and keep the body in memory


def _work_on_thread(
    work: Callable[[], Any], loop: asyncio.AbstractEventLoop, done: "asyncio.Future[tuple[Any, float]]"
) -> None:
    """Do some work, and set its result, with the seconds that it took, on the event loop."""
    start, result, failure = time.monotonic(), None, None
    try:
        result = work()
    except BaseException as error:
        failure = error
    with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
        loop.call_soon_threadsafe(_settle, done, (result, time.monotonic() - start), failure)
    del failure


def _settle(done: "asyncio.Future[tuple[Any, float]]", result: tuple[Any, float], error: BaseException | None) -> None:
    if done.cancelled():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A request with checked parameters and its unpacked body."""

    values: Values
    body: bytes
    headers: Mapping[str, str]
    principal: Principal
    address: str = ""


@dataclass(frozen=True, slots=True)
class WriteEndpoint:
    """A route that accepts data.

    Args:
        reply: The type of the reply.
        write: Handles the request on a thread.
        names: The parameters in the path.
        body: The content types of the body with their schemas.
        max_bytes: The maximum size of the unpacked body.
        refusals: Descriptions of status codes other than 200.
        is_news: Whether viewers are to see the result soon; a sign of life is not worth a listing of all runs.
    """

    method: Literal["PUT", "POST"]
    path: str
    summary: str
    reply: Any
    write: Callable[[WriteContext, WriteRequest], Any]
    parameters: Sequence[Parameter] = ()
    names: Sequence[Parameter] = ()
    body: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    max_bytes: int = MAX_UNPACKED_BYTES
    refusals: Mapping[str, str] = field(default_factory=dict)
    is_news: bool = True

    def route(self, context: WriteContext) -> Route:
        """The Starlette route."""

        async def respond(request: Request) -> Response:
            raw_path = request.scope.get("raw_path", b"").lower()
            if b"%2f" in raw_path or b"%5c" in raw_path or b"%00" in raw_path:
                raise OptionError("A name in the URL contains an encoded separator. Names have none.")
            values = read_parameters(self.parameters, _query_items(request))
            values |= {name: str(value) for name, value in request.path_params.items()}
            principal, address = principal_of(request), request.client.host if request.client else ""
            if "project" in request.path_params and not principal.scope.allows(values["project"]):
                if context.audit is not None:
                    details = {"project": values["project"], "target": values.get("run", "")}
                    context.audit.record_first(
                        "run.claimed", principal, address=address, result="refused: another project", **details
                    )
                check_project(principal.scope, values["project"])
            context.check_load()
            try:
                async with context.bodies.read(request, min(MAX_BODY_BYTES, self.max_bytes)) as body:

                    def write() -> Any:
                        content = body.unpack(request.headers.get("content-encoding", ""), self.max_bytes)
                        return self.write(context, WriteRequest(values, content, request.headers, principal, address))

                    reply = await context.run(write)
                if self.is_news:
                    context.on_received()
                return json_response(reply)
            except ClientDisconnect:
                return Response(status_code=400)  # the client is gone

        return Route(self.path, Responder(respond), methods=[self.method], name=f"{self.method} {self.path}")

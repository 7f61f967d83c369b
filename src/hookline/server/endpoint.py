"""`Endpoint`: one address of the JSON interface: what it takes, what it gives, who answers.

An answer is made on a thread. Its queries are ended when one takes longer than `QUERY_SECONDS`, or when its client is
gone: what nobody reads must not keep the processor busy.

`WriteEndpoint`: one address that takes something: what it takes, what it gives, who does it.

The body is taken on the event loop, within limits. What is done with it is done on threads of its own: reading, which
may take long, never keeps those waiting who send.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from hookline._engine.errors import OptionError
from hookline.server.limits import MOST_BYTES, MOST_UNPACKED_BYTES, Bodies, Body
from hookline.server.listing import Listing
from hookline.server.parameters import Parameter, Values, read_parameters
from hookline.server.received_runs import ReceivedRuns
from hookline.server.status_runs import StatusRuns
from hookline.store import DamagedIndexError
from hookline.store.query_limits import INTERRUPT_SECONDS, QueryLimit

QUERY_SECONDS = 60.0

RUN = Parameter("run", "string", "Ids of runs, as /api/runs gives them.", required=True, repeated=True)
METRIC = Parameter("name", "string", "The name of a metric.", required=True)
FIRST_STEP = Parameter("first_step", "integer", "The first step that counts.")
LAST_STEP = Parameter("last_step", "integer", "The last step that counts.")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address that answers GET with JSON.

    Args:
        reply: The type of the answer, from which its schema is made.
        answer: Makes the answer of the runs and of the values of parameters; is called on a thread.
    """

    path: str
    summary: str
    reply: Any
    answer: Callable[[Listing, Values], Any]
    parameters: Sequence[Parameter] = ()

    def route(self, listing: Listing) -> Route:
        """The endpoint as Starlette wants it."""

        async def respond(request: Request) -> Response:
            values = read_parameters(self.parameters, request.query_params.multi_items())
            return await while_wanted(request, lambda: json_response(self._answered(listing, values)))

        return Route(self.path, respond, methods=["GET"], name=self.path)

    def _answered(self, listing: Listing, values: Values) -> Any:
        try:
            return self.answer(listing, values)
        except DamagedIndexError:  # the second time, it is built again
            return self.answer(listing, values)


async def while_wanted(request: Request, answer: Callable[[], Response]) -> Response:
    """Make an answer on a thread, and end its queries where they take too long or their client is gone."""
    limit = QueryLimit(QUERY_SECONDS)
    made: Response | None = None
    failure: Exception | None = None

    def answer_within_limit() -> Response:
        with limit:
            return answer()

    async def watch_client() -> None:
        message = await request.receive()
        while message["type"] != "http.disconnect":
            if message.get("more_body"):  # nobody asked for a body: it is not read
                return
            message = await request.receive()
        limit.cancel()

    async def watch_queries() -> None:
        try:
            while True:
                await anyio.sleep(INTERRUPT_SECONDS)
                limit.enforce()
        finally:  # also where the server ends, which waits for the thread
            limit.cancel()

    async with anyio.create_task_group() as watching:
        watching.start_soon(watch_client)
        watching.start_soon(watch_queries)
        try:
            made = await anyio.to_thread.run_sync(answer_within_limit)
        except Exception as error:  # raised below: a task group would wrap it
            failure = error
        watching.cancel_scope.cancel()
    if failure is not None:
        raise failure
    assert made is not None
    return made


def json_response(document: Any, status: int = 200) -> Response:
    """A document as JSON; it is never kept by the browser, because the next answer may be another."""
    headers = {"Cache-Control": "no-store"}
    return Response(msgspec.json.encode(document), status, headers, media_type="application/json")


THREADS = 16
"""How many write at a time: they wait for the disk, not for each other."""


@dataclass(slots=True)
class Desk:
    """What those who send have in common.

    Args:
        received: Where what is sent is kept.
        statuses: Where status messages are kept.
    """

    received: ReceivedRuns
    statuses: StatusRuns
    bodies: Bodies = field(default_factory=Bodies)
    _limiter: anyio.CapacityLimiter | None = None

    async def do(self, work: Callable[[], Any]) -> Any:
        """Do something that waits for the disk on a thread."""
        if self._limiter is None:  # needs the event loop that it is for
            self._limiter = anyio.CapacityLimiter(THREADS)
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)


@dataclass(frozen=True, slots=True)
class Sent:
    """A request, checked as far as its parameters go."""

    values: Values
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WriteEndpoint:
    """An address that takes something.

    Args:
        reply: The type of the answer.
        take: Does it; is called on a thread.
        names: The parameters in the path.
        body: The types of a body, with a schema for each.
        most_bytes: How large a body may be, unpacked.
        refusals: What else than 200 is answered, in words.
    """

    method: Literal["PUT", "POST"]
    path: str
    summary: str
    reply: Any
    take: Callable[[Desk, Sent], Any]
    parameters: Sequence[Parameter] = ()
    names: Sequence[Parameter] = ()
    body: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    most_bytes: int = MOST_UNPACKED_BYTES
    refusals: Mapping[str, str] = field(default_factory=dict)

    def route(self, desk: Desk) -> Route:
        """The endpoint as Starlette wants it."""

        async def respond(request: Request) -> Response:
            values = self._values(request)
            try:
                async with desk.bodies.take(request, min(MOST_BYTES, self.most_bytes)) as body:
                    return json_response(await desk.do(lambda: self._done(desk, values, body, request.headers)))
            except ClientDisconnect:
                return Response(status_code=400)  # nobody is there to read it

        return Route(self.path, respond, methods=[self.method], name=f"{self.method} {self.path}")

    def _done(self, desk: Desk, values: Values, body: Body, headers: Mapping[str, str]) -> Any:
        content = body.unpacked(headers.get("content-encoding", ""), self.most_bytes)
        return self.take(desk, Sent(values, content, headers))

    def _values(self, request: Request) -> Values:
        raw = request.scope.get("raw_path", b"").lower()
        if b"%2f" in raw or b"%5c" in raw or b"%00" in raw:
            raise OptionError("A name in the address has a separator in it: names have none.")
        values = read_parameters(self.parameters, request.query_params.multi_items())
        return values | {name: str(value) for name, value in request.path_params.items()}

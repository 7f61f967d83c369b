"""`Endpoint` and `WriteEndpoint`: the routes of the JSON API with their parameters, reply types and handlers.

A read handler runs on a thread. Its queries are cancelled after `QUERY_SECONDS`, or when the client disconnects, so an
abandoned request does not keep the processor busy.

The body of a write request is read on the event loop, within limits. Its handler runs on threads reserved for writing,
so slow reads never delay senders.
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
from hookline.server.limits import MAX_BODY_BYTES, MAX_UNPACKED_BYTES, BodyLimits
from hookline.server.listing import Listing
from hookline.server.parameters import Parameter, Values, read_parameters
from hookline.server.received_runs import ReceivedRuns
from hookline.server.status_runs import StatusRuns
from hookline.store import DamagedIndexError
from hookline.store.query_limits import INTERRUPT_SECONDS, QueryLimit

QUERY_SECONDS = 60.0
WRITE_THREADS = 16
"""Writers wait for the disk, not for each other."""

RUN = Parameter("run", "string", "Ids of runs, as returned by /api/runs.", required=True, repeated=True)
METRIC = Parameter("name", "string", "The name of a metric.", required=True)
FIRST_STEP = Parameter("first_step", "integer", "The first step.")
LAST_STEP = Parameter("last_step", "integer", "The last step.")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A route that answers GET with JSON.

    Args:
        reply: The type of the reply; gives its schema.
        answer: Computes the reply on a thread.
    """

    path: str
    summary: str
    reply: Any
    answer: Callable[[Listing, Values], Any]
    parameters: Sequence[Parameter] = ()

    def route(self, listing: Listing) -> Route:
        """The Starlette route."""

        async def respond(request: Request) -> Response:
            values = read_parameters(self.parameters, request.query_params.multi_items())

            def answer() -> Response:
                try:
                    return json_response(self.answer(listing, values))
                except DamagedIndexError:  # it is rebuilt on the second attempt
                    return json_response(self.answer(listing, values))

            return await run_cancellable(request, answer)

        return Route(self.path, respond, methods=["GET"], name=self.path)


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
    """What all write endpoints share."""

    received: ReceivedRuns
    statuses: StatusRuns
    bodies: BodyLimits = field(default_factory=BodyLimits)
    _limiter: anyio.CapacityLimiter | None = None

    async def run(self, work: Callable[[], Any]) -> Any:
        """Run blocking work on a thread reserved for writing."""
        if self._limiter is None:  # must be created on its event loop
            self._limiter = anyio.CapacityLimiter(WRITE_THREADS)
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A request with checked parameters and its unpacked body."""

    values: Values
    body: bytes
    headers: Mapping[str, str]


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

    def route(self, context: WriteContext) -> Route:
        """The Starlette route."""

        async def respond(request: Request) -> Response:
            raw_path = request.scope.get("raw_path", b"").lower()
            if b"%2f" in raw_path or b"%5c" in raw_path or b"%00" in raw_path:
                raise OptionError("A name in the URL contains an encoded separator. Names have none.")
            values = read_parameters(self.parameters, request.query_params.multi_items())
            values |= {name: str(value) for name, value in request.path_params.items()}
            try:
                async with context.bodies.read(request, min(MAX_BODY_BYTES, self.max_bytes)) as body:

                    def write() -> Any:
                        content = body.unpack(request.headers.get("content-encoding", ""), self.max_bytes)
                        return self.write(context, WriteRequest(values, content, request.headers))

                    return json_response(await context.run(write))
            except ClientDisconnect:
                return Response(status_code=400)  # the client is gone

        return Route(self.path, respond, methods=[self.method], name=f"{self.method} {self.path}")

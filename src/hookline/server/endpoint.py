"""`Endpoint`: one address of the JSON interface: what it takes, what it gives, who answers.

An answer is made on a thread. Its queries are ended when one takes longer than `QUERY_SECONDS`, or when its client is
gone: what nobody reads must not keep the processor busy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hookline.server.listing import Listing
from hookline.server.parameters import Parameter, Values, read_parameters
from hookline.store import DamagedIndexError
from hookline.store.query_limit import AGAIN_SECONDS, QueryLimit

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
                await anyio.sleep(AGAIN_SECONDS)
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

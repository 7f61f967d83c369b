"""`Endpoint`: one address of the JSON interface: what it takes, what it gives, who answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hookline.server.listing import Listing
from hookline.server.parameters import Parameter, Values, read_parameters
from hookline.store import DamagedIndexError

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

        def respond(request: Request) -> Response:
            values = read_parameters(self.parameters, request.query_params.multi_items())
            try:
                return json_response(self.answer(listing, values))
            except DamagedIndexError:  # the second time, it is made anew
                return json_response(self.answer(listing, values))

        return Route(self.path, respond, methods=["GET"], name=self.path)


def json_response(document: Any, status: int = 200) -> Response:
    """A document as JSON; it is never kept by the browser, because the next answer may be another."""
    headers = {"Cache-Control": "no-store"}
    return Response(msgspec.json.encode(document), status, headers, media_type="application/json")

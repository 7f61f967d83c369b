"""The application: every address there is, and how errors are told."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import hookline
from hookline.core.errors import HooklineError, UnknownNameError
from hookline.server import activity_api, charts_api, experiment_api, receive_api, runs_api, samples_api, status_api
from hookline.server.access import Access
from hookline.server.disk_trouble import DiskTrouble
from hookline.server.endpoint import json_response
from hookline.server.guard import Guard
from hookline.server.listing import Listing
from hookline.server.live_stream import MOST_STREAMS, LiveStream
from hookline.server.login_api import login_route
from hookline.server.metric_names import NamesError
from hookline.server.openapi import openapi
from hookline.server.received_runs import ConflictError, ReceivedRuns
from hookline.server.request_body import Bodies, BodyError
from hookline.server.status_runs import StatusRuns
from hookline.server.tokens import Tokens
from hookline.server.web_server import LOOPBACK
from hookline.server.write_endpoint import Desk
from hookline.store import DamagedIndexError, QueryTimeoutError, Runs

logger = logging.getLogger("hookline")

STATIC = Path(__file__).parent / "static"
ENDPOINTS = (
    *runs_api.ENDPOINTS,
    *charts_api.ENDPOINTS,
    *samples_api.ENDPOINTS,
    *activity_api.ENDPOINTS,
    *experiment_api.ENDPOINTS,
)
WRITING = (*receive_api.ENDPOINTS, *status_api.ENDPOINTS)
"""Where something can be sent; `hookline ui` has none of these."""
_LATER = (QueryTimeoutError, DamagedIndexError)
"""Errors of what may work when it is asked for again."""


@dataclass(frozen=True, slots=True)
class Receiving:
    """What a server has that takes runs from other machines.

    Args:
        tokens: What is asked of those who send, and of those who look.
        hosts: The names that it is reached by.
        bodies: How much it takes at a time.
    """

    tokens: Tokens
    hosts: Sequence[str] = LOOPBACK
    bodies: Bodies = field(default_factory=Bodies)

    def routes(self, root: Path, access: Access) -> list[Route]:
        """The addresses that something can be sent to."""
        received = ReceivedRuns(root)
        desk = Desk(received, StatusRuns(received), self.bodies)
        return [*(endpoint.route(desk) for endpoint in WRITING), login_route(access, self.bodies)]


def application(
    runs: Runs,
    *,
    is_closing: Callable[[], bool] = lambda: False,
    receiving: Receiving | None = None,
    most_streams: int = MOST_STREAMS,
) -> Starlette:
    """The page and its interface over some runs.

    Args:
        is_closing: Whether the server is about to end.
        receiving: How runs of other machines are taken; by default nothing can be changed.
        most_streams: How many live streams there are at a time.
    """
    listing = Listing(runs)
    stream = LiveStream(listing, is_closing, most_streams)
    access = None if receiving is None else Access(receiving.tokens)
    document = openapi(ENDPOINTS, hookline.__version__, WRITING if access else (), access)
    guard = Middleware(Guard, hosts=LOOPBACK if receiving is None else receiving.hosts, access=access)
    routes = [
        *(receiving.routes(runs.root, access) if receiving and access else ()),
        *(endpoint.route(listing) for endpoint in ENDPOINTS),
        Route("/api/stream", stream.respond, methods=["GET"]),
        Route("/api/openapi.json", lambda request: json_response(document), methods=["GET"]),
        Route("/", _page, methods=["GET"]),
        Mount("/static", _Static(directory=STATIC)),
    ]
    handlers = {HTTPException: _told, HooklineError: _refused, OSError: _not_written, Exception: _failed}
    made = Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)
    made.state.tokens = None if receiving is None else receiving.tokens
    made.state.trouble = DiskTrouble()
    return made


class _Static(StaticFiles):
    """Files that a browser may keep, but asks about each time: after an upgrade the page is the new one."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "no-cache"
        return response


def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


def _told(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = f"There is nothing at {request.url.path!r:.80}." if status == 404 else str(error)
    return _error(request, what, status)


def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, ConflictError):
        return _error(request, str(error), 409, **error.facts)
    if isinstance(error, NamesError):
        return _error(request, str(error), 422, **error.facts)
    if isinstance(error, BodyError):
        answer = _error(request, str(error), error.status)
        answer.headers.update({"Retry-After": "2"} if error.status == 503 else {})
        return answer
    status = 404 if isinstance(error, UnknownNameError) else 503 if isinstance(error, _LATER) else 400
    return _error(request, str(error), status)


def _error(request: Request, what: str, status: int, **facts: object) -> Response:
    return json_response({"error": _hidden(request, what), **facts}, status)


def _hidden(request: Request, text: str) -> str:
    tokens: Tokens | None = request.app.state.tokens
    return text if tokens is None else tokens.hidden(text)


def _not_written(request: Request, error: Exception) -> Response:
    trouble: DiskTrouble = request.app.state.trouble
    fault = trouble.fault(error, _hidden(request, request.url.path))
    return _failed(request, error) if fault is None else _error(request, fault.error, fault.status)


def _failed(request: Request, error: Exception) -> Response:
    logger.error("%s failed", request.url.path, exc_info=error)
    return json_response({"error": "This could not be answered; the server's log says why."}, 500)

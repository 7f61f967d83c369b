"""The application: every address there is, and how errors are told."""

import logging
from collections.abc import Callable
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
from hookline.server import activity_api, charts_api, experiment_api, runs_api, samples_api
from hookline.server.endpoint import json_response
from hookline.server.guard import LOOPBACK, Guard
from hookline.server.listing import Listing
from hookline.server.live_stream import LiveStream
from hookline.server.openapi import openapi
from hookline.store import QueryTimeoutError, Runs

logger = logging.getLogger("hookline")

STATIC = Path(__file__).parent / "static"
ENDPOINTS = (
    *runs_api.ENDPOINTS,
    *charts_api.ENDPOINTS,
    *samples_api.ENDPOINTS,
    *activity_api.ENDPOINTS,
    *experiment_api.ENDPOINTS,
)


def application(runs: Runs, *, is_closing: Callable[[], bool] = lambda: False) -> Starlette:
    """The page and its interface over some runs.

    Args:
        is_closing: Whether the server is about to end.
    """
    listing = Listing(runs)
    stream = LiveStream(listing, is_closing)
    document = openapi(ENDPOINTS, hookline.__version__)
    routes = [
        *(endpoint.route(listing) for endpoint in ENDPOINTS),
        Route("/api/stream", stream.respond, methods=["GET"]),
        Route("/api/openapi.json", lambda request: json_response(document), methods=["GET"]),
        Route("/", _page, methods=["GET"]),
        Mount("/static", _Static(directory=STATIC)),
    ]
    handlers = {HTTPException: _told, HooklineError: _refused, Exception: _failed}
    return Starlette(routes=routes, middleware=[Middleware(Guard, hosts=LOOPBACK)], exception_handlers=handlers)


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
    return json_response({"error": what}, status)


def _refused(request: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, UnknownNameError) else 503 if isinstance(error, QueryTimeoutError) else 400
    return json_response({"error": str(error)}, status)


def _failed(request: Request, error: Exception) -> Response:
    logger.error("%s failed", request.url.path, exc_info=error)
    return json_response({"error": "This could not be answered; the server's log says why."}, 500)

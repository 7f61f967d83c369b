"""The web application: routes, error responses, and checks that apply to every request.

`Guard` runs before everything else:

- A request must name this machine as its host. A foreign page that points its name here (DNS rebinding) is refused.
- Only GET and HEAD are accepted, so foreign pages cannot change anything. If runs are received, `Access` decides
  before any other code sees the request.
- The browser runs only the page's own scripts and styles, loads nothing from elsewhere, lets no other page embed or
  read a response, and does not guess content types. There is no CORS.

`DiskFaults` turns temporary errors of the server's disk into responses that ask to retry. Senders retry often, so a
lasting fault is logged only once in a while.
"""

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import hookline
from hookline._engine.errors import HooklineError, UnknownNameError
from hookline.server import activity_api, experiment_api, receive_api, runs_api, samples_api
from hookline.server.access import LOOPBACK, Access, Refusal, login_route
from hookline.server.endpoint import WriteContext, json_response
from hookline.server.limits import BodyError, BodyLimits, NamesError
from hookline.server.listing import Listing
from hookline.server.live_stream import MAX_STREAMS, LiveStream
from hookline.server.openapi import openapi
from hookline.server.received_runs import ConflictError, ReceivedRuns
from hookline.server.status_runs import StatusRuns
from hookline.server.tokens import Tokens
from hookline.store import DamagedIndexError, QueryTimeoutError, Runs

logger = logging.getLogger("hookline")

LOG_SECONDS = 60.0
"""The same fault is logged again after this time."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FAULTS = _FULL | {errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE}


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """Turns disk errors into responses.

    Args:
        clock: A monotonic clock in seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _logged: dict[int, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refusal(self, error: BaseException, path: str) -> Refusal | None:
        """The response to a request that failed; None if the disk is not the cause.

        Args:
            path: The path of the request, for the log.
        """
        number = error.errno if isinstance(error, OSError) else None
        if number not in _FAULTS:
            return None
        with self._lock:
            now = self.clock()
            is_due = now - self._logged.get(number, now - LOG_SECONDS) >= LOG_SECONDS
            if is_due:
                self._logged[number] = now
        if is_due:
            logger.error("%s failed: %s", path, error)
        if number in _FULL:
            return Refusal(507, "The server's disk is full. Send it again later.")
        return Refusal(503, f"The server cannot use its directory: {os.strerror(number)}. See its log, and try later.")


SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """Middleware that checks every request and adds security headers to every response.

    Args:
        hosts: The accepted host names. If others can reach the server, so is the address a request came in at.
        access: The access rules; by default everyone may read and no one may write.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = LOOPBACK, access: Access | None = None) -> None:
        self._app, self._hosts, self._access = app, frozenset(host.lower() for host in hosts), access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        app, refusal = self._app, self._refusal(scope)
        if refusal is not None:
            response = json_response({"error": refusal.error}, refusal.status)
            response.headers.update(refusal.headers or {})
            app = response
        await app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host_name(host) not in self._hosts and not self._is_own_address(scope, host_name(host)):
            hint = "Open it as http://127.0.0.1 or http://localhost."
            if self._access is not None:
                hint = "If it is reached by this name, start it with --allow-host and the name."
            return Refusal(421, f"This server is not {host!r:.80}. {hint}")
        if self._access is not None:
            return self._access.refusal(scope["method"], scope["path"], headers)
        if scope["method"] not in ("GET", "HEAD"):
            error = f"{scope['method']!r:.20} is not accepted: this server is read-only. Use GET."
            return Refusal(405, error, {"Allow": "GET, HEAD"})
        return None

    def _is_own_address(self, scope: Scope, host: str) -> bool:
        """Whether the host is the address the connection came in at: a foreign name cannot fake that."""
        server = scope.get("server")
        if self._access is None or server is None:
            return False
        # An IPv4 address looks like this if it reached an IPv6 socket.
        return host.removeprefix("::ffff:") == str(server[0]).lower().removeprefix("::ffff:")


def host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


STATIC = Path(__file__).parent / "static"
READ_ENDPOINTS = (
    *runs_api.RUN_ENDPOINTS,
    *runs_api.CHART_ENDPOINTS,
    *samples_api.ENDPOINTS,
    *activity_api.ENDPOINTS,
    *experiment_api.ENDPOINTS,
)
WRITE_ENDPOINTS = (*receive_api.RECEIVE_ENDPOINTS, *receive_api.STATUS_ENDPOINTS)
"""The endpoints that accept data; `hookline ui` has none of them."""


@dataclass(frozen=True, slots=True)
class ReceiveOptions:
    """The options of a server that receives runs from other machines.

    Args:
        hosts: The names it is reached by.
        bodies: The limits of request bodies.
    """

    tokens: Tokens
    hosts: Sequence[str] = LOOPBACK
    bodies: BodyLimits = field(default_factory=BodyLimits)


def application(
    runs: Runs,
    *,
    is_closing: Callable[[], bool] = lambda: False,
    receiving: ReceiveOptions | None = None,
    max_streams: int = MAX_STREAMS,
) -> Starlette:
    """Create the application for some runs.

    Args:
        is_closing: Whether the server is shutting down.
        receiving: How to receive runs; by default the application is read-only.
        max_streams: The maximum number of live streams.
    """
    listing = Listing(runs)
    stream = LiveStream(listing, is_closing, max_streams)
    routes: list[Route | Mount] = []
    access = None
    if receiving is not None:
        access = Access(receiving.tokens)
        received = ReceivedRuns(runs.root)
        context = WriteContext(received, StatusRuns(received), receiving.bodies)
        routes += [endpoint.route(context) for endpoint in WRITE_ENDPOINTS]
        routes.append(login_route(access, receiving.bodies))
    document = openapi(READ_ENDPOINTS, hookline.__version__, WRITE_ENDPOINTS if access else (), access)
    guard = Middleware(Guard, hosts=LOOPBACK if receiving is None else receiving.hosts, access=access)
    routes += [
        *(endpoint.route(listing) for endpoint in READ_ENDPOINTS),
        Route("/api/stream", stream.respond, methods=["GET"]),
        Route("/api/openapi.json", lambda request: json_response(document), methods=["GET"]),
        Route("/", _page, methods=["GET"]),
        Mount("/static", _StaticFiles(directory=STATIC)),
    ]
    handlers = {
        HTTPException: _http_error,
        HooklineError: _hookline_error,
        OSError: _os_error,
        Exception: _unexpected_error,
    }
    app = Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)
    app.state.tokens = None if receiving is None else receiving.tokens
    app.state.disk_faults = DiskFaults()
    return app


class _StaticFiles(StaticFiles):
    """Static files that a browser caches but revalidates, so that an upgrade shows the new page."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "no-cache"
        return response


def _page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = f"There is nothing at {request.url.path!r:.80}." if status == 404 else str(error)
    return _error_response(request, text, status)


def _hookline_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ConflictError):
        return _error_response(request, str(error), 409, **error.facts)
    if isinstance(error, NamesError):
        return _error_response(request, str(error), 422, **error.facts)
    if isinstance(error, BodyError):
        response = _error_response(request, str(error), error.status)
        response.headers.update({"Retry-After": "2"} if error.status == 503 else {})
        return response
    may_work_later = isinstance(error, QueryTimeoutError | DamagedIndexError)
    status = 404 if isinstance(error, UnknownNameError) else 503 if may_work_later else 400
    return _error_response(request, str(error), status)


def _os_error(request: Request, error: Exception) -> Response:
    faults: DiskFaults = request.app.state.disk_faults
    refusal = faults.refusal(error, _redact(request, request.url.path))
    if refusal is None:
        return _unexpected_error(request, error)
    return _error_response(request, refusal.error, refusal.status)


def _unexpected_error(request: Request, error: Exception) -> Response:
    logger.error("%s failed", request.url.path, exc_info=error)
    return json_response({"error": "The request failed; see the server's log."}, 500)


def _error_response(request: Request, text: str, status: int, **facts: object) -> Response:
    return json_response({"error": _redact(request, text), **facts}, status)


def _redact(request: Request, text: str) -> str:
    tokens: Tokens | None = request.app.state.tokens
    return text if tokens is None else tokens.redact(text)

"""The application: every address there is, and how errors are told.

`DiskTrouble`: faults of the server's disk that may pass; they are told in words, and logged once in a while.

Whoever sends tries again and again: a fault that lasts must not fill the log.

`Guard`: what holds for every request and every answer, whoever makes them.

- A request must name this machine as its host: a page elsewhere whose name points here (DNS rebinding) is refused.
- Nothing but GET and HEAD is accepted, so there is nothing that a page elsewhere could have changed; where runs are
  received, `Access` says who may do what, before anybody else sees the request.
- The browser runs no script and no style but the page's own files, loads nothing from elsewhere, lets no other page
  embed or read an answer, and guesses no types. There is no CORS.
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
from hookline.server.endpoint import Desk, json_response
from hookline.server.limits import Bodies, BodyError, NamesError
from hookline.server.listing import Listing
from hookline.server.live_stream import MOST_STREAMS, LiveStream
from hookline.server.openapi import openapi
from hookline.server.received_runs import ConflictError, ReceivedRuns
from hookline.server.status_runs import StatusRuns
from hookline.server.tokens import Tokens
from hookline.store import DamagedIndexError, QueryTimeoutError, Runs

logger = logging.getLogger("hookline")

AGAIN_SECONDS = 60.0
"""After so long the same fault is logged again."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FAULTS = _FULL | {errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is answered."""

    status: int
    error: str


@dataclass(frozen=True, slots=True)
class DiskTrouble:
    """Knows the faults of a disk.

    Args:
        clock: Seconds that only ever grow.
    """

    clock: Callable[[], float] = time.monotonic
    _logged: dict[int, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, error: BaseException, path: str) -> Fault | None:
        """What is answered to a request that failed; None where it was something else.

        Args:
            path: Where the request went.
        """
        number = error.errno if isinstance(error, OSError) else None
        if number not in _FAULTS:
            return None
        if self._is_news(number):
            logger.error("%s failed: %s", path, error)
        if number in _FULL:
            return Fault(507, "There is no room left on the server's disk. Send it again later.")
        return Fault(
            503, f"The server cannot use its directory: {os.strerror(number)}. Its log says more. Try it later."
        )

    def _is_news(self, number: int) -> bool:
        with self._lock:
            now = self.clock()
            if now - self._logged.get(number, now - AGAIN_SECONDS) < AGAIN_SECONDS:
                return False
            self._logged[number] = now
            return True


HEADERS = {
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
    """Stands before the application.

    Args:
        hosts: The names that a request may call this machine by. Where others reach it, also the address at which a
            request came in is one.
        access: Who may do what; by default nobody may do anything but read.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = LOOPBACK, access: Access | None = None) -> None:
        self._app, self._hosts, self._access = app, frozenset(host.lower() for host in hosts), access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        answer = self._app if refusal is None else _refusal_response(refusal)
        await answer(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host_name(host) not in self._hosts and not self._came_to(scope, host_name(host)):
            return Refusal(421, f"This server is not {host!r:.80}. {self._known_names()}")
        if self._access is not None:
            return self._access.refusal(scope["method"], scope["path"], headers)
        if scope["method"] not in ("GET", "HEAD"):
            said = f"{scope['method']!r:.20} is not accepted: nothing can be changed here. Use GET."
            return Refusal(405, said, {"Allow": "GET, HEAD"})
        return None

    def _came_to(self, scope: Scope, host: str) -> bool:
        """Whether the host is the address of this machine that the connection leads to: no name can pretend that."""
        server = scope.get("server")
        return self._access is not None and server is not None and _address(host) == _address(str(server[0]).lower())

    def _known_names(self) -> str:
        if self._access is None:
            return "Open it as http://127.0.0.1 or http://localhost."
        return "Start it with --allow-host and this name, if that is what it is reached by."


def _refusal_response(refusal: Refusal) -> Response:
    answer = json_response({"error": refusal.error}, refusal.status)
    answer.headers.update(refusal.headers or {})
    return answer


def _address(host: str) -> str:
    """An address of IPv4 as it is mostly written, also where it reached a server on IPv6."""
    return host.removeprefix("::ffff:")


def host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


STATIC = Path(__file__).parent / "static"
ENDPOINTS = (
    *runs_api.RUN_ENDPOINTS,
    *runs_api.CHART_ENDPOINTS,
    *samples_api.ENDPOINTS,
    *activity_api.ENDPOINTS,
    *experiment_api.ENDPOINTS,
)
WRITING = (*receive_api.RECEIVE_ENDPOINTS, *receive_api.STATUS_ENDPOINTS)
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

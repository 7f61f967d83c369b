"""The web application: routes, error responses, and checks that apply to every request.

`Guard` runs before everything else:

- A request must name this machine as its host. A foreign page that points its name here (DNS rebinding) is refused.
- Only GET and HEAD are accepted, and actions (see `hookline.server.actions`) that the page itself sends. If runs are
  received, `Access` decides before any other code sees the request.
- The browser runs only the page's own scripts and styles, loads nothing from elsewhere, lets no other page embed or
  read a response, and does not guess content types. There is no CORS.

`DiskFaults` turns temporary errors of the server's disk into responses that ask to retry. Senders retry often, so a
lasting fault is logged only once in a while.
"""

import contextlib
import errno
import functools
import logging
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

import hookline
from hookline._engine.errors import HooklineError, UnknownNameError
from hookline.server import (
    activity_api,
    admin_api,
    alerts_api,
    annotations_api,
    artifacts_api,
    changes_api,
    compare_api,
    console_api,
    control_api,
    experiment_api,
    media_api,
    receive_api,
    run_api,
    runs_api,
    samples_api,
    sweep_api,
    table_api,
)
from hookline.server.access import Access, Refusal, login_route
from hookline.server.actions import ActionContext, ActionRefusedError, check_action, is_action, permissions_endpoint
from hookline.server.answers import Answers
from hookline.server.audit import AuditLog, local_user
from hookline.server.blob_api import PATH as BLOB_PATH
from hookline.server.blob_api import BlobEndpoint
from hookline.server.endpoint import (
    WRITE_THREADS,
    Endpoint,
    OutOfScopeError,
    Responder,
    WriteContext,
    json_response,
)
from hookline.server.limits import BodyError, BodyLimits, NamesError
from hookline.server.listing import Listing, UnlistedRuns
from hookline.server.live_stream import MAX_STREAMS, STREAM_PATH, ListedStream, LiveStream
from hookline.server.mlflow import api as mlflow_api
from hookline.server.mlflow.experiments import DirectoryExperiments, StoredExperiments
from hookline.server.mlflow.messages import MlflowError, error_fields
from hookline.server.mlflow.service import Mlflow
from hookline.server.openapi import openapi
from hookline.server.query_process import SHARED_PATHS, ForwardedStream, QueryProcess, QueryProcessError
from hookline.server.received_artifacts import ReceivedArtifacts
from hookline.server.received_blobs import BlobLimits, BlobsRefusedError, ReceivedBlobs
from hookline.server.received_control import ReceivedControl
from hookline.server.received_runs import ConflictError, ReceivedRuns
from hookline.server.root_tokens import LOOPBACK, Tokens
from hookline.server.static_files import StaticFiles
from hookline.server.status_runs import StatusRuns
from hookline.server.storage.objects import RECEIVING_THREADS, MissingObjectError, StorageError
from hookline.server.storage.service import Storage
from hookline.server.tokens import PRINCIPAL, VIEWER, VISIBLE, LiveTokens, Principal
from hookline.store import DamagedIndexError, QueryTimeoutError, Runs
from hookline.store.edits import Change, edit_run
from hookline.store.filters import FilterError
from hookline.store.run_summary import Liveness

logger = logging.getLogger("hookline")

DISK_RETRY_SECONDS = 5
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
        with self._lock:  # requests fail on many threads at once, and one of them is to log it
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
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; media-src 'self'; frame-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


_RAW_SECURITY_HEADERS = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


class Guard:
    """Middleware that checks every request, adds security headers to every response, and responds to errors.

    Starlette responds to errors in layers of their own, each of which wraps every message of every request. This is
    the only layer here.

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

        has_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                given = {name for name, _ in message["headers"]}  # a blob has a stricter policy of its own
                added = [each for each in _RAW_SECURITY_HEADERS if each[0] not in given]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        app, checked = self._app, self._check(scope)
        if isinstance(checked, Refusal):
            fields = error_fields(scope["path"], checked.error, checked.status)
            response = json_response({"error": checked.error, **fields}, checked.status)
            response.headers.update(checked.headers or {})
            app = response
        else:
            scope[PRINCIPAL], scope[VISIBLE] = checked, checked.scope
        try:
            await app(scope, receive, send_with_headers)
        except Exception as error:
            if has_started:  # the client sees that the rest is missing
                raise
            respond = _handler(error)
            await respond(Request(scope), error)(scope, receive, send_with_headers)
            if respond is _unexpected_error:  # as Starlette does, so that tests see it
                raise

    def _check(self, scope: Scope) -> Principal | Refusal:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host_name(host) not in self._hosts and not self._is_own_address(scope, host_name(host)):
            hint = "Open it as http://127.0.0.1 or http://localhost."
            if self._access is not None:
                hint = "If it is reached by this name, start it with --allow-host and the name."
            return Refusal(421, f"This server is not {host!r:.80}. {hint}")
        method, path, is_change = scope["method"], scope["path"], is_action(scope["method"], scope["path"])
        if self._access is not None:
            client = scope.get("client")
            checked = self._access.check(method, path, headers, client[0] if client else "")
            refused = isinstance(checked, Refusal) or not is_change
            return checked if refused else check_action(scope, headers, has_tokens=True) or checked
        if is_change:
            return check_action(scope, headers, has_tokens=False) or local_user()
        if method not in ("GET", "HEAD"):
            error = f"{scope['method']!r:.20} is not accepted: this server is read-only. Use GET."
            return Refusal(405, error, {"Allow": "GET, HEAD"})
        return VIEWER

    def _is_own_address(self, scope: Scope, host: str) -> bool:
        """Whether the host is the address the connection came in at: a foreign name cannot fake that."""
        server = scope.get("server")
        if self._access is None or server is None:
            return False
        # An IPv4 address looks like this if it reached an IPv6 socket.
        return host.removeprefix("::ffff:") == str(server[0]).lower().removeprefix("::ffff:")


class _ErrorResponses:
    """Middleware of the query process, which responds to errors; `Guard` has checked the requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def watched_send(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except ConnectionError:  # the server has closed the connection: nobody waits any more
            pass
        except Exception as error:
            if has_started:
                logger.exception("%s failed after the start of its response", scope["path"])
            else:
                await _handler(error)(Request(scope), error)(scope, receive, send)


def host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


class _Router(Router):
    """A router that finds a route without parameters by its path, instead of comparing all routes with it."""

    def __init__(self, routes: Sequence[BaseRoute], lifespan: Lifespan[Any] | None = None) -> None:
        plain = [route for route in routes if isinstance(route, Route) and "{" not in route.path]
        # The others first: they are compared one by one.
        super().__init__([*(route for route in routes if route not in plain), *plain], lifespan=lifespan)
        self._by_path = {route.path: route for route in reversed(plain)}  # of two, the first one counts

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._by_path.get(scope["path"]) if scope["type"] == "http" else None
        if route is None:
            await super().app(scope, receive, send)
        else:
            scope.update(router=self, route=route, endpoint=route.endpoint, path_params={})
            await route.handle(scope, receive, send)


class _Application(Starlette):
    """An application with one middleware."""

    def __init__(
        self, routes: Sequence[BaseRoute], guard: Callable[[ASGIApp], ASGIApp], lifespan: Lifespan[Any] | None = None
    ) -> None:
        super().__init__()
        self.router, self._guard = _Router(routes, lifespan), guard

    def build_middleware_stack(self) -> ASGIApp:
        """The middleware and the routes, without Starlette's layers for errors."""
        return self._guard(self.router)


STATIC = Path(__file__).parent / "static"
READ_ENDPOINTS = (
    *runs_api.RUN_ENDPOINTS,
    *runs_api.CHART_ENDPOINTS,
    *table_api.ENDPOINTS,
    *sweep_api.ENDPOINTS,
    *run_api.ENDPOINTS,
    *compare_api.ENDPOINTS,
    *samples_api.ENDPOINTS,
    *media_api.ENDPOINTS,
    *activity_api.ENDPOINTS,
    *console_api.ENDPOINTS,
    *experiment_api.ENDPOINTS,
    *artifacts_api.ENDPOINTS,
    *control_api.ENDPOINTS,
    *alerts_api.ENDPOINTS,
)
ACTIONS = (*changes_api.ACTIONS, *annotations_api.ACTIONS, *control_api.ACTIONS, *alerts_api.ACTIONS)
"""What people change from the page."""
WRITE_ENDPOINTS = (*receive_api.RECEIVE_ENDPOINTS, *receive_api.STATUS_ENDPOINTS)
"""The endpoints that accept records; `hookline ui` has none of them."""


@dataclass(frozen=True, slots=True)
class ReceiveOptions:
    """The options of a server that receives runs from other machines.

    Args:
        hosts: The names it is reached by.
        bodies: The limits of request bodies.
        blobs: The limits of blobs.
        live: The tokens with roles and projects.
        audit: The audit log; by default that of the root.
        storage: The object store that they are kept in; by default the directory of the runs.
    """

    tokens: Tokens
    hosts: Sequence[str] = LOOPBACK
    bodies: BodyLimits = field(default_factory=BodyLimits)
    blobs: BlobLimits = field(default_factory=BlobLimits)
    live: LiveTokens = field(default_factory=LiveTokens)
    audit: AuditLog | None = None
    storage: Storage | None = None


@dataclass(frozen=True, slots=True)
class EditOptions:
    """Whether runs can be changed from the page.

    Args:
        liveness: Tells which runs are running.
        refusal: Why they cannot be changed; empty if they can.
    """

    liveness: Liveness = field(default_factory=Liveness)
    refusal: str = ""


def application(
    runs: Runs,
    *,
    is_closing: Callable[[], bool] = lambda: False,
    receiving: ReceiveOptions | None = None,
    max_streams: int = MAX_STREAMS,
    editing: EditOptions | None = None,
) -> Starlette:
    """Create an application that does everything in one process.

    Args:
        is_closing: Whether the server is shutting down.
        receiving: How to receive runs; by default it receives none.
        max_streams: The maximum number of live streams.
        editing: Whether runs can be changed from the page.
    """
    listing = Listing(runs)
    stream = ListedStream(listing, is_closing, max_streams)
    routes = _read_routes(listing)
    editing = editing or EditOptions()
    return _application(runs.root, routes, listing, stream, receiving, editing, on_received=stream.notify)


def front_application(
    queries: QueryProcess,
    root: Path,
    *,
    is_closing: Callable[[], bool] = lambda: False,
    receiving: ReceiveOptions | None = None,
    max_streams: int = MAX_STREAMS,
    editing: EditOptions | None = None,
) -> Starlette:
    """Create an application that forwards everything that reads runs to a query process."""
    paths = [*(endpoint.path for endpoint in READ_ENDPOINTS), artifacts_api.DOWNLOAD_PATH, BLOB_PATH]
    forward, forward_listing = Responder(queries.respond), Responder(queries.respond_shared)
    routes = [
        Route(path, forward_listing if path in SHARED_PATHS else forward, methods=["GET"], name=path) for path in paths
    ]
    stream = ForwardedStream(queries, is_closing, max_streams)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with queries.supervised():
            yield

    listing = UnlistedRuns()
    on_received, editing = queries.notify, editing or EditOptions()
    return _application(root, routes, listing, stream, receiving, editing, on_received=on_received, lifespan=lifespan)


def query_application(
    runs: Runs, *, is_closing: Callable[[], bool], max_streams: int
) -> tuple[Starlette, ListedStream]:
    """Create the application of a query process, and its stream. The server in front of it has checked the requests."""
    listing = Listing(runs)
    stream = ListedStream(listing, is_closing, max_streams)
    routes = [*_read_routes(listing), Route(STREAM_PATH, stream.respond, methods=["GET"])]
    app = _Application(routes, _ErrorResponses)
    app.state.tokens, app.state.disk_faults = None, DiskFaults()
    return app, stream


def _read_routes(listing: Listing) -> list[Route]:
    answers = Answers()
    return [
        *(endpoint.route(listing, answers) for endpoint in READ_ENDPOINTS),
        artifacts_api.download_route(listing),
        BlobEndpoint(listing).route(),
    ]


def _application(
    root: Path,
    read_routes: Sequence[Route],
    listing: Listing,
    stream: LiveStream,
    receiving: ReceiveOptions | None,
    editing: EditOptions,
    *,
    on_received: Callable[[], None],
    lifespan: Lifespan[Starlette] | None = None,
) -> Starlette:
    routes: list[BaseRoute] = []
    access = None
    actions = ActionContext(root, editing.liveness, on_changed=on_received, refusal=editing.refusal)
    permissions = permissions_endpoint(actions)
    read_endpoints: Sequence[Endpoint] = (*READ_ENDPOINTS, permissions)
    if receiving is not None:
        audit, storage = receiving.audit or AuditLog(root), receiving.storage
        access = Access(receiving.tokens, live=receiving.live, audit=audit)
        stream.is_current = receiving.live.is_current
        admin_endpoints = admin_api.admin_endpoints(access, audit)
        read_endpoints = (*read_endpoints, *admin_endpoints)
        actions.audit, actions.bodies, actions.needs_token = audit, receiving.bodies, True
        if storage is not None:
            actions.refusal = "The runs of this server are kept in an object store, where they cannot be edited yet."
        received = ReceivedRuns(root)
        blobs = ReceivedBlobs(received, receiving.blobs)
        if storage is not None:
            received = storage.received_runs()
            blobs = storage.received_blobs(received, receiving.blobs)
        # More of them for an object store: they wait for its answers.
        threads = WRITE_THREADS if storage is None else RECEIVING_THREADS
        artifacts = ReceivedArtifacts(blobs) if storage is None else storage.received_artifacts(blobs)
        control = ReceivedControl(received, is_stored=storage is not None)
        context = WriteContext(
            received, StatusRuns(received), blobs, artifacts, control, receiving.bodies, audit, on_received, threads
        )
        # In this process, whichever lists the runs: it checks the tokens and writes the audit log.
        routes += [endpoint.route(listing) for endpoint in admin_endpoints]
        routes += [endpoint.route(context) for endpoint in WRITE_ENDPOINTS]
        routes.append(login_route(access, receiving.bodies))
        routes += mlflow_api.routes(_mlflow(context, storage))
    # In this process as well: it has checked who sends them.
    routes += [permissions.route(listing), *(action.route(actions) for action in ACTIONS)]

    @functools.cache  # made when it is asked for: it takes longer than everything else here
    def document() -> dict[str, Any]:
        return openapi(read_endpoints, hookline.__version__, WRITE_ENDPOINTS if access else (), access, ACTIONS)

    files = StaticFiles(STATIC)

    async def page(request: Request) -> Response:
        return files.response(request, "index.html")

    guard = partial(Guard, hosts=LOOPBACK if receiving is None else receiving.hosts, access=access)
    routes += [
        *read_routes,
        Route(STREAM_PATH, stream.respond, methods=["GET"]),
        Route("/api/openapi.json", lambda request: json_response(document()), methods=["GET"]),
        Route("/", page, methods=["GET"]),
        Route("/static/{path:path}", files.respond, methods=["GET"]),
    ]
    app = _Application(routes, guard, lifespan)
    app.state.tokens = None if receiving is None else receiving.tokens
    app.state.disk_faults = DiskFaults()
    return app


def _mlflow(context: WriteContext, storage: Storage | None) -> Mlflow:
    root = context.received.root
    if storage is not None:
        return Mlflow.over(context, StoredExperiments(storage.objects))

    def archive(project: str, run: str, is_hidden: bool) -> None:
        edit_run(root / project / run, Change(archived=is_hidden))

    return Mlflow.over(context, DirectoryExperiments(root), archive)


def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = f"There is nothing at {request.url.path!r:.80}." if status == 404 else str(error)
    return _error_response(request, text, status)


def _hookline_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ConflictError):
        return _error_response(request, str(error), 409, **error.facts)
    if isinstance(error, MlflowError):
        return _error_response(request, str(error), error.status, error_code=error.code)
    if isinstance(error, NamesError):
        return _error_response(request, str(error), 422, **error.facts)
    if isinstance(error, BlobsRefusedError):
        return _error_response(request, str(error), error.status, **error.facts)
    if isinstance(error, BodyError):
        response = _error_response(request, str(error), error.status)
        if error.status == 503:
            response.headers["Retry-After"] = f"{math.ceil(error.retry_seconds)}"
        return response
    if isinstance(error, QueryProcessError | StorageError | MissingObjectError):
        response = _error_response(request, str(error), 503)
        response.headers["Retry-After"] = "2"
        return response
    if isinstance(error, OutOfScopeError | ActionRefusedError):
        return _error_response(request, str(error), 403)
    if isinstance(error, FilterError):  # with the place of the problem, which the page marks
        given = (name for name, text in request.query_params.multi_items() if text.removeprefix("-") == error.text)
        facts = {"parameter": next(given, None), "problem": _redact(request, error.problem), "position": error.position}
        return _error_response(request, str(error), 400, **facts)
    may_work_later = isinstance(error, QueryTimeoutError | DamagedIndexError)
    status = 404 if isinstance(error, UnknownNameError) else 503 if may_work_later else 400
    return _error_response(request, str(error), status)


def _os_error(request: Request, error: Exception) -> Response:
    faults: DiskFaults = request.app.state.disk_faults
    refusal = faults.refusal(error, _redact(request, request.url.path))
    if refusal is None:
        return _unexpected_error(request, error)
    response = _error_response(request, refusal.error, refusal.status)
    response.headers["Retry-After"] = f"{DISK_RETRY_SECONDS}"
    return response


def _unexpected_error(request: Request, error: Exception) -> Response:
    logger.error("%s failed", _redact(request, request.url.path), exc_info=error)
    return _error_response(request, "The request failed; see the server's log.", 500)


def _error_response(request: Request, text: str, status: int, **facts: object) -> Response:
    error = _redact(request, text)
    return json_response({"error": error, **error_fields(request.url.path, error, status), **facts}, status)


def _redact(request: Request, text: str) -> str:
    tokens: Tokens | None = request.app.state.tokens
    return text if tokens is None else tokens.redact(text)


_HANDLERS: dict[Any, Callable[[Request, Exception], Response]] = {
    HTTPException: _http_error,
    HooklineError: _hookline_error,
    OSError: _os_error,
    Exception: _unexpected_error,
}


def _handler(error: Exception) -> Callable[[Request, Exception], Response]:
    return next(_HANDLERS[kind] for kind in type(error).__mro__ if kind in _HANDLERS)

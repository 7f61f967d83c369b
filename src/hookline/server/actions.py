"""`ActionEndpoint`: POST requests by which people change something from the page, such as a run's tags.

`check_action` decides which of these requests are refused, whatever the endpoint. It applies to every path below
`ACTION_PREFIXES`, so that a new endpoint cannot forget it:

- A page of another site cannot make a browser send one: it needs the header `HEADER`, which other sites cannot set
  without permission, its ``Origin`` must be this server, and its body must be JSON.
- On a server with tokens, `Access` has checked before that the ``Authorization`` header has a token with the right role
  (``write``, or ``control`` below `CONTROL_PREFIX`). A cookie is not enough.
- Without tokens, only the user who started the server may send one: another user of the same machine, or a proxy, is
  refused, and so is a connection that its process has closed. Where the system (not Linux) does not tell whose
  connection it is, every user of the machine may.

Nothing is changed below a directory that is read-only, or that is the copy of an object store; `Permissions` tells the
page, which then does not offer it.
"""

import os
import socket
import sys
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from hookline._engine.errors import HooklineError
from hookline.server.access import CONTROL_PREFIX, FORWARDED, Refusal
from hookline.server.audit import AuditLog
from hookline.server.endpoint import Endpoint, Values, check_project, json_response, principal_of
from hookline.server.limits import BodyError, BodyLimits
from hookline.server.listing import Listing
from hookline.server.tokens import Principal
from hookline.store.run_summary import Liveness

ACTION_PREFIX = "/api/actions/"
ACTION_PREFIXES = (ACTION_PREFIX, CONTROL_PREFIX)
HEADER = "X-Hookline-Action"
ROOT_USER = 0
_UNKNOWN_USER = -2
THREADS = 4
MAX_BODY_BYTES = 4 << 20
_PROCESS_TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}


class ActionRefusedError(HooklineError, PermissionError):
    """Something cannot be changed here."""


def is_action(method: str, path: str) -> bool:
    """Whether a request may change something that people see, rather than send records."""
    return method == "POST" and path.startswith(ACTION_PREFIXES)


def check_action(scope: Mapping[str, Any], headers: Mapping[str, str], *, has_tokens: bool) -> Refusal | None:
    """Refuse an action that another site, another user or a proxy makes; see the top of this module.

    Args:
        scope: The ASGI scope.
        has_tokens: Whether a token was checked before.
    """
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return Refusal(415, "Send JSON with Content-Type: application/json.")
    if headers.get(HEADER) is None:
        return Refusal(403, f"The header {HEADER}: 1 is missing; it shows that no other site makes this request.")
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    is_own = origin is None or urllib.parse.urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    if not is_own or site not in ("same-origin", "none"):
        return Refusal(403, f"A page of another site ({origin or site!r:.80}) may not change anything here.")
    if has_tokens:
        return None
    if any(name in headers for name in FORWARDED):
        return Refusal(403, "A request through a proxy changes nothing here. Use hookline serve, which has tokens.")
    user = _peer_user(scope)
    if user == _UNKNOWN_USER:
        return Refusal(403, "Which user of this machine sends this is unknown. Use hookline serve, which has tokens.")
    if user is not None and user not in (ROOT_USER, os.geteuid()):
        return Refusal(403, "Another user of this machine started this server, and only that user may change runs.")
    return None


def _peer_user(scope: Mapping[str, Any]) -> int | None:
    """The user whose process is at the other end of a connection from this machine.

    None if this system does not tell; `_UNKNOWN_USER` if it does, and knows no process at the other end.
    """
    client, server = scope.get("client"), scope.get("server")
    if not os.path.exists(_PROCESS_TABLES[socket.AF_INET]):  # noqa: PTH110
        return None
    if client is None or server is None:  # it was reset before it was accepted
        return _UNKNOWN_USER
    # Twice: a table that changes while it is read may lack an entry.
    for family, table in (*_PROCESS_TABLES.items(), *_PROCESS_TABLES.items()):
        try:
            wanted = [_table_address(family, *client), _table_address(family, *server)]
            with open(table) as lines:  # noqa: PTH123 - a path of Linux only
                for line in lines:
                    parts = line.split()
                    # A socket that its process has closed has no inode, and is listed as that of root.
                    if parts[1:3] == wanted and parts[9] != "0":
                        return int(parts[7])
        except (OSError, TypeError, ValueError, IndexError):
            continue
    return _UNKNOWN_USER


def _table_address(family: int, host: str, port: int) -> str:
    # A socket of IPv6 may be connected to one of IPv4: the table of each has the address in its own form.
    plain = host.removeprefix("::ffff:")
    own = f"::ffff:{plain}" if family == socket.AF_INET6 and "." in plain else plain
    packed = socket.inet_pton(family, own)
    words = [int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4)]
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}"


class Permissions(msgspec.Struct):
    """What the page may change.

    Attributes:
        edits: Whether runs can be edited and deleted.
        needs_token: Whether that takes a token with the role ``write``.
        reason: Why they cannot.
    """

    edits: bool
    needs_token: bool
    reason: str = ""


@dataclass(slots=True)
class ActionContext:
    """What all actions share.

    Args:
        liveness: Tells which runs are running.
        audit: Where actions are noted; by default the log of the root, if there is one.
        on_changed: Called on the event loop after something was changed.
        refusal: Why nothing can be changed; empty if it can.
    """

    root: Path
    liveness: Liveness
    audit: AuditLog | None = None
    bodies: BodyLimits = field(default_factory=BodyLimits)
    on_changed: Callable[[], None] = lambda: None
    refusal: str = ""
    needs_token: bool = False
    _limiter: anyio.CapacityLimiter | None = None

    def permissions(self) -> Permissions:
        """What the page may change now: a directory can become read-only."""
        reason = self.refusal
        if not reason and not os.access(self.root, os.W_OK):
            reason = f"{self.root} is read-only."
        return Permissions(not reason, self.needs_token, reason)

    def check_projects(self, principal: Principal, projects: Sequence[str]) -> None:
        """Refuse a change of runs in projects that a token is not for.

        Raises:
            OutOfScopeError: It is not for one of them.
        """
        for project in projects:
            check_project(principal.scope, project)

    def record(self, action: str, request: "ActionRequest", runs: Sequence[str], result: str = "ok") -> None:
        """Append entries to the audit log, one per run."""
        log = self.audit or AuditLog(self.root)
        # A directory without a log has never been a server's: nobody else changes its runs.
        if self.audit is not None or log.path.exists():
            for run in runs:
                project, _, name = run.partition("/")
                facts = {"address": request.address, "project": project, "target": name, "result": result}
                log.record(action, request.principal, **facts)
        if self.audit is None:
            log.close()

    async def run(self, work: Callable[[], Any]) -> Any:
        """Do blocking work on a thread for actions."""
        if self._limiter is None:  # must be created on its event loop
            self._limiter = anyio.CapacityLimiter(THREADS)
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """Who wants what: the decoded body, who sent it, and from which address."""

    body: Any
    principal: Principal
    address: str = ""


@dataclass(frozen=True, slots=True)
class ActionEndpoint:
    """A route for an action.

    Args:
        path: Begins with one of `ACTION_PREFIXES`.
        body: The type of the body.
        reply: The type of the reply.
        act: Does it, on a thread.
    """

    path: str
    summary: str
    body: Any
    reply: Any
    act: Callable[[ActionContext, ActionRequest], Any]

    def route(self, context: ActionContext) -> Route:
        """The Starlette route."""

        async def respond(request: Request) -> Response:
            permissions = context.permissions()
            if not permissions.edits:
                raise ActionRefusedError(f"Nothing can be changed here. {permissions.reason}")
            try:
                async with context.bodies.read(request, MAX_BODY_BYTES) as body:
                    given = msgspec.json.decode(body.sent, type=self.body)
            except ClientDisconnect:
                return Response(status_code=400)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise BodyError(400, f"The body is not accepted: {error}.") from None
            address = request.client.host if request.client else ""
            wanted = ActionRequest(given, principal_of(request), address)
            reply = await context.run(lambda: self.act(context, wanted))
            context.on_changed()
            return json_response(reply)

        return Route(self.path, respond, methods=["POST"], name=f"POST {self.path}")


def permissions_endpoint(context: ActionContext) -> Endpoint:
    """The endpoint that tells the page what it may change."""

    def permissions(listing: Listing, values: Values) -> Permissions:
        return context.permissions()

    return Endpoint("/api/permissions", "What may be changed from the page.", Permissions, permissions)

"""`Guard`: what holds for every request and every answer, whoever makes them.

- A request must name this machine as its host: a page elsewhere whose name points here (DNS rebinding) is refused.
- Nothing but GET and HEAD is accepted, so there is nothing that a page elsewhere could have changed; where runs are
  received, `Access` says who may do what, before anybody else sees the request.
- The browser runs no script and no style but the page's own files, loads nothing from elsewhere, lets no other page
  embed or read an answer, and guesses no types. There is no CORS.
"""

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hookline.server.access import Access, Refusal
from hookline.server.endpoint import json_response
from hookline.server.web_server import LOOPBACK

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
        answer = self._app if refusal is None else _refused(refusal)
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


def _refused(refusal: Refusal) -> Response:
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

"""`Guard`: what holds for every request and every answer, whoever makes them.

- A request must name this machine as its host: a page elsewhere whose name points here (DNS rebinding) is refused.
- Nothing but GET and HEAD is accepted, so there is nothing that a page elsewhere could have changed.
- The browser runs no script and no style but the page's own files, loads nothing from elsewhere, lets no other page
  embed or read an answer, and guesses no types. There is no CORS.
"""

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hookline.server.endpoint import json_response

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
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Guard:
    """Stands before the application.

    Args:
        hosts: The names that a request may call this machine by.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = LOOPBACK) -> None:
        self._app, self._hosts = app, frozenset(host.lower() for host in hosts)

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
        answer = self._app if refusal is None else json_response({"error": refusal[1]}, refusal[0])
        await answer(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        host = Headers(scope=scope).get("host", "")
        if host_name(host) not in self._hosts:
            return 421, f"This server is not {host!r:.80}. Open it as http://127.0.0.1 or http://localhost."
        if scope["method"] not in ("GET", "HEAD"):
            return 405, f"{scope['method']!r:.20} is not accepted: nothing can be changed here. Use GET."
        return None


def host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()

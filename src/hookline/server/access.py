"""`Access`: decides by the token of a request who may read and who may write, and handles the login.

- Anything but GET and HEAD needs the write token in its ``Authorization`` header, checked before the rest of the
  request. A cookie never allows writing, so no foreign page can make a browser write.
- Reading below ``/api/`` needs the read token, if there is one: in the header, or as the cookie set by the login. The
  cookie is derived from the token and expires; it is not the token, and scripts cannot read it.
- The page and its scripts hold no data and are served to everyone: they ask for the token.
- A login must be JSON, which a form on a foreign page cannot send, and foreign pages do not send the cookie.
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from starlette.requests import ClientDisconnect, Request, cookie_parser
from starlette.responses import Response
from starlette.routing import Route

from hookline.server.endpoint import json_response
from hookline.server.limits import BodyError, BodyLimits
from hookline.server.tokens import Tokens

LOGIN_PATH = "/api/login"
COOKIE_SECONDS = 30 * 24 * 3600
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="hookline"'}
_MAX_LOGIN_BYTES = 8 << 10


@dataclass(frozen=True, slots=True)
class Refusal:
    """The response to a request that is not allowed."""

    status: int
    error: str
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Checks the tokens of requests.

    Args:
        clock: Seconds since 1970.
    """

    tokens: Tokens
    clock: Callable[[], float] = time.time

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """The refusal of a request; None if it is allowed."""
        if method in ("GET", "HEAD"):
            return self._check_read(headers) if path.startswith("/api/") else None
        return None if (method, path) == ("POST", LOGIN_PATH) else self._check_write(headers)

    def cookie(self) -> str:
        """The cookie for a browser that presented the read token."""
        until = int(self.clock()) + COOKIE_SECONDS
        return f"{until}.{self._signature(until)}"

    @property
    def cookie_name(self) -> str:
        """A name per token: browsers keep cookies by host, not by port, and two servers must not share one."""
        return f"hookline-{self._signature(0)[:12]}"

    def _check_write(self, headers: Mapping[str, str]) -> Refusal | None:
        token = bearer_token(headers)
        if token is None:
            error = "Give the write token: Authorization: Bearer <token>. `hookline serve` prints a new one."
            return Refusal(401, error, _CHALLENGE)
        if self.tokens.writes(token):
            return None
        if self.tokens.reads(token):
            return Refusal(403, "This is the read token. Give the write token.")
        return Refusal(401, "This is not the write token of this server.", _CHALLENGE)

    def _check_read(self, headers: Mapping[str, str]) -> Refusal | None:
        if self.tokens.read is None:
            # Reading without a token is for this machine only; a proxy passes on requests from elsewhere.
            if any(name in headers for name in _FORWARDED):
                error = "A request through a proxy needs a read token. Start the server with --read-token."
                return Refusal(403, error)
            return None
        token = bearer_token(headers)
        if (token is not None and self.tokens.reads(token)) or self._is_logged_in(headers):
            return None
        if token is not None and self.tokens.writes(token):
            return Refusal(403, "This is the write token. Give the read token.")
        error = "Give the read token: Authorization: Bearer <token>, or log in on the page."
        return Refusal(401, error if token is None else "This is not the read token of this server.", _CHALLENGE)

    def _is_logged_in(self, headers: Mapping[str, str]) -> bool:
        until, _, signature = cookie_parser(headers.get("cookie", "")).get(self.cookie_name, "").partition(".")
        if not (until.isascii() and until.isdigit() and len(until) <= 12):
            return False
        is_signed = hmac.compare_digest(signature.encode(), self._signature(int(until)).encode())
        return is_signed and self.clock() < int(until)

    def _signature(self, until: int) -> str:
        key = (self.tokens.read or "").encode()
        return hmac.new(key, f"hookline reader {until}".encode(), hashlib.sha256).hexdigest()


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """The token in the Authorization header; None if there is none."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """The read token."""

    token: str


class LoggedIn(msgspec.Struct):
    """Whether reading is allowed."""

    reads: bool


def login_route(access: Access, bodies: BodyLimits) -> Route:
    """The route for the login."""

    async def respond(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise BodyError(415, 'Send {"token": "..."} with Content-Type: application/json.')
        try:
            async with bodies.read(request, _MAX_LOGIN_BYTES) as body:
                token = msgspec.json.decode(body.sent, type=Login).token
        except ClientDisconnect:
            return Response(status_code=400)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # the error's text could contain the token
            raise BodyError(400, 'The body is not a login. Send {"token": "..."}.') from None
        if access.tokens.read is not None and not access.tokens.reads(token):
            hint = ": it is the write token" if access.tokens.writes(token) else ""
            return json_response({"error": f"This is not the read token of this server{hint}."}, 401)
        response = json_response(LoggedIn(reads=True))
        if access.tokens.read is not None:
            response.set_cookie(
                access.cookie_name,
                access.cookie(),
                max_age=COOKIE_SECONDS,
                path="/",
                secure=request.url.scheme == "https",
                httponly=True,
                samesite="strict",
            )
        return response

    return Route(LOGIN_PATH, respond, methods=["POST"], name="login")

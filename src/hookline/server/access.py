"""`Access`: who may read and who may write, by the token that a request carries.

- Whatever is no GET or HEAD needs the write token in its ``Authorization`` header, before anything else of the request
  is looked at. A cookie never lets anybody write, so no page elsewhere can have a browser do it.
- Reading below ``/api/`` needs the read token, where there is one: in the header, or as the cookie that logging in
  sets. The cookie is made of the token and ends after a while; it is not the token, and no script can read it.
- The page itself and its scripts hold no data, and are given to everybody: they ask for the token.

Logging in: a browser shows the read token once, and gets a cookie for it.

The request must be JSON, which no form of a page elsewhere can send, and the cookie is sent by no page elsewhere.
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
from hookline.server.limits import Bodies, BodyError
from hookline.server.tokens import Tokens

LOGIN = "/api/login"
COOKIE_SECONDS = 30 * 24 * 3600
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_ASK = {"WWW-Authenticate": 'Bearer realm="hookline"'}

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not let through."""

    status: int
    error: str
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Judges requests.

    Args:
        clock: Seconds since 1970.
    """

    tokens: Tokens
    clock: Callable[[], float] = time.time

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Why a request is refused; None where it is not."""
        if method in ("GET", "HEAD"):
            return self._reading(headers) if path.startswith("/api/") else None
        return None if (method, path) == ("POST", LOGIN) else self._writing(headers)

    def cookie(self) -> str:
        """What a browser that showed the read token is given."""
        until = int(self.clock()) + COOKIE_SECONDS
        return f"{until}.{self._signature(until)}"

    @property
    def cookie_name(self) -> str:
        """A browser keeps cookies by host, not by port: those of two servers must not replace each other."""
        return f"hookline-{self._signature(0)[:12]}"

    def _writing(self, headers: Mapping[str, str]) -> Refusal | None:
        token = bearer(headers)
        if token is None:
            said = "Give the write token: Authorization: Bearer <token>. `hookline serve` shows it when it is made."
            return Refusal(401, said, _ASK)
        if self.tokens.writes(token):
            return None
        if self.tokens.reads(token):
            return Refusal(403, "This is the token to read with. Give the one to write with.")
        return Refusal(401, "This is not the write token of this server.", _ASK)

    def _reading(self, headers: Mapping[str, str]) -> Refusal | None:
        if self.tokens.read is None:
            return _through_proxy(headers)
        token = bearer(headers)
        if (token is not None and self.tokens.reads(token)) or self._is_logged_in(headers):
            return None
        if token is not None and self.tokens.writes(token):
            return Refusal(403, "This is the token to write with. Give the one to read with.")
        said = "Give the read token: Authorization: Bearer <token>, or log in on the page."
        return Refusal(401, said if token is None else "This is not the read token of this server.", _ASK)

    def _is_logged_in(self, headers: Mapping[str, str]) -> bool:
        until, _, signature = cookie_parser(headers.get("cookie", "")).get(self.cookie_name, "").partition(".")
        if not (until.isascii() and until.isdigit() and len(until) <= 12):
            return False
        signed = hmac.compare_digest(signature.encode(), self._signature(int(until)).encode())
        return signed and self.clock() < int(until)

    def _signature(self, until: int) -> str:
        key = (self.tokens.read or "").encode()
        return hmac.new(key, f"hookline reader {until}".encode(), hashlib.sha256).hexdigest()


def bearer(headers: Mapping[str, str]) -> str | None:
    """The token in the Authorization header; None where there is none."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


def _through_proxy(headers: Mapping[str, str]) -> Refusal | None:
    """Reading is free on this machine alone: what a proxy passes on comes from somewhere else."""
    if any(name in headers for name in _FORWARDED):
        said = "This came through a proxy, and reading needs no token here. Start the server with --read-token."
        return Refusal(403, said)
    return None


_MOST_BYTES = 8 << 10


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """The read token."""

    token: str


class LoggedIn(msgspec.Struct):
    """Whether reading is allowed now."""

    reads: bool


def login_route(access: Access, bodies: Bodies) -> Route:
    """The address to log in at."""

    async def respond(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise BodyError(415, 'Send {"token": "..."} with Content-Type: application/json.')
        try:
            async with bodies.take(request, _MOST_BYTES) as body:
                given = msgspec.json.decode(body.sent, type=Login)
        except ClientDisconnect:
            return Response(status_code=400)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # what it says could have the token in it
            raise BodyError(400, 'The body is no login. Send {"token": "..."}.') from None
        return _answer(access, request, given.token)

    return Route(LOGIN, respond, methods=["POST"], name="login")


def _answer(access: Access, request: Request, token: str) -> Response:
    if access.tokens.read is None:
        return json_response(LoggedIn(reads=True))
    if not access.tokens.reads(token):
        what = ": it is the one to write with" if access.tokens.writes(token) else ""
        return json_response({"error": f"This is not the read token of this server{what}."}, 401)
    answer = json_response(LoggedIn(reads=True))
    answer.set_cookie(
        access.cookie_name,
        access.cookie(),
        max_age=COOKIE_SECONDS,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer

"""Logging in: a browser shows the read token once, and gets a cookie for it.

The request must be JSON, which no form of a page elsewhere can send, and the cookie is sent by no page elsewhere.
"""

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from hookline.server.access import COOKIE_SECONDS, LOGIN, Access
from hookline.server.endpoint import json_response
from hookline.server.request_body import Bodies, BodyError

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

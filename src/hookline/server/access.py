"""`Access`: determines the `Principal` of each request, what it may do, and handles the login.

- Anything but GET and HEAD needs a token in its ``Authorization`` header, checked before the rest of the request. A
  cookie never allows writing, so no foreign page can make a browser write.
- Reading below ``/api/`` needs a token that may read, if there is one: in the header, or as the cookie set by the
  login. The cookie is derived from the token and expires; it is not the token, and scripts cannot read it. It ends when
  its token is revoked.
- The page and its scripts hold no data and are served to everyone: they ask for the token.
- A login must be JSON, which a form on a foreign page cannot send, and foreign pages do not send the cookie.
- A token that is not accepted is noted in the audit log, without its text.
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
from starlette.requests import ClientDisconnect, Request, cookie_parser
from starlette.responses import Response
from starlette.routing import Route

from hookline.server.audit import AuditLog
from hookline.server.endpoint import json_response
from hookline.server.limits import BodyError, BodyLimits
from hookline.server.root_tokens import Tokens
from hookline.server.tokens import VIEWER, LiveTokens, Presented, Principal, Role, cookie_secret

LOGIN_PATH = "/api/login"
ADMIN_PATHS = ("/api/audit", "/api/tokens")
CONTROL_PREFIX = "/api/control/"
"""Reserved for commands to live runs: no other role reaches what is added there."""
MLFLOW_PREFIXES = ("/api/2.0/mlflow", "/api/3.0/mlflow")
"""The routes of MLflow's clients."""
_MLFLOW_SEARCHES = frozenset(f"{MLFLOW_PREFIXES[0]}/{path}/search" for path in ("experiments", "runs", "logged-models"))
"""They only read, although they are sent with POST."""
WRITER = Principal("write", "the write token", frozenset({"write"}))
READER = Principal("read", "the read token", frozenset({"read"}))
_COOKIE_PREFIX = "hookline-t-"
_MAX_COOKIES = 8
"""How many login cookies of a request are looked at: each costs some hashing."""
COOKIE_SECONDS = 30 * 24 * 3600
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="hookline"'}
_MAX_LOGIN_BYTES = 8 << 10


@dataclass(frozen=True, slots=True)
class Refusal:
    """The response to a request that is not allowed."""

    status: int
    error: str
    headers: Mapping[str, str] | None = None


def required_role(method: str, path: str) -> Role | None:
    """The role that a request needs; None if everyone may make it."""
    if path in ADMIN_PATHS:
        return "admin"
    if path.startswith(CONTROL_PREFIX):
        return "control"
    if method in ("GET", "HEAD"):
        return "read" if path.startswith("/api/") else None
    if method == "POST" and path in _MLFLOW_SEARCHES:
        return "read"
    return None if (method, path) == ("POST", LOGIN_PATH) else "write"


@dataclass(frozen=True, slots=True)
class Access:
    """Determines who makes a request, and whether it is allowed.

    Args:
        clock: Seconds since 1970.
        live: The tokens with roles and projects.
        audit: Where rejected tokens are noted.
    """

    tokens: Tokens
    clock: Callable[[], float] = time.time
    live: LiveTokens = field(default_factory=LiveTokens)
    audit: AuditLog | None = None

    @property
    def is_open(self) -> bool:
        """Whether everyone may read who can reach the server."""
        return self.tokens.read is None and not self.live.has_readers

    def check(self, method: str, path: str, headers: Mapping[str, str], address: str = "") -> Principal | Refusal:
        """Who makes a request; or its refusal.

        Args:
            address: The client's address, for the audit log.
        """
        role = required_role(method, path)
        if role is None:
            return Principal()
        token = bearer_token(headers)
        presented = None if token is None else self.identify(token)
        if presented is not None and not presented.problem and presented.principal.may(role):
            return presented.principal
        known = self._logged_in(headers) if method in ("GET", "HEAD") else None
        if known is not None and known.may(role):
            return known
        if role == "read" and self.is_open:
            # Reading without a token is for this machine only; a proxy passes on requests from elsewhere.
            if any(name in headers for name in FORWARDED):
                error = "A request through a proxy needs a read token. Start the server with --read-token."
                return Refusal(403, error)
            return VIEWER
        if presented is None and known is not None:
            presented = Presented(known)
        refusal = _refusal(role, presented, is_given=token is not None)
        if token is not None or presented is not None:
            self.note_rejected(presented, address, role, refusal.error)
        return refusal

    def identify(self, token: str) -> Presented | None:
        """Who presents a token; None if it is no token of this server."""
        # All are compared, whatever the first says: the time reveals nothing.
        is_write, is_read, found = self.tokens.writes(token), self.tokens.reads(token), self.live.find(token)
        return Presented(WRITER) if is_write else Presented(READER) if is_read else found

    def note_rejected(self, presented: Presented | None, address: str, target: str, result: str) -> None:
        """Count a rejected token in the audit log."""
        if self.audit is not None:
            principal = None if presented is None else presented.principal
            self.audit.count("token.rejected", principal, address=address, target=target, result=result)

    def cookie(self, principal: Principal, token: str) -> tuple[str, str]:
        """The name and the value of the cookie for a browser that presented a token."""
        until = int(self.clock()) + COOKIE_SECONDS
        if not principal.secret:
            return self.cookie_name, f"{until}.{self._signature(until)}"
        # Forging one takes the token, for its second part, and the tokens file, for its third.
        value = f"{until}.{cookie_secret(token)}.{_token_signature(principal, until)}"
        return f"{_COOKIE_PREFIX}{principal.id}", value

    def own_cookies(self, headers: Mapping[str, str]) -> list[str]:
        """The names of the login cookies in a request that are of this server."""
        known = self.live.all()
        names = cookie_parser(headers.get("cookie", ""))
        return [name for name in names if name == self.cookie_name or name.removeprefix(_COOKIE_PREFIX) in known]

    @property
    def cookie_name(self) -> str:
        """A name per token: browsers keep cookies by host, not by port, and two servers must not share one."""
        return f"hookline-{self._signature(0)[:12]}"

    def _logged_in(self, headers: Mapping[str, str]) -> Principal | None:
        cookies = cookie_parser(headers.get("cookie", ""))
        until, _, signature = cookies.get(self.cookie_name, "").partition(".")
        # The signature covers the time, so a client cannot extend its login.
        is_valid = self.tokens.read is not None and self._is_in_time(until)
        if is_valid and hmac.compare_digest(signature.encode(), self._signature(int(until)).encode()):
            return READER
        for name in [name for name in cookies if name.startswith(_COOKIE_PREFIX)][:_MAX_COOKIES]:
            until, _, rest = cookies[name].partition(".")
            text, _, signature = rest.partition(".")
            found = self.live.find_cookie(name.removeprefix(_COOKIE_PREFIX), text)
            if found is None or found.problem or not self._is_in_time(until):
                continue
            if hmac.compare_digest(signature.encode(), _token_signature(found.principal, int(until)).encode()):
                return found.principal
        return None

    def _is_in_time(self, until: str) -> bool:
        return until.isascii() and until.isdigit() and len(until) <= 12 and self.clock() < int(until)

    def _signature(self, until: int) -> str:
        key = (self.tokens.read or "").encode()
        return hmac.new(key, f"hookline reader {until}".encode(), hashlib.sha256).hexdigest()


def _token_signature(principal: Principal, until: int) -> str:
    # The key is the stored hash: the cookie ends when the token is revoked, or rotated and its grace is over.
    key = bytes.fromhex(principal.secret)
    return hmac.new(key, f"hookline {principal.id} {until}".encode(), hashlib.sha256).hexdigest()


def _refusal(role: Role, presented: Presented | None, *, is_given: bool) -> Refusal:
    """The refusal of a request that needs a role."""
    if presented is not None and presented.problem:
        return Refusal(401, f"The token {presented.principal.id} is not accepted: {presented.problem}.", _CHALLENGE)
    if presented is not None:
        who = presented.principal
        if who in (WRITER, READER):
            # A client of MLflow needs both, and reports nothing but this text.
            roles = "--role read --role write" if role in ("read", "write") else f"--role {role}"
            hint = f"Give a token that may {role}, or create one: hookline tokens create <name> {roles}"
            return Refusal(403, f"This is {who.name}. {hint}")
        roles = " and ".join(sorted(who.roles))
        return Refusal(403, f"The token {who.id} has the role {roles}; this needs the role {role}.")
    if is_given:
        return Refusal(401, f"This is not a {role} token of this server.", _CHALLENGE)
    hints = {
        "read": "or log in on the page.",
        "write": "`hookline serve` prints a new one; `hookline tokens create` makes others.",
    }
    hint = hints.get(role, "`hookline tokens create` makes one.")
    joint = ", " if role == "read" else ". "
    return Refusal(401, f"Give a {role} token: Authorization: Bearer <token>{joint}{hint}", _CHALLENGE)


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
        presented = access.identify(token)
        if presented is None or presented.problem or not presented.principal.may("read"):
            if access.is_open:
                return json_response(LoggedIn(reads=True))
            address = request.client.host if request.client else ""
            access.note_rejected(presented, address, "login", "This is not a read token.")
            hint = "" if presented is None else f": {presented.problem or 'it is the write token'}"
            if presented is not None and presented.principal.secret and not presented.problem:
                hint = ": it has another role"
            return json_response({"error": f"This is not a read token of this server{hint}."}, 401)
        response = json_response(LoggedIn(reads=True))
        name, value = access.cookie(presented.principal, token)
        response.set_cookie(
            name,
            value,
            max_age=COOKIE_SECONDS,
            path="/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        for other in access.own_cookies(request.headers):
            if other != name:  # of two logins the later one counts
                response.delete_cookie(other, path="/")
        return response

    return Route(LOGIN_PATH, respond, methods=["POST"], name="login")

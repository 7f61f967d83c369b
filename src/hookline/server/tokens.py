"""`TokenStore`: tokens with roles and projects in a file, and `LiveTokens`: a server's view of that file.

Guarantees:

- The file holds a salted hash of each token, never the token, which is shown once, when it is created or rotated.
- The file belongs to the user of the server (or root), only its owner can read it, and it is no link; otherwise it is
  refused. It is replaced as a whole, under a lock, so a reader sees the old file or the new one.
- A server applies changes to requests that come a second later or more, without a restart. A file that cannot be read
  any more, or that was deleted, allows nothing.
- Checking a token takes the same work whether its id exists or not, and hashes are compared in constant time.

A token is ``hlt_<id>_<256 random bits>``. The id names it in listings and in the audit log; it is not secret.

A `Principal` is who makes a request: roles, and the projects they apply to as a `ProjectScope`. The roles are:

- ``write``: send runs.
- ``read``: see runs.
- ``control``: send commands to live runs.
- ``admin``: see the tokens and the audit log, and everything that ``read`` sees.

No other role implies another role.
"""

import contextlib
import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

import msgspec

from hookline._engine.errors import ConfigError, OptionError, UnknownNameError, closest
from hookline._record import files

logger = logging.getLogger("hookline")

Role = Literal["write", "read", "control", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
_IMPLIED: dict[str, frozenset[str]] = {"read": frozenset({"admin"})}
"""The roles that include a role."""

FOLDER = ".hookline"
"""The folder of a root; hidden names are never listed as projects."""
TOKENS_FILE = "tokens.json"
CHECK_SECONDS = 1.0
"""How often a server looks whether the file has changed."""
MAX_TOKENS = 10_000
MAX_PATTERNS = 100
_MAX_FILE_BYTES = 16 << 20
_MAX_NAME = 100
_VERSION = 1
_TOKEN = re.compile(r"hlt_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_DUMMY = ("00" * 16, "00" * 32)
"""Compared with a token of an unknown id."""


class ProjectScope(NamedTuple):
    """Some projects: patterns in which ``*`` matches anything. Equal scopes are equal, and can be keys."""

    patterns: tuple[str, ...] = ("*",)

    @property
    def is_all(self) -> bool:
        """Whether every project is in it."""
        return "*" in self.patterns

    def allows(self, project: str) -> bool:
        """Whether a project is in it."""
        if self.is_all:
            return True
        # Only `*` is a wildcard: the other special characters of fnmatch are escaped.
        escaped = (pattern.replace("[", "[[]").replace("?", "[?]") for pattern in self.patterns)
        return any(fnmatchcase(project, pattern) for pattern in escaped)


ALL_PROJECTS = ProjectScope()


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request: what they may do, in which projects, and until when.

    Attributes:
        id: The id of the token; ``write`` and ``read`` for the tokens of the command line, empty without a token.
        secret: The stored hash that the token was compared with: a rotated token has another one.
        expires: Seconds since 1970; None for no end.
    """

    id: str = ""
    name: str = ""
    roles: frozenset[str] = frozenset()
    scope: ProjectScope = ALL_PROJECTS
    expires: float | None = None
    secret: str = field(default="", repr=False)

    def may(self, role: Role, project: str | None = None) -> bool:
        """Whether this role is given, in a project if one is named."""
        has_role = role in self.roles or bool(_IMPLIED.get(role, frozenset()) & self.roles)
        return has_role and (project is None or self.scope.allows(project))


PRINCIPAL = "hookline.principal"
"""The key of a request's principal in its ASGI scope."""
VISIBLE = "hookline.visible"
"""The key of the projects that a request may see, a `ProjectScope`."""
VIEWER = Principal(roles=frozenset({"read"}))
"""A viewer on a server that lets everyone read who can reach it."""


_Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Secret(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Salted hashes of a token and of its `cookie_secret`.

    Attributes:
        until: The end of the time that the old value of a rotated token is accepted.
    """

    salt: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    hash: _Hash
    cookie: _Hash
    until: float | None = None


class StoredToken(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A token in the file."""

    id: str
    name: str
    roles: list[Role]
    projects: list[str]
    created: float
    secrets: list[Secret]
    expires: float | None = None

    def principal(self, secret: Secret) -> Principal:
        """Who presents a secret of this token."""
        ends = [each for each in (self.expires, secret.until) if each is not None]
        scope = ProjectScope(tuple(sorted(set(self.projects))))
        return Principal(self.id, self.name, frozenset(self.roles), scope, min(ends, default=None), secret.hash)


class TokenInfo(msgspec.Struct):
    """A token as it is listed: without its hashes; times are seconds since 1970."""

    id: str
    name: str
    roles: list[Role]
    projects: list[str]
    created: float
    expires: float | None
    rotating_until: float | None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[StoredToken]
    version: int = _VERSION


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was created or rotated, with its value, which is shown once."""

    stored: StoredToken
    token: str = field(repr=False)


def token_info(stored: StoredToken) -> TokenInfo:
    """A token as listings show it."""
    until = max((each.until for each in stored.secrets if each.until is not None), default=None)
    shown = stored.roles, stored.projects
    return TokenInfo(stored.id, stored.name, *shown, stored.created, stored.expires, until)


def default_tokens_file(root: Path) -> Path:
    """The file of a root."""
    return root / FOLDER / TOKENS_FILE


def redact(text: str) -> str:
    """A text with tokens of the file removed, so that it may be logged."""
    return _TOKEN.sub("<token>", text)


def cookie_secret(token: str) -> str:
    """The part of a login cookie that only a holder of the token can know; the token does not follow from it."""
    return hmac.new(token.encode(), b"hookline cookie", hashlib.sha256).hexdigest()


def _hash(salt: str, text: str) -> str:
    # One round suffices: a token has 256 random bits, so its hash cannot be searched.
    return hmac.digest(bytes.fromhex(salt), text.encode("utf-8", "surrogatepass"), "sha256").hex()


def _new_secret(token_id: str) -> tuple[str, Secret]:
    token, salt = f"hlt_{token_id}_{secrets.token_urlsafe(32)}", secrets.token_hex(16)
    return token, Secret(salt, _hash(salt, token), _hash(salt, cookie_secret(token)))


def _checked_roles(roles: Sequence[str]) -> list[Role]:
    for role in roles:
        if role not in ROLES:
            raise OptionError(f"role={role!r:.80} is not a role. {closest(role, ROLES, listed=ROLES)}")
    if not roles:
        raise OptionError(f"A token without a role allows nothing: give one of {', '.join(ROLES)}.")
    return [role for role in ROLES if role in roles]


def _check(name: str, projects: Sequence[str]) -> None:
    if not name.strip() or len(name) > _MAX_NAME or not name.isprintable():
        raise OptionError(f"name={name!r:.80}: give 1 to {_MAX_NAME} printable characters, e.g. 'alice'.")
    if not 0 < len(projects) <= MAX_PATTERNS:
        raise OptionError(f"{len(projects)} project patterns are given; give 1 to {MAX_PATTERNS}, or '*' for all.")
    for pattern in projects:
        if not pattern or len(pattern) > 200 or "/" in pattern or not pattern.isprintable():
            raise OptionError(f"project={pattern!r:.80}: give the name of a project, in which * matches anything.")


@dataclass(frozen=True, slots=True)
class TokenStore:
    """Reads and changes a file of tokens.

    Args:
        path: The file; created with the first token.
        clock: Seconds since 1970.
    """

    path: Path
    clock: Callable[[], float] = time.time

    def read(self) -> list[StoredToken]:
        """The tokens; none if there is no file.

        Raises:
            ConfigError: It is a link, other users can read or own it, or it is not a file of tokens.
        """
        try:
            if self.path.parent.is_symlink():
                raise ConfigError(f"{self.path.parent} is a link: give the directory itself.")
            # Without O_NONBLOCK, opening a pipe in place of the file would wait for its other end.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(
                f"The tokens file {self.path} cannot be read: {error.strerror}. It must be a regular file, not a link."
            ) from error
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.geteuid(), 0):
                raise ConfigError(f"The tokens file {self.path} is not a regular file of this user.")
            if stat.S_IMODE(found.st_mode) & 0o077:
                raise ConfigError(f"Other users can read the tokens file {self.path}. Run: chmod 600 {self.path}")
            text = file.read(_MAX_FILE_BYTES + 1)
        try:
            held = msgspec.json.decode(text, type=_File)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            held = None
        if held is None or held.version != _VERSION or len(text) > _MAX_FILE_BYTES:
            raise ConfigError(
                f"The tokens file {self.path} is not valid. Restore it, or delete it and create the tokens again."
            )
        return held.tokens

    def create(
        self,
        name: str,
        *,
        roles: Sequence[str],
        projects: Sequence[str] = ("*",),
        expires_seconds: float | None = None,
    ) -> NewToken:
        """Add a token.

        Raises:
            OptionError: The name, a role or a pattern is not accepted, or there are too many tokens.
        """
        checked = _checked_roles(roles)
        _check(name, projects)
        with self._changing() as tokens:
            if len(tokens) >= MAX_TOKENS:
                raise OptionError(f"The tokens file {self.path} has {len(tokens):,} tokens: revoke some first.")
            taken = {token.id for token in tokens}
            token_id = next(each for each in iter(lambda: secrets.token_hex(6), "") if each not in taken)
            token, secret = _new_secret(token_id)
            now = self.clock()
            ends = None if expires_seconds is None else now + expires_seconds
            stored = StoredToken(token_id, name, checked, [*dict.fromkeys(projects)], now, [secret], ends)
            tokens.append(stored)
        return NewToken(stored, token)

    def revoke(self, token_id: str) -> StoredToken:
        """Remove a token; servers refuse it within seconds.

        Raises:
            UnknownNameError: There is no such token.
        """
        with self._changing() as tokens:
            stored = _find(tokens, token_id)
            tokens.remove(stored)
        return stored

    def rotate(self, token_id: str, *, grace_seconds: float = 0.0) -> NewToken:
        """Give a token a new value.

        Args:
            grace_seconds: How long the old value is still accepted.

        Raises:
            UnknownNameError: There is no such token.
        """
        with self._changing() as tokens:
            stored = _find(tokens, token_id)
            token, secret = _new_secret(stored.id)
            kept, now = [], self.clock()
            for each in stored.secrets if grace_seconds > 0 else ():
                until = min(each.until or now + grace_seconds, now + grace_seconds)
                kept += [msgspec.structs.replace(each, until=until)] if until > now else []
            changed = msgspec.structs.replace(stored, secrets=[secret, *kept])
            tokens[tokens.index(stored)] = changed
        return NewToken(changed, token)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[StoredToken]]:
        """The tokens to change; written when the block ends without an error."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise ConfigError(f"{self.path.parent} cannot be used for tokens: {error.strerror}.") from error
        try:
            with files.exclusive(directory):
                tokens = self.read()
                yield tokens
                # Created with this mode: after a later chmod, someone might have read it already.
                with files.atomic_writer(self.path, mode=0o600) as file:
                    file.write(msgspec.json.format(msgspec.json.encode(_File(tokens)), indent=1) + b"\n")
        except OSError as error:
            raise ConfigError(f"The tokens file {self.path} cannot be written: {error.strerror}.") from error
        finally:
            os.close(directory)


def _find(tokens: Iterable[StoredToken], token_id: str) -> StoredToken:
    known = {token.id: token for token in tokens}
    if token_id in known:
        return known[token_id]
    named = [token.id for token in known.values() if token.name == token_id]
    hint = "See: hookline tokens list"
    if named:
        have = "The token of this name has the id" if len(named) == 1 else "Tokens of this name have the ids"
        hint = f"{have} {', '.join(named[:5])}{', ...' if len(named) > 5 else ''}."
    # If the whole token is given by mistake, the message must not repeat it.
    raise UnknownNameError(f"There is no token with the id {redact(token_id)!r:.80}. Give an id, not a name. {hint}")


class Presented(NamedTuple):
    """A token of the file that was presented: who it is, and why it is not accepted; the reason is empty if it is."""

    principal: Principal
    problem: str = ""


class LiveTokens:
    """The tokens of a file as a server uses them; notices changes of the file. May be used from any thread.

    Args:
        store: The file; None for no tokens.
        clock: Seconds since 1970.
        timer: A monotonic clock in seconds.
    """

    def __init__(
        self,
        store: TokenStore | None = None,
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._clock, self._timer = store, clock, timer
        self._lock = threading.Lock()
        self._tokens: dict[str, StoredToken] = {}
        self._stamp: tuple[int, ...] | None = None
        self._problem = ""
        self._next_check = float("-inf")
        self._has_readers = False

    def all(self) -> dict[str, StoredToken]:
        """The current tokens by id."""
        if self._store is not None and self._timer() >= self._next_check:
            with self._lock:
                self._next_check = self._timer() + CHECK_SECONDS
                self._check_file(self._store)
        return self._tokens

    def _check_file(self, store: TokenStore) -> None:
        try:
            found = store.path.lstat()
            # The mode and the times of the inode, too: a file that others may read now is refused.
            stamp: tuple[int, ...] = (
                found.st_dev,
                found.st_ino,
                found.st_size,
                found.st_mtime_ns,
                found.st_ctime_ns,
                found.st_mode,
            )
        except OSError:
            stamp = ()  # deleted
        if stamp == self._stamp:
            return
        try:
            self._tokens = {token.id: token for token in store.read()}
        except ConfigError as error:  # nobody is allowed anything by a file that cannot be trusted
            # Logged first, so that a refused client finds the reason in the log.
            if str(error) != self._problem:
                logger.error("%s Its tokens are not accepted until this is fixed.", error)  # noqa: TRY400 - no traceback
            self._tokens = {}
            self._problem = str(error)
            # A fault of the system, such as too many open files, may be over at the next check.
            self._stamp = None if isinstance(error.__cause__, OSError) else stamp
            return
        self._stamp, self._problem = stamp, ""
        self._has_readers |= any(not {"read", "admin"}.isdisjoint(token.roles) for token in self._tokens.values())

    @property
    def has_readers(self) -> bool:
        """Whether there has been a token for reading since the start.

        Reading needs a token from then on, also when the last such token is revoked, or the file is damaged.
        """
        self.all()
        return self._has_readers

    def find(self, token: str) -> Presented | None:
        """Who presents a token; None if it is none of the file."""
        match = _TOKEN.fullmatch(token)
        return self._find(match[1] if match else "", token, lambda secret: secret.hash)

    def find_cookie(self, token_id: str, text: str) -> Presented | None:
        """Who presents a cookie's secret; see `cookie_secret`."""
        return self._find(token_id, text, lambda secret: secret.cookie)

    def _find(self, token_id: str, text: str, stored_hash: Callable[[Secret], str]) -> Presented | None:
        stored = self.all().get(token_id)
        found = None
        for secret in stored.secrets if stored is not None else [Secret(*_DUMMY, _DUMMY[1])]:
            if hmac.compare_digest(_hash(secret.salt, text), stored_hash(secret)) and stored is not None:
                found = stored.principal(secret)
        if found is None:
            return None
        return Presented(found, "" if self._is_in_time(found) else "it has expired")

    def is_current(self, principal: Principal) -> bool:
        """Whether who started something, such as a live stream, may continue it."""
        if not principal.secret:  # not of the file: valid as long as the server runs
            return True
        stored = self.all().get(principal.id)
        known = [] if stored is None else [stored.principal(secret) for secret in stored.secrets]
        # Compared with the file, not with the time in the principal: a rotated token may have got an end since.
        current = next((each for each in known if each.secret == principal.secret), None)
        if current is None or (current.roles, current.scope) != (principal.roles, principal.scope):
            return False
        return self._is_in_time(current)

    def _is_in_time(self, principal: Principal) -> bool:
        return principal.expires is None or self._clock() < principal.expires

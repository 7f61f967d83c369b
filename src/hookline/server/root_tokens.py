"""`Tokens`: the two tokens of a server for all projects, and where they come from.

There is one token for sending runs and one for viewing them, in all projects. They come from the command line, the
environment or a file. A missing one is created and saved in the root, in a file that only its owner can read, so the
next start uses the same. Tokens are stored nowhere else in plain text, and no message contains one. Tokens for some
projects, with other roles, are those of `hookline.server.tokens`.

Nothing here needs a package of the extra ``ui``, so the command line can import it everywhere.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from hookline._engine.errors import ConfigError, OptionError
from hookline._record import files
from hookline.server.tokens import redact

WRITE_VARIABLE, READ_VARIABLE = "HOOKLINE_WRITE_TOKEN", "HOOKLINE_READ_TOKEN"
MIN_LENGTH = 16
MAX_LENGTH = 1024
TOKENS_FILE = ".hookline-tokens.json"
"""The file in the root; hidden names are never listed as runs."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Where a server needs no read token."""
_MAX_FILE_BYTES = 16 << 10


class _TokenFile(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    write: str | None = None
    read: str | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a server.

    Args:
        write: Allows sending runs, but not reading.
        read: Allows reading, but not writing. None lets everyone read who can reach the server.

    Raises:
        OptionError: A token is too short, has characters not allowed in a header, or both are the same.
    """

    write: str = field(repr=False)
    read: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_token("The write token", self.write)
        if self.read is not None:
            check_token("The read token", self.read)
            if tokens_equal(self.read, self.write):
                raise OptionError("The read and the write token are the same: give two, or every reader could write.")

    def writes(self, token: str) -> bool:
        """Whether this is the write token."""
        return tokens_equal(token, self.write)

    def reads(self, token: str) -> bool:
        """Whether this is the read token."""
        return self.read is not None and tokens_equal(token, self.read)

    def redact(self, text: str) -> str:
        """A text with the tokens removed, so that it may be logged."""
        for token in (self.write, self.read):
            text = text.replace(token, "<token>") if token else text
        return redact(text)


@dataclass(frozen=True, slots=True)
class OptionalTokens:
    """Tokens from one source: none, one or both."""

    write: str | None = field(default=None, repr=False)
    read: str | None = field(default=None, repr=False)

    def or_else(self, other: "OptionalTokens") -> "OptionalTokens":
        """These tokens, with missing ones from another source."""
        return OptionalTokens(self.write or other.write, self.read or other.read)


def check_token(what: str, token: str) -> None:
    """Refuse a weak token, without repeating it.

    Raises:
        OptionError: It is too short or too long, or has characters not allowed in a header.
    """
    if not MIN_LENGTH <= len(token) <= MAX_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise OptionError(
            f"{what} has {len(token)} characters: give {MIN_LENGTH} to {MAX_LENGTH} letters, digits and symbols "
            "without a space, e.g. the output of: python -c 'import secrets; print(secrets.token_hex(32))'"
        )


def tokens_equal(given: str, token: str) -> bool:
    """Compare in constant time, which reveals not even a length."""
    hashed = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (given, token)]
    return hmac.compare_digest(*hashed)


def tokens_from_environment(environment: Mapping[str, str]) -> OptionalTokens:
    """The tokens in environment variables."""
    return OptionalTokens(environment.get(WRITE_VARIABLE) or None, environment.get(READ_VARIABLE) or None)


def tokens_from_file(path: Path) -> OptionalTokens:
    """The tokens in a file: ``{"write": ..., "read": ...}``, or only the write token.

    Raises:
        ConfigError: It cannot be read or parsed, or a token in it is empty.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_FILE_BYTES).strip()
    except OSError as error:
        raise ConfigError(f"The token file {path} cannot be read: {error.strerror}.") from error
    if not text.startswith(b"{"):
        with contextlib.suppress(UnicodeDecodeError):
            return OptionalTokens(write=text.decode() or None)
    given = _decoded(path, text)
    if "" in (given.write, given.read):
        raise ConfigError(f"A token in the file {path} is empty: write one, or remove its name to use another source.")
    return given


def _decoded(path: Path, text: bytes) -> OptionalTokens:
    try:
        held = msgspec.json.decode(text, type=_TokenFile)
    except (msgspec.DecodeError, UnicodeDecodeError):  # the error's text could contain a token
        raise ConfigError(
            f'The token file {path} is not valid: write {{"write": "...", "read": "..."}}, or only the write token.'
        ) from None
    return OptionalTokens(held.write, held.read)


def load_tokens(root: Path) -> OptionalTokens:
    """The saved tokens of a root.

    Raises:
        ConfigError: Other users can read the file, or it is not a token file.
    """
    path = root / TOKENS_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return OptionalTokens()
    except OSError as error:
        raise ConfigError(f"The token file {path} cannot be read: {error.strerror}.") from error
    with os.fdopen(descriptor, "rb") as file:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
            raise ConfigError(
                f"Other users can read the tokens in {path}. Remove it to create new ones, or run: chmod 600 {path}"
            )
        return _decoded(path, file.read(_MAX_FILE_BYTES))


def save_tokens(root: Path, tokens: OptionalTokens) -> None:
    """Save tokens for the next start.

    Raises:
        ConfigError: They cannot be written.
    """
    try:
        # Created with this mode: after a later chmod, someone might have read it already.
        with files.atomic_writer(root / TOKENS_FILE, sync=False, mode=0o600) as file:
            file.write(msgspec.json.encode(_TokenFile(tokens.write, tokens.read)) + b"\n")
    except OSError as error:
        raise ConfigError(f"The tokens cannot be saved in {root}: {error.strerror}. Give them instead.") from error


@dataclass(frozen=True, slots=True)
class ResolvedTokens:
    """The tokens of a server.

    Attributes:
        created: The names of new tokens, which have to be shown.
        saved: The names of tokens saved in the root.
    """

    tokens: Tokens
    created: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()


def resolve_tokens(root: Path, given: OptionalTokens, *, needs_read: bool) -> ResolvedTokens:
    """Determine the tokens of a server: the given ones, else the saved ones, else new ones.

    Args:
        needs_read: Whether reading needs a token even if none is given.
    """
    if given.write and (given.read or not needs_read):
        return ResolvedTokens(Tokens(given.write, given.read))
    with _locked(root):
        before = load_tokens(root)
        missing = {"write": not (given.write or before.write)}
        missing["read"] = needs_read and not (given.read or before.read)
        created: dict[str, Any] = {name: secrets.token_urlsafe(32) for name, is_new in missing.items() if is_new}
        now = replace(before, **created)
        if created:
            save_tokens(root, now)
    write, read = given.write or now.write, given.read or (now.read if needs_read else None)
    saved = {"write": not given.write, "read": needs_read and not given.read}
    names = tuple(name for name, is_saved in saved.items() if is_saved)
    return ResolvedTokens(Tokens(write or "", read), tuple(created), names)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Lock out other servers: those that start at the same time must get the same tokens."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with files.exclusive(descriptor):
            yield
    finally:
        os.close(descriptor)

"""`Tokens`: the two secrets of a server that others reach: one to send runs with, one to look at them.

They come from the command line, the environment or a file. What nobody gave is made, and kept in the root in a file
that only its owner can read, so that the next start has the same. Tokens are kept as they are nowhere else, and no
message has one in it.
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

WRITE_VARIABLE, READ_VARIABLE = "HOOKLINE_WRITE_TOKEN", "HOOKLINE_READ_TOKEN"
SHORTEST = 16
LONGEST = 1024
KEPT = ".hookline-tokens.json"
"""The file in the root; runs are directories, and hidden names are never listed."""
_MOST_BYTES = 16 << 10


class _Held(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What a file of tokens holds."""

    write: str | None = None
    read: str | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """What is asked of those who write and, where there is a second one, of those who read.

    Args:
        write: Lets a machine send runs; it does not read.
        read: Lets somebody look; it does not write. None lets everybody look who reaches the server.

    Raises:
        OptionError: One is too short to be a secret, has characters that no header holds, or both are the same.
    """

    write: str = field(repr=False)
    read: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_token("The write token", self.write)
        if self.read is not None:
            check_token("The read token", self.read)
            if is_same(self.read, self.write):
                raise OptionError(
                    "The read token and the write token are the same: give two, or who may look could also write."
                )

    def writes(self, token: str) -> bool:
        """Whether a token is the one to write with."""
        return is_same(token, self.write)

    def reads(self, token: str) -> bool:
        """Whether a token is the one to read with."""
        return self.read is not None and is_same(token, self.read)

    def hidden(self, text: str) -> str:
        """A text without the tokens: what is refused is told in words that may be logged."""
        for token in (self.write, self.read):
            text = text.replace(token, "<token>") if token else text
        return text


@dataclass(frozen=True, slots=True)
class Given:
    """Tokens as somebody gave them, none, one or both."""

    write: str | None = field(default=None, repr=False)
    read: str | None = field(default=None, repr=False)

    def or_else(self, other: "Given") -> "Given":
        """These, and those of another where there is none."""
        return Given(self.write or other.write, self.read or other.read)


def check_token(what: str, token: str) -> None:
    """Refuse what is no secret, without repeating it.

    Raises:
        OptionError: It is too short, or has characters that no header holds.
    """
    if not SHORTEST <= len(token) <= LONGEST or not token.isascii() or not token.isprintable() or " " in token:
        raise OptionError(
            f"{what} has {len(token)} characters: give {SHORTEST} to {LONGEST} letters, digits and signs without a "
            "space, e.g. what this prints: python -c 'import secrets; print(secrets.token_hex(32))'"
        )


def is_same(given: str, token: str) -> bool:
    """Compare in a time that says nothing about either, not even its length."""
    hashed = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (given, token)]
    return hmac.compare_digest(*hashed)


def from_environment(environment: Mapping[str, str]) -> Given:
    """The tokens that the environment holds."""
    return Given(environment.get(WRITE_VARIABLE) or None, environment.get(READ_VARIABLE) or None)


def from_file(path: Path) -> Given:
    """The tokens in a file: ``{"write": ..., "read": ...}``, or the write token and nothing else.

    Raises:
        ConfigError: It cannot be read, or holds something else, or a token in it is empty.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).strip()
    except OSError as error:
        raise ConfigError(f"The file of tokens {path} cannot be read: {error.strerror}.") from error
    if not text.startswith(b"{"):
        with contextlib.suppress(UnicodeDecodeError):
            return Given(write=text.decode() or None)
    given = _decoded(path, text)
    if "" in (given.write, given.read):
        raise ConfigError(
            f"A token in the file {path} is empty: write one, or leave its name out to have it taken from elsewhere."
        )
    return given


def _decoded(path: Path, text: bytes) -> Given:
    try:
        held = msgspec.json.decode(text, type=_Held)
    except (msgspec.DecodeError, UnicodeDecodeError):  # what it says of the file could be a token
        raise ConfigError(
            f'The file of tokens {path} holds something else: write {{"write": "...", "read": "..."}}, or the write '
            "token alone."
        ) from None
    return Given(held.write, held.read)


def kept(root: Path) -> Given:
    """The tokens that were made for a root before.

    Raises:
        ConfigError: Others can read the file, or it is no file of tokens.
    """
    path = root / KEPT
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return Given()
    except OSError as error:
        raise ConfigError(f"The file of tokens {path} cannot be read: {error.strerror}.") from error
    with os.fdopen(descriptor, "rb") as file:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
            raise ConfigError(
                f"Others can read the tokens in {path}. Remove it to have new ones made, or run: chmod 600 {path}"
            )
        return _decoded(path, file.read(_MOST_BYTES))


def keep(root: Path, tokens: Given) -> None:
    """Write tokens down for the next start.

    Raises:
        ConfigError: They cannot be written.
    """
    try:
        with files.atomic_writer(root / KEPT, sync=False, mode=0o600) as file:
            file.write(msgspec.json.encode(_Held(tokens.write, tokens.read)) + b"\n")
    except OSError as error:
        raise ConfigError(f"The tokens cannot be kept in {root}: {error.strerror}. Give them instead.") from error


@dataclass(frozen=True, slots=True)
class Settled:
    """The tokens of a server, which of them are kept in its root, and which were made just now and must be told."""

    tokens: Tokens
    made: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @property
    def is_kept(self) -> bool:
        """Whether one of them is kept in the root."""
        return bool(self.kept)


def settle(root: Path, given: Given, *, needs_read: bool) -> Settled:
    """Find the tokens of a server: those given, or else those made for it before, or else new ones.

    Args:
        needs_read: Whether reading needs a token also where none is given.
    """
    if given.write and (given.read or not needs_read):
        return Settled(Tokens(given.write, given.read))
    with _alone(root):
        before = kept(root)
        missing = {"write": not (given.write or before.write)}
        missing["read"] = needs_read and not (given.read or before.read)
        made: dict[str, Any] = {name: secrets.token_urlsafe(32) for name, is_missing in missing.items() if is_missing}
        now = replace(before, **made)
        if made:
            keep(root, now)
    write, read = given.write or now.write, given.read or (now.read if needs_read else None)
    own = {"write": not given.write, "read": needs_read and not given.read}
    return Settled(Tokens(write or "", read), tuple(made), tuple(name for name, is_kept in own.items() if is_kept))


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Among servers that start at the same time: they must have the same tokens."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with files.exclusive(descriptor):
            yield
    finally:
        os.close(descriptor)

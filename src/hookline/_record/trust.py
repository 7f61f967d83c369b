"""Distinguishes files that processes of this user wrote from those of a received or shared directory.

A run's directory may have been unpacked from an archive, copied from elsewhere, or be writable by others. What a sink's
file in it asks for (an address, an environment variable, an import, a path) is obeyed only if the file is the user's
own:

- it is a regular file that belongs to the user, and
- it ends with an HMAC-SHA256 over its text and the names of the file, its folder and the run, made with a key that only
  the user can read: ``hookline/key`` in ``$XDG_STATE_HOME``, or in ``~/.local/state``.

The key is created when it is first needed. If it cannot be kept, or others can read it, nothing is signed, and such
files need explicit trust later. Training never fails because of that.
"""

import contextlib
import functools
import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
from pathlib import Path
from typing import Any

from hookline._engine.errors import ConfigError
from hookline._record.files import sync_descriptor

logger = logging.getLogger("hookline")

_MARK = b', "mac": "'
_KEY_BYTES = 32
_MAX_BYTES = 16 << 20
"""The most that is read of a file: a sink's file holds its position and a small state."""
_CHECKPOINTS = "checkpoints"
"""May link to a larger disk: hookline only replaces and deletes files in it that it knows."""


def sign(path: Path, document: dict[str, Any]) -> bytes:
    """Encode a document as JSON with a signature for ``path``; without one if there is no key."""
    text = json.dumps(document).encode()
    key = _key()
    return text if key is None else text[:-1] + _MARK + _code(key, path, text) + b'"}'


def read(path: Path) -> tuple[dict[str, Any], bool]:
    """Return a JSON file's document (empty if it cannot be read), and whether a process of this user wrote it."""
    try:
        # Neither through a link nor waiting at a pipe: others may have put either there.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}, False
    with os.fdopen(descriptor, "rb") as file:
        # Of the descriptor, not of the path: the file that is checked is the file that is read.
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
            return {}, False
        data = file.read()
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return {}, False
    if not isinstance(document, dict):
        return {}, False
    document.pop("mac", None)
    # Checked over the bytes as they are: encoding the document again might give other bytes.
    text, mark, code = data.rpartition(_MARK)
    key = _key() if mark else None
    is_signed = key is not None and hmac.compare_digest(_code(key, path, text + b"}"), code.removesuffix(b'"}'))
    # Both are required: a user owns the files of an archive they unpack, and a signed file could be copied into a
    # shared directory.
    return document, found.st_uid == os.geteuid() and is_signed


def _code(key: bytes, path: Path, text: bytes) -> bytes:
    # Includes the last three parts of the path, so a file is not valid in another run; not all, because runs are moved.
    names = [os.fsencode(name) for name in path.absolute().parts[-3:]]
    return hmac.new(key, b"\0".join((*names, text)), hashlib.sha256).hexdigest().encode()


def _key() -> bytes | None:
    home = os.environ.get("XDG_STATE_HOME", "")
    try:  # the XDG specification says to ignore relative paths
        folder = Path(home) if home.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:  # a user without a home directory
        return None
    return _key_in(folder / "hookline")


@functools.cache
def _key_in(folder: Path) -> bytes | None:
    path = folder / "key"
    with contextlib.suppress(FileNotFoundError, OSError):
        return _read_key(path)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Written aside and linked: the key is complete when its name appears, and a link never replaces another
        # process's key.
        aside = folder / f".key.{os.getpid()}.{secrets.token_hex(4)}"
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                # A key that a power cut left empty would stay in place and be refused for ever.
                sync_descriptor(file.fileno())
            with contextlib.suppress(FileExistsError):  # another process was faster: use its key
                os.link(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        return _read_key(path)
    except OSError as error:
        logger.debug("Cannot keep a key in %s (%s): files of sinks are not signed.", folder, error)
        return None


def _read_key(path: Path) -> bytes | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        # A key that others can read proves nothing.
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            logger.warning("%s is not used: it belongs to another user, or others can read it.", path)
            return None
        key = file.read()
    return key if len(key) == _KEY_BYTES else None


def reject_outside_links(run_dir: Path, *, but_own: bool = False) -> None:
    """Reject a run's directory with links that lead out of it: files would be written through them.

    Args:
        but_own: Accept links that belong to this user; for directories that are known to be the user's own.

    Raises:
        ConfigError: There is such a link.
    """
    link = _outside_link(run_dir.resolve(), run_dir, but_own=but_own)
    if link is not None:
        raise ConfigError(
            f"{link} is a link that leads out of the run's directory, and files would be written through it. Remove "
            "the link; to write elsewhere, give the sink a path."
        )


def _outside_link(root: Path, directory: Path, *, but_own: bool) -> Path | None:
    # Where another user may not look, that user's commands are; nothing can be written through it either.
    ignored = (NotADirectoryError, FileNotFoundError, PermissionError)
    with contextlib.suppress(*ignored), os.scandir(directory) as entries:
        for entry in entries:
            path = Path(entry.path)
            if entry.is_symlink():
                is_accepted = but_own and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                # Resolved: a link may lead out by way of another one.
                if not is_accepted and not path.resolve().is_relative_to(root):
                    return path
            elif entry.name != _CHECKPOINTS and entry.is_dir(follow_symlinks=False):
                found = _outside_link(root, path, but_own=but_own)
                if found is not None:
                    return found
    return None

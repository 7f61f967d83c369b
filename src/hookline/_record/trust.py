"""Tells files that this user's own processes wrote from those that came with a received or shared directory.

A run's directory may have been unpacked from an archive, copied from elsewhere, or be writable by others. What the
file of a sink in it asks for (an address, a variable of the environment, an import, a path) is obeyed only if the
file proves to be the user's own:

- it is a regular file that belongs to the user, and
- it ends with a code (HMAC-SHA256) over its text, its name and those of the run and the folder, made with a key that
  only the user can read: ``hookline/key`` in ``$XDG_STATE_HOME``, or in ``~/.local/state``.

The key is made when it is first needed. Where it cannot be kept, or others can read it, nothing is signed, and files
with such wishes need explicit trust later. Training never fails for that.
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
_MOST_BYTES = 16 << 20
"""How much of a file is read at most: a sink's file holds its position and a small state."""
_CHECKPOINTS = "checkpoints"
"""May be a link to a larger disk: only files that hookline knows are replaced or deleted in it."""


def sign(path: Path, document: dict[str, Any]) -> bytes:
    """A file of JSON with its code; without one where there is no key."""
    text = json.dumps(document).encode()
    key = _key()
    return text if key is None else text[:-1] + _MARK + _code(key, path, text) + b'"}'


def read(path: Path) -> tuple[dict[str, Any], bool]:
    """A file of JSON, and whether this user's own process wrote it; an empty dict where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}, False
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            return {}, False
        data = file.read()
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return {}, False
    if not isinstance(document, dict):
        return {}, False
    document.pop("mac", None)
    return document, found.st_uid == os.geteuid() and _is_signed(path, data)


def _is_signed(path: Path, data: bytes) -> bool:
    text, mark, code = data.rpartition(_MARK)
    key = _key() if mark else None
    return key is not None and hmac.compare_digest(_code(key, path, text + b"}"), code.removesuffix(b'"}'))


def _code(key: bytes, path: Path, text: bytes) -> bytes:
    # With the last three names of the path, so that a file says nothing in another run; not with all: runs are moved.
    place = [os.fsencode(name) for name in path.absolute().parts[-3:]]
    return hmac.new(key, b"\0".join((*place, text)), hashlib.sha256).hexdigest().encode()


def _key() -> bytes | None:
    home = os.environ.get("XDG_STATE_HOME", "")
    try:  # a relative one is to be ignored, by the specification of these directories
        folder = Path(home) if home.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:  # a user without a home
        return None
    return _key_in(folder / "hookline")


@functools.cache
def _key_in(folder: Path) -> bytes | None:
    path = folder / "key"
    with contextlib.suppress(FileNotFoundError, OSError):
        return _read_key(path)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside = folder / f".key.{os.getpid()}.{secrets.token_hex(4)}"
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                sync_descriptor(file.fileno())
            with contextlib.suppress(FileExistsError):  # another process was first: its key counts
                os.link(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        return _read_key(path)
    except OSError as error:
        logger.debug("No key can be kept in %s (%s): the files of sinks are not signed.", folder, error)
        return None


def _read_key(path: Path) -> bytes | None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            logger.warning("%s is not used: it belongs to another user, or others can read it.", path)
            return None
        key = file.read()
    return key if len(key) == _KEY_BYTES else None


def reject_outside_links(run_dir: Path, *, but_own: bool = False) -> None:
    """Refuse a run's directory in which links lead to places outside of it: files would be written through them.

    Args:
        but_own: Accept links that belong to this user; for directories that are known to be the user's own.

    Raises:
        ConfigError: There is such a link.
    """
    link = _link_out(run_dir.resolve(), run_dir, but_own=but_own)
    if link is not None:
        raise ConfigError(
            f"{link} is a link that leads out of the run's directory, and files would be written through it. Remove "
            "the link; to write elsewhere, give the sink its path."
        )


def _link_out(root: Path, directory: Path, *, but_own: bool) -> Path | None:
    with contextlib.suppress(NotADirectoryError, FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            path = Path(entry.path)
            if entry.is_symlink():
                is_accepted = but_own and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                if not is_accepted and not path.resolve().is_relative_to(root):
                    return path
            elif entry.name != _CHECKPOINTS and entry.is_dir(follow_symlinks=False):
                found = _link_out(root, path, but_own=but_own)
                if found is not None:
                    return found
    return None

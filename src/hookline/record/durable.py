"""Bringing files to the disk, so that they survive a power cut: their content, their names, and their folders.

A file that was written is in memory until the system writes it back; its name is in its folder, which has to be brought
to the disk, too. `replace_file` is how small files are written that have to be there as a whole or not at all.
"""

import errno
import fcntl
import os
import secrets
from collections.abc import Callable
from pathlib import Path


def sync_descriptor(descriptor: int) -> None:
    """Bring an open file to the disk.

    Raises:
        OSError: It did not get there.
    """
    _sync(descriptor, getattr(os, "fdatasync", os.fsync))


def _sync(descriptor: int, sync: Callable[[int], None]) -> None:
    # On macOS there is no `os.fdatasync`, and `os.fsync` leaves data in the drive's own cache; F_FULLFSYNC does not.
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is None:
        sync(descriptor)
        return
    try:
        fcntl.fcntl(descriptor, full_sync)
    except OSError:  # network volumes do not have it; where the disk is at fault, this fails, too
        os.fsync(descriptor)


def sync_file(path: Path) -> None:
    """Bring a file to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Bring the names in a directory to the disk; one that may not be opened or cannot be synced is left alone.

    Raises:
        OSError: They did not get there.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # files can be made in a directory that cannot be listed
        return
    try:
        _sync(descriptor, os.fsync)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP):  # network file systems
            raise
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file aside and put it in its place: a reader finds what was there before, or all that is new.

    It is on the disk when this returns. Without that, a power cut could leave an empty file.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with aside.open("xb") as file:
            file.write(content)
            file.flush()
            sync_descriptor(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)

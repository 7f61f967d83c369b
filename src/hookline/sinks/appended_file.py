"""A file that only grows, and can be cut back to where it was: what sinks that write files share.

The sink's state holds the size behind what was delivered. Opening cuts off what lies behind it: a
batch that a crash or a full disk left in part. So every record is in the file once. A file that is open
here is locked: two that write to one would cut off each other's records.

A power cut may leave zeros where bytes were not written back yet: `has_zeros` finds them. Somebody may delete, cut or
replace a file, also while it is open: `loss_of` tells, by its size, its inode and, where that is another one, its
checksum: a copy of a run has all of its files.
"""

import contextlib
import fcntl
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookline.core.errors import RefusedError

_CHUNK = 1 << 20
_BLOCK = bytes(64)
"""Blocks of a disk are larger; a text that somebody logged does not have so many zeros in a row."""


def has_zeros(path: Path, size: int) -> bool:
    """Whether the first bytes of a text file have a block of zeros: in the middle, or at the end where a line ends."""
    with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
        left = size
        while left > 0 and (chunk := file.read(min(_CHUNK, left))):
            left -= len(chunk)
            if _BLOCK in chunk or (not left and chunk.endswith(b"\0")):
                return True
    return False


def loss_of(path: Path, size: int, mark: Mapping[str, Any]) -> str:
    """Why a file does not have its first bytes any more, in words; an empty text where it seems to have them.

    Args:
        size: How many bytes were written to it; of a file without any, nothing can be lost.
        mark: What is known about the file, as `AppendedFile.mark` gave it; empty where that is nothing.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} is gone" if size else ""
    except OSError:  # opening it says why
        return ""
    if found.st_size < size:
        return f"{path} was cut: {found.st_size:,} of {size:,} bytes are left"
    if not size or mark.get("inode") in (None, found.st_ino) or checksum(path, size) == mark.get("crc"):
        return ""
    return f"{path} was replaced by another file"


def checksum(path: Path, size: int) -> int | None:
    """The CRC-32 of the first bytes of a file; None where it cannot be read."""
    crc = 0
    try:
        with path.open("rb", buffering=0) as file:
            while size > 0 and (chunk := file.read(min(_CHUNK, size))):
                size -= len(chunk)
                crc = zlib.crc32(chunk, crc)
    except OSError:
        return None
    return crc


def set_aside(path: Path, begin: int = 0, inode: int | None = None) -> None:
    """Make way for a file that is written again, without losing what is there and was not written by the sink.

    The file that the sink wrote is cut back to where the sink began. Any other, or a damaged one, gets another name.

    Args:
        begin: How many bytes were in the file before the sink wrote to it.
        inode: The file that the sink wrote to; None gives it another name.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if found.st_ino == inode:
        os.truncate(path, min(begin, found.st_size))
    elif found.st_size:
        path.replace(path.with_name(f"{path.name}.damaged"))


class AppendedFile:
    """Appends bytes to a file, all or nothing."""

    def __init__(self, path: Path, size: int | None = None, mark: Mapping[str, Any] | None = None) -> None:
        """Open a file at a size that it had; None takes it as it is. A mark saves reading it for its checksum."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.crc = 0
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
            self.inode = os.fstat(self._descriptor).st_ino
            self._begin(size, mark or {})
        except BaseException:  # or the lock stays: a full disk would lock the file for good
            self.close()
            raise

    def append(self, data: bytes) -> int:
        """Write at the end, and return the size then; on a full disk nothing of it stays."""
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], self.size + written)
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += written
        self.crc = zlib.crc32(data, self.crc)
        return self.size

    def mark(self) -> dict[str, int]:
        """What tells this file, at its size, from any other."""
        return {"inode": self.inode, "crc": self.crc}

    def is_intact(self) -> bool:
        """Whether this is still the file of its name, with what was written to it: one system call."""
        try:
            found = self.path.stat()
        except OSError:
            return False
        return found.st_ino == self.inode and found.st_size >= self.size

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # forked children have it open, too: closing alone would not unlock it
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1

    def _begin(self, size: int | None, mark: Mapping[str, Any]) -> None:
        there = os.fstat(self._descriptor).st_size
        self.size = there if size is None else min(size, there)
        known = mark.get("crc") if self.size == size else None
        self.crc = int(known) if known is not None else checksum(self.path, self.size) or 0
        if self.size < there:
            os.ftruncate(self._descriptor, self.size)
        if size is None and there and os.pread(self._descriptor, 1, there - 1) != b"\n":
            self.append(b"\n")

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RefusedError(f"{self.path} is being written to by another sink or run: give another path.") from error
        except OSError:
            return  # a file system without locks

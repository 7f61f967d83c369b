"""A file that only grows, and can be cut back to where it was: what sinks that write files share.

The sink's state holds the size behind what was delivered. Opening cuts off what lies behind it: a
batch that a crash or a full disk left in part. So every record is in the file once. A file that is open
here is locked: two that write to one would cut off each other's records.

A power cut may leave zeros where bytes were not written back yet: `has_zeros` finds them.
"""

import contextlib
import fcntl
import os
from pathlib import Path

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


def set_aside(path: Path) -> Path:
    """Give a damaged file another name, so that it can be written again without losing what it has."""
    return path.replace(path.with_name(f"{path.name}.damaged"))


class AppendedFile:
    """Appends bytes to a file, all or nothing."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        """Open a file at a size that it had; None takes it as it is."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
            self._begin(size)
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
        return self.size

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # forked children have it open, too: closing alone would not unlock it
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1

    def _begin(self, size: int | None) -> None:
        there = os.fstat(self._descriptor).st_size
        self.size = there if size is None else min(size, there)
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

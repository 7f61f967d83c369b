"""Compresses and unpacks the journal files of ended runs, in place and byte for byte.

A file is only replaced by one with the same content: it is written aside, synced, read back and compared with the
digest of the original, renamed, and only then is the original removed. Killed at any point, a directory has the
original, the compressed file, or both, which are equal; `open_journal` then reads the original, and the next call
removes one of them. What a killed call wrote aside is removed as well.

Left alone are files that a writer still uses, small ones, and damaged ones with zeros between their lines.

Locks: the directory's, so that two calls (a command, a server, a request that has to append to a compressed file) never
replace the same file, then the file's own, without waiting, which its writer or a receiving server holds. Everything is
opened relative to the directory and without following links: directories may be shared or received.
"""

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from hookline._record.files import exclusive, sync_descriptor
from hookline._record.seekable import (
    MAX_LINE_BYTES,
    SUFFIX,
    CompressedFile,
    TooDenseError,
    cut_frames,
    write_frames,
    zstd,
)
from hookline._record.segment import PlainFile, journal_files, reclaim_abandoned

MIN_BYTES = 4096
"""A smaller file takes a block of the disk either way."""
LOCK_SECONDS = 30.0
_PARTIAL = ".partial"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Compression:
    """The result of compressing or unpacking the files of a directory.

    Attributes:
        files: How many files were replaced.
        before: Their sizes before, in bytes.
        after: Their sizes afterwards; the same as before in a dry run, which does not know them.
        skipped: Why files were left alone, by name; small ones are not listed.
    """

    files: int = 0
    before: int = 0
    after: int = 0
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, replace: Callable[[str], tuple[int, int] | None]) -> None:
        """Replace a file, and note its sizes or why it was left alone."""
        try:
            sizes = replace(name)
        except _SkippedError as reason:
            self.skipped[name] = str(reason)
        except TimeoutError:
            raise
        except OSError as error:
            self.skipped[name] = error.strerror or str(error)
        else:
            if sizes is not None:
                self.files += 1
                self.before += sizes[0]
                self.after += sizes[1]


class _SkippedError(Exception):
    """A file is left alone; the message says why."""


def compress_directory(
    directory: Path, *, undo: bool = False, dry_run: bool = False, is_stopping: Callable[[], bool] = lambda: False
) -> Compression:
    """Compress the complete journal files in a directory, or unpack them.

    The caller makes sure that nothing writes to the directory any more.

    Args:
        is_stopping: Asked before each file; the rest is left alone.

    Raises:
        MissingExtraError: The package for zstd is not installed.
        TimeoutError: Another process is compressing the same directory.
    """
    result = Compression()
    if directory.is_symlink() or not directory.is_dir():
        return result
    zstd()
    descriptor = os.open(directory, _DIRECTORY)
    try:
        if not dry_run:
            with exclusive(descriptor, seconds=LOCK_SECONDS):
                _remove_partial(descriptor)
            if not undo:
                # Of killed writers: a file that ends with preallocated zeros does not count as complete.
                reclaim_abandoned(directory)
        for file in journal_files(directory, follow_links=False):
            if is_stopping():
                break
            result.add(file.path.name, lambda name: _replace(descriptor, name, undo=undo, dry_run=dry_run))
    finally:
        os.close(descriptor)
    return result


def _replace(directory: int, name: str, *, undo: bool, dry_run: bool) -> tuple[int, int] | None:
    found = _status(directory, f"{name}{SUFFIX}" if undo else name)
    if found is None or not stat.S_ISREG(found.st_mode) or (not undo and found.st_size < MIN_BYTES):
        return None
    if dry_run:
        return found.st_size, found.st_size
    return uncompress(directory, name) if undo else compress(directory, name)


def compress(directory: int, name: str) -> tuple[int, int] | None:
    """Compress one file.

    Returns:
        The sizes of the file before and afterwards; None if it is compressed already.

    Raises:
        OSError: It cannot be read or written. Nothing has changed.
    """
    with exclusive(directory, seconds=LOCK_SECONDS), contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(name, _READ, dir_fd=directory)
        except FileNotFoundError:
            return None
        stack.callback(os.close, descriptor)
        try:
            stack.enter_context(exclusive(descriptor, seconds=0.0))
        except TimeoutError:
            raise _SkippedError("a process still writes to it") from None
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode) or before.st_nlink == 0:
            raise _SkippedError("it is not a regular file")
        if _content_size(directory, f"{name}{SUFFIX}") > before.st_size:
            raise _SkippedError(f"{name}{SUFFIX} beside it has more content")
        original = PlainFile(descriptor)
        digest = hashlib.sha256()
        with _written_aside(directory, f"{name}{SUFFIX}", before) as (partial, file):
            try:
                write_frames(cut_frames(_checked(original, digest)), file)
            except TooDenseError as error:
                raise _SkippedError(f"no reader would accept it: {error}") from None
            file.flush()
            sync_descriptor(file.fileno())
            if _content_digest(directory, partial) != digest.hexdigest():
                raise OSError(errno.EIO, "The compressed file does not match the original; it was removed")
            after = os.fstat(file.fileno())
        # Where files cannot be locked, a server may have appended to it meanwhile.
        now = os.fstat(descriptor)
        if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            os.unlink(f"{name}{SUFFIX}", dir_fd=directory)
            raise _SkippedError("it was written to in the meantime")
        os.unlink(name, dir_fd=directory)
        _sync_directory(directory)
        return before.st_size, after.st_size


def uncompress(directory: int, name: str) -> tuple[int, int] | None:
    """Unpack one file; ``name`` is that of the original.

    Returns:
        The sizes of the file before and afterwards; None if it is not compressed.

    Raises:
        OSError: It cannot be read or written, or is damaged. Nothing has changed.
    """
    packed = f"{name}{SUFFIX}"
    with exclusive(directory, seconds=LOCK_SECONDS):
        before = _status(directory, packed)
        if before is None:
            return None
        # Both are there: a call was killed. The original is whole, and may have been appended to since; a shorter one
        # is none that this module has left.
        after = _status(directory, name)
        if after is None or after.st_size < _content_size(directory, packed):
            with (
                contextlib.closing(_open_compressed(directory, packed)) as compressed,
                _written_aside(directory, name, before) as (_, file),
            ):
                for piece in compressed.pieces():
                    file.write(piece)
                file.flush()
                sync_descriptor(file.fileno())
                after = os.fstat(file.fileno())
        os.unlink(packed, dir_fd=directory)
        _sync_directory(directory)
        return before.st_size, after.st_size


def _checked(original: PlainFile, digest: "hashlib._Hash") -> Iterator[bytes]:
    """Yield the content of a file that may be compressed, and add it to a digest."""
    line = 0
    for piece in original.pieces():
        if b"\0" in piece:
            raise _SkippedError("it has zeros in place of lines")
        first = piece.find(b"\n")
        line += len(piece) if first < 0 else first
        # Lines within a piece are shorter than the limit, because the piece is.
        if line > MAX_LINE_BYTES:
            raise _SkippedError(f"it has a line of more than {MAX_LINE_BYTES:,} bytes")
        line = line if first < 0 else len(piece) - piece.rfind(b"\n") - 1
        digest.update(piece)
        yield piece


def _content_digest(directory: int, name: str) -> str:
    digest = hashlib.sha256()
    with contextlib.closing(_open_compressed(directory, name)) as file:
        for piece in file.pieces():
            digest.update(piece)
    return digest.hexdigest()


def _content_size(directory: int, name: str) -> int:
    """Return the size of a compressed file's content; -1 if there is none that can be read."""
    try:
        with contextlib.closing(_open_compressed(directory, name)) as file:
            return file.size
    except OSError:
        return -1


def _open_compressed(directory: int, name: str) -> CompressedFile:
    descriptor = os.open(name, _READ, dir_fd=directory)
    try:
        return CompressedFile(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


@contextlib.contextmanager
def _written_aside(directory: int, name: str, like: os.stat_result) -> Iterator[tuple[str, BinaryIO]]:
    """Write a file with the permissions and times of another beside a name; the block's success gives it the name."""
    partial = f".{name}.{secrets.token_hex(4)}{_PARTIAL}"
    descriptor = os.open(partial, _CREATE, 0o600, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield partial, file
            with contextlib.suppress(PermissionError):  # a file of another user, compressed by the administrator
                os.fchown(descriptor, like.st_uid, like.st_gid)
            os.fchmod(descriptor, like.st_mode & 0o777)
            # The last change counts as the time of the last record in places, and compressing is not one.
            os.utime(descriptor, ns=(like.st_atime_ns, like.st_mtime_ns))
        os.rename(partial, name, src_dir_fd=directory, dst_dir_fd=directory)
    # Interrupts as well: the file would stay until the next call.
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial, dir_fd=directory)
        raise
    # Before the other file is removed: after a power cut one of the two names has to be there.
    _sync_directory(directory)


def _remove_partial(directory: int) -> None:
    """Remove what killed calls wrote aside; the directory is locked, so no other call is at work."""
    for name in os.listdir(directory):
        if name.startswith(".") and name.endswith(_PARTIAL) and ".jsonl." in name:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=directory)


def _status(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _sync_directory(directory: int) -> None:
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP):  # network file systems
            raise

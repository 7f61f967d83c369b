"""Detects growth, replacement and damage of a run's journal files.

A file in use is preallocated and memory-mapped, so neither its size nor its modification time shows that it grew; the
byte after the last position read does. Whether the content read before is still in place is decided by the file's
identity and, if that changed, by a checksum of the bytes before the last position.
"""

import contextlib
import functools
import itertools
import os
import stat
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from hookline._record.reader import Cursor, read_lines
from hookline._record.seekable import SUFFIX
from hookline._record.segment import JournalFile, end_of_data, journal_files, open_journal

_CHUNK_BYTES = 1 << 20
# The last line or its end: with its number, time and checksum it does not occur in another file.
_CHECKSUM_BYTES = 256
_MAX_GAPS = 10
_LINE_BYTES = 128 << 10


class Stamp(msgspec.Struct, array_like=True, frozen=True):
    """A file's identity, size and modification time."""

    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path | str) -> "Stamp | None":
        """The stamp of a path; None if it is not a regular file.

        The size of a compressed journal is that of its content.
        """
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return cls._of_compressed(Path(path)) if str(path).endswith(".jsonl") else None
        except OSError:
            return None
        return cls(found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None

    @classmethod
    def _of_compressed(cls, path: Path) -> "Stamp | None":
        try:
            found = path.with_name(f"{path.name}{SUFFIX}").stat(follow_symlinks=False)
            times = found.st_mtime_ns, found.st_ctime_ns
            size = _content_size(path, (found.st_dev, found.st_ino, found.st_size, *times))
            return cls(found.st_ino, size, found.st_mtime_ns)
        except OSError:
            return None


@functools.lru_cache(maxsize=100_000)
def _content_size(path: Path, _: tuple[int, ...]) -> int:
    """The size of a compressed file's content, read once per state of the file: each listing asks for it."""
    with open_journal(path, follow_links=False) as file:
        return file.size


_SETTLED_NS = 1_000_000_000
"""A directory that changed more recently may change again without a new time: clocks of file systems are coarse."""


def directory_stamp(directory: Path | str) -> tuple[int, int] | None:
    """Identifies the set of files in a directory; None if that may still change without a new modification time."""
    try:
        found = os.lstat(directory)
    except OSError:
        return None
    is_settled = time.time_ns() - found.st_mtime_ns > _SETTLED_NS
    return (found.st_ino, found.st_mtime_ns) if is_settled else None


class FileState(msgspec.Struct, array_like=True):
    """A journal file as it was read: the position, and a checksum of the bytes before it.

    Attributes:
        hole: The offset of the first zeros with data after them; -1 if there are none, None if not yet checked.
    """

    stamp: Stamp
    offset: int
    checksum: int
    hole: int | None = None


def regular_journal_files(directory: Path) -> list[JournalFile]:
    """The journal files of a run; links are skipped."""
    return [] if directory.is_symlink() else journal_files(directory, follow_links=False)


def file_states(files: Iterable[JournalFile], cursor: Cursor, before: dict[str, FileState]) -> dict[str, FileState]:
    """The states of files read up to a cursor; unchanged ones keep their earlier state."""
    states: dict[str, FileState] = {}
    for file in files:
        stamp = Stamp.of(file.path)
        if stamp is None:
            continue
        offset = cursor.offset(file)
        # The cursor is in a later file of this writer, so this one is complete.
        end = stamp.size if offset is None else offset
        old = before.get(file.path.name)
        # The checksum costs opening the file, so it is computed only if something changed.
        if old is None or old.stamp != stamp or old.offset != end:
            old = FileState(stamp, end, _checksum(file.path, end))
        states[file.path.name] = old
    return states


def find_holes(files: Iterable[JournalFile], states: dict[str, FileState]) -> bool:
    """Search the files of an ended run for holes, once per file; returns whether any file was searched."""
    has_searched = False
    for file in files:
        known = states.get(file.path.name)
        if known is not None and known.hole is None:
            known.hole = _find_hole(file.path)
            has_searched = True
    return has_searched


def is_unchanged(files: Iterable[JournalFile], before: dict[str, FileState]) -> bool:
    """Whether everything read before is still there with the same content."""
    paths = {file.path.name: file.path for file in files}
    for name, old in before.items():
        stamp = Stamp.of(paths[name]) if name in paths else None
        if stamp is None or stamp.size < old.offset:
            return False
        has_hole = old.hole not in (None, -1)  # it may have been filled since
        # A segment in use may get another time at any moment, so a changed stamp alone means nothing.
        if stamp != old.stamp:
            if has_hole or _checksum(paths[name], old.offset) != old.checksum:
                return False
            # Not compared again until the next change: in a compressed file that takes decompressing a frame.
            old.stamp = stamp
    return True


def grown_files(files: Iterable[JournalFile], before: dict[str, FileState]) -> list[JournalFile]:
    """The files with data after the last position read."""
    return [file for file in files if _has_grown(file.path, before.get(file.path.name))]


def _has_grown(path: Path, old: FileState | None) -> bool:
    offset = 0 if old is None else old.offset
    # One byte decides for most files: lines contain no zeros, and unwritten space is zero.
    found = byte_at(path, offset)
    if found != b"\0":
        return bool(found)
    with contextlib.suppress(OSError):
        return next(read_lines(path, offset), None) is not None  # lines after a hole
    return False


def describe_damage(files: list[JournalFile], states: dict[str, FileState]) -> list[str]:
    """Return what is missing from the files of an ended run, as sentences."""
    problems = list(_missing_files(files))
    for file in files:
        path, known = file.path, states.get(file.path.name)
        if known and known.hole not in (None, -1) and Stamp.of(path) == known.stamp:
            problems.append(f"{path.name} has a hole at byte {known.hole:,}: zeros in place of lines")
        elif (end := _cut_off_at(path)) is not None:
            problems.append(f"{path.name} is cut off in the middle of a line, at byte {end:,}")
    return problems


def _cut_off_at(path: Path) -> int | None:
    """Where a file ends with part of a line; None if it does not."""
    if path.exists():
        end = _end_of_lines(path)
        return end if byte_at(path, end) not in (b"", b"\0") else None
    # Each listing asks this about every file of every ended run, and a frame has to be decompressed to answer.
    return _compressed_cut_off_at(path, Stamp.of(path))


@functools.lru_cache(maxsize=10_000)
def _compressed_cut_off_at(path: Path, _: Stamp | None) -> int | None:
    end = _end_of_lines(path)
    return end if byte_at(path, end) not in (b"", b"\0") else None


def _missing_files(files: list[JournalFile]) -> Iterator[str]:
    """Name missing files; each writer numbers its files from zero. However many they are, the list stays short."""
    numbers: dict[str, set[int]] = {}
    for file in files:
        numbers.setdefault(file.writer, set()).add(file.number)
    gaps = [
        (writer, before + 1, number - 1)
        for writer, present in numbers.items()
        for before, number in itertools.pairwise([-1, *sorted(present)])
        if number - before > 1
    ]
    for writer, first, last in gaps[:_MAX_GAPS]:
        if first == last:
            yield f"{writer}-{first:06d}.jsonl is missing"
        else:
            yield f"{writer}-{first:06d}.jsonl to {last:06d}.jsonl are missing: {last - first + 1:,} files"
    more = sum(last - first + 1 for _, first, last in gaps[_MAX_GAPS:])
    if more:
        yield f"and {more:,} more of the files are missing"


def _checksum(path: Path, end: int) -> int:
    start = max(0, end - _CHECKSUM_BYTES)
    return zlib.crc32(_read(path, start, end - start))


def byte_at(path: Path, offset: int) -> bytes:
    """One byte of a file; empty past its end."""
    return _read(path, offset, 1)


def _read(path: Path, offset: int, count: int) -> bytes:
    try:
        # It may have been replaced by a link since it was listed.
        with open_journal(path, follow_links=False) as file:
            return file.pread(count, offset)
    except OSError:
        return b""


def _find_hole(path: Path) -> int:
    # Reads the whole file, which is why it is done once, for ended runs only.
    if trailing_data(path, 0) != "hole":
        return -1
    offset = 0
    with contextlib.suppress(OSError), open_journal(path, follow_links=False) as file:
        while (chunk := file.pread(_CHUNK_BYTES, offset)) and b"\0" not in chunk:
            offset += len(chunk)
        return offset + chunk.index(b"\0") if chunk else -1
    return -1


def trailing_data(path: Path, end: int) -> Literal["", "torn", "hole"]:
    """Classify the data after a file's last line: only zeros, part of a line, or lines after zeros.

    A line that a killed process was copying may contain zeros, because memory is not copied front to back.
    """
    is_torn = has_zeros = False
    with contextlib.suppress(OSError), open_journal(path, follow_links=False) as file:
        if file.is_compressed and end == 0:  # it has no zeros, and is not searched for any
            return ""
        while chunk := file.pread(_CHUNK_BYTES, end):
            end += len(chunk)
            piece, zero, rest = (b"", b"", chunk) if has_zeros else chunk.partition(b"\0")
            is_torn, has_zeros = is_torn or bool(piece), has_zeros or bool(zero)
            if has_zeros and b"\n" in rest:
                return "hole"
            is_torn = is_torn or bool(rest.strip(b"\0"))
    return "torn" if is_torn else ""


def _end_of_lines(path: Path) -> int:
    """The offset after the last whole line."""
    end = written_end(path)
    start = max(0, end - _LINE_BYTES)
    newline = _read(path, start, end - start).rfind(b"\n")
    return start + newline + 1 if newline >= 0 else start


def written_end(path: Path) -> int:
    """The offset after the written data; a segment in use is followed by zeros."""
    try:
        with open_journal(path, follow_links=False) as file:
            size = file.size
            has_zeros = not file.is_compressed and size > 0 and file.pread(1, size - 1) == b"\0"
            return end_of_data(file, 0, size) if has_zeros else size
    except OSError:  # not a regular file
        return 0

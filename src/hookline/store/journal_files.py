"""Detects growth, replacement and damage of a run's journal files.

A file in use is preallocated and memory-mapped, so neither its size nor its modification time shows that it grew; the
byte behind the last position read does. Whether the content read before is still in place is decided by the file's
identity and, if that changed, by a checksum of the bytes before the last position.
"""

import contextlib
import itertools
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from hookline._record.reader import Cursor, read_lines
from hookline._record.segment import JournalFile, end_of_data, journal_files

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
    def of(cls, path: Path) -> "Stamp | None":
        """The stamp of a path; None if there is no file."""
        try:
            found = path.stat(follow_symlinks=False)
        except OSError:
            return None
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


class FileState(msgspec.Struct, array_like=True):
    """A journal file as it was read: the position, and a checksum of the bytes before it.

    Attributes:
        hole: The offset of the first zeros with data behind them; -1 if there are none, None if not yet checked.
    """

    stamp: Stamp
    offset: int
    checksum: int
    hole: int | None = None


def regular_journal_files(directory: Path) -> list[JournalFile]:
    """The journal files of a run; links are skipped, wherever they lead."""
    return [] if directory.is_symlink() else [file for file in journal_files(directory) if not file.path.is_symlink()]


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
        if stamp != old.stamp and (has_hole or _checksum(paths[name], old.offset) != old.checksum):
            return False
    return True


def grown_files(files: Iterable[JournalFile], before: dict[str, FileState]) -> list[JournalFile]:
    """The files with data behind the last position read."""
    return [file for file in files if _has_grown(file.path, before.get(file.path.name))]


def _has_grown(path: Path, old: FileState | None) -> bool:
    offset = 0 if old is None else old.offset
    # One byte decides for most files: lines contain no zeros, and what is not written yet is zero.
    found = byte_at(path, offset)
    if found != b"\0":
        return bool(found)
    with contextlib.suppress(OSError):
        return next(read_lines(path, offset), None) is not None  # lines behind a hole
    return False


def describe_damage(files: list[JournalFile], states: dict[str, FileState]) -> list[str]:
    """What is missing from the files of an ended run, as sentences."""
    problems = list(_missing_files(files))
    for file in files:
        path, known = file.path, states.get(file.path.name)
        if known and known.hole not in (None, -1) and Stamp.of(path) == known.stamp:
            problems.append(f"{path.name} has a hole at byte {known.hole:,}: zeros in place of lines")
        elif byte_at(path, end := _end_of_lines(path)) not in (b"", b"\0"):
            problems.append(f"{path.name} is cut off in the middle of a line, at byte {end:,}")
    return problems


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
    """One byte of a file; empty behind its end."""
    return _read(path, offset, 1)


def _read(path: Path, offset: int, count: int) -> bytes:
    try:
        # It may have been replaced by a link since it was listed.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, count, offset)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _find_hole(path: Path) -> int:
    # Reads the whole file, which is why it is done once, for ended runs only.
    if trailing_data(path, 0) != "hole":
        return -1
    offset = 0
    with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
        while (chunk := file.read(_CHUNK_BYTES)) and b"\0" not in chunk:
            offset += len(chunk)
        return offset + chunk.index(b"\0")
    return -1


def trailing_data(path: Path, end: int) -> Literal["", "torn", "hole"]:
    """Classify the data behind a file's last line: only zeros, part of a line, or lines behind zeros.

    A line that a killed process was copying may contain zeros, because memory is not copied front to back.
    """
    is_torn = has_zeros = False
    with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
        file.seek(end)
        while chunk := file.read(_CHUNK_BYTES):
            piece, zero, rest = (b"", b"", chunk) if has_zeros else chunk.partition(b"\0")
            is_torn, has_zeros = is_torn or bool(piece), has_zeros or bool(zero)
            if has_zeros and b"\n" in rest:
                return "hole"
            is_torn = is_torn or bool(rest.strip(b"\0"))
    return "torn" if is_torn else ""


def _end_of_lines(path: Path) -> int:
    """The offset behind the last whole line."""
    end = written_end(path)
    start = max(0, end - _LINE_BYTES)
    newline = _read(path, start, end - start).rfind(b"\n")
    return start + newline + 1 if newline >= 0 else start


def written_end(path: Path) -> int:
    """The offset behind the written data; a segment in use is followed by zeros."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return 0
    try:
        size = os.fstat(descriptor).st_size
        has_zeros = size > 0 and os.pread(descriptor, 1, size - 1) == b"\0"
        return end_of_data(descriptor, 0, size) if has_zeros else size
    except OSError:  # not a regular file
        return 0
    finally:
        os.close(descriptor)

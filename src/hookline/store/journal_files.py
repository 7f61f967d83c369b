"""What the index remembers of a run's journal files, and what became of them since.

The size of a file says nothing about one that is being written: it is set aside in full and mapped, and pages that are
written do not show in its time either. So the byte behind what was read is looked at. Whether what was read is still
what lies there is told by the file's identity and, where that changed, by the bytes before the place that was reached.
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

_CHUNK = 1 << 20
_MARK_BYTES = 256
_MOST_GAPS = 10
_LINE_BYTES = 128 << 10


class Stamp(msgspec.Struct, array_like=True, frozen=True):
    """What tells a file from another one, or from itself before somebody wrote to it."""

    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> "Stamp | None":
        """The file's; None where there is none."""
        try:
            found = path.stat(follow_symlinks=False)
        except OSError:
            return None
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


class Seen(msgspec.Struct, array_like=True):
    """A journal file as it was read: up to where, and a checksum of the bytes before that place.

    Attributes:
        hole: Where the first zeros begin that have something else behind them; -1 where there are none, None where
            nobody has looked.
    """

    stamp: Stamp
    offset: int
    checksum: int
    hole: int | None = None


def own_files(directory: Path) -> list[JournalFile]:
    """The journal files of a run; links are none, wherever they lead."""
    return [] if directory.is_symlink() else [file for file in journal_files(directory) if not file.path.is_symlink()]


def seen(found: Iterable[JournalFile], cursor: Cursor, before: dict[str, Seen]) -> dict[str, Seen]:
    """The files as they have been read up to a cursor; those that were and did not change as they were."""
    now: dict[str, Seen] = {}
    for file in found:
        stamp = Stamp.of(file.path)
        if stamp is None:
            continue
        offset = cursor.offset(file)
        end = stamp.size if offset is None else offset
        old = before.get(file.path.name)
        same = old is not None and old.stamp == stamp and old.offset == end
        now[file.path.name] = old if same and old else Seen(stamp, end, _checksum(file.path, end))
    return now


def look_for_holes(found: Iterable[JournalFile], read: dict[str, Seen]) -> bool:
    """Look for holes in the files of a run that has ended, once in each; whether there was one to be looked at."""
    has_looked = False
    for file in found:
        known = read.get(file.path.name)
        if known is not None and known.hole is None:
            known.hole = _hole_in(file.path)
            has_looked = True
    return has_looked


def is_same(found: Iterable[JournalFile], before: dict[str, Seen]) -> bool:
    """Whether everything that was read is still there, and the same."""
    there = {file.path.name: file.path for file in found}
    return all(name in there and _is_same(there[name], old) for name, old in before.items())


def grown(found: Iterable[JournalFile], before: dict[str, Seen]) -> list[JournalFile]:
    """The files with bytes behind what was read."""
    return [file for file in found if _has_grown(file.path, before.get(file.path.name))]


def damage(found: list[JournalFile], read: dict[str, Seen]) -> list[str]:
    """What is missing from the files of a run that has ended, in words."""
    said = list(_missing(found))
    for file in found:
        known = read.get(file.path.name)
        wrong = (_hole(file.path, known) if known else "") or _cut(file.path)
        if wrong:
            said.append(f"{file.path.name} {wrong}")
    return said


def _is_same(path: Path, old: Seen) -> bool:
    stamp = Stamp.of(path)
    if stamp is None or stamp.size < old.offset:
        return False
    if stamp == old.stamp:
        return True
    has_hole = old.hole not in (None, -1)  # which may have been mended
    return not has_hole and _checksum(path, old.offset) == old.checksum


def _has_grown(path: Path, old: Seen | None) -> bool:
    offset = 0 if old is None else old.offset
    found = byte_at(path, offset)
    if found != b"\0":
        return bool(found)
    with contextlib.suppress(OSError):
        return next(read_lines(path, offset), None) is not None  # behind a hole
    return False


def _checksum(path: Path, end: int) -> int:
    begin = max(0, end - _MARK_BYTES)
    return zlib.crc32(_bytes(path, begin, end - begin))


def _bytes(path: Path, offset: int, count: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, count, offset)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _missing(found: list[JournalFile]) -> Iterator[str]:
    """What to say about files that must have been there, in few words however many they are."""
    gaps = list(_gaps(found))
    for writer, first, last in gaps[:_MOST_GAPS]:
        if first == last:
            yield f"{writer}-{first:06d}.jsonl is missing"
        else:
            yield f"{writer}-{first:06d}.jsonl to {last:06d}.jsonl are missing: {last - first + 1:,} files"
    more = sum(last - first + 1 for _, first, last in gaps[_MOST_GAPS:])
    if more:
        yield f"and {more:,} more of the files are missing"


def _gaps(found: list[JournalFile]) -> Iterator[tuple[str, int, int]]:
    """The first and the last of the files that must have been there: each writer counts its files from zero."""
    numbers: dict[str, set[int]] = {}
    for file in found:
        numbers.setdefault(file.writer, set()).add(file.number)
    for writer, there in numbers.items():
        for before, number in itertools.pairwise([-1, *sorted(there)]):
            if number - before > 1:
                yield writer, before + 1, number - 1


def _cut(path: Path) -> str:
    """What to say about a file that ends in the middle of a line."""
    end = _end_of_lines(path)
    is_cut = _bytes(path, end, 1) not in (b"", b"\0")
    return f"is cut off in the middle of a line, at byte {end:,}" if is_cut else ""


def _hole(path: Path, known: Seen) -> str:
    """What to say about a file with zeros where lines were."""
    if known.hole in (None, -1) or Stamp.of(path) != known.stamp:
        return ""
    return f"has a hole at byte {known.hole:,}: zeros are where lines were"


def _hole_in(path: Path) -> int:
    """Where the first zeros of a file begin that have something else behind them; -1 where there are none."""
    if behind(path, 0) != "hole":
        return -1
    offset = 0
    with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
        while (chunk := file.read(_CHUNK)) and b"\0" not in chunk:
            offset += len(chunk)
        return offset + chunk.index(b"\0")
    return -1


def byte_at(path: Path, offset: int) -> bytes:
    """One byte of a file; nothing where it has none there."""
    return _bytes(path, offset, 1)


def behind(path: Path, end: int) -> Literal["", "torn", "hole"]:
    """What lies behind the last line of a file: nothing but zeros, a piece of a line, or lines behind zeros.

    A line that a killed process was copying may have zeros in it, because a copy is not made from front to back.
    """
    is_torn = has_zeros = False
    with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
        file.seek(end)
        while chunk := file.read(_CHUNK):
            piece, zero, rest = (b"", b"", chunk) if has_zeros else chunk.partition(b"\0")
            is_torn, has_zeros = is_torn or bool(piece), has_zeros or bool(zero)
            if has_zeros and b"\n" in rest:
                return "hole"
            is_torn = is_torn or bool(rest.strip(b"\0"))
    return "torn" if is_torn else ""


def _end_of_lines(path: Path) -> int:
    """Where the last line of a file ends."""
    end = written_end(path)
    begin = max(0, end - _LINE_BYTES)
    newline = _bytes(path, begin, end - begin).rfind(b"\n")
    return begin + newline + 1 if newline >= 0 else begin


def written_end(path: Path) -> int:
    """Where what was written to a file ends; a segment in use has zeros behind that."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return 0
    try:
        size = os.fstat(descriptor).st_size
        has_zeros = size > 0 and os.pread(descriptor, 1, size - 1) == b"\0"
        return end_of_data(descriptor, 0, size) if has_zeros else size
    except OSError:  # something else than a file is in its place
        return 0
    finally:
        os.close(descriptor)

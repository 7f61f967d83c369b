"""A file that only grows, and can be cut back to where it was: what sinks that write files share.

The sink's state holds the size behind what was delivered. Opening cuts off what lies behind it: a
batch that a crash or a full disk left in part. So every record is in the file once. A file that is open
here is locked: two that write to one would cut off each other's records.

A power cut may leave zeros where bytes were not written back yet: `has_zeros` finds them. Somebody may delete, cut or
replace a file, also while it is open: `loss_of` tells, by its size, its inode and, where that is another one, its
checksum: a copy of a run has all of its files.

How far a destination that cannot be cut back has been served: a terminal, a function.

A record as one flat row of named values, for tables.

The kinds of records by name, for sinks that take only some of them.

Distributions of numbers, for destinations that show them.
"""

import contextlib
import fcntl
import json
import math
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from hookline._engine.errors import OptionError, RefusedError, closest
from hookline._record.delivery import SINKS_FOLDER
from hookline._record.reader import MAIN, Cursor, JournalEntry
from hookline._record.records import AnyRecord

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


_TOKEN = re.compile(r"[0-9a-f]{1,64}")
PASSED_BYTES = 1 << 20
"""How large a file of places gets before it is written anew."""


class Passed:
    """The places up to which parcels were served, written down after each.

    A line is appended for each place, and the file is written anew now and then. Where it cannot be
    written, what was served is known to this process only, until `settle` was possible: something may
    be served again after a crash.

    Args:
        run_dir: The run's directory.
        token: Part of the file's name, which the sink keeps in its state.
        before: What the same sink had before it was opened again: it may know more than the file.
    """

    def __init__(self, run_dir: Path, token: str, before: "Passed | None" = None) -> None:
        if not _TOKEN.fullmatch(token):  # a state from elsewhere must not choose which file is written
            raise RefusedError(f"token={token!r} in the sink's state names no file: it is made of hexadecimal digits.")
        self.token = token
        self._path = run_dir / SINKS_FOLDER / f"{token}.passed"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._cursor = Cursor(dict(self._lines()))
        if before is not None and before._path == self._path:
            self._add(before._cursor.places)
        self._file: AppendedFile | None = None
        self._begin()

    def has(self, parcel: JournalEntry) -> bool:
        """Whether a parcel was served."""
        offset = self._cursor.offset(parcel.file)
        return offset is None or parcel.end <= offset

    def note(self, *parcels: JournalEntry) -> None:
        """Write down that parcels were served."""
        for parcel in parcels:
            self._cursor.pass_by(parcel.file, parcel.end)
        last = {parcel.file.writer: self._cursor.places[parcel.file.writer] for parcel in parcels}
        try:
            if self._file is None or self._file.size > PASSED_BYTES:
                self._write_anew()
            else:
                self._file.append(_encoded(last))
        except OSError:
            self.close()  # so that all of it is written anew when that is possible

    def settle(self) -> None:
        """Have everything that was served written down.

        Raises:
            OSError: It cannot be, for now.
        """
        if self._file is None:
            self._write_anew()

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> None:
        with contextlib.suppress(OSError):
            self._write_anew()

    def _write_anew(self) -> None:
        self.close()
        aside = self._path.with_suffix(".partial")
        aside.unlink(missing_ok=True)
        with aside.open("xb") as file:  # never through a link that somebody put there
            file.write(_encoded(self._cursor.places))
        aside.replace(self._path)
        self._file = AppendedFile(self._path)

    def _add(self, places: Mapping[str, tuple[int, int]]) -> None:
        for writer, place in places.items():
            self._cursor.places[writer] = max(place, self._cursor.places.get(writer, place))

    def _lines(self) -> Iterator[tuple[str, tuple[int, int]]]:
        with contextlib.suppress(OSError):
            for line in self._path.read_bytes().splitlines():
                with contextlib.suppress(ValueError):  # a line that a full disk cut off
                    writer, number, end = json.loads(line)
                    yield writer, (number, end)


def _encoded(places: Mapping[str, tuple[int, int]]) -> bytes:
    return "".join(f"{json.dumps([writer, *place])}\n" for writer, place in places.items()).encode()


_FIRST = ("step", "axis", "time")
_OURS = (*_FIRST, "writer")


def row(parcel: JournalEntry) -> dict[str, Any]:
    """The fields of a record, with what is nested in them joined by ``/``; metrics go by their own names.

    The writer stands in it where it is not the run's main one. A metric called like one of our own
    columns is ``values/step``.
    """
    record = parcel.record
    flat = {name: getattr(record, name) for name in _FIRST if hasattr(record, name)}
    if parcel.file.name != MAIN:
        flat["writer"] = parcel.file.name
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name in ("values", "extra") and isinstance(value, Mapping):
            _join(flat, "", {f"{name}/{key}" if key in _OURS else key: item for key, item in value.items()})
        elif isinstance(value, Mapping):
            _join(flat, f"{name}/", value)
        elif name not in _FIRST:
            flat[name] = value
    return flat


def _join(flat: dict[str, Any], prefix: str, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            _join(flat, f"{prefix}{key}/", value)
        else:
            flat.setdefault(prefix + key, value)


KINDS = tuple(str(kind.__struct_config__.tag) for kind in get_args(AnyRecord))


def require_kinds(given: Iterable[str] | str) -> tuple[str, ...]:
    """The kinds that were given, each of which must be one."""
    kinds = (given,) if isinstance(given, str) else tuple(given)
    for kind in kinds:
        if kind not in KINDS:
            raise OptionError(f"{kind!r} is not a kind of record. {closest(kind, KINDS)}")
    return kinds


BUCKETS = 30
LARGEST = 1e150
"""Values beyond are left out: their squares are no numbers."""


def finite(values: Iterable[Any]) -> list[float]:
    """The values that a histogram can hold."""
    return [float(value) for value in values if isinstance(value, int | float) and abs(value) <= LARGEST]


def mean(values: Sequence[float]) -> float:
    """The mean of values, of which there is at least one."""
    return math.fsum(values) / len(values)


def histogram(values: Sequence[float]) -> tuple[list[int], list[float]]:
    """How many values are in each bucket, and the edges of the buckets, one more than there are buckets."""
    low, high = min(values), max(values)
    width = (high - low) / BUCKETS or 1.0
    counts = [0] * BUCKETS
    for value in values:
        counts[min(int((value - low) / width), BUCKETS - 1)] += 1
    return counts, [low + width * place for place in range(BUCKETS)] + [max(high, low + width)]

"""Files that sinks append to, flat rows for them, and a record of deliveries to destinations that cannot be rewound.

A sink's state holds the size of its file after the last delivered batch. Opening an `AppendedFile` truncates it to that
size and so removes a batch that a crash or a full disk left half-written: each record is in the file once. An open file
is locked, because two sinks that write to one file would truncate each other's records.

A power cut may leave zeros where bytes were not written back: `has_zeros` finds them. A file may be deleted, truncated
or replaced, even while it is open: `file_loss` detects it by size, inode and, for another inode, checksum (a copied run
is intact).

Output to a terminal or a function cannot be truncated. For those, `DeliveredPositions` notes each delivered record.
"""

import contextlib
import fcntl
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from hookline._engine.errors import OptionError, RefusedError, closest
from hookline._record.delivery import SINKS_FOLDER
from hookline._record.files import write_atomically
from hookline._record.reader import MAIN, Cursor, JournalEntry
from hookline._record.records import AnyRecord

KINDS = tuple(str(kind.__struct_config__.tag) for kind in get_args(AnyRecord))
MOST_POSITION_BYTES = 1 << 20
"""The size at which a file of positions is rewritten."""
_CHUNK = 1 << 20
_BLOCK = bytes(64)
"""Fewer zeros than a disk block has, and more than a logged text has in a row."""
_TOKEN = re.compile(r"[0-9a-f]{1,64}")
_FIRST = ("step", "axis", "time")
_RESERVED = (*_FIRST, "writer")


def require_kinds(given: Iterable[str] | str) -> tuple[str, ...]:
    """Check the names of kinds of records."""
    kinds = (given,) if isinstance(given, str) else tuple(given)
    for kind in kinds:
        if kind not in KINDS:
            raise OptionError(f"{kind!r} is not a kind of record. {closest(kind, KINDS)}")
    return kinds


def flat_row(entry: JournalEntry) -> dict[str, Any]:
    """The fields of a record in one dict, with nested names joined by ``/``; metrics keep their own names.

    ``writer`` is included unless it is the run's main one. A metric named like one of these columns becomes
    ``values/<name>``.
    """
    record = entry.record
    flat = {name: getattr(record, name) for name in _FIRST if hasattr(record, name)}
    if entry.file.name != MAIN:
        flat["writer"] = entry.file.name
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name in ("values", "extra") and isinstance(value, Mapping):
            _flatten(flat, "", {f"{name}/{key}" if key in _RESERVED else key: item for key, item in value.items()})
        elif isinstance(value, Mapping):
            _flatten(flat, f"{name}/", value)
        elif name not in _FIRST:
            flat[name] = value
    return flat


def _flatten(flat: dict[str, Any], prefix: str, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            _flatten(flat, f"{prefix}{key}/", value)
        else:
            flat.setdefault(prefix + key, value)


def has_zeros(path: Path, size: int) -> bool:
    """Whether the first bytes of a text file contain a block of zeros, or end with a zero."""
    with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
        left = size
        while left > 0 and (chunk := file.read(min(_CHUNK, left))):
            left -= len(chunk)
            if _BLOCK in chunk or (not left and chunk.endswith(b"\0")):
                return True
    return False


def file_loss(path: Path, size: int, mark: Mapping[str, Any]) -> str:
    """Why a file has lost bytes that were written to it; empty if it seems to have them.

    Args:
        path: The file.
        size: How many bytes were written to it.
        mark: The result of `AppendedFile.mark`; empty if it is not known.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} is gone" if size else ""
    except OSError:  # opening the file will report it
        return ""
    if found.st_size < size:
        return f"{path} was truncated: {found.st_size:,} of {size:,} bytes are left"
    if not size or mark.get("inode") in (None, found.st_ino) or checksum(path, size) == mark.get("crc"):
        return ""
    return f"{path} was replaced by another file"


def checksum(path: Path, size: int) -> int | None:
    """The CRC-32 of the first bytes of a file; None if it cannot be read."""
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
    """Make room for a file that is written again, without losing content that the sink did not write.

    The sink's own file is truncated to its size before the sink. Any other file, or a damaged one, is renamed.

    Args:
        path: The file.
        begin: Its size before the sink wrote to it.
        inode: The inode of the sink's own file; None renames the file in any case.
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
    """Appends bytes to a file, all or nothing.

    Args:
        path: The file; directories are created.
        size: The size to truncate it to; None keeps all of it.
        mark: The result of `mark` at that size, which saves reading the file for its checksum.
    """

    def __init__(self, path: Path, size: int | None = None, mark: Mapping[str, Any] | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.crc = 0
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
            self.inode = os.fstat(self._descriptor).st_ino
            found = os.fstat(self._descriptor).st_size
            self.size = found if size is None else min(size, found)
            known = (mark or {}).get("crc") if self.size == size else None
            self.crc = int(known) if known is not None else checksum(self.path, self.size) or 0
            if self.size < found:
                os.ftruncate(self._descriptor, self.size)
            if size is None and found and os.pread(self._descriptor, 1, found - 1) != b"\n":
                self.append(b"\n")
        except BaseException:  # releases the lock: otherwise a full disk would lock the file for good
            self.close()
            raise

    def append(self, data: bytes) -> int:
        """Write at the end and return the new size; on a full disk, nothing is written."""
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
        """What distinguishes this file, at its size, from any other."""
        return {"inode": self.inode, "crc": self.crc}

    def is_intact(self) -> bool:
        """Whether the path still leads to this file, with all bytes; takes one system call."""
        try:
            found = self.path.stat()
        except OSError:
            return False
        return found.st_ino == self.inode and found.st_size >= self.size

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._descriptor >= 0:
            # A forked child may have the file open too, so closing it here would not release the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RefusedError(f"{self.path} is being written to by another sink or run: give another path.") from error
        except OSError:  # the file system does not support locks
            return


class DeliveredPositions:
    """The positions up to which journal entries were delivered, written to a file after each delivery.

    Each position is appended as a line; the file is rewritten when it gets large. If it cannot be written, only this
    process knows the position until `settle` succeeds, and an entry may be delivered twice after a crash.

    Args:
        run_dir: The run's directory.
        token: Part of the file's name, which the sink keeps in its state.
        previous: The positions of the same sink before it was reopened, which may be ahead of the file.
    """

    def __init__(self, run_dir: Path, token: str, previous: "DeliveredPositions | None" = None) -> None:
        if not _TOKEN.fullmatch(token):  # a state from elsewhere must not choose which file is written
            raise RefusedError(f"token={token!r} in the sink's state is not valid: it must be hexadecimal digits.")
        self.token = token
        self._path = run_dir / SINKS_FOLDER / f"{token}.passed"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        places: dict[str, tuple[int, int]] = {}
        with contextlib.suppress(OSError):
            for line in self._path.read_bytes().splitlines():
                with contextlib.suppress(ValueError):  # a line that a full disk cut short
                    writer, number, end = json.loads(line)
                    places[writer] = (number, end)
        if previous is not None and previous._path == self._path:
            for writer, place in previous._cursor.places.items():
                places[writer] = max(place, places.get(writer, place))
        self._cursor: Cursor = Cursor(places)
        self._file: AppendedFile | None = None
        with contextlib.suppress(OSError):
            self._rewrite()

    def has(self, entry: JournalEntry) -> bool:
        """Whether an entry was delivered."""
        offset = self._cursor.offset(entry.file)
        return offset is None or entry.end <= offset

    def add(self, *entries: JournalEntry) -> None:
        """Note that entries were delivered."""
        for entry in entries:
            self._cursor.pass_by(entry.file, entry.end)
        try:
            if self._file is None or self._file.size > MOST_POSITION_BYTES:
                self._rewrite()
            else:
                self._file.append(_encoded({e.file.writer: self._cursor.places[e.file.writer] for e in entries}))
        except OSError:
            self.close()  # so that all of it is rewritten as soon as possible

    def settle(self) -> None:
        """Write the positions if that failed before.

        Raises:
            OSError: It is still not possible.
        """
        if self._file is None:
            self._rewrite()

    def close(self) -> None:
        """Close the file. May be called again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rewrite(self) -> None:
        self.close()
        write_atomically(self._path, _encoded(self._cursor.places), sync=False)
        self._file = AppendedFile(self._path)


def _encoded(places: Mapping[str, tuple[int, int]]) -> bytes:
    return "".join(f"{json.dumps([writer, *place])}\n" for writer, place in places.items()).encode()

"""`ReceivedRuns`: stores runs from other machines below the root, as if they had been recorded there.

- Every name is checked, and every path component is opened relative to its parent without following links. Nothing
  outside the root is read or written.
- A run belongs to the origin that claimed it first. Local runs, and those of other origins, are never changed.
- A journal file only grows, by whole lines, at its end. Data that is sent again is compared with the stored data, not
  written again. Writers lock the file, also against other servers on the same root.
- After a crash during a write a file may end with part of a line. It does not count as stored; the next write removes
  it.
- The number of a run's metric names is limited; they are kept in ``.metric-names.json``.
- How much a run has sent in blobs (see `hookline.server.received_blobs`) is kept in ``.blob-bytes``.
- Which blobs its sender has sent is kept in ``.sent-blobs``, if a token for some projects was used; see `SentBlobs`.
- ``received.json`` holds the origin; its modification time is the last contact: a heartbeat, or any other request.

Every call opens the few files it needs, but for the owner and the metric names of a run whose directory has not changed
since the last call. All methods may be called from any thread.
"""

import codecs
import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hookline._engine.errors import HooklineError, OptionError
from hookline._record import files
from hookline._record.blobs import OWN_BLOBS_ONLY, SENT_BLOBS
from hookline._record.compression import uncompress
from hookline._record.console import is_console_file, middle_files
from hookline._record.reader import CONSOLE, JOURNAL
from hookline._record.run_directory import METADATA, RECEIVED
from hookline._record.seekable import SUFFIX
from hookline._record.segment import OpenJournal, PlainFile, end_of_data, open_journal
from hookline.server.limits import (
    NAMES_FILE,
    RUN_NAMES_BYTES,
    check_depth,
    check_file,
    check_lines_depth,
    check_name,
    merge_names,
    metric_names,
    too_many_names_error,
)
from hookline.store.run_summary import ReceivedInfo

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe that lies in place of a file would wait for its other end.
_FOR_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CHUNK = 128 << 10
_READ_BYTES = 1 << 20
_BLOB_BYTES = ".blob-bytes"
_KNOWN_RUNS, _KNOWN_NAMES_BYTES = 2048, 8 << 10
"""How many runs are known at a time, and the total length of the metric names that are kept of one."""
_TICK_SECONDS = 1.0
"""Two changes of a directory within this time may leave it with the same times."""


class ConflictError(HooklineError, RuntimeError):
    """A request conflicts with the stored data; ``facts`` tells programs how."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts


@dataclass(frozen=True, slots=True)
class SentBlobs:
    """The blobs that a run's sender has sent itself, in ``.sent-blobs``.

    Attributes:
        is_limited: The run was claimed with a token for some projects: it may refer only to these blobs. Otherwise its
            sender could name the digest of a blob of another project, and read it.
    """

    digests: frozenset[str]
    is_limited: bool = False


@dataclass(slots=True)
class _KnownRun:
    """What was read of a run.

    Args:
        stamp: The times of its directory before that. Its files are only replaced by renaming others, which changes
            these times: while they are the same, so is what was read.
        names: Its metric names; None if they were not read yet, or are too many to keep.
    """

    stamp: tuple[int, ...]
    received: ReceivedInfo | None
    names: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class ReceivedRuns:
    """Stores received runs.

    Args:
        root: The directory with the runs.
        clock: Seconds since 1970.
    """

    root: Path
    clock: Callable[[], float] = time.time
    _known: dict[tuple[int, int], _KnownRun] = field(default_factory=dict, repr=False, compare=False)

    def claim(
        self, project: str, run: str, origin: str, facts: bytes, *, own_blobs_only: bool = False
    ) -> dict[str, int]:
        """Claim a run for an origin, write its ``run.json``, and return the stored size of each journal file.

        Args:
            own_blobs_only: A new run may refer only to blobs that its sender has sent; see `SentBlobs`.

        Raises:
            ConflictError: It is a local run, or belongs to another origin.
            OptionError: A name, or the facts, are not accepted.
        """
        check_facts(facts)
        with self._open_run(project, run, create=True) as directory:
            # Locked, because two senders could both find the directory empty and claim it.
            with files.exclusive(directory):
                if own_blobs_only and _read_received(directory) is None:
                    # First: a crash must not leave a claimed run without the mark.
                    self._mark_own_blobs(directory, project, run)
                self._claim(directory, project, run, origin)
                _replace(directory, METADATA, facts)
            self._touch(directory)
            return _stored_sizes(directory)

    def stored_sizes(self, project: str, run: str, *, origin: str) -> dict[str, int]:
        """The stored size of each journal file.

        Raises:
            ConflictError: The run is not claimed, or belongs to another origin.
        """
        with self._open_run(project, run) as directory:
            self._check_owner(directory, project, run, origin)
            return _stored_sizes(directory)

    def append(self, project: str, run: str, file: str, *, origin: str, offset: int | None, lines: bytes) -> int:
        """Append whole lines to a journal file and return its stored size.

        Args:
            offset: Their position in the file; None for its end.

        Raises:
            ConflictError: The run belongs to another origin, the offset lies beyond the end, or other data is stored.
            OptionError: A name is not accepted, or the data is not whole lines.
            NamesError: There are too many metric names.
        """
        check_lines(lines)
        check_file(file)
        names = metric_names(lines)
        with self._open_run(project, run) as directory:
            self._check_owner(directory, project, run, origin)
            if not names.keys() <= self._names_of(directory):
                _add_names(directory, names)
            return self._write_lines(directory, file, offset, lines)

    def write_lines(self, project: str, run: str, file: str, *, origin: str, offset: int | None, lines: bytes) -> int:
        """Append lines that are checked already to a journal file, by default at its end, and return its stored size.

        Raises:
            ConflictError: The run belongs to another origin, the offset lies beyond the end, or other data is stored.
        """
        with self._open_run(project, run) as directory:
            self._check_owner(directory, project, run, origin)
            return self._write_lines(directory, file, offset, lines)

    def _write_lines(self, directory: int, file: str, offset: int | None, lines: bytes) -> int:
        is_console = is_console_file(file)
        if is_console:
            _make_directory(directory, CONSOLE)
        with _open(directory, CONSOLE if is_console else JOURNAL, _DIRECTORY) as journal:
            size = append_lines(journal, file, offset, lines)
            if is_console:
                _remove_middle(journal, file)
        self._touch(directory)
        return size

    def replace(self, project: str, run: str, file: str, *, origin: str, content: bytes) -> int:
        """Replace a file beside the journal and return its size."""
        check_file(file)
        with self._open_run(project, run) as directory:
            self._check_owner(directory, project, run, origin)
            with files.exclusive(directory):
                _replace(directory, file, content)
            self._touch(directory)
        return len(content)

    def describe(self, project: str, run: str, *, origin: str, facts: bytes) -> None:
        """Replace the ``run.json`` of a run.

        Raises:
            ConflictError: The run is not claimed, or belongs to another origin.
            OptionError: The facts are not accepted.
        """
        check_facts(facts)
        with self._open_run(project, run) as directory:
            self._check_owner(directory, project, run, origin)
            with files.exclusive(directory):
                _replace(directory, METADATA, facts)
            self._touch(directory)

    def heartbeat(self, project: str, run: str, *, origin: str, every_seconds: float) -> None:
        """Record that the training process is alive, and its heartbeat interval."""
        self.note_contact(project, run, origin=origin, at=self.clock(), every_seconds=every_seconds)

    def note_contact(self, project: str, run: str, *, origin: str, at: float, every_seconds: float | None) -> None:
        """Set when the sender of a run last contacted a server, as reported by another server.

        Args:
            at: Seconds since 1970.
            every_seconds: The heartbeat interval; None if it is not known.
        """
        with self._open_run(project, run) as directory:
            info = self._check_owner(directory, project, run, origin)
            if every_seconds not in (None, info.every_seconds):
                with files.exclusive(directory):
                    _write_received(directory, ReceivedInfo(origin, info.received, every_seconds))
            self._touch(directory, at)

    @contextlib.contextmanager
    def owned(self, project: str, run: str, *, origin: str) -> Iterator[int]:
        """A descriptor of the directory of a run that belongs to an origin; counts as contact with its sender.

        Raises:
            ConflictError: The run is not claimed, or belongs to another origin.
        """
        with self._open_run(project, run) as directory:
            self._check_owner(directory, project, run, origin)
            yield directory
            self._touch(directory)

    def blob_bytes(self, directory: int) -> int:
        """How many bytes of blobs a run has sent."""
        text = (_content(directory, _BLOB_BYTES, 32) or b"").strip()
        return int(text) if text.isdigit() else 0

    def add_blob_bytes(self, directory: int, count: int) -> None:
        """Add to the number of bytes that a run has sent."""
        if count:
            with files.exclusive(directory):
                _replace(directory, _BLOB_BYTES, b"%d\n" % (self.blob_bytes(directory) + count))

    def sent_blobs(self, directory: int) -> "SentBlobs":
        """The blobs that a run's sender is known to have."""
        if _file_type(directory, SENT_BLOBS) is None:
            return SentBlobs(frozenset())
        with _open(directory, SENT_BLOBS, _FOR_READING) as found, os.fdopen(os.dup(found), "rb") as file:
            lines = file.read().decode("ascii", "replace").split("\n")
        return SentBlobs(frozenset(lines), is_limited=lines[0] == OWN_BLOBS_ONLY)

    def add_sent_blobs(self, directory: int, digests: Collection[str]) -> None:
        """Note blobs that a run's sender has sent."""
        if digests:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            with _open(directory, SENT_BLOBS, flags) as file, files.exclusive(file):
                os.write(file, "".join(f"{digest}\n" for digest in digests).encode())

    def _mark_own_blobs(self, directory: int, project: str, run: str) -> None:
        if any(name[0] != "." for name in os.listdir(directory)):
            raise taken_error(project, run, "a local run")
        _replace(directory, SENT_BLOBS, f"{OWN_BLOBS_ONLY}\n".encode())

    def append_or_create(self, project: str, run: str, *, origin: str, file: str, facts: bytes, lines: bytes) -> int:
        """Append lines to a run that this server writes itself, creating it if necessary; returns the stored size.

        Raises:
            NamesError: There are too many metric names.
        """
        names = metric_names(lines)
        with self._open_run(project, run, create=True) as directory:
            with files.exclusive(directory):
                self._claim(directory, project, run, origin)
                if _file_type(directory, METADATA) is None:
                    _replace(directory, METADATA, facts)
            _add_names(directory, names)
            with _open(directory, JOURNAL, _DIRECTORY) as journal:
                size = append_lines(journal, file, None, lines)
            self._touch(directory)
        return size

    def refresh(self, project: str, run: str) -> None:
        """Bring what is read here of a run up to date, where other servers write elsewhere; here they do not."""

    def stored_size(self, project: str, run: str, *, origin: str, file: str) -> int:
        """The stored size of a journal file.

        Raises:
            ConflictError: The run belongs to another origin, or there is no such file.
        """
        with self._open_file(project, run, origin, file) as found:
            return _stored_size(found)[0]

    def read_hidden(self, project: str, run: str, *, origin: str, name: str) -> bytes:
        """The content of a file that this server keeps beside the journal; empty if there is none.

        Raises:
            ConflictError: The run is not claimed, or belongs to another origin.
        """
        with self._open_run(project, run) as directory:
            self._check_owner(directory, project, run, origin)
            if _file_type(directory, name) is None:
                return b""
            with _open(directory, name, _FOR_READING) as found, os.fdopen(os.dup(found), "rb") as file:
                return file.read()

    def write_hidden(self, project: str, run: str, *, origin: str, name: str, content: bytes) -> None:
        """Replace such a file. It is only in this directory, also where runs are kept in an object store.

        Raises:
            ConflictError: The run is not claimed, or belongs to another origin.
        """
        with self._open_run(project, run) as directory:
            self._check_owner(directory, project, run, origin)
            _replace(directory, name, content)

    def lines_from(
        self, project: str, run: str, *, origin: str, file: str, start: int = 0
    ) -> Generator[tuple[list[bytes], int], None, None]:
        """The lines of a journal file from an offset on, many at a time, each time with the offset after them.

        Raises:
            ConflictError: The run belongs to another origin, or there is no such file.
        """
        with self._open_file(project, run, origin, file) as found:
            end, rest = _stored_size(found)[0], b""
            while start < end:
                data = found.pread(min(_READ_BYTES, end - start), start)
                start += len(data)
                *lines, rest = (rest + data).split(b"\n")
                yield lines, start - len(rest)

    def lines_reversed(self, project: str, run: str, *, origin: str, file: str) -> Generator[bytes, None, None]:
        """The lines of a journal file, the last one first.

        Raises:
            ConflictError: The run belongs to another origin, or there is no such file.
        """
        with self._open_file(project, run, origin, file) as found:
            start, rest = _stored_size(found)[0], b""
            while start:
                start, end = max(0, start - _CHUNK), start
                rest, *lines = (found.pread(end - start, start) + rest).split(b"\n")
                yield from filter(None, reversed(lines))
            if rest:
                yield rest

    @contextlib.contextmanager
    def _open_file(self, project: str, run: str, origin: str, file: str) -> Iterator[OpenJournal]:
        with self._open_run(project, run) as directory:
            self._check_owner(directory, project, run, origin)
            with _open(directory, JOURNAL, _DIRECTORY) as journal, _open_journal(journal, file) as found:
                yield found

    @contextlib.contextmanager
    def _open_run(self, project: str, run: str, *, create: bool = False) -> Iterator[int]:
        """A descriptor of a run's directory."""
        names = check_name("project", project), check_name("run", run)
        with contextlib.ExitStack() as stack:
            # The root itself may be a link: its path comes from the user, everything below it from senders.
            directory = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, directory)
            for name in names:
                if create:
                    _make_directory(directory, name)
                directory = stack.enter_context(_open(directory, name, _DIRECTORY))
            yield directory

    def _claim(self, directory: int, project: str, run: str, origin: str) -> None:
        info = _read_received(directory)
        if info is None:
            if any(name[0] != "." for name in os.listdir(directory)):
                raise taken_error(project, run, "a local run")
            _write_received(directory, ReceivedInfo(origin, self.clock()))
        elif info.origin != origin:
            raise taken_error(project, run, "a run of another sender")
        _make_directory(directory, JOURNAL)

    def _known_run(self, directory: int) -> _KnownRun:
        """What is known of a run: read now, unless nothing in its directory has changed since the last time."""
        found = os.fstat(directory)
        key, stamp = (found.st_dev, found.st_ino), (found.st_mtime_ns, found.st_ctime_ns)
        known = self._known.get(key)
        if known is not None and known.stamp == stamp:
            return known
        known = _KnownRun(stamp, _read_received(directory))
        # Times are coarse: the directory might change again within the same tick.
        if time.time() - found.st_mtime > _TICK_SECONDS:
            if len(self._known) >= _KNOWN_RUNS:
                self._known.clear()
            self._known[key] = known
        return known

    def _names_of(self, directory: int) -> frozenset[str]:
        """The metric names of a run; others may have been added since, but none is ever removed."""
        known = self._known_run(directory)
        if known.names is not None:
            return known.names
        names = frozenset(_read_names(directory))
        if sum(map(len, names)) <= _KNOWN_NAMES_BYTES:
            known.names = names
        return names

    def _check_owner(self, directory: int, project: str, run: str, origin: str) -> ReceivedInfo:
        info = self._known_run(directory).received
        if info is None:
            raise unclaimed_error(project, run)
        if info.origin != origin:
            raise taken_error(project, run, "a run of another sender")
        return info

    def _touch(self, directory: int, at: float | None = None) -> None:
        now = self.clock() if at is None else at
        with contextlib.suppress(FileNotFoundError):  # the run was deleted meanwhile; the next call reports it
            os.utime(RECEIVED, (now, now), dir_fd=directory, follow_symlinks=False)


def _stored_sizes(directory: int) -> dict[str, int]:
    sizes = {}
    for folder in (JOURNAL, CONSOLE) if _file_type(directory, CONSOLE) is not None else (JOURNAL,):
        with _open(directory, folder, _DIRECTORY) as journal:
            # A file that is compressed goes by its original name, which is the one that senders use.
            for name in {each.removesuffix(SUFFIX) for each in os.listdir(journal)}:  # noqa: PTH208 - a descriptor
                with contextlib.suppress(OptionError), _open_journal(journal, check_file(name)) as file:
                    sizes[name] = _stored_size(file)[0]
    return sizes


def check_facts(facts: bytes) -> None:
    """Refuse facts that are not a JSON object.

    Raises:
        OptionError: They are not.
    """
    try:
        value = msgspec.json.decode(facts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(f"run.json is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise OptionError("run.json is not a JSON object.")
    check_depth("run.json", value)


def check_lines(lines: bytes) -> None:
    """Refuse data that would break a journal. Lines are not parsed: readers skip those that are not records.

    Raises:
        OptionError: The data is not whole lines of UTF-8.
    """
    if lines and lines[-1:] != b"\n":
        raise OptionError("The last line has no end: send whole lines.")
    if b"\0" in lines:
        raise OptionError("The lines contain a zero byte, which a journal never does; send only the data before it.")
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(lines), _CHUNK):  # decoded at once, they could take four times the memory
        before = len(decoder.getstate()[0])
        try:
            decoder.decode(lines[start : start + _CHUNK], start + _CHUNK >= len(lines))
        except UnicodeDecodeError as error:
            offset = start - before + error.start
            raise OptionError(f"The lines are not valid UTF-8 at byte {offset:,}.") from None
    check_lines_depth(lines)


def append_lines(journal: int, file: str, offset: int | None, lines: bytes) -> int:
    """Append lines to a file at an offset, or at its end, and return its stored size.

    Raises:
        ConflictError: The offset lies beyond the end, or other data is stored.
    """
    while True:
        with _open_for_append(journal, file) as found:
            if found is not None:
                return _append_to(found, file, offset, lines)
        # It is compressed. Data that was sent again is compared; a run that continues needs the original file.
        with _open_journal(journal, file) as compressed:
            stored = _stored_size(compressed)[0]
            if offset is not None:
                _check_offset(file, offset, stored)
                _compare(compressed, file, offset, lines[: stored - offset])
                if offset + len(lines) <= stored:
                    return stored
        uncompress(journal, file)


@contextlib.contextmanager
def _open_for_append(journal: int, file: str) -> Iterator["int | None"]:
    """A locked descriptor of a file, which is created if it does not exist; None if it is compressed."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(_open(journal, file, flags))
        except _MissingError:
            # Created only where nothing is: beside a compressed file, readers would prefer the new and empty one.
            if _file_type(journal, f"{file}{SUFFIX}") is not None:
                yield None
                return
            descriptor = stack.enter_context(_open(journal, file, flags | os.O_CREAT))
        with files.exclusive(descriptor):
            # It may have been compressed between the check and the lock: it is then gone, or a new file in its place.
            found = os.fstat(descriptor)
            is_there = found.st_nlink > 0
            if is_there and not found.st_size and _file_type(journal, f"{file}{SUFFIX}") is not None:
                os.unlink(file, dir_fd=journal)
                is_there = False
            yield descriptor if is_there else None


def _append_to(descriptor: int, file: str, offset: int | None, lines: bytes) -> int:
    opened = PlainFile(descriptor)  # not closed: the descriptor is the caller's
    stored, size = _stored_size(opened)
    offset = stored if offset is None else offset
    _check_offset(file, offset, stored)
    # The part that is stored already was sent again, because the response was lost: it must be the same.
    known = min(stored - offset, len(lines))
    _compare(opened, file, offset, lines[:known])
    if known < len(lines):
        if size > stored:
            os.ftruncate(descriptor, stored)
        write_all(descriptor, memoryview(lines)[known:], stored)
    return max(stored, offset + len(lines))


def _check_offset(file: str, offset: int, stored: int) -> None:
    if offset > stored:
        raise ConflictError(f"{file} ends at byte {stored:,}: continue there, not at {offset:,}.", offset=stored)


def _compare(stored: OpenJournal, file: str, offset: int, lines: bytes) -> None:
    for start in range(0, len(lines), _CHUNK):
        chunk = memoryview(lines)[start : start + _CHUNK]
        if stored.pread(len(chunk), offset + start) != chunk:
            raise ConflictError(f"{file} has other data from byte {offset:,} on.", conflict=True)


def _remove_middle(folder: int, file: str) -> None:
    """Bound the console files of a writer, as the writer itself does."""
    writer = file.rpartition("-")[0]
    names = {name.removesuffix(SUFFIX) for name in os.listdir(folder)}
    own = {name: name.rpartition("-")[2] for name in names if name.rpartition("-")[0] == writer}
    numbers = {name: int(end.removesuffix(".jsonl")) for name, end in own.items() if end[:-6].isdecimal()}
    for name in middle_files(numbers):
        for suffix in ("", SUFFIX):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{name}{suffix}", dir_fd=folder)


def write_all(descriptor: int, data: memoryview, offset: int) -> None:
    """Write everything or nothing: a partial write, as on a full disk, is undone."""
    start = offset
    try:
        while data:
            written = os.pwrite(descriptor, data, offset)
            data, offset = data[written:], offset + written
    except OSError:
        os.ftruncate(descriptor, start)
        raise


def _stored_size(file: OpenJournal) -> tuple[int, int]:
    """The size of a file's whole lines, and its total size."""
    size = end = file.size
    last = file.pread(1, size - 1) if size else b""
    if last == b"\n":  # nearly always
        return size, size
    if last == b"\0":  # left by a power failure
        end = end_of_data(file, 0, size)
    while end:
        start = max(0, end - _CHUNK)
        newline = file.pread(end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1, size
        end = start
    return 0, size


class _MissingError(ConflictError):
    """There is no such file or directory."""


@contextlib.contextmanager
def _open(directory: int, name: str, flags: int) -> Iterator[int]:
    """A descriptor of a file or directory in a directory; links, pipes and the like are refused."""
    try:
        descriptor = os.open(name, flags, 0o644, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise _MissingError(f"There is no {name!r}: send the run's run.json first.", unclaimed=True) from error
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EMLINK):
            raise _not_regular_error(name) from error
        raise
    try:
        # The system opens nothing but a directory as one.
        if not flags & os.O_DIRECTORY and not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _not_regular_error(name)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _open_journal(journal: int, name: str) -> Iterator[OpenJournal]:
    """A journal file, compressed or not; links, pipes and the like are refused."""
    try:
        file = open_journal(name, follow_links=False, directory=journal)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise ConflictError(f"There is no {name!r}: send the run's run.json first.", unclaimed=True) from error
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EMLINK, errno.EINVAL):
            raise _not_regular_error(name) from error
        raise
    with file:
        yield file


def _content(directory: int, name: str, limit: int) -> bytes | None:
    """The content of a file, cut at a limit; None if there is none."""
    try:
        with _open(directory, name, _FOR_READING) as found:
            return os.read(found, min(limit, os.fstat(found).st_size))
    except _MissingError:
        return None


def _read_received(directory: int) -> ReceivedInfo | None:
    content = _content(directory, RECEIVED, _CHUNK)
    return None if content is None else ReceivedInfo.parse(content)


def _write_received(directory: int, received: ReceivedInfo) -> None:
    _replace(directory, RECEIVED, msgspec.json.encode(received) + b"\n")


def _add_names(directory: int, names: Iterable[str]) -> None:
    """Add metric names to those of a run.

    Raises:
        NamesError: The run has reached its limit.
    """
    # First without the lock: most rows have only known names, and names are only added.
    if set(names) <= set(_read_names(directory)):
        return
    with files.exclusive(directory):
        known = _read_names(directory)
        merged, are_all = merge_names(known, names)
        if merged != known:
            _replace(directory, NAMES_FILE, msgspec.json.encode(merged))
    if not are_all:
        raise too_many_names_error(merged)


def _read_names(directory: int) -> list[str]:
    content = _content(directory, NAMES_FILE, 4 * RUN_NAMES_BYTES)
    try:
        return [] if content is None else msgspec.json.decode(content, type=list[str])
    except msgspec.DecodeError:  # left by a power failure: the limit counts from here
        return []


def _replace(directory: int, name: str, content: bytes) -> None:
    """Replace a file atomically; a link in its place is refused."""
    if _file_type(directory, name) not in (None, stat.S_IFREG):
        raise _not_regular_error(name)
    partial = f".{name}.{secrets.token_hex(8)}.partial"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(partial, flags, 0o644, dir_fd=directory), "wb") as file:
            file.write(content)
        os.replace(partial, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(partial, dir_fd=directory)
        raise


def _make_directory(parent: int, name: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)


def _file_type(directory: int, name: str) -> int | None:
    """The file type of a name; None if there is nothing."""
    try:
        return stat.S_IFMT(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


def taken_error(project: str, run: str, what: str) -> ConflictError:
    """The error for a run that belongs to another."""
    return ConflictError(f"{project}/{run} is {what}: use another name or another project.", taken=True)


def unclaimed_error(project: str, run: str) -> ConflictError:
    """The error for a run that nobody has claimed."""
    return ConflictError(f"The run {project}/{run} is not claimed: send its run.json first.", unclaimed=True)


def _not_regular_error(name: str) -> ConflictError:
    return ConflictError(f"{name!r} is a link or not a regular file or directory; skipping it.")

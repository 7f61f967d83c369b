"""`ReceivedRuns`: stores runs from other machines below the root, as if they had been recorded there.

- Every name is checked, and every path component is opened relative to its parent without following links. Nothing
  outside the root is read or written.
- A run belongs to the origin that claimed it first. Local runs, and those of other origins, are never changed.
- A journal file only grows, by whole lines, at its end. Data that is sent again is compared with the stored data, not
  written again. Writers lock the file, also against other servers on the same root.
- After a crash during a write a file may end with part of a line. It does not count as stored; the next write removes
  it.
- The number of a run's metric names is limited; they are kept in ``.metric-names.json``.
- ``received.json`` holds the origin; its modification time is the last contact: a heartbeat, or any other request.

Every call opens the few files it needs. All methods may be called from any thread.
"""

import codecs
import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hookline._engine.errors import HooklineError, OptionError
from hookline._record import files
from hookline._record.reader import JOURNAL
from hookline._record.run_directory import METADATA
from hookline._record.segment import end_of_data
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
from hookline.store.run_summary import RECEIVED_FILE, ReceivedInfo

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOR_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CHUNK = 128 << 10


class ConflictError(HooklineError, RuntimeError):
    """A request conflicts with the stored data; ``facts`` tells programs how."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts


@dataclass(frozen=True, slots=True)
class ReceivedRuns:
    """Stores received runs.

    Args:
        root: The directory with the runs.
        clock: Seconds since 1970.
    """

    root: Path
    clock: Callable[[], float] = time.time

    def claim(self, project: str, run: str, origin: str, facts: bytes) -> dict[str, int]:
        """Claim a run for an origin, write its ``run.json``, and return the stored size of each journal file.

        Raises:
            ConflictError: It is a local run, or belongs to another origin.
            OptionError: A name, or the facts, are not accepted.
        """
        check_facts(facts)
        with self._open_run(project, run, create=True) as directory:
            with files.exclusive(directory):
                self._claim(directory, project, run, origin)
                _replace(directory, METADATA, facts)
            self._touch(directory)
            with _open(directory, JOURNAL, _DIRECTORY) as journal:
                sizes = {}
                for name in os.listdir(journal):  # noqa: PTH208 - a descriptor
                    with contextlib.suppress(OptionError), _open(journal, check_file(name), _FOR_READING) as file:
                        sizes[name] = _stored_size(file)[0]
                return sizes

    def append(self, project: str, run: str, file: str, *, origin: str, offset: int, lines: bytes) -> int:
        """Append whole lines to a journal file and return its stored size.

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
            _add_names(directory, names)
            with _open(directory, JOURNAL, _DIRECTORY) as journal:
                size = append_lines(journal, file, offset, lines)
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

    def heartbeat(self, project: str, run: str, *, origin: str, every_seconds: float) -> None:
        """Record that the training process is alive, and its heartbeat interval."""
        with self._open_run(project, run) as directory:
            info = self._check_owner(directory, project, run, origin)
            if info.every_seconds != every_seconds:
                with files.exclusive(directory):
                    _write_received(directory, ReceivedInfo(origin, info.received, every_seconds))
            self._touch(directory)

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

    def stored_size(self, project: str, run: str, *, origin: str, file: str) -> int:
        """The stored size of a journal file.

        Raises:
            ConflictError: The run belongs to another origin, or there is no such file.
        """
        with self._open_file(project, run, origin, file) as descriptor:
            return _stored_size(descriptor)[0]

    def lines_reversed(self, project: str, run: str, *, origin: str, file: str) -> Generator[bytes, None, None]:
        """The lines of a journal file, the last one first.

        Raises:
            ConflictError: The run belongs to another origin, or there is no such file.
        """
        with self._open_file(project, run, origin, file) as descriptor:
            start, rest = _stored_size(descriptor)[0], b""
            while start:
                start, end = max(0, start - _CHUNK), start
                rest, *lines = (os.pread(descriptor, end - start, start) + rest).split(b"\n")
                yield from filter(None, reversed(lines))
            if rest:
                yield rest

    @contextlib.contextmanager
    def _open_file(self, project: str, run: str, origin: str, file: str) -> Iterator[int]:
        with self._open_run(project, run) as directory:
            self._check_owner(directory, project, run, origin)
            with _open(directory, JOURNAL, _DIRECTORY) as journal, _open(journal, file, _FOR_READING) as descriptor:
                yield descriptor

    @contextlib.contextmanager
    def _open_run(self, project: str, run: str, *, create: bool = False) -> Iterator[int]:
        """A descriptor of a run's directory."""
        names = check_name("project", project), check_name("run", run)
        with contextlib.ExitStack() as stack:
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
                raise _taken_error(project, run, "a local run")
            _write_received(directory, ReceivedInfo(origin, self.clock()))
        elif info.origin != origin:
            raise _taken_error(project, run, "a run of another sender")
        _make_directory(directory, JOURNAL)

    def _check_owner(self, directory: int, project: str, run: str, origin: str) -> ReceivedInfo:
        info = _read_received(directory)
        if info is None:
            raise ConflictError(f"The run {project}/{run} is not claimed: send its run.json first.", unclaimed=True)
        if info.origin != origin:
            raise _taken_error(project, run, "a run of another sender")
        return info

    def _touch(self, directory: int) -> None:
        now = self.clock()
        with contextlib.suppress(FileNotFoundError):  # the run was deleted meanwhile; the next call reports it
            os.utime(RECEIVED_FILE, (now, now), dir_fd=directory, follow_symlinks=False)


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
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with _open(journal, file, flags) as descriptor, files.exclusive(descriptor):
        stored, size = _stored_size(descriptor)
        offset = stored if offset is None else offset
        if offset > stored:
            raise ConflictError(f"{file} ends at byte {stored:,}: continue there, not at {offset:,}.", offset=stored)
        known = min(stored - offset, len(lines))
        for start in range(0, known, _CHUNK):
            chunk = memoryview(lines)[start : min(start + _CHUNK, known)]
            if os.pread(descriptor, len(chunk), offset + start) != chunk:
                raise ConflictError(f"{file} has other data from byte {offset:,} on.", conflict=True)
        if known < len(lines):
            if size > stored:
                os.ftruncate(descriptor, stored)
            _write_all(descriptor, memoryview(lines)[known:], stored)
        return max(stored, offset + len(lines))


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    """Write everything or nothing: a partial write, as on a full disk, is undone."""
    start = offset
    try:
        while data:
            written = os.pwrite(descriptor, data, offset)
            data, offset = data[written:], offset + written
    except OSError:
        os.ftruncate(descriptor, start)
        raise


def _stored_size(descriptor: int) -> tuple[int, int]:
    """The size of a file's whole lines, and its total size."""
    size = end = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) == b"\0":  # left by a power failure
        end = end_of_data(descriptor, 0, size)
    while end:
        start = max(0, end - _CHUNK)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1, size
        end = start
    return 0, size


@contextlib.contextmanager
def _open(directory: int, name: str, flags: int) -> Iterator[int]:
    """A descriptor of a file or directory in a directory; links, pipes and the like are refused."""
    try:
        descriptor = os.open(name, flags, 0o644, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise ConflictError(f"There is no {name!r}: send the run's run.json first.", unclaimed=True) from error
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EMLINK):
            raise _not_regular_error(name) from error
        raise
    try:
        wanted = stat.S_ISDIR if flags & os.O_DIRECTORY else stat.S_ISREG
        if not wanted(os.fstat(descriptor).st_mode):
            raise _not_regular_error(name)
        yield descriptor
    finally:
        os.close(descriptor)


def _read_received(directory: int) -> ReceivedInfo | None:
    if _file_type(directory, RECEIVED_FILE) is None:
        return None
    with _open(directory, RECEIVED_FILE, _FOR_READING) as found:
        return ReceivedInfo.parse(os.read(found, _CHUNK))


def _write_received(directory: int, received: ReceivedInfo) -> None:
    _replace(directory, RECEIVED_FILE, msgspec.json.encode(received) + b"\n")


def _add_names(directory: int, names: Iterable[str]) -> None:
    """Add metric names to those of a run.

    Raises:
        NamesError: The run has reached its limit.
    """
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
    if _file_type(directory, NAMES_FILE) is None:
        return []
    with _open(directory, NAMES_FILE, _FOR_READING) as found, os.fdopen(os.dup(found), "rb") as file:
        try:
            return msgspec.json.decode(file.read(4 * RUN_NAMES_BYTES), type=list[str])
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


def _taken_error(project: str, run: str, what: str) -> ConflictError:
    return ConflictError(f"{project}/{run} is {what}: use another name or another project.", taken=True)


def _not_regular_error(name: str) -> ConflictError:
    return ConflictError(f"{name!r} is a link or not a regular file or directory; skipping it.")

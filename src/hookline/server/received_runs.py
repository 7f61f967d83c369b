"""`ReceivedRuns`: runs of other machines, kept below the root as if they had been recorded there.

- Every name is checked, and every component of a path is opened from the one before without following links: nothing
  outside the root, and nothing that a link leads to, is read or written.
- A run belongs to the origin that claimed it first. A run that was recorded here, or that another origin sends, is
  never touched.
- A journal's file only grows, by whole lines, at the place where it ends. What is sent again is compared with what is
  held, and not written again. Whoever writes holds a lock on the file, also against another server on the same root.
- After a crash in the middle of a write a file may end in a piece of a line. It does not count as held, and the next
  write cuts it off.
- Metrics of a run have so many names and no more; ``.metric-names.json`` says which.
- ``received.json`` says whose the run is; its time is the last sign of life: a beat, or something that came.

Nothing here is fast by being clever: each call opens the few files it needs. All of it may be called from any thread.
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
    joined,
    names_of,
    too_many_in_a_run,
)
from hookline.store.run_summary import RECEIVED_FILE, ReceivedInfo

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FOR_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CHUNK = 128 << 10


class ConflictError(HooklineError, RuntimeError):
    """What was sent does not fit what is held; ``facts`` says how, for programs."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts


@dataclass(frozen=True, slots=True)
class ReceivedRuns:
    """Keeps what is sent.

    Args:
        root: Where runs lie.
        clock: Seconds since 1970.
    """

    root: Path
    clock: Callable[[], float] = time.time

    def claim(self, project: str, run: str, origin: str, facts: bytes) -> dict[str, int]:
        """Make a run this origin's, with what ``run.json`` says of it, and tell how much of each journal is held.

        Raises:
            ConflictError: It is somebody else's.
            OptionError: A name, or the facts, are not accepted.
        """
        check_facts(facts)
        with self._home(project, run, make=True) as home:
            with files.exclusive(home):
                self._take(home, project, run, origin)
                _replace(home, METADATA, facts)
            self._note_life(home)
            with _opened(home, JOURNAL, _DIRECTORY) as journal:
                return _held_files(journal)

    def append(self, project: str, run: str, file: str, *, origin: str, offset: int, lines: bytes) -> int:
        """Add whole lines to a file of a run's journal; how many bytes of it are held then.

        Raises:
            ConflictError: The run is somebody else's; the offset lies beyond what is held; or other bytes are held.
            OptionError: A name is not accepted, or what is sent are no whole lines.
            NamesError: Metrics have more names than are taken.
        """
        check_lines(lines)
        check_file(file)
        names = names_of(lines)
        with self._home(project, run) as home:
            self._check_owner(home, project, run, origin)
            _take_names(home, names)
            with _opened(home, JOURNAL, _DIRECTORY) as journal:
                held = append_lines(journal, file, offset, lines)
            self._note_life(home)
        return held

    def replace(self, project: str, run: str, file: str, *, origin: str, content: bytes) -> int:
        """Put a file beside the journal in the place of what was there; its size."""
        check_file(file)
        with self._home(project, run) as home:
            self._check_owner(home, project, run, origin)
            with files.exclusive(home):
                _replace(home, file, content)
            self._note_life(home)
        return len(content)

    def beat(self, project: str, run: str, *, origin: str, every_seconds: float) -> None:
        """Note that the process that trains is alive, and how often it will say so."""
        with self._home(project, run) as home:
            held = self._check_owner(home, project, run, origin)
            if held.every_seconds != every_seconds:
                with files.exclusive(home):
                    _write_received(home, ReceivedInfo(origin, held.received, every_seconds))
            self._note_life(home)

    def tell(self, project: str, run: str, *, origin: str, file: str, facts: bytes, lines: bytes) -> int:
        """Add lines at the end of a run that the server itself keeps for somebody; it is made if need be.

        How many bytes are held then.

        Raises:
            NamesError: Metrics have more names than are taken.
        """
        names = names_of(lines)
        with self._home(project, run, make=True) as home:
            with files.exclusive(home):
                self._take(home, project, run, origin)
                if _kind(home, METADATA) is None:
                    _replace(home, METADATA, facts)
            _take_names(home, names)
            with _opened(home, JOURNAL, _DIRECTORY) as journal:
                held = append_lines(journal, file, None, lines)
            self._note_life(home)
        return held

    def held(self, project: str, run: str, *, origin: str, file: str) -> int:
        """How many bytes of a file of a run's journal are held.

        Raises:
            ConflictError: The run is somebody else's, or there is no such file.
        """
        with self._file(project, run, origin, file) as found:
            return _held(found)[0]

    def lines_back(self, project: str, run: str, *, origin: str, file: str) -> Generator[bytes, None, None]:
        """The lines of a file of a run's journal, the last one first.

        Raises:
            ConflictError: The run is somebody else's, or there is no such file.
        """
        with self._file(project, run, origin, file) as found:
            yield from _lines_back(found)

    @contextlib.contextmanager
    def _file(self, project: str, run: str, origin: str, file: str) -> Iterator[int]:
        """A descriptor of a file of a run's journal, to read it."""
        with self._home(project, run) as home:
            self._check_owner(home, project, run, origin)
            with _opened(home, JOURNAL, _DIRECTORY) as journal, _opened(journal, file, _FOR_READING) as found:
                yield found

    @contextlib.contextmanager
    def _home(self, project: str, run: str, *, make: bool = False) -> Iterator[int]:
        """A descriptor of a run's directory."""
        names = check_name("project", project), check_name("run", run)
        with contextlib.ExitStack() as opened:
            at = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, at)
            for name in names:
                if make:
                    _make_directory(at, name)
                at = opened.enter_context(_opened(at, name, _DIRECTORY))
            yield at

    def _take(self, home: int, project: str, run: str, origin: str) -> None:
        held = _received(home)
        if held is None:
            if any(name[0] != "." for name in os.listdir(home)):
                raise _taken(project, run, "a run that was recorded here")
            _write_received(home, ReceivedInfo(origin, self.clock()))
        elif held.origin != origin:
            raise _taken(project, run, "a run that somebody else sends")
        _make_directory(home, JOURNAL)

    def _check_owner(self, home: int, project: str, run: str, origin: str) -> ReceivedInfo:
        held = _received(home)
        if held is None:
            raise ConflictError(f"The run {project}/{run} is not claimed: send its run.json first.", unclaimed=True)
        if held.origin != origin:
            raise _taken(project, run, "a run that somebody else sends")
        return held

    def _note_life(self, home: int) -> None:
        now = self.clock()
        with contextlib.suppress(FileNotFoundError):  # the run was deleted meanwhile: the next call says so
            os.utime(RECEIVED_FILE, (now, now), dir_fd=home, follow_symlinks=False)


def check_facts(facts: bytes) -> None:
    """Refuse facts that are no JSON object.

    Raises:
        OptionError: They are something else.
    """
    try:
        value = msgspec.json.decode(facts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(f"run.json is no JSON: {error}.") from None
    if not isinstance(value, dict):
        raise OptionError("run.json is no JSON object.")
    check_depth("run.json", value)


def check_lines(lines: bytes) -> None:
    """Refuse what would break a journal. Lines are not read one by one: a reader passes over those that are no records.

    Raises:
        OptionError: They are no whole lines.
    """
    if lines and lines[-1:] != b"\n":
        raise OptionError("The last line has no end: send whole lines.")
    if b"\0" in lines:
        raise OptionError("There is a zero byte in the lines: a journal has none; send what stands before it.")
    _check_text(lines)
    check_lines_depth(lines)


def _check_text(lines: bytes) -> None:
    """Refuse what is no UTF-8, piece by piece: as a text, the whole could take up four times as much."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for begin in range(0, len(lines), _CHUNK):
        before = len(decoder.getstate()[0])
        try:
            decoder.decode(lines[begin : begin + _CHUNK], begin + _CHUNK >= len(lines))
        except UnicodeDecodeError as error:
            place = begin - before + error.start
            raise OptionError(f"The lines are no UTF-8 at byte {place:,}: a journal is.") from None


def append_lines(journal: int, file: str, offset: int | None, lines: bytes) -> int:
    """Add lines to a file in a directory at an offset, or at its end; how many bytes are held then.

    Raises:
        ConflictError: The offset lies beyond what is held, or other bytes are held.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with _opened(journal, file, flags) as descriptor, files.exclusive(descriptor):
        held, size = _held(descriptor)
        offset = held if offset is None else offset
        if offset > held:
            raise ConflictError(f"{file} is held up to byte {held:,}: go on there, not at {offset:,}.", offset=held)
        known = min(held - offset, len(lines))
        if not _holds(descriptor, offset, memoryview(lines)[:known]):
            raise ConflictError(f"{file} holds other bytes from {offset:,} on than what was sent.", conflict=True)
        if known < len(lines):
            if size > held:
                os.ftruncate(descriptor, held)
            _write_all(descriptor, memoryview(lines)[known:], held)
        return max(held, offset + len(lines))


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    """Write all of it or nothing: what a full disk cuts off is taken back."""
    begin = offset
    try:
        while data:
            written = os.pwrite(descriptor, data, offset)
            data, offset = data[written:], offset + written
    except OSError:
        os.ftruncate(descriptor, begin)
        raise


def _held(descriptor: int) -> tuple[int, int]:
    """How many bytes of whole lines a file has, and how many bytes in all."""
    size = end = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) == b"\0":  # what a power failure leaves
        end = end_of_data(descriptor, 0, size)
    while end:
        begin = max(0, end - _CHUNK)
        newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1, size
        end = begin
    return 0, size


def _holds(descriptor: int, offset: int, data: memoryview) -> bool:
    pieces = ((begin, data[begin : begin + _CHUNK]) for begin in range(0, len(data), _CHUNK))
    return all(os.pread(descriptor, len(piece), offset + begin) == piece for begin, piece in pieces)


def _lines_back(descriptor: int) -> Iterator[bytes]:
    """The whole lines of a file, the last one first."""
    begin, rest = _held(descriptor)[0], b""
    while begin:
        begin, end = max(0, begin - _CHUNK), begin
        rest, *lines = (os.pread(descriptor, end - begin, begin) + rest).split(b"\n")
        yield from filter(None, reversed(lines))
    if rest:
        yield rest


def _held_files(journal: int) -> dict[str, int]:
    held = {}
    for name in os.listdir(journal):
        with contextlib.suppress(OptionError), _opened(journal, check_file(name), _FOR_READING) as found:
            held[name] = _held(found)[0]
    return held


@contextlib.contextmanager
def _opened(directory: int, name: str, flags: int) -> Iterator[int]:
    """A descriptor of something in a directory; links, pipes and the like are refused."""
    try:
        descriptor = os.open(name, flags, 0o644, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise ConflictError(f"There is no {name!r} here: send the run's run.json first.", unclaimed=True) from error
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EMLINK):
            raise ConflictError(
                f"{name!r} is a link, or something else than it has to be: it is left alone."
            ) from error
        raise
    try:
        wanted = stat.S_ISDIR if flags & os.O_DIRECTORY else stat.S_ISREG
        if not wanted(os.fstat(descriptor).st_mode):
            raise ConflictError(f"{name!r} is something else than it has to be: it is left alone.")
        yield descriptor
    finally:
        os.close(descriptor)


def _received(home: int) -> ReceivedInfo | None:
    if _kind(home, RECEIVED_FILE) is None:
        return None
    with _opened(home, RECEIVED_FILE, _FOR_READING) as found:
        return ReceivedInfo.parse(os.read(found, _CHUNK))


def _write_received(home: int, received: ReceivedInfo) -> None:
    _replace(home, RECEIVED_FILE, msgspec.json.encode(received) + b"\n")


def _take_names(home: int, names: Iterable[str]) -> None:
    """Note which metrics a run has.

    Raises:
        NamesError: It has all that it may have, and these are others.
    """
    if set(names) <= set(_names(home)):
        return
    with files.exclusive(home):
        known = _names(home)
        joint, are_all = joined(known, names)
        if joint != known:
            _replace(home, NAMES_FILE, msgspec.json.encode(joint))
    if not are_all:
        raise too_many_in_a_run(joint)


def _names(home: int) -> list[str]:
    if _kind(home, NAMES_FILE) is None:
        return []
    with _opened(home, NAMES_FILE, _FOR_READING) as found, os.fdopen(os.dup(found), "rb") as file:
        try:
            return msgspec.json.decode(file.read(4 * RUN_NAMES_BYTES), type=list[str])
        except msgspec.DecodeError:  # what a power failure leaves: the limit counts from here
            return []


def _replace(directory: int, name: str, content: bytes) -> None:
    """Write a file aside and put it in its place; a link in that place is refused."""
    if _kind(directory, name) not in (None, stat.S_IFREG):
        raise ConflictError(f"{name!r} is a link, or something else than it has to be: it is left alone.")
    aside = f".{name}.{secrets.token_hex(8)}.partial"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(aside, flags, 0o644, dir_fd=directory), "wb") as file:
            file.write(content)
        os.replace(aside, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(aside, dir_fd=directory)
        raise


def _make_directory(at: int, name: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=at)


def _kind(directory: int, name: str) -> int | None:
    """The type of what goes by a name; None where nothing does."""
    try:
        return stat.S_IFMT(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


def _taken(project: str, run: str, what: str) -> ConflictError:
    said = f"{project}/{run} is {what}: send this one under another name, or into another project."
    return ConflictError(said, taken=True)

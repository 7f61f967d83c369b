"""Reads journals: all records of a run, those since a cursor, or live ones, from one writer or many.

Reading works while a writer is alive, dead or killed. A file ends for a reader at a line without a newline, or at zeros
with nothing after them. Skipped and counted are: a hole (zeros with lines after them), a piece of a line that a full
disk left, a line with changed bytes (only that line is lost), and a line that comes a second time. The first such lines
of a file are logged with their offsets; ``hookline runs verify`` lists all of them.

A resume mark (an event named ``resume`` with the steps from which axes continue) makes later rows of earlier sessions
of the same writer obsolete: `read` leaves them out, so there are no duplicates and no gaps. An evaluation that a later
session repeated at the same step is left out by name; metrics that were not repeated stay. The files keep everything.
"""

import contextlib
import heapq
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hookline._engine.errors import ConfigError
from hookline._record.records import (
    AnyRecord,
    Event,
    Media,
    Metrics,
    Rewards,
    Sample,
    SampleUse,
    Status,
    TableRows,
    decode,
    decode_numbered,
    line_number,
)
from hookline._record.seekable import MAX_LINE_BYTES
from hookline._record.segment import JournalFile, OpenJournal, end_of_data, journal_files, open_journal

logger = logging.getLogger("hookline")

JOURNAL = "journal"
"""The folder of a run's directory that holds its journals."""
CONSOLE = "console"
"""The folder that holds the journals of console lines, and the writer's name of rank zero there."""
MAIN = "main"
"""The writer that represents the run: its rank zero."""
DELIVERY_WRITER = "courier"
"""The writer that records, after everything else, that the run's process died. Its name is that of version 0.1."""
FINAL = frozenset({"finished", "failed", "stopped"})
"""The statuses after which a run records nothing more."""

EVERY_AXIS = "*"
_CHUNK = 128 << 10
_ZEROS = bytes(_CHUNK)
_MAX_REPORTED = 3
"""How many damaged lines of a file are logged."""


class JournalEntry(NamedTuple):
    """A record and its position: the file, the offset after its line, and the size of its line."""

    record: AnyRecord
    file: JournalFile
    end: int
    size: int

    @property
    def kind(self) -> str:
        """The record's kind: ``metrics``, ``sample``, ..."""
        return str(self.record.__struct_config__.tag)

    @property
    def id(self) -> str:
        """An id that is unique in the run and never changes."""
        return f"{self.file.writer}-{self.file.number}-{self.end}"


@dataclass(slots=True)
class Cursor:
    """How far each writer's files have been read: the number of the last file, and the offset in it."""

    places: dict[str, tuple[int, int]] = field(default_factory=dict)

    def offset(self, file: JournalFile) -> int | None:
        """Return where to continue in a file; None if all of it has been read."""
        number, offset = self.places.get(file.writer, (0, 0))
        return None if file.number < number else offset if file.number == number else 0

    def pass_by(self, file: JournalFile, end: int) -> None:
        """Note that a file has been read up to an offset."""
        self.places[file.writer] = (file.number, end)

    def behind(self, directory: Path) -> int:
        """Return how many bytes of a directory's journals have not been read, without preallocated space."""
        offsets = ((file, self.offset(file)) for file in journal_files(directory))
        return sum(_unread(file.path, offset) for file, offset in offsets if offset is not None)


@dataclass(slots=True)
class LineNumbers:
    """Tracks the numbers of one writer's lines as they are read, to detect lines that come a second time.

    Attributes:
        following: The number after the highest so far; None before the first.
        missing: The first and the last number of each gap.
    """

    following: int | None = None
    missing: list[tuple[int, int]] = field(default_factory=list)

    def is_repeated(self, number: int | None) -> bool:
        """Add a line's number (None for version 0.1), and return whether it was there before."""
        if number is None or number == self.following:
            self.following = self.following if number is None else number + 1
            return False
        if self.following is None or number > self.following:
            if self.following is not None:
                self.missing.append((self.following, number - 1))
            self.following = number + 1
            return False
        for index, (first, last) in enumerate(self.missing):
            if first <= number <= last:  # late, after lines with higher numbers
                rest = [(first, number - 1), (number + 1, last)]
                self.missing[index : index + 1] = [gap for gap in rest if gap[0] <= gap[1]]
                return False
        return True


@dataclass(slots=True)
class Reader:
    """Reads the new records of a run's journals at each call of `new`."""

    directory: Path
    cursor: Cursor = field(default_factory=Cursor)
    skipped: int = 0
    _sequences: dict[str, LineNumbers] = field(default_factory=dict)
    _reported: Counter[Path] = field(default_factory=Counter)

    def new(self, found: Iterable[JournalFile] | None = None) -> Iterator[JournalEntry]:
        """Yield the records since the last call, each writer's in order; the cursor is after the last one yielded.

        Args:
            found: The files to read; all of the directory's by default.
        """
        found = journal_files(self.directory) if found is None else found
        # The delivery's journal last: it says that the process died, which has to come after everything that one
        # recorded.
        for file in sorted(found, key=lambda file: file.name == DELIVERY_WRITER):
            offset = self.cursor.offset(file)
            if offset is not None:
                yield from self._new_in(file, offset)

    def _new_in(self, file: JournalFile, offset: int) -> Iterator[JournalEntry]:
        for line, end in read_lines(file.path, offset):
            # Before decoding: a damaged line is passed by once and not met again at every call. Before yielding: a
            # caller may stop here.
            self.cursor.pass_by(file, end)
            entry = self.entry(line, file, end)
            if entry is not None:
                yield entry

    def entry(self, line: bytes, file: JournalFile, end: int, *, is_new: bool = False) -> JournalEntry | None:
        """Decode a line; returns None if it is damaged or repeated, which is counted and logged.

        Args:
            end: The offset after the line.
            is_new: The line's number is known to be new.
        """
        begin = end - len(line) - 1
        try:
            number, record = decode_numbered(line)
            is_repeated = not is_new and self.line_numbers(file, begin).is_repeated(number)
            problem = "repeated" if is_repeated else ""
        except msgspec.DecodeError as error:
            problem = f"damaged ({error})"
        if problem:
            self.skipped += 1
            self._report(file.path, begin, problem)
            return None
        return JournalEntry(record, file, end, len(line) + 1)

    def line_numbers(self, file: JournalFile, offset: int) -> LineNumbers:
        """The numbers of a writer's lines read so far; at the first call, of those before an offset."""
        # A cursor holds an offset, not a number. The line before it has one, so lines that come again are noticed after
        # a restart as well.
        numbers = self._sequences.get(file.writer)
        if numbers is None:
            numbers = self._sequences[file.writer] = LineNumbers(_number_after(file.path, offset))
        return numbers

    def _report(self, path: Path, offset: int, problem: str) -> None:
        self._reported[path] += 1
        if self._reported[path] <= _MAX_REPORTED:
            more = " `hookline runs verify` lists the others." if self._reported[path] == _MAX_REPORTED else ""
            text = "The line at byte %d of %s is %s: it is left out, the others are read.%s"
            logger.warning(text, offset, path, problem, more)


def _number_after(path: Path, offset: int) -> int | None:
    """Return the number that follows that of the line before an offset; None if it is unknown."""
    with contextlib.suppress(OSError, msgspec.DecodeError), open_journal(path) as file:
        begin = max(0, offset - _CHUNK)
        before = file.pread(offset - begin, begin)[:-1]
        number = line_number(before[before.rfind(b"\n") + 1 :]) if before else None
        return None if number is None else number + 1
    return None


def read_lines(path: Path, offset: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield the complete lines of a journal file from an offset on, each with the offset after it.

    A hole (zeros with lines after them) is yielded as a line of blanks, which is not a record. So is a damaged frame
    of a compressed file.

    Raises:
        OSError: It cannot be read, or is not a regular file.
        MissingExtraError: It is compressed, and the package for zstd is not installed.
    """
    rest = b""
    while True:
        # Opened for each chunk, not kept open: there may be more writers to merge than files a process can open. It may
        # be compressed between two chunks.
        try:
            file = open_journal(path)
        except FileNotFoundError:  # a segment that was prepared and not used
            return
        with file:
            position = offset + len(rest)
            data, zero, _ = file.pread(_CHUNK, position).partition(b"\0")
            hole = position + len(data)
            # While the file is open: whether the zeros are a hole is decided from the same file.
            end = _end_of_hole(file, hole) if zero else None
        # The last piece has no newline yet: the rest of its line is in the next chunk, or not written yet.
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            offset += len(line) + 1
            yield line, offset
        if end is None and (zero or not data):
            return
        if file.is_compressed and len(rest) > MAX_LINE_BYTES:  # no such line is compressed: the file is a bomb
            offset += len(rest)
            yield rest, offset
            rest = b""
        # If they are equal, a line was written there meanwhile: the next round reads it.
        if end is not None and end > hole:
            if rest:  # a line without its newline: it may be whole
                # As if the first zero were its newline, so offsets stay those of the file.
                offset = hole + 1
                yield rest, offset
            if end > offset:
                yield b" " * (end - offset - 1), end  # not zeros: a receiving server refuses those
            offset, rest = end, b""


def _end_of_hole(file: OpenJournal, zero: int) -> int | None:
    """Return where lines begin again after a zero byte; None if there are none, as at the end of a segment in use.

    If the zero has become a line since it was read, they begin there. Lines are written in order, so once a later line
    exists, zeros before it stay zeros.
    """
    size = file.size
    # A complete file ends with its last line, so zeros in it are a hole, however long. In a file in use, look at one
    # window only: this happens each time a reader reaches its end.
    is_complete = size > zero and file.pread(1, size - 1) != b"\0"
    position = zero
    while True:
        window = file.pread(_CHUNK, position)
        if not window:
            return None
        if window != _ZEROS[: len(window)]:
            break
        if not is_complete:
            return None
        position += len(window)
    lines_behind = window.lstrip(b"\0")
    end = position + len(window) - len(lines_behind)
    if b"\n" not in lines_behind and not (is_complete and _has_newline(file, position + len(window))):
        return None  # a line that a killed process was copying: memory is not copied front to back
    return end if file.pread(1, zero) == b"\0" else zero


def _has_newline(file: OpenJournal, position: int) -> bool:
    while window := file.pread(_CHUNK, position):
        if b"\n" in window:
            return True
        position += len(window)
    return False


def _unread(path: Path, offset: int) -> int:
    """Return the bytes of a file after an offset, up to its last line; a segment in use is longer than its lines."""
    try:
        file = open_journal(path)
    except FileNotFoundError:
        return 0
    with file:
        written = end_of_data(file, offset, max(offset, file.size))
        while written > offset:
            begin = max(offset, written - _CHUNK)
            newline = file.pread(written - begin, begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1 - offset
            written = begin
    return 0


def read(run_dir: str | Path, *, writer: str | None = None) -> Iterator[AnyRecord]:
    """Return all records of a run by time, without those that a later resume made obsolete.

    Metrics of writers other than the main one are prefixed with its name, as in every sink: ``rank1/loss``.

    Args:
        writer: Return only what this writer recorded, without a prefix. ``"console"``, or ``"console_rank1"``, returns
            the console lines of a process.
    """
    is_console = writer is not None and writer.partition("_")[0] == CONSOLE
    directory = Path(run_dir) / CONSOLE if is_console else journal_directory(run_dir)
    found = [file for file in journal_files(directory) if writer in (None, file.name)]
    # A pass of its own, before any record: a mark in a later session decides about rows of earlier ones.
    marks = find_marks(found)
    by_writer: dict[str, list[JournalFile]] = {}
    for file in found:
        by_writer.setdefault(file.writer, []).append(file)
    streams = [_stream(own, marks, prefixed=writer is None) for own in by_writer.values()]
    # Merging keeps the order within a stream: a clock that went back does not reorder a writer's lines.
    return heapq.merge(*streams, key=lambda record: record.time)


def follow(
    run_dir: str | Path,
    *,
    poll_seconds: float = 0.2,
    idle_seconds: float | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[AnyRecord]:
    """Yield records as they are written, from the beginning, until the run has ended; a resumed run has not.

    Args:
        idle_seconds: Also stop when nothing was written for this long: a killed run records no end.
        sleep: Waits between two polls.
    """
    reader = Reader(journal_directory(run_dir))
    idle, end = 0.0, _EndDetector()
    while True:
        new = False
        for entry in reader.new():
            new = True
            end.add(entry)
            yield entry.record
        # Only at a poll without anything new: other writers may still write past the end of the main one.
        if not new and (end.has_ended or (idle_seconds is not None and idle >= idle_seconds)):
            return
        idle = 0.0 if new else idle + poll_seconds
        if not new:
            sleep(poll_seconds)


@dataclass(slots=True)
class _EndDetector:
    """Whether the writers that represent a run last recorded that it has ended."""

    has_ended: bool = False
    since: float = 0.0

    def add(self, entry: JournalEntry) -> None:
        record, name = entry.record, entry.file.name
        # The delivery's records are read last, whatever their time: an older one changes nothing.
        counts = name == MAIN or (name == DELIVERY_WRITER and record.time >= self.since)
        if counts and isinstance(record, Status) and record.status != "heartbeat":
            self.has_ended, self.since = record.status in FINAL, record.time
        elif name == MAIN and is_resume(record):
            self.has_ended, self.since = False, record.time


def count_intact_lines(path: Path) -> int:
    """Return how many lines of a journal file have a number and the right checksum."""
    count = 0
    for line, _ in read_lines(path):
        with contextlib.suppress(msgspec.DecodeError):
            count += line_number(line) is not None
    return count


def count_missing_lines(run_dir: str | Path, writer: str, count: int) -> int:
    """Return how many of the first ``count`` lines of a writer are missing or damaged."""
    found = (file for file in journal_files(Path(run_dir) / JOURNAL) if file.writer == writer)
    numbers: set[int] = set()
    for file in found:
        for line, _ in read_lines(file.path):
            with contextlib.suppress(msgspec.DecodeError):
                number = line_number(line)
                if number is not None and number < count:
                    numbers.add(number)
    return count - len(numbers)


def last_status(run_dir: str | Path, name: str = MAIN) -> Status | None:
    """Return the latest status that a writer of the run recorded, the main one by default."""
    last: Status | None = None
    for file in journal_files(Path(run_dir) / JOURNAL):
        if file.name == name:
            for line, _ in read_lines(file.path):
                # A search for bytes first: decoding every row of a long run would take most of the time.
                found = _decoded(line) if b'"kind":"status"' in line else None
                last = found if isinstance(found, Status) else last
    return last


def last_step(run_dir: str | Path) -> int:
    """Return the latest step in the last session of the run's main writer."""
    own = [file for file in journal_files(Path(run_dir) / JOURNAL) if file.name == MAIN]
    for file in reversed(own):
        records = (_decoded(line) for line, _ in read_lines(file.path))
        steps = [record.step for record in records if isinstance(record, Metrics) and record.axis == "train"]
        if steps:
            return max(steps)
    return 0


def journal_directory(run_dir: str | Path) -> Path:
    """Return the directory of a run's journals.

    Raises:
        ConfigError: The directory is not a run's.
    """
    directory = Path(run_dir) / JOURNAL
    if not directory.is_dir():
        raise ConfigError(f"{run_dir} is not a run's directory: it has no folder {JOURNAL!r}.")
    return directory


@dataclass(slots=True)
class ResumeMarks:
    """The marks that make earlier records obsolete: resumes by writer and axis, and repeated evaluations."""

    resumes: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    evaluated: dict[tuple[str, int, str], int] = field(default_factory=dict)


def find_marks(found: Iterable[JournalFile]) -> ResumeMarks:
    """Collect the marks of journal files. Most lines are not decoded: a search for bytes rules them out."""
    marks = ResumeMarks()
    for file in found:
        for line, _ in read_lines(file.path):
            if b'"resume"' in line or b'"axis":"eval"' in line:
                record = _decoded(line)
                if is_resume(record):
                    for axis, step in resumed_steps(record).items():
                        marks.resumes.setdefault((file.name, axis), []).append((file.session, step))
                elif isinstance(record, Metrics) and record.axis == "eval":
                    for name in record.values:
                        key = (file.name, record.step, name)
                        marks.evaluated[key] = max(file.session, marks.evaluated.get(key, 0))
    return marks


def is_resume(record: Any) -> bool:
    """Return whether a record is a resume mark."""
    return isinstance(record, Event) and record.name == "resume"


def resumed_steps(record: Any) -> dict[str, int]:
    """Return the step after which a resume mark continues each axis, without entries that are not integers."""
    steps = record.data.get("steps")
    given = steps.items() if isinstance(steps, dict) else ()
    return {axis: step for axis, step in given if isinstance(step, int)}


def _stream(own: list[JournalFile], marks: ResumeMarks, *, prefixed: bool) -> Iterator[AnyRecord]:
    for entry in Reader(own[0].path.parent).new(own):
        if not drop_obsolete(entry.record, entry.file, marks):
            if prefixed:
                add_writer_prefix(entry.record, entry.file)
            yield entry.record


def add_writer_prefix(record: AnyRecord, file: JournalFile) -> None:
    """Prefix the metrics and media of a writer other than the main one with its name."""
    if isinstance(record, Metrics) and file.name != MAIN:
        record.values = {f"{file.name}/{name}": value for name, value in record.values.items()}
    elif isinstance(record, Media | TableRows) and file.name != MAIN:
        record.name = f"{file.name}/{record.name}"


def _decoded(line: bytes) -> Any:
    try:
        return decode(line)
    except msgspec.DecodeError:
        return None


def drop_obsolete(record: AnyRecord, file: JournalFile, marks: ResumeMarks) -> bool:
    """Remove from a record what its writer repeated in a later session; returns whether nothing is left."""
    if not isinstance(record, Metrics | Sample | SampleUse | Rewards | Media | TableRows):
        return False
    axis = record.axis if not isinstance(record, Rewards) else "train"
    if axis == "eval" and isinstance(record, Metrics):
        # By name: a session may evaluate only some metrics again. 0: recorded after the marks were read.
        latest = marks.evaluated
        repeated = {name for name in record.values if latest.get((file.name, record.step, name), 0) > file.session}
        if repeated:
            record.values = {name: value for name, value in record.values.items() if name not in repeated}
            if not record.values:
                return True
    # Only marks of later sessions: a session's own rows come after its mark and count.
    resumes = [*marks.resumes.get((file.name, axis), ()), *marks.resumes.get((file.name, EVERY_AXIS), ())]
    return any(session > file.session and record.step > step for session, step in resumes)

"""Reads journals back: all records, those since a cursor, or live ones; from one writer or many.

Reading works while a writer is alive, dead or killed. A file ends for a reader at a line without an end, or at zeros
with nothing behind them; a hole (zeros with lines behind them) and a piece of a line that a full disk left behind are
skipped and counted. So is a
line whose bytes changed, which costs that line only, and a line that is there a second time: the first ones of a file
are reported with their places, and ``hookline runs verify`` lists what is wrong.

A resume mark (an event called ``resume`` with the steps of the axes that are taken up again) says
that what the same writer recorded in earlier sessions past those steps will be done anew: `read`
leaves that out, so that the view has no duplicates and no gaps. An evaluation that a later session did
again at the same step is left out by name: what was not done again stays. The history stays in the files.
"""

import contextlib
import errno
import heapq
import logging
import os
import stat
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
    Metrics,
    Rewards,
    Sample,
    Status,
    decode,
    decode_numbered,
    line_number,
)
from hookline._record.segment import JournalFile, end_of_data, journal_files

logger = logging.getLogger("hookline")

JOURNAL = "journal"
"""The folder of a run's directory that holds its journals."""
MAIN = "main"
"""The name of the writer that speaks for the run: its rank zero."""
DELIVERY_WRITER = "courier"
"""The name of the writer that says, behind everything else, that the run's process died."""
FINAL = frozenset({"finished", "failed", "stopped"})
"""The statuses after which a run records nothing more."""

_CHUNK = 128 << 10
_ZEROS = bytes(_CHUNK)
_MOST_REPORTED = 3
"""How many lines of a file are reported one by one."""


class JournalEntry(NamedTuple):
    """A record and where it lies: in which file, up to which byte, and how many bytes it takes."""

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
        """What no other record of the run has, and this one keeps."""
        return f"{self.file.writer}-{self.file.number}-{self.end}"


@dataclass(slots=True)
class Cursor:
    """How far each writer's files have been read: the number of the last one, and the bytes of it."""

    places: dict[str, tuple[int, int]] = field(default_factory=dict)

    def offset(self, file: JournalFile) -> int | None:
        """Where to go on in a file; None where all of it has been read."""
        number, offset = self.places.get(file.writer, (0, 0))
        return None if file.number < number else offset if file.number == number else 0

    def pass_by(self, file: JournalFile, end: int) -> None:
        """Note that a file has been read up to an offset."""
        self.places[file.writer] = (file.number, end)

    def behind(self, directory: Path) -> int:
        """How many bytes of a directory's journals have not been read; those set aside for records are not counted."""
        offsets = ((file, self.offset(file)) for file in journal_files(directory))
        return sum(_unread(file.path, offset) for file, offset in offsets if offset is not None)


@dataclass(slots=True)
class LineNumbers:
    """The numbers of one writer's lines, as they are read: tells a line that comes a second time from a new one.

    Attributes:
        following: The number after the highest one so far; None before the first.
        missing: The first and the last number of each gap.
    """

    following: int | None = None
    missing: list[tuple[int, int]] = field(default_factory=list)

    def is_repeated(self, number: int | None) -> bool:
        """Take a line into account; whether one of this number was there before. Lines of version 0.1 have none."""
        if number is None or number == self.following:
            self.following = self.following if number is None else number + 1
            return False
        if self.following is None or number > self.following:
            if self.following is not None:
                self.missing.append((self.following, number - 1))
            self.following = number + 1
            return False
        for place, (first, last) in enumerate(self.missing):
            if first <= number <= last:  # late, after lines with higher numbers
                rest = [(first, number - 1), (number + 1, last)]
                self.missing[place : place + 1] = [gap for gap in rest if gap[0] <= gap[1]]
                return False
        return True


@dataclass(slots=True)
class Reader:
    """Reads what is new in a run's journals each time it is asked."""

    directory: Path
    cursor: Cursor = field(default_factory=Cursor)
    skipped: int = 0
    _sequences: dict[str, LineNumbers] = field(default_factory=dict)
    _reported: Counter[Path] = field(default_factory=Counter)

    def new(self, found: Iterable[JournalFile] | None = None) -> Iterator[JournalEntry]:
        """The records since the last time, each writer's in order; the cursor stands behind the one given last.

        Args:
            found: The files to read; by default all that there are.
        """
        found = journal_files(self.directory) if found is None else found
        for file in sorted(found, key=lambda file: file.name == DELIVERY_WRITER):
            offset = self.cursor.offset(file)
            if offset is not None:
                yield from self._new_in(file, offset)

    def _new_in(self, file: JournalFile, offset: int) -> Iterator[JournalEntry]:
        sequence = self._sequences.get(file.writer)
        for line, end in read_lines(file.path, offset):
            if sequence is None:
                sequence = self._sequences[file.writer] = LineNumbers(_number_after(file.path, offset))
            self.cursor.pass_by(file, end)
            try:
                number, record = decode_numbered(line)
                wrong = "there a second time" if sequence.is_repeated(number) else ""
            except msgspec.DecodeError as error:
                wrong = f"damaged ({error})"
            if wrong:
                self.skipped += 1
                _report(file.path, end - len(line) - 1, wrong, self._reported)
            else:
                yield JournalEntry(record, file, end, len(line) + 1)


def _report(path: Path, offset: int, wrong: str, reported: Counter[Path]) -> None:
    """Report a line that is left out; of many in a file only the first ones."""
    reported[path] += 1
    if reported[path] <= _MOST_REPORTED:
        more = " `hookline runs verify` lists the others." if reported[path] == _MOST_REPORTED else ""
        said = "The line at byte %d of %s is %s: it is left out, the others are read.%s"
        logger.warning(said, offset, path, wrong, more)


def _number_after(path: Path, offset: int) -> int | None:
    """The number that follows the line before an offset; None where that is not known."""
    with contextlib.suppress(OSError, msgspec.DecodeError), path.open("rb", buffering=0) as file:
        begin = max(0, offset - _CHUNK)
        before = os.pread(file.fileno(), offset - begin, begin)[:-1]
        number = line_number(before[before.rfind(b"\n") + 1 :]) if before else None
        return None if number is None else number + 1
    return None


def read_lines(path: Path, offset: int = 0) -> Iterator[tuple[bytes, int]]:
    """The complete lines of a file from an offset on, each with the offset behind it.

    A hole (zeros with lines behind them) counts as a line of blanks, which no record is.

    Raises:
        OSError: It cannot be read, or is something else than a file.
    """
    rest = b""
    while True:
        # Opened for each chunk, and not kept open: there may be more writers to merge than files a process can open.
        try:
            file = open(path, "rb", buffering=0, opener=_open_at_once)  # noqa: SIM115 - closed below
        except FileNotFoundError:  # a segment that was prepared and not needed
            return
        with file:
            position = offset + len(rest)
            file.seek(position)
            data, zero, _ = file.read(_CHUNK).partition(b"\0")
            hole = position + len(data)
            end = _end_of_hole(file.fileno(), hole) if zero else None
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            offset += len(line) + 1
            yield line, offset
        if end is None and (zero or not data):
            return
        if end is not None and end > hole:
            if rest:  # a line without its newline: it may be whole
                offset = hole + 1
                yield rest, offset
            if end > offset:
                yield b" " * (end - offset - 1), end  # not zeros: a server refuses those
            offset, rest = end, b""


def _end_of_hole(descriptor: int, zero: int) -> int | None:
    """Where lines begin again behind a zero byte; None where there are none, as at the end of a segment in use.

    The zero may have become a line since it was read: then that is where they begin. Lines are written one after the
    other, so once a later one is there, what is still zero stays so.
    """
    size = os.fstat(descriptor).st_size
    # A file that is complete ends in its last line, so what is zero in it is a hole, however long. Of a file in use,
    # only a little is looked at: this is done each time that a reader comes to its end.
    is_complete = size > zero and os.pread(descriptor, 1, size - 1) != b"\0"
    position = zero
    while True:
        window = os.pread(descriptor, _CHUNK, position)
        if not window:
            return None
        if window != _ZEROS[: len(window)]:
            break
        if not is_complete:
            return None
        position += len(window)
    lines_behind = window.lstrip(b"\0")
    end = position + len(window) - len(lines_behind)
    if b"\n" not in lines_behind and not (is_complete and _has_newline(descriptor, position + len(window))):
        return None  # the line that a killed process was copying: the parts of one are not copied in their order
    return end if os.pread(descriptor, 1, zero) == b"\0" else zero


def _has_newline(descriptor: int, position: int) -> bool:
    while window := os.pread(descriptor, _CHUNK, position):
        if b"\n" in window:
            return True
        position += len(window)
    return False


def _open_at_once(path: str, flags: int) -> int:
    """Open a file, and nothing that one would have to wait for; of a directory `open` says itself that it is one."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "Not a file", path)


def _unread(path: Path, offset: int) -> int:
    """The bytes of a file behind an offset, up to its last line; a segment in use is longer than what it holds."""
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        return 0
    with file:
        written = end_of_data(file.fileno(), offset, file.seek(0, 2))
        while written > offset:
            begin = max(offset, written - _CHUNK)
            newline = os.pread(file.fileno(), written - begin, begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1 - offset
            written = begin
    return 0


def read(run_dir: str | Path, *, writer: str | None = None) -> Iterator[AnyRecord]:
    """All records of a run by time, without what a later resume made obsolete.

    Metrics of other writers than the main one carry its name, as in every sink: ``rank1/loss``.

    Args:
        writer: Only what this one recorded, under its own names.
    """
    directory = journal_directory(run_dir)
    found = [file for file in journal_files(directory) if writer in (None, file.name)]
    marks = find_marks(found)
    streams = [_stream(segments, marks, labelled=writer is None) for segments in _by_writer(found).values()]
    return heapq.merge(*streams, key=lambda record: record.time)


def follow(
    run_dir: str | Path,
    *,
    poll_seconds: float = 0.2,
    idle_seconds: float | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[AnyRecord]:
    """Records as they are written, from the beginning, until the run says that it has ended.

    A run that said so in an earlier session and was taken up again has not.

    Args:
        idle_seconds: Also end when nothing was written for so long: a killed run says nothing.
        sleep: Waits between two looks.
    """
    reader = Reader(journal_directory(run_dir))
    idle, ending = 0.0, _Ending()
    while True:
        new = False
        for parcel in reader.new():
            new = True
            ending.note(parcel)
            yield parcel.record
        if not new and (ending.has_come or (idle_seconds is not None and idle >= idle_seconds)):
            return
        idle = 0.0 if new else idle + poll_seconds
        if not new:
            sleep(poll_seconds)


@dataclass(slots=True)
class _Ending:
    """Whether those who speak for a run last said that it is over."""

    has_come: bool = False
    since: float = 0.0

    def note(self, parcel: JournalEntry) -> None:
        """Take a record into account. Those of the courier come behind what the main writer said after them."""
        record, name = parcel.record, parcel.file.name
        speaks = name == MAIN or (name == DELIVERY_WRITER and record.time >= self.since)
        if speaks and isinstance(record, Status) and record.status != "heartbeat":
            self.has_come, self.since = record.status in FINAL, record.time
        elif name == MAIN and is_resume(record):
            self.has_come, self.since = False, record.time


def count_intact_lines(path: Path) -> int:
    """How many lines of a journal file have their number and the right checksum."""
    count = 0
    for line, _ in read_lines(path):
        with contextlib.suppress(msgspec.DecodeError):
            count += line_number(line) is not None
    return count


def count_missing_lines(run_dir: str | Path, writer: str, count: int) -> int:
    """How many of the first lines of a writer are not there, or damaged."""
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
    """The latest status that the run itself recorded, or another writer of it."""
    last: Status | None = None
    for file in journal_files(Path(run_dir) / JOURNAL):
        if file.name == name:
            for line, _ in read_lines(file.path):
                found = _decoded(line) if b'"kind":"status"' in line else None
                last = found if isinstance(found, Status) else last
    return last


def last_step(run_dir: str | Path) -> int:
    """The latest completed step that the run itself recorded in its last session."""
    own = [file for file in journal_files(Path(run_dir) / JOURNAL) if file.name == MAIN]
    for file in reversed(own):
        records = (_decoded(line) for line, _ in read_lines(file.path))
        steps = [record.step for record in records if isinstance(record, Metrics) and record.axis == "train"]
        if steps:
            return max(steps)
    return 0


def journal_directory(run_dir: str | Path) -> Path:
    """Where a run's journals lie.

    Raises:
        ConfigError: There is no run at that place.
    """
    directory = Path(run_dir) / JOURNAL
    if not directory.is_dir():
        raise ConfigError(f"{run_dir} is not a run's directory: it has no folder {JOURNAL!r}.")
    return directory


EVERY_AXIS = "*"


@dataclass(slots=True)
class ResumeMarks:
    """What makes earlier records obsolete: resumes by writer and axis, and evaluations that were done again."""

    resumes: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    evaluated: dict[tuple[str, int, str], int] = field(default_factory=dict)


def find_marks(found: Iterable[JournalFile]) -> ResumeMarks:
    """What the files say about which records of theirs are obsolete."""
    marks = ResumeMarks()
    for file in found:
        for line, _ in read_lines(file.path):
            if b'"resume"' in line or b'"axis":"eval"' in line:
                _note(marks, file, _decoded(line))
    return marks


def _note(marks: ResumeMarks, file: JournalFile, record: Any) -> None:
    if is_resume(record):
        for axis, step in resumed_steps(record).items():
            marks.resumes.setdefault((file.name, axis), []).append((file.session, step))
    elif isinstance(record, Metrics) and record.axis == "eval":
        for name in record.values:
            key = (file.name, record.step, name)
            marks.evaluated[key] = max(file.session, marks.evaluated.get(key, 0))


def is_resume(record: Any) -> bool:
    """Whether a record is a resume mark."""
    return isinstance(record, Event) and record.name == "resume"


def resumed_steps(record: Any) -> dict[str, int]:
    """After which step a resume mark takes up each axis; what is no whole number says nothing."""
    steps = record.data.get("steps")
    given = steps.items() if isinstance(steps, dict) else ()
    return {axis: step for axis, step in given if isinstance(step, int)}


def _by_writer(found: Iterable[JournalFile]) -> dict[str, list[JournalFile]]:
    writers: dict[str, list[JournalFile]] = {}
    for file in found:
        writers.setdefault(file.writer, []).append(file)
    return writers


def _stream(segments: list[JournalFile], marks: ResumeMarks, *, labelled: bool) -> Iterator[AnyRecord]:
    if not segments:
        return
    for parcel in Reader(segments[0].path.parent).new(segments):
        if drop_obsolete(parcel.record, parcel.file, marks):
            continue
        if labelled:
            add_writer_prefix(parcel.record, parcel.file)
        yield parcel.record


def add_writer_prefix(record: AnyRecord, file: JournalFile) -> None:
    """Have the metrics of another writer than the main one carry its name."""
    if isinstance(record, Metrics) and file.name != MAIN:
        record.values = {f"{file.name}/{name}": value for name, value in record.values.items()}


def _decoded(line: bytes) -> Any:
    try:
        return decode(line)
    except msgspec.DecodeError:
        return None


def drop_obsolete(record: AnyRecord, file: JournalFile, marks: ResumeMarks) -> bool:
    """Take out of a record what the same writer did anew in a later session; whether that was all of it."""
    if not isinstance(record, Metrics | Sample | Rewards):
        return False
    axis = record.axis if not isinstance(record, Rewards) else "train"
    if axis == "eval" and isinstance(record, Metrics) and _drop_evaluated_again(record, file, marks):
        return True
    resumes = [*marks.resumes.get((file.name, axis), ()), *marks.resumes.get((file.name, EVERY_AXIS), ())]
    return any(session > file.session and record.step > step for session, step in resumes)


def _drop_evaluated_again(record: Metrics, file: JournalFile, marks: ResumeMarks) -> bool:
    """Take out the names that a later session evaluated at the same step; whether there were no others."""
    latest = marks.evaluated
    again = {  # 0: written since the marks were read
        name for name in record.values if latest.get((file.name, record.step, name), 0) > file.session
    }
    if again:
        record.values = {name: value for name, value in record.values.items() if name not in again}
    return bool(again) and not record.values

"""Reads journals back: all records, those since a cursor, or live ones; from one writer or many.

Reading works while a writer is alive, dead or killed. A file ends for a reader at the first zero byte
or at a line without an end; a piece of a line that a full disk left behind is skipped and counted.

A resume mark (an event called ``resume`` with the steps of the axes that are taken up again) says
that what the same writer recorded in earlier sessions past those steps will be done anew: `read`
leaves that out, so that the view has no duplicates and no gaps. The history stays in the files.
"""

import heapq
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hookline.core.errors import ConfigError
from hookline.record.journal import File, files
from hookline.record.records import AnyRecord, Event, Metrics, Rewards, Sample, Status, decode

JOURNAL = "journal"
"""The folder of a run's directory that holds its journals."""
FINAL = frozenset({"finished", "failed", "stopped"})
"""The statuses after which a run records nothing more."""

_CHUNK = 1 << 20


@dataclass(slots=True)
class Cursor:
    """How far each file has been read, in bytes; a reader may begin from one that was saved."""

    offsets: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Reader:
    """Reads what is new in a run's journals each time it is asked."""

    directory: Path
    cursor: Cursor = field(default_factory=Cursor)
    skipped: int = 0

    def poll(self, limit: int | None = None) -> list[tuple[File, AnyRecord]]:
        """The records since the last time, each writer's in order; at most ``limit`` of them."""
        found: list[tuple[File, AnyRecord]] = []
        for file in files(self.directory):
            if limit is not None and len(found) >= limit:
                break
            found += self._new_in(file, None if limit is None else limit - len(found))
        return found

    def _new_in(self, file: File, limit: int | None) -> list[tuple[File, AnyRecord]]:
        found: list[tuple[File, AnyRecord]] = []
        for line, end in lines(file.path, self.cursor.offsets.get(file.path.name, 0)):
            if limit is not None and len(found) >= limit:
                break
            self.cursor.offsets[file.path.name] = end
            try:
                found.append((file, decode(line)))
            except msgspec.DecodeError:
                self.skipped += 1
        return found


def lines(path: Path, offset: int = 0) -> Iterator[tuple[bytes, int]]:
    """The complete lines of a file from an offset on, each with the offset behind it."""
    try:
        file = path.open("rb")
    except FileNotFoundError:  # a segment that was prepared and not needed
        return
    with file:
        file.seek(offset)
        rest = b""
        while chunk := file.read(_CHUNK):
            data, zero, _ = chunk.partition(b"\0")
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                offset += len(line) + 1
                yield line, offset
            if zero:
                return


def read(run_dir: str | Path) -> Iterator[AnyRecord]:
    """All records of a run by time, without what a later resume made obsolete."""
    directory = journal_directory(run_dir)
    found = files(directory)
    marks = _marks(found)
    streams = [_stream(writer, marks) for writer in _by_writer(found).values()]
    return heapq.merge(*streams, key=lambda record: record.time)


def follow(
    run_dir: str | Path,
    *,
    poll_seconds: float = 0.2,
    idle_seconds: float | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[AnyRecord]:
    """Records as they are written, from the beginning, until the run says that it has ended.

    Args:
        idle_seconds: Also end when nothing was written for so long: a killed run says nothing.
        sleep: Waits between two looks.
    """
    reader = Reader(journal_directory(run_dir))
    idle, ended = 0.0, False
    while True:
        new = reader.poll()
        for _, record in new:
            yield record
            ended = ended or (isinstance(record, Status) and record.status in FINAL)
        if not new and (ended or (idle_seconds is not None and idle >= idle_seconds)):
            return
        idle = 0.0 if new else idle + poll_seconds
        if not new:
            sleep(poll_seconds)


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
class Marks:
    """What makes earlier records obsolete: resumes by writer and axis, and evaluations that were done again."""

    resumes: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    evaluated: dict[tuple[str, int], int] = field(default_factory=dict)


def _marks(found: Iterable[File]) -> Marks:
    marks = Marks()
    for file in found:
        for line, _ in lines(file.path):
            if b'"resume"' in line or b'"axis":"eval"' in line:
                _note(marks, file, _decoded(line))
    return marks


def _note(marks: Marks, file: File, record: Any) -> None:
    if isinstance(record, Event) and record.name == "resume":
        for axis, step in record.data.get("steps", {}).items():
            marks.resumes.setdefault((file.name, axis), []).append((file.session, step))
    elif isinstance(record, Metrics) and record.axis == "eval":
        key = (file.name, record.step)
        marks.evaluated[key] = max(file.session, marks.evaluated.get(key, 0))


def _by_writer(found: Iterable[File]) -> dict[str, list[File]]:
    writers: dict[str, list[File]] = {}
    for file in found:
        writers.setdefault(file.writer, []).append(file)
    return writers


def _stream(segments: list[File], marks: Marks) -> Iterator[AnyRecord]:
    for file in segments:
        for line, _ in lines(file.path):
            record = _decoded(line)
            if record is not None and not _is_obsolete(record, file, marks):
                yield record


def _decoded(line: bytes) -> Any:
    try:
        return decode(line)
    except msgspec.DecodeError:
        return None


def _is_obsolete(record: AnyRecord, file: File, marks: Marks) -> bool:
    if not isinstance(record, Metrics | Sample | Rewards):
        return False
    axis = record.axis if not isinstance(record, Rewards) else "train"
    if axis == "eval" and isinstance(record, Metrics) and marks.evaluated[(file.name, record.step)] > file.session:
        return True
    resumes = [*marks.resumes.get((file.name, axis), ()), *marks.resumes.get((file.name, EVERY_AXIS), ())]
    return any(session > file.session and record.step > step for session, step in resumes)

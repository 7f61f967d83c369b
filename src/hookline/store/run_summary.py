"""Summarizes a run from the head and tail of its journal, and determines its status.

The first lines of the last session hold the number of steps; the last ones hold the progress and the final status. A
thousand runs can therefore be listed without reading everything they recorded. The last training row may be followed
by other records, such as benchmark predictions, so the tail is extended by up to 1 MB to find it. Of a live run that
was summarized before, only what its journal gained is decoded (`GrowingSummary`).

A run's status is ``running``, ``stalled``, ``finished``, ``failed``, ``stopped`` or ``killed``. A recorded final status
counts. Otherwise the run's lock shows whether its process lives: a live process without recent progress is stalled, a
dead one was killed. The lock of another machine, or one that may not be read, cannot be checked; then the time of the
last record decides.

A run received from another machine has a ``received.json``; its modification time is the last contact. It counts as
killed once it missed several of the heartbeats it promised. Times of the other machine are only compared with each
other, so its clock may be wrong.
"""

import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hookline._record import run_directory
from hookline._record.reader import DELIVERY_WRITER, FINAL, JOURNAL, MAIN, JournalEntry
from hookline._record.records import AnyRecord, Event, LogLine, Metrics, Status, clean, decode, parse_nonfinite
from hookline._record.segment import JournalFile, open_journal
from hookline.sinks.run_progress import RunProgress
from hookline.store.journal_files import byte_at, written_end

_HEAD_BYTES = 4 << 10
_TAIL_BYTES = 8 << 10
_BLOCK_BYTES = 128 << 10
_MAX_TAIL_BYTES = 1 << 20
_GROWTH_BYTES = 64 << 10
"""A live run is read in full again after this many bytes were added to its journal."""
_BULKY_PREFIXES = (b'{"kind":"sample"', b'{"kind":"sample_use"', b'{"kind":"rewards"')
"""Lines without information about progress; decoding them would take most of the time."""
_METRICS_PREFIX = b'{"kind":"metrics"'
_SCORE_AXES = ("eval", "benchmark", "final")
_COST_PREFIX = "hooks/"


class RunSummary(msgspec.Struct):
    """A run's progress, from the last records of its main writer or of the delivery."""

    status: str = ""
    message: str = ""
    status_time: float = 0.0
    step: int = 0
    num_steps: int | None = None
    seconds_per_step: float | None = None
    eta_seconds: float | None = None
    last_seen: float = 0.0
    progress_time: float = 0.0
    hangs: bool = False
    metrics: dict[str, Any] = {}

    @property
    def has_ended(self) -> bool:
        """Whether the run recorded a final status."""
        return self.status in FINAL

    @property
    def latest(self) -> dict[str, Any]:
        """The latest metric values among the records that were read."""
        return {name: parse_nonfinite(value) for name, value in self.metrics.items()}


def summarize(files: list[JournalFile]) -> RunSummary:
    """Summarize a run from the ends of its journal files."""
    return GrowingSummary(files).summary


class GrowingSummary:
    """The summary of a live run: read from the ends of its files once, then from what they gain.

    Records that are added are applied to the summary, instead of decoding the ends of the files again at each listing.
    From time to time it is read in full again, so that it never differs much from a new one: it may have metrics that
    were recorded a little before the tail.

    Args:
        files: The journal files of the run; with other files, make another object.

    Attributes:
        summary: As of the last `refresh`.
    """

    def __init__(self, files: list[JournalFile]) -> None:
        self._files = files
        self._ends: dict[Path, int] = {}
        self._partial, self._grown = b"", 0
        self._growing: JournalFile | None = None
        self._read()

    @property
    def only_path(self) -> Path | None:
        """The only file that can grow; None if there may be others."""
        growing = self._growing
        is_only = growing is not None and all(file.writer == growing.writer for file in self._files)
        return growing.path if growing is not None and is_only else None

    def refresh(self) -> bool:
        """Read the new records; returns whether there were any."""
        if self._growing is None:
            # The summary changes only when a file grows whose end was read, which one byte of it shows.
            if self._ends and all(byte_at(path, end) in (b"", b"\0") for path, end in self._ends.items()):
                return False
            self._read()
            return True
        file, end = self._growing, self._ends[self._growing.path]
        added, zero, rest = _added(file.path, end).partition(b"\0")
        if not added:
            return False
        self._grown += len(added)
        # Lines after zeros: another thread of the run is still filling the one before them.
        if self._grown >= _GROWTH_BYTES or (zero and b"\n" in rest):
            self._read()
            return True
        *lines, self._partial = (self._partial + added).split(b"\n")
        self._ends[file.path] = end + len(added)
        self._apply([JournalEntry(record, file, 0, 0) for record in _decode_lines(lines)])
        return True

    def _read(self) -> None:
        self.summary, self._progress = RunSummary(), RunProgress()
        self._ends, self._partial, self._grown, self._growing = {}, b"", 0, None
        main = [file for file in self._files if file.name == MAIN]
        # The latest first. A session that was killed before its first record has no information, so the previous one
        # counts.
        for session in sorted({file.session for file in main}, reverse=True):
            own = [file for file in main if file.session == session]
            records = list(self._session_ends(own))
            if records:
                break
        else:
            return
        session_start = records[0].record.time
        self._apply(records)
        delivery = [file for file in self._files if file.name == DELIVERY_WRITER]
        # Only if the run recorded no end itself, which would be more precise.
        if delivery and not self._progress.has_ended:
            found = self._file_ends(delivery[0], delivery[-1])
            # The death of an earlier session does not concern one that was resumed since.
            self._apply([each for each in found if each.record.time >= session_start])
        # With several files, the order in which their new records count is known only after reading all of them.
        if len(self._ends) != 1 or delivery:
            self._growing = None

    def _session_ends(self, files: list[JournalFile]) -> Iterator[JournalEntry]:
        """Read the ends of one session's files; forked children, which write little, come first."""
        writers: dict[str, list[JournalFile]] = {}
        for file in files:
            writers.setdefault(file.writer, []).append(file)
        ordered = list(writers.values())
        if len(ordered) > 1:
            # The writer with the most comes last, because the last record decides about status and progress.
            ordered.sort(key=lambda own: sum(_size(file.path) for file in own))
        for own in ordered:
            yield from self._file_ends(own[0], own[-1])

    def _file_ends(self, first: JournalFile, last: JournalFile) -> Iterator[JournalEntry]:
        head = _head(first, _HEAD_BYTES)
        tail = _tail(last, _metric_names(head))
        self._ends[last.path], self._partial = tail.end, tail.partial
        self._growing = last if tail.is_whole else None
        if first.path == last.path and tail.start < _HEAD_BYTES:
            # Not beyond where the tail starts: records would be applied twice.
            head = _head(first, tail.start)
        for file, records in ((first, head), (last, tail.records)):
            for record in records:
                yield JournalEntry(record, file, 0, 0)

    def _apply(self, entries: list[JournalEntry]) -> None:
        progress, summary = self._progress, self.summary
        for entry in entries:
            record = entry.record
            summary.last_seen = record.time
            is_heartbeat = isinstance(record, Status) and record.status == "heartbeat"
            is_hang = isinstance(record, Event) and record.name == "hang"
            if not (is_heartbeat or is_hang or isinstance(record, LogLine)):
                summary.progress_time = record.time
            summary.hangs = is_hang or (summary.hangs and summary.progress_time != record.time)
            if isinstance(record, Status) and not is_heartbeat:
                summary.message, summary.status_time = record.message, record.time
            # Journal order wins over a clock that was set back.
            record.time = max(record.time, progress.status_time, progress.time)
            progress.add(entry)
        train = progress.metrics.get("train", {})
        values = {name: value for axis in progress.metrics.values() for name, value in axis.items()}
        # On several axes, the value of the training counts. Nearly all values are plain numbers, and names were decoded
        # from JSON: only the others have to be converted.
        summary.metrics = {
            name: value if value.__class__ is float and math.isfinite(value) else clean(value)
            for name, value in (values | train if len(progress.metrics) > 1 else values).items()
        }
        summary.status = progress.status
        summary.step = progress.steps.get("train", max(progress.steps.values(), default=0))
        summary.num_steps = progress.num_steps
        summary.seconds_per_step, summary.eta_seconds = progress.seconds_per_step, progress.eta_seconds


class _Tail(NamedTuple):
    """The last records of a file, and where they start.

    Attributes:
        end: The offset after the data.
        partial: The data after the last whole line.
        is_whole: Everything before the end was read: no line is still being filled, and ``partial`` is not cut off.
    """

    records: list[AnyRecord]
    start: int
    end: int
    partial: bytes
    is_whole: bool


def _head(file: JournalFile, count: int) -> list[AnyRecord]:
    lines, _, _ = _read(file.path, 0, count).partition(b"\0")
    return _decode_lines(lines.split(b"\n")[:-1])


def _tail(file: JournalFile, names: set[str]) -> _Tail:
    """Read enough of a file's last records to include a training row.

    Args:
        names: Metrics that the run began with. If some are not among the last rows, as where each value has a row of
            its own, one more block is read to find them: the first values must not pass for the latest.
    """
    end = written_end(file.path)
    start = max(0, end - _TAIL_BYTES)
    data = _read(file.path, start, end - start)
    *lines, rest = data.split(b"\n")  # the last piece is not a whole line
    partial = lines.pop(0) if start and lines else b""
    records = _decode_lines(lines)
    while start and end - start < _MAX_TAIL_BYTES:
        is_enough = end - start > _TAIL_BYTES or names <= _metric_names(records)
        if is_enough and any(map(_is_training_row, records)):
            break
        start, block_end = max(0, start - _BLOCK_BYTES), start
        block = _read(file.path, start, block_end - start) + partial
        cut = block.find(b"\n") if start else 0  # before it: the end of a line of the block before
        partial = block if cut < 0 else block[:cut]
        if cut >= 0 and _METRICS_PREFIX in block:  # most blocks have no row and need not be split
            rows = [line for line in block[cut:].split(b"\n") if line.startswith(_METRICS_PREFIX)]
            records = _decode_lines(rows) + records
    is_whole = b"\0" not in data and (b"\n" in data or len(data) == end)
    return _Tail(records, start + len(partial) + 1 if start else 0, end, rest, is_whole)


def _metric_names(records: list[AnyRecord]) -> set[str]:
    return {name for record in records if isinstance(record, Metrics) for name in record.values}


def _is_training_row(record: AnyRecord) -> bool:
    if not isinstance(record, Metrics) or record.axis in _SCORE_AXES:
        return False
    return not all(name.startswith(_COST_PREFIX) for name in record.values)


def _added(path: Path, end: int) -> bytes:
    """Return a file's data after an offset, including the zeros of a preallocated file."""
    try:
        with open_journal(path, follow_links=False) as file:
            # Most files have no new data, which one byte shows.
            return file.pread(_GROWTH_BYTES, end) if file.pread(1, end) not in (b"", b"\0") else b""
    except OSError:
        return b""


def _read(path: Path, start: int, count: int) -> bytes:
    try:
        with open_journal(path, follow_links=False) as file:
            return file.pread(count, start)
    except OSError:
        return b""


def _size(path: Path) -> int:
    try:
        with open_journal(path, follow_links=False) as file:
            return file.size
    except OSError:
        return 0


def _decode_lines(lines: list[bytes]) -> list[AnyRecord]:
    """Decode lines; of the bulky ones only the last, for its time."""
    bulky = [index for index, line in enumerate(lines) if line.startswith(_BULKY_PREFIXES)]
    skipped = set(bulky[:-1])
    records = []
    for index, line in enumerate(lines):
        if index in skipped:
            continue
        try:
            records.append(decode(line.lstrip(b"\0")))  # zeros: a line before it is still being filled
        except msgspec.DecodeError:
            continue
    return records


_MAX_RECEIVED_BYTES = 64 << 10


class ReceivedInfo(msgspec.Struct, frozen=True):
    """The content of ``received.json``.

    Attributes:
        origin: Identifies the sender.
        received: When the first request came.
        every_seconds: The promised heartbeat interval; None if none was promised.
    """

    origin: str
    received: float = 0.0
    every_seconds: float | None = None

    @classmethod
    def parse(cls, text: bytes) -> "ReceivedInfo":
        """Parse the file; unreadable content has no origin."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return cls("")


class LastContact(NamedTuple):
    """When a received run last sent something, and its heartbeat interval."""

    time: float
    every_seconds: float | None


def last_contact(directory: Path) -> LastContact | None:
    """The last contact with a received run; None if the run was not received."""
    try:
        # The directory's content came from elsewhere: neither follow a link nor wait at a pipe.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(f"{directory}/{run_directory.RECEIVED}", flags)
    except OSError:
        return None
    try:
        info = ReceivedInfo.parse(os.read(descriptor, _MAX_RECEIVED_BYTES))
        return LastContact(os.fstat(descriptor).st_mtime, info.every_seconds)
    except OSError:
        return None
    finally:
        os.close(descriptor)


STALL_SECONDS = 300.0
"""How long a run may make no progress, unless its steps take longer."""
_STALL_STEPS = 20
"""This many usual step times without progress are not yet a stall."""
_KILLED_FACTOR = 10
"""A run that cannot be checked counts as killed after this many stall times."""
_MISSED_HEARTBEATS, _MIN_SILENCE_SECONDS = 3, 15.0
_RECONNECT_SECONDS = 45.0
"""Senders wait at most half a minute between two attempts, plus the request's timeout."""
STATUSES = ("running", "stalled", "finished", "failed", "stopped", "killed")


@dataclass(frozen=True, slots=True)
class Liveness:
    """Determines the status of runs.

    Args:
        stall_seconds: How long a run may make no progress.
        clock: Seconds since 1970.
        host: This machine's name.
        since: When this process started to receive runs; by default, always.
    """

    stall_seconds: float = STALL_SECONDS
    clock: Callable[[], float] = time.time
    host: str = socket.gethostname()
    since: float = -math.inf

    def status(
        self, summary: RunSummary, directory: Path, facts: Mapping[str, Any], only_path: Path | None = None
    ) -> str:
        """The status of a run.

        Args:
            summary: Its summary.
            directory: Its directory.
            facts: The content of its ``run.json``.
            only_path: The only journal file that can grow, if that is known.
        """
        if summary.has_ended:
            return summary.status
        limit = max(self.stall_seconds, _STALL_STEPS * (summary.seconds_per_step or 0.0))
        contact = last_contact(directory)
        if contact is not None:
            return self._received_status(summary, directory, contact, limit, only_path)
        is_alive = run_directory.is_alive(directory)
        if is_alive:
            idle = self.clock() - summary.progress_time if summary.progress_time else 0.0
            return "stalled" if summary.hangs or idle > limit else "running"
        started = facts.get("started")
        if not summary.last_seen and isinstance(started, float) and self.clock() - started < limit:
            return "running"  # still starting: nothing is recorded yet
        if is_alive is not None and facts.get("host") in (None, self.host):
            return "killed"
        silent = self.clock() - summary.last_seen  # the lock shows nothing here
        if silent > _KILLED_FACTOR * limit:
            return "killed"
        return "stalled" if summary.hangs or silent > limit else "running"

    def _received_status(
        self, summary: RunSummary, directory: Path, contact: LastContact, limit: float, only_path: Path | None
    ) -> str:
        if contact.every_seconds is None:
            max_silence = _KILLED_FACTOR * limit
        else:
            max_silence = max(_MIN_SILENCE_SECONDS, _MISSED_HEARTBEATS * contact.every_seconds)
        # After an outage of this server, senders retry only occasionally.
        may_reconnect = contact.time < self.since and self.clock() - self.since <= _RECONNECT_SECONDS
        if self.clock() - contact.time > max_silence and not may_reconnect:
            return "killed"
        # Both times are the sender's, and only their difference is used: its clock may be wrong.
        lag = summary.last_seen - summary.progress_time if summary.progress_time else 0.0
        idle = self.clock() - _last_append(directory, contact.time, only_path) + lag
        return "stalled" if summary.hangs or idle > limit else "running"


def _last_append(directory: Path, default: float, only_path: Path | None) -> float:
    """When a journal file last changed, by this machine's clock."""
    try:
        if only_path is not None:
            return os.lstat(only_path).st_mtime
        with os.scandir(directory / JOURNAL) as entries:
            return max((entry.stat(follow_symlinks=False).st_mtime for entry in entries), default=default)
    except OSError:
        return default

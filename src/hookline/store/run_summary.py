"""Summarizes a run from the head and tail of its journal, and determines its status.

The first lines of the last session hold the number of steps; the last ones hold the progress and the final status. A
thousand runs can therefore be listed without reading everything they recorded. The last training row may be followed
by other records, such as benchmark predictions, so the tail is extended by up to 1 MiB to find it.

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
from hookline._record.segment import JournalFile
from hookline.sinks.run_progress import RunProgress
from hookline.store.journal_files import written_end

_HEAD_BYTES = 4 << 10
_TAIL_BYTES = 8 << 10
_BLOCK_BYTES = 128 << 10
_MAX_TAIL_BYTES = 1 << 20
_BULKY_PREFIXES = (b'{"kind":"sample"', b'{"kind":"rewards"')
"""Lines that say nothing about progress; decoding them would take most of the time."""
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
    main = [file for file in files if file.name == MAIN]
    # The latest first; one that was killed before its first record says nothing, so the one before it counts.
    for session in sorted({file.session for file in main}, reverse=True):
        records = list(_session_ends([file for file in main if file.session == session]))
        if records:
            break
    else:
        return RunSummary()
    progress, summary = RunProgress(), RunSummary()
    session_start = records[0].record.time
    _apply(records, progress, summary)
    # Only if the run recorded no end of its own: that one knows better.
    if not progress.has_ended:
        delivery = [file for file in files if file.name == DELIVERY_WRITER]
        ends = _ends(delivery[0], delivery[-1]) if delivery else ()
        # The death of an earlier session says nothing about one that was resumed since.
        _apply([each for each in ends if each.record.time >= session_start], progress, summary)
    train = progress.metrics.get("train", {})
    values = {name: value for axis in progress.metrics.values() for name, value in axis.items()}
    # On several axes, the value of the training counts.
    summary.metrics = clean(values | train)
    summary.status = progress.status
    summary.step = progress.steps.get("train", max(progress.steps.values(), default=0))
    summary.num_steps = progress.num_steps
    summary.seconds_per_step, summary.eta_seconds = progress.seconds_per_step, progress.eta_seconds
    return summary


def _apply(entries: list[JournalEntry], progress: RunProgress, summary: RunSummary) -> None:
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


def _session_ends(files: list[JournalFile]) -> Iterator[JournalEntry]:
    """Read the ends of one session's files; forked children, which write little, come first."""
    writers: dict[str, list[JournalFile]] = {}
    for file in files:
        writers.setdefault(file.writer, []).append(file)
    # The writer with the most comes last, because the last record decides about status and progress.
    for own in sorted(writers.values(), key=lambda own: sum(_size(file.path) for file in own)):
        yield from _ends(own[0], own[-1])


def _ends(first: JournalFile, last: JournalFile) -> Iterator[JournalEntry]:
    tail, tail_start = _tail(last)
    # Not beyond where the tail starts: records would be applied twice.
    head_bytes = _HEAD_BYTES if first.path != last.path else min(_HEAD_BYTES, tail_start)
    head, _, _ = _read(first.path, 0, head_bytes).partition(b"\0")
    for file, records in ((first, _decode_lines(head.split(b"\n")[:-1])), (last, tail)):
        for record in records:
            yield JournalEntry(record, file, 0, 0)


def _tail(file: JournalFile) -> tuple[list[AnyRecord], int]:
    """Read enough of a file's last records to include a training row; also returns where they start."""
    end = written_end(file.path)
    start = max(0, end - _TAIL_BYTES)
    lines = _read(file.path, start, end - start).split(b"\n")[:-1]  # the last piece is not a whole line
    partial = lines.pop(0) if start and lines else b""
    records = _decode_lines(lines)
    while start and end - start < _MAX_TAIL_BYTES and not any(map(_is_training_row, records)):
        start, block_end = max(0, start - _BLOCK_BYTES), start
        data = _read(file.path, start, block_end - start) + partial
        cut = data.find(b"\n") if start else 0  # before it: the end of a line of the block before
        partial = data if cut < 0 else data[:cut]
        if cut >= 0 and _METRICS_PREFIX in data:  # most blocks have no row and need not be split
            rows = [line for line in data[cut:].split(b"\n") if line.startswith(_METRICS_PREFIX)]
            records = _decode_lines(rows) + records
    return records, start + len(partial) + 1 if start else 0


def _is_training_row(record: AnyRecord) -> bool:
    if not isinstance(record, Metrics) or record.axis in _SCORE_AXES:
        return False
    return not all(name.startswith(_COST_PREFIX) for name in record.values)


def _read(path: Path, start: int, count: int) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            return file.read(count)
    except OSError:
        return b""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
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
            records.append(decode(line))
        except msgspec.DecodeError:
            continue
    return records


RECEIVED_FILE = "received.json"
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
        descriptor = os.open(directory / RECEIVED_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
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
        since: When this process started to receive runs; by default it always did.
    """

    stall_seconds: float = STALL_SECONDS
    clock: Callable[[], float] = time.time
    host: str = socket.gethostname()
    since: float = -math.inf

    def status(self, summary: RunSummary, directory: Path, facts: Mapping[str, Any]) -> str:
        """The status of a run with these facts in its ``run.json``."""
        if summary.has_ended:
            return summary.status
        limit = max(self.stall_seconds, _STALL_STEPS * (summary.seconds_per_step or 0.0))
        contact = last_contact(directory)
        if contact is not None:
            return self._received_status(summary, directory, contact, limit)
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

    def _received_status(self, summary: RunSummary, directory: Path, contact: LastContact, limit: float) -> str:
        if contact.every_seconds is None:
            max_silence = _KILLED_FACTOR * limit
        else:
            max_silence = max(_MIN_SILENCE_SECONDS, _MISSED_HEARTBEATS * contact.every_seconds)
        # After an outage of this server, senders retry only now and then.
        may_reconnect = contact.time < self.since and self.clock() - self.since <= _RECONNECT_SECONDS
        if self.clock() - contact.time > max_silence and not may_reconnect:
            return "killed"
        # Both times are the sender's, and only their difference is used: its clock may be wrong.
        lag = summary.last_seen - summary.progress_time if summary.progress_time else 0.0
        idle = self.clock() - _last_append(directory, contact.time) + lag
        return "stalled" if summary.hangs or idle > limit else "running"


def _last_append(directory: Path, default: float) -> float:
    """When a journal file last changed, by this machine's clock."""
    try:
        with os.scandir(directory / JOURNAL) as entries:
            return max((entry.stat(follow_symlinks=False).st_mtime for entry in entries), default=default)
    except OSError:
        return default

"""What a run has come to, from the two ends of its journal: where it stands without reading all of it.

The first lines of the last session say how much there is to do, the last ones how far it is and how it ended. So a
thousand runs can be listed without reading what they recorded. Behind the last row of the training there may be much
else, such as the predictions of a benchmark: what lies behind it is looked through for the row, up to 1 MiB of it.

``received.json``: in the directory of a run that another machine sends. Its time is the last sign of life.

Which word says how a run is: ``running``, ``stalled``, ``finished``, ``failed``, ``stopped`` or ``killed``.

A run that said how it ended is that. Otherwise its lock tells whether its process lives: one that lives and completed
nothing for a while is stalled, one that does not was killed. The lock of a run on another machine cannot be
seen, nor one that another user lets nobody read: there only the time tells when it recorded last.

A run that is received from another machine was killed when it neither sent anything nor said that it lives for longer
than it promised. One that was last heard of before whoever receives was there is waited for a little longer: after an
outage a sender tries again only now and then. Times of that machine are only compared with each other, so its clock
may be wrong.
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

_HEAD = 4 << 10
_TAIL = 8 << 10
_BLOCK = 128 << 10
_LONGEST_TAIL = 1 << 20
_BULKY = (b'{"kind":"sample"', b'{"kind":"rewards"')
"""How the lines begin that say nothing about where a run stands; decoding them would take most of the time."""
_SCORES = ("eval", "benchmark", "final")
"""What evaluations and benchmarks are recorded on: a run has come to more than their scores."""
_ROW = b'{"kind":"metrics"'
_COSTS = "hooks/"


class RunSummary(msgspec.Struct):
    """Where a run stands, by what its main writer, or the courier for it, recorded last."""

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
        """Whether the run has said that it is over."""
        return self.status in FINAL

    @property
    def latest(self) -> dict[str, Any]:
        """The last values of the metrics in the rows that were looked at."""
        return {name: parse_nonfinite(value) for name, value in self.metrics.items()}


def summarize(found: list[JournalFile]) -> RunSummary:
    """Look at the ends of a run's journals."""
    for session in sorted({file.session for file in found if file.name == MAIN}, reverse=True):
        parcels = list(_main_parcels([file for file in found if file.name == MAIN and file.session == session]))
        if parcels:
            return _glance(parcels, _courier_parcels(found))
    return RunSummary()


def _glance(parcels: list[JournalEntry], courier: list[JournalEntry]) -> RunSummary:
    standing, seen = RunProgress(), RunSummary()
    began = parcels[0].record.time
    _note(parcels, standing, seen)
    if not standing.has_ended:
        _note([parcel for parcel in courier if parcel.record.time >= began], standing, seen)
    train = standing.metrics.get("train", {})
    seen.metrics = clean({name: value for axis in standing.metrics.values() for name, value in axis.items()} | train)
    seen.status = standing.status
    seen.step = standing.steps.get("train", max(standing.steps.values(), default=0))
    seen.num_steps = standing.num_steps
    seen.seconds_per_step, seen.eta_seconds = standing.seconds_per_step, standing.eta_seconds
    return seen


def _note(parcels: list[JournalEntry], standing: RunProgress, seen: RunSummary) -> None:
    for parcel in parcels:
        record = parcel.record
        seen.last_seen = record.time
        is_heartbeat = isinstance(record, Status) and record.status == "heartbeat"
        is_hang = isinstance(record, Event) and record.name == "hang"
        if not (is_heartbeat or is_hang or isinstance(record, LogLine)):
            seen.progress_time = record.time
        seen.hangs = is_hang or (seen.hangs and seen.progress_time != record.time)
        if isinstance(record, Status) and not is_heartbeat:
            seen.message, seen.status_time = record.message, record.time
        # a clock that was set back must not undo what came later
        record.time = max(record.time, standing.status_time, standing.time)
        standing.note(parcel)


def _main_parcels(found: list[JournalFile]) -> Iterator[JournalEntry]:
    """The ends of what one session wrote; forked children, which write little, come first."""
    writers: dict[str, list[JournalFile]] = {}
    for file in found:
        writers.setdefault(file.writer, []).append(file)
    for own in sorted(writers.values(), key=lambda own: sum(_size(file.path) for file in own)):
        yield from _ends(own[0], own[-1])


def _courier_parcels(found: list[JournalFile]) -> list[JournalEntry]:
    own = [file for file in found if file.name == DELIVERY_WRITER]
    return list(_ends(own[0], own[-1])) if own else []


def _ends(first: JournalFile, last: JournalFile) -> Iterator[JournalEntry]:
    tail, begin = _tail(last)
    head_end = _HEAD if first.path != last.path else min(_HEAD, begin)
    for file, lines in ((first, _head(first.path, head_end)), (last, tail)):
        for record in lines:
            yield JournalEntry(record, file, 0, 0)


def _head(path: Path, limit: int) -> list[AnyRecord]:
    data, _, _ = _read(path, 0, limit).partition(b"\0")
    return _decoded(data.split(b"\n")[:-1])


def _tail(file: JournalFile) -> tuple[list[AnyRecord], int]:
    """The last records of a file, so many that a row of the training is among them, and where they begin."""
    end = written_end(file.path)
    begin = max(0, end - _TAIL)
    lines = _read(file.path, begin, end - begin).split(b"\n")[:-1]  # what follows the last newline is no whole line
    rest = lines.pop(0) if begin and lines else b""
    records = _decoded(lines)
    while begin and end - begin < _LONGEST_TAIL and not any(map(_says_how_good, records)):
        begin, behind = max(0, begin - _BLOCK), begin
        rest, lines = _rows(_read(file.path, begin, behind - begin) + rest, is_first=begin == 0)
        records = _decoded(lines) + records
    return records, begin + len(rest) + 1 if begin else 0


def _rows(data: bytes, *, is_first: bool) -> tuple[bytes, list[bytes]]:
    """The beginning of a block, which belongs to a line before it, and the lines with metrics in the rest of it."""
    cut = 0 if is_first else data.find(b"\n")
    rest = data if cut < 0 else data[:cut]
    if cut < 0 or _ROW not in data:  # most blocks have none, and need not be taken apart
        return rest, []
    return rest, [line for line in data[cut:].split(b"\n") if line.startswith(_ROW)]


def _says_how_good(record: AnyRecord) -> bool:
    """Whether it is a row of the training, with more than what the subscribers cost."""
    if not isinstance(record, Metrics) or record.axis in _SCORES:
        return False
    return not all(name.startswith(_COSTS) for name in record.values)


def _read(path: Path, begin: int, count: int) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(begin)
            return file.read(count)
    except OSError:
        return b""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _decoded(lines: list[bytes]) -> list[AnyRecord]:
    """The records of lines; of those that say nothing but when they were written only the last one."""
    bulky = [place for place, line in enumerate(lines) if line.startswith(_BULKY)]
    passed_by = set(bulky[:-1])
    records = []
    for place, line in enumerate(lines):
        if place in passed_by:
            continue
        try:
            records.append(decode(line))
        except msgspec.DecodeError:
            continue
    return records


RECEIVED = "received.json"
_MOST_BYTES = 64 << 10


class Received(msgspec.Struct, frozen=True):
    """Whose the run is.

    Attributes:
        origin: Who sends it.
        received: When it was first heard of.
        every_seconds: How often its process says that it lives; None where nobody promised anything.
    """

    origin: str
    received: float = 0.0
    every_seconds: float | None = None

    @classmethod
    def decoded(cls, text: bytes) -> "Received":
        """What the file says; one that cannot be read is nobody's."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return cls("")


class Sign(NamedTuple):
    """The last sign of life of a received run, and when the next was promised."""

    time: float
    every_seconds: float | None


def last_sign(directory: Path) -> Sign | None:
    """The last sign of life; None where a run was not received."""
    try:
        descriptor = os.open(directory / RECEIVED, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        held = Received.decoded(os.read(descriptor, _MOST_BYTES))
        return Sign(os.fstat(descriptor).st_mtime, held.every_seconds)
    except OSError:
        return None
    finally:
        os.close(descriptor)


STALL_SECONDS = 300.0
"""How long a run may complete nothing, unless its steps take long."""
_STEPS = 20
"""So many usual steps' time is not yet a stall."""
_LOST = 10
"""After so many times the time that makes a stall, a run of another machine counts as killed."""
_BEATS, _SILENT_SECONDS = 3, 15.0
"""A received run may leave out so many signs of life, and be silent for so long in any case."""
_RETURN_SECONDS = 45.0
"""A sender waits half a minute between two attempts at most, and then for an answer."""
WORDS = ("running", "stalled", "finished", "failed", "stopped", "killed")


@dataclass(frozen=True, slots=True)
class Liveness:
    """Tells how runs are.

    Args:
        stall_seconds: How long a run may complete nothing.
        clock: Seconds since 1970.
        host: This machine's name.
        since: Since when runs can be received, by the clock; where nobody receives, they always could.
    """

    stall_seconds: float = STALL_SECONDS
    clock: Callable[[], float] = time.time
    host: str = socket.gethostname()
    since: float = -math.inf

    def word(self, glance: RunSummary, directory: Path, facts: Mapping[str, Any]) -> str:
        """The word for a run of which ``run.json`` says the facts."""
        if glance.has_ended:
            return glance.status
        host, started = facts.get("host"), facts.get("started")
        limit = max(self.stall_seconds, _STEPS * (glance.seconds_per_step or 0.0))
        sign = last_sign(directory)
        if sign is not None:
            return self._received(glance, directory, sign, limit)
        is_alive = run_directory.is_alive(directory)
        if is_alive:
            idle = self.clock() - glance.progress_time if glance.progress_time else 0.0
            return "stalled" if glance.hangs or idle > limit else "running"
        if not glance.last_seen and isinstance(started, float) and self.clock() - started < limit:
            return "running"  # it is being prepared, and has recorded nothing yet
        is_seen = is_alive is not None and host in (None, self.host)
        return "killed" if is_seen else self._by_time(glance, limit)

    def _by_time(self, glance: RunSummary, limit: float) -> str:
        silent = self.clock() - glance.last_seen
        if silent > _LOST * limit:
            return "killed"
        return "stalled" if glance.hangs or silent > limit else "running"

    def _received(self, glance: RunSummary, directory: Path, sign: Sign, limit: float) -> str:
        silent = self.clock() - sign.time
        promised = _LOST * limit if sign.every_seconds is None else max(_SILENT_SECONDS, _BEATS * sign.every_seconds)
        if silent > promised and not self._may_return(sign):
            return "killed"
        since = glance.last_seen - glance.progress_time if glance.progress_time else 0.0
        idle = self.clock() - _came(directory, sign.time) + since
        return "stalled" if glance.hangs or idle > limit else "running"

    def _may_return(self, sign: Sign) -> bool:
        """Whether a sender that was silent over an outage may not have tried again yet."""
        return sign.time < self.since and self.clock() - self.since <= _RETURN_SECONDS


def _came(directory: Path, otherwise: float) -> float:
    """When something was last added to a journal, by this machine's clock."""
    try:
        with os.scandir(directory / JOURNAL) as entries:
            return max((entry.stat(follow_symlinks=False).st_mtime for entry in entries), default=otherwise)
    except OSError:
        return otherwise

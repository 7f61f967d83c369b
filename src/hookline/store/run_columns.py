"""`RunColumns`: the metrics of a run as columns, updated from its journal by reading only new records.

Charts are drawn from these columns without a database. A live run's columns are in memory. Those of an ended run are
written once to a file beside its Parquet files and mapped from there, so they cost no memory of their own and a new
process need not decode the journal again. The file is derived: one that is damaged, of another version, or older than
the journal is ignored and replaced.

Appended rows are added. If earlier rows no longer count (a resume discarded them, an evaluation was repeated, a file
was replaced), the run is read again with the reader's rules. `ColumnCache` holds the columns of many runs and drops
the ones not used for longest when they take too much memory.

All methods may be called from any thread. Arrays that were handed out stay valid and do not change: rows are only
added past their end.
"""

import logging
import math
import mmap
import os
import secrets
import stat
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hookline._record.reader import Cursor, ResumeMarks, find_marks
from hookline._record.segment import JournalFile
from hookline.store.columns import Block, ColumnReader, OddValue, is_obsolete, without_obsolete
from hookline.store.journal_files import (
    FileState,
    Stamp,
    byte_at,
    file_states,
    grown_files,
    is_unchanged,
    regular_journal_files,
)
from hookline.store.query_limits import check_limits
from hookline.store.run_info import RunLocation

logger = logging.getLogger("hookline")

FILE = "columns.bin"
_MAGIC = b"hookline columns 2\n"
_MIN_FILE_BYTES = 256 << 10
"""The columns of a smaller journal are not written to a file: decoding it takes no longer than reading that."""
_GROWTH = 1.1
"""A file is written again when the journal is this many times as long: a run that seems to have ended may grow."""
MAX_BYTES, MAX_RUNS = 1 << 30, 4096
"""How much memory the columns of all runs may take, and how many runs are kept, before some are dropped."""
_MAX_READ_BYTES = 64 << 20
"""A larger file that others may change is neither mapped nor read."""
_ATTEMPTS = 3
"""How often a run is read again because it was resumed while being read."""

Key = tuple[str, str]
"""The name and the axis of a metric."""


class Column(NamedTuple):
    """All numbers of a metric, sorted by step and, within a step, in recorded order.

    Attributes:
        is_append_only: The arrays begin with those of every earlier column of this metric.
    """

    step: Any
    time: Any
    order: Any
    value: Any
    is_append_only: bool = False


class MetricFacts(msgspec.Struct):
    """The recorded points of a metric on one axis; ``texts`` of them are texts."""

    points: int
    first_step: int
    last_step: int
    texts: int = 0

    def add(self, points: int, first_step: int, last_step: int, texts: int = 0) -> None:
        """Include more points."""
        self.points += points
        self.texts += texts
        self.first_step, self.last_step = min(self.first_step, first_step), max(self.last_step, last_step)


class MetricStatistics(NamedTuple):
    """The first and the last value of a metric, and the smallest and the largest finite one."""

    first: float
    last: float
    least: float | None
    largest: float | None


def statistics_of(values: Any) -> MetricStatistics | None:
    """The statistics of a metric's values; None if there are none."""
    import numpy as np

    if not len(values):
        return None
    first, last, least, largest = (float(each) for each in (values[0], values[-1], values.min(), values.max()))
    if math.isfinite(least) and math.isfinite(largest):  # neither is where one of the values is NaN
        return MetricStatistics(first, last, least, largest)
    finite = values[np.isfinite(values)]
    return MetricStatistics(first, last, *((float(finite.min()), float(finite.max())) if len(finite) else (None, None)))


class Group:
    """Rows with the same names on one axis: they share their steps and times.

    Arrays have room after ``count``, which is filled by the next rows.
    """

    __slots__ = ("axis", "count", "is_sorted", "names", "order", "step", "time", "values")

    def __init__(self, axis: str, names: tuple[str, ...]) -> None:
        import numpy as np

        self.axis, self.names, self.count, self.is_sorted = axis, names, 0, True
        self.step, self.time, self.order = np.empty(0, np.int64), np.empty(0), np.empty(0)
        self.values = np.empty((len(names), 0))

    def append(self, block: Block) -> None:
        """Add rows after the others."""
        start, end = self.count, self.count + len(block)
        if end > len(self.step):
            # A quarter more, so that many small additions cost no more than a few copies of each row.
            room = end if not start else max(end, start + start // 4)
            self.step, self.time, self.order = (_grown(each, room) for each in (self.step, self.time, self.order))
            self.values = _grown(self.values, room)
        self.step[start:end], self.time[start:end] = block.step, block.time
        self.order[start:end], self.values[:, start:end] = block.order, block.values
        if self.is_sorted:
            # Compared, not subtracted: differences of extreme steps overflow.
            steps, orders = self.step[max(0, start - 1) : end], self.order[max(0, start - 1) : end]
            grows, stays = steps[1:] > steps[:-1], steps[1:] == steps[:-1]
            self.is_sorted = bool((grows | (stays & (orders[1:] >= orders[:-1]))).all())
        # Last: another thread uses the rows before it.
        self.count = end

    @property
    def nbytes(self) -> int:
        """The memory that the arrays take."""
        return int(self.step.nbytes + self.time.nbytes + self.order.nbytes + self.values.nbytes)


def _grown(array: Any, room: int) -> Any:
    import numpy as np

    larger = np.empty((*array.shape[:-1], room), array.dtype)
    larger[..., : array.shape[-1]] = array
    return larger


class RunColumns:
    """The columns of one run.

    Args:
        folder: Where the file with the columns of an ended run goes; None to keep them in memory.

    Attributes:
        generation: Changes when earlier rows were discarded.
        lock: Held while the columns are updated or a column is assembled.
    """

    def __init__(self, location: RunLocation, folder: Path | None) -> None:
        self.location, self._folder = location, folder
        self.lock = threading.RLock()
        self.generation = 0
        self.cache: dict[Any, Any] = {}
        self.cached_bytes = 0
        self._saved = 0
        self._files: list[JournalFile] = []
        self._directory: tuple[int, int] | None = None
        self._is_complete = False
        self._mapped: mmap.mmap | bytes | None = None
        self._clear()

    def _clear(self) -> None:
        self.generation += 1
        self._additions = 0
        self._axes: dict[str, list[str]] | None = None
        self.clear_cache()
        self.groups: dict[tuple[str, ...], Group] = {}
        self.odd: dict[Key, MetricFacts] = {}
        self._places: dict[Key, list[tuple[Group, int]]] = {}
        self._states: dict[str, FileState] = {}
        self._clocks: dict[str, float] = {}
        self._last_evaluations: dict[tuple[str, int], int] = {}
        self._reader = ColumnReader(self.location.journal, Cursor(), self._clocks, with_others=False)
        self._mapped = None
        self._is_complete = False

    @property
    def version(self) -> tuple[int, int]:
        """Changes whenever a row was added or discarded."""
        return self.generation, self._additions

    @property
    def nbytes(self) -> int:
        """The memory that the columns and cached lines take; columns mapped from a file take none."""
        # A copy: another thread may be adding a group.
        groups = [] if self._mapped is not None else list(self.groups.values())
        return self.cached_bytes + sum(group.nbytes for group in groups)

    def refresh(self, *, is_over: bool) -> None:
        """Read the new records of the journal.

        Args:
            is_over: The run records nothing more. Its columns may be written to a file.
        """
        with self.lock:
            stamp = self.location.journal_stamp
            is_same_directory = stamp is not None and stamp == self._directory
            # Appending to a file does not change the time of its directory.
            if is_same_directory and self._is_complete and is_over and self._has_same_ends():
                return
            if not is_same_directory:
                self._files = regular_journal_files(self.location.journal)
            if not self._states and is_over and self._load():
                self._directory = stamp
                return
            self._read(is_same_directory)
            self._directory = stamp
            self._is_complete = is_over
            if is_over:
                self._save()

    def load(self) -> bool:
        """Use the file of an ended run instead of its journal; returns whether there is one that matches."""
        with self.lock:
            stamp = self.location.journal_stamp
            if self._mapped is None or stamp is None or stamp != self._directory or not self._has_same_ends():
                self._files = regular_journal_files(self.location.journal)
                if not self._load():
                    return False
                self._directory = stamp
            return True

    def _has_same_ends(self) -> bool:
        """Whether the last file of each writer is unchanged; the others are complete."""
        last = {file.writer: file for file in self._files}.values()
        return all(self._has_same_end(file.path) for file in last)

    def _has_same_end(self, path: Path) -> bool:
        state = self._states.get(path.name)
        if state is None or Stamp.of(path) != state.stamp:
            return False
        # A preallocated file is written through memory, which changes neither its size nor its time. Its run may go on
        # although it seems to be over: a recorder without a run holds no lock, and some file systems have none.
        return state.offset >= state.stamp.size or byte_at(path, state.offset) in (b"", b"\0")

    def _read(self, is_same_directory: bool) -> None:
        last = {file.writer: file for file in self._files}
        # With the same files in the directory, only the last of each writer can have changed.
        checked = {file.path.name for file in last.values()} if is_same_directory else self._states.keys()
        known = {name: state for name, state in self._states.items() if name in checked}
        if not is_unchanged(self._files, known):
            self._read_all()
            return
        latest = _latest_sessions(self._files)
        unread = [file for file in self._files if self._reader.cursor.offset(file) is not None]
        has_new = False
        for chunk in self._reader.chunks(unread):
            file = chunk.file
            # Rows are in the order of sessions, so new rows of an earlier one cannot simply be appended. A resume and a
            # repeated evaluation discard rows that are already here.
            is_late = file.session < latest[file.name]
            if is_late or (file.session and (chunk.resumes or self._repeats_evaluations(chunk.blocks))):
                self._read_all()
                return
            has_new = True
            self._add(chunk.blocks, chunk.odd)
            # After the rows of the chunk: the reader is after them, too, so the next call continues there.
            check_limits()
        if has_new or not self._states:
            self._states = file_states(self._files, self._reader.cursor, self._states)

    def _read_all(self) -> None:
        for _ in range(_ATTEMPTS):
            self._files = regular_journal_files(self.location.journal)
            sessions = {(file.name, file.session) for file in self._files}
            marks = find_marks(self._files) if len(sessions) > len({name for name, _ in sessions}) else ResumeMarks()
            has_marks = bool(marks.resumes or marks.evaluated)
            self._clear()
            for chunk in self._reader.chunks(self._files):
                blocks, odd = chunk.blocks, chunk.odd
                if has_marks:
                    blocks = [part for block in blocks for part in without_obsolete(block, marks)]
                    odd = [value for value in odd if not is_obsolete(value, marks)]
                self._add(blocks, odd)
            # A resume that came while the rows were read discards some of them.
            after = regular_journal_files(self.location.journal)
            if {(file.name, file.session) for file in after} == sessions and (
                len(sessions) == len({name for name, _ in sessions}) or find_marks(after) == marks
            ):
                break
        self._states = file_states(self._files, self._reader.cursor, {})

    def _repeats_evaluations(self, blocks: Iterable[Block]) -> bool:
        """Whether an earlier session may have evaluated at one of these steps already."""
        for block in blocks:
            if block.axis == "eval":
                name, session = block.file.name, block.file.session
                earlier = [
                    last for (who, when), last in self._last_evaluations.items() if who == name and when < session
                ]
                if earlier and block.step.min() <= max(earlier):
                    return True
        return False

    def _add(self, blocks: list[Block], odd: list[OddValue]) -> None:
        if blocks or odd:
            self._additions += 1
            self._mapped = None  # arrays that get more rows are copied to memory
        for block in blocks:
            key = (block.axis, *block.full_names)
            group = self.groups.get(key)
            if group is None:
                group = self._add_group(Group(block.axis, block.full_names))
            group.append(block)
            if block.axis == "eval":
                place = block.file.name, block.file.session
                self._last_evaluations[place] = max(self._last_evaluations.get(place, 0), int(block.step.max()))
        for value in odd:
            # Only counted: charts show no texts, and a run may log many of them.
            facts = (1, value.step, value.step, int(value.value is not None))
            _add_facts(self.odd, (value.full_name, value.axis), facts)
            self._axes = None
            if value.axis == "eval":
                place = value.file.name, value.file.session
                self._last_evaluations[place] = max(self._last_evaluations.get(place, 0), value.step)

    def clear_cache(self) -> None:
        """Drop the cached lines."""
        self.cache.clear()
        self.cached_bytes = 0

    def _add_group(self, group: Group) -> Group:
        self.groups[group.axis, *group.names] = group
        self._axes = None
        for position, name in enumerate(group.names):
            self._places.setdefault((name, group.axis), []).append((group, position))
        return group

    def keys(self, names: Iterable[str] | None = None) -> list[Key]:
        """The metrics by name and axis.

        Args:
            names: Only those with these names, without a search through all of them.
        """
        with self.lock:
            if self._axes is None:
                self._axes = {}
                for name, axis in sorted({*self._places, *self.odd}):
                    self._axes.setdefault(name, []).append(axis)
            chosen = self._axes if names is None else sorted(self._axes.keys() & set(names))
            return [(name, axis) for name in chosen for axis in self._axes[name]]

    def facts(self) -> dict[Key, MetricFacts]:
        """The number of points and the range of steps of each metric."""
        found: dict[Key, MetricFacts] = {}
        with self.lock:
            for group in self.groups.values():
                steps = group.step[: group.count]
                first, last = (steps[0], steps[-1]) if group.is_sorted else (steps.min(), steps.max())
                for name in group.names:
                    _add_facts(found, (name, group.axis), (group.count, int(first), int(last), 0))
            for key, facts in self.odd.items():
                _add_facts(found, key, (facts.points, facts.first_step, facts.last_step, facts.texts))
        return found

    def column(self, name: str, axis: str) -> Column:
        """The numbers of a metric; empty arrays if there are none."""
        import numpy as np

        with self.lock:
            places = self._places.get((name, axis), [])
            parts = [
                (group.step[:count], group.time[:count], group.order[:count], group.values[position, :count])
                for group, position in places
                for count in (group.count,)
            ]
            if len(places) == 1 and places[0][0].is_sorted:
                return Column(*parts[0], True)
        if not parts:
            return Column(np.empty(0, np.int64), np.empty(0), np.empty(0), np.empty(0))
        step, when, order, value = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        by_step = np.lexsort((order, step))
        return Column(step[by_step], when[by_step], order[by_step], value[by_step])

    # The file of an ended run.

    def _save(self) -> None:
        """Write the columns to a file and use that one from now on."""
        read_bytes = sum(state.offset for state in self._states.values())
        if self._folder is None or self._mapped is not None or read_bytes < max(_MIN_FILE_BYTES, _GROWTH * self._saved):
            return
        try:
            self._write(self._folder)
        except OSError as error:  # no room, or a directory that others own: it stays in memory
            logger.debug("The columns of %s stay in memory: %s", self.location.id, error)
            return
        generation, self._saved = self.generation, read_bytes
        if self._load(
            is_own=True
        ):  # unless another process replaced or removed the file: then these arrays are still right
            self.generation = generation

    def _write(self, folder: Path) -> None:
        arrays: list[Any] = []
        described, offset, checksum = [], 0, 0
        for group in self.groups.values():
            count = group.count
            described.append(_GroupHeader(group.axis, group.names, count, group.is_sorted, offset))
            own = [group.step[:count], group.time[:count], group.order[:count], *group.values[:, :count]]
            arrays += own
            offset += 8 * count * len(own)
        for array in arrays:
            checksum = zlib.crc32(array, checksum)
        header = _Header(
            run=self.location.id,
            groups=described,
            odd=[(*key, facts) for key, facts in self.odd.items()],
            files=self._states,
            positions=self._reader.cursor.places,
            clocks=self._clocks,
            evaluations=[(name, session, step) for (name, session), step in self._last_evaluations.items()],
            size=offset,
            checksum=checksum,
        )
        text = msgspec.msgpack.encode(header)
        prefix = _MAGIC + len(text).to_bytes(8, "little") + zlib.crc32(text).to_bytes(4, "little") + text
        folder.mkdir(parents=True, exist_ok=True)
        aside = folder / f"{FILE}.{secrets.token_hex(4)}"
        try:
            with aside.open("xb") as file:
                file.write(prefix + bytes(-len(prefix) % 8))
                for array in arrays:
                    file.write(memoryview(array).cast("B"))
            # Not synced: it can be derived again, and its checksum shows whether it is whole.
            aside.replace(folder / FILE)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def _load(self, *, is_own: bool = False) -> bool:
        """Map the file if it matches the current journal; returns whether it does.

        Args:
            is_own: It was just written here, so its content need not be verified.
        """
        found = _map_file(self._folder / FILE, verify=not is_own) if self._folder is not None else None
        if found is None:
            return False
        header, mapped, start = found
        files = {file.path.name: file for file in self._files}
        # It is used only for exactly the journal files that it was made from. They may have been compressed since.
        if header.run != self.location.id or files.keys() != header.files.keys():
            return False
        changed = [file for name, file in files.items() if Stamp.of(file.path) != header.files[name].stamp]
        if changed and (not is_unchanged(changed, header.files) or grown_files(changed, header.files)):
            return False
        groups = [_mapped_group(group, mapped, start) for group in header.groups]
        self._clear()
        for group in groups:
            self._add_group(group)
        self.odd = {(name, axis): facts for name, axis, facts in header.odd}
        self._states = header.files
        self._clocks.update(header.clocks)
        self._reader.cursor.places.update(header.positions)
        self._last_evaluations = {(name, session): step for name, session, step in header.evaluations}
        self._mapped, self._is_complete = mapped, True
        return True


class _GroupHeader(msgspec.Struct, array_like=True):
    axis: str
    names: tuple[str, ...]
    count: int
    is_sorted: bool
    offset: int


class _Header(msgspec.Struct):
    run: str
    groups: list[_GroupHeader]
    odd: list[tuple[str, str, MetricFacts]]
    files: dict[str, FileState]
    positions: dict[str, tuple[int, int]]
    clocks: dict[str, float]
    evaluations: list[tuple[str, int, int]]
    size: int
    checksum: int


def _map_file(path: Path, *, verify: bool) -> tuple[_Header, mmap.mmap | bytes, int] | None:
    """Map a file of columns and check it; None if there is none or it is damaged. Anyone may have written it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    mapped: mmap.mmap | bytes
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        if found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        elif found.st_size <= _MAX_READ_BYTES:
            # Another user could truncate it, and reading a mapped page past its end kills the process.
            mapped = os.pread(descriptor, found.st_size, 0)
        else:
            return None
    except (OSError, ValueError):  # empty
        return None
    finally:
        os.close(descriptor)
    begin = len(_MAGIC) + 12
    length = int.from_bytes(mapped[len(_MAGIC) : len(_MAGIC) + 8], "little")
    text = mapped[begin : begin + length]
    if mapped[: len(_MAGIC)] != _MAGIC or zlib.crc32(text) != int.from_bytes(mapped[begin - 4 : begin], "little"):
        return None
    try:
        header = msgspec.msgpack.decode(text, type=_Header)
    except (msgspec.DecodeError, RecursionError):
        return None
    start = begin + length + -(begin + length) % 8
    fits = all(
        group.offset >= 0 and group.count > 0 and group.offset + 8 * group.count * (3 + len(group.names)) <= header.size
        for group in header.groups
    )
    if not fits or start + header.size != len(mapped):
        return None
    with memoryview(mapped) as whole, whole[start:] as data:
        is_intact = not verify or zlib.crc32(data) == header.checksum
    return (header, mapped, start) if is_intact else None


def _mapped_group(header: _GroupHeader, mapped: mmap.mmap | bytes, start: int) -> Group:
    import numpy as np

    group, count = Group(header.axis, header.names), header.count
    at = start + header.offset
    group.step = np.frombuffer(mapped, np.int64, count, at)
    group.time = np.frombuffer(mapped, np.float64, count, at + 8 * count)
    group.order = np.frombuffer(mapped, np.float64, count, at + 16 * count)
    values = np.frombuffer(mapped, np.float64, count * len(header.names), at + 24 * count)
    group.values = values.reshape(len(header.names), count)
    group.count, group.is_sorted = count, header.is_sorted
    return group


def _add_facts(found: dict[Key, MetricFacts], key: Key, facts: tuple[int, int, int, int]) -> None:
    if key in found:
        found[key].add(*facts)
    else:
        found[key] = MetricFacts(*facts)


def _latest_sessions(files: Iterable[JournalFile]) -> dict[str, int]:
    latest: dict[str, int] = {}
    for file in files:
        latest[file.name] = max(file.session, latest.get(file.name, 0))
    return latest


class ColumnCache:
    """The columns of the runs that were used last.

    Args:
        max_bytes: How much memory they may take together.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._runs: OrderedDict[str, RunColumns] = OrderedDict()
        # Those in memory, in the order of their last use, with their sizes then: asking all runs for their sizes would
        # take longer than most uses.
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def current(self, wanted: Sequence[tuple[RunLocation, Path | None, bool]]) -> Iterator[RunColumns]:
        """Yield the columns of some runs, up to date.

        Args:
            wanted: For each run its location, the folder for its file, and whether it is over.
        """
        for location, folder, is_over in wanted:
            check_limits()
            columns = self.get(location, folder)
            try:
                columns.refresh(is_over=is_over)
                yield columns
            finally:
                self._note_size(columns)  # with everything computed from it

    def get(self, location: RunLocation, folder: Path | None) -> RunColumns:
        """The columns of a run as of their last use."""
        with self._lock:
            columns = self._runs.get(location.id)
            if columns is None or columns.location != location:
                self._drop(location.id)
                columns = self._runs[location.id] = RunColumns(location, folder)
            self._runs.move_to_end(location.id)
            return columns

    def forget(self, runs: Iterable[str]) -> None:
        """Drop the columns of deleted runs."""
        with self._lock:
            for run in runs:
                self._drop(run)

    def _note_size(self, columns: RunColumns) -> None:
        """Count the memory of a run, and drop those used longest ago if all of them take too much."""
        run = columns.location.id
        with self._lock:
            if self._runs.get(run) is not columns:  # dropped meanwhile
                return
            self._bytes -= self._sizes.pop(run, 0)
            size = columns.nbytes
            while self._sizes and self._bytes + size > self._max_bytes:
                self._drop(next(iter(self._sizes)))
            if size:
                self._sizes[run] = size
                self._bytes += size
            while len(self._runs) > MAX_RUNS:
                self._drop(next(iter(self._runs)))

    def _drop(self, run: str) -> None:
        self._runs.pop(run, None)
        self._bytes -= self._sizes.pop(run, 0)

"""Decodes journal files into columns: blocks of metrics that were logged together, and the other records one by one.

A chunk of a file is decoded at once. Rows with the same names on the same axis become one `Block` of arrays, which
takes about a microsecond per line. A chunk with anything unusual (a damaged or repeated line, a text as a metric's
value, an integer that needs more than 64 bits) is decoded line by line with the reader's own rules, so both ways give
the same rows.

`ColumnReader` verifies the number and the checksum of every line that it decodes. It does not apply resume marks:
`without_obsolete` does that for a block.
"""

import contextlib
import gc
import itertools
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hookline._record.reader import (
    EVERY_AXIS,
    MAIN,
    Cursor,
    JournalEntry,
    Reader,
    ResumeMarks,
)
from hookline._record.records import Metrics
from hookline._record.row_batches import METRICS_PREFIX, Row, are_intact, line_batches, peek_number
from hookline._record.segment import JournalFile
from hookline.sinks.run_progress import clamped_step

_RESUME = b'"resume"'


_decode_rows = msgspec.json.Decoder(Row).decode_lines


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Decode without garbage collections, which would take a third of the time.

    Every few hundred of a chunk's many thousand dicts would start one, and none of them is part of a cycle. Where two
    threads decode, the first one that is done allows collections again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(slots=True)
class Block:
    """Rows of one writer with the same names on one axis, in recorded order.

    Attributes:
        names: The names in the journal, without the writer's prefix.
        order: Increases from row to row of a writer; the time, unless the clock stood still or went back.
        values: An array per name.
    """

    file: JournalFile
    axis: str
    names: tuple[str, ...]
    step: Any
    time: Any
    order: Any
    values: Any

    def __len__(self) -> int:
        return len(self.step)

    @property
    def full_names(self) -> tuple[str, ...]:
        """The names with the prefix that readers show for writers other than the main one."""
        return self.names if self.file.name == MAIN else tuple(f"{self.file.name}/{name}" for name in self.names)


class OddValue(NamedTuple):
    """A metric's value that is not a number."""

    file: JournalFile
    axis: str
    name: str
    step: int
    time: float
    order: float
    value: Any

    @property
    def full_name(self) -> str:
        """The name with the prefix that readers show for writers other than the main one."""
        return self.name if self.file.name == MAIN else f"{self.file.name}/{self.name}"


@dataclass(slots=True)
class Chunk:
    """Decoded lines of one file.

    Attributes:
        others: The records that are not metrics; empty if they are skipped.
        resumes: Whether a resume mark is among the lines.
        times: The time of every record in the order of the lines, and its step; empty if others are skipped.
    """

    file: JournalFile
    blocks: list[Block] = field(default_factory=list)
    odd: list[OddValue] = field(default_factory=list)
    others: list[JournalEntry] = field(default_factory=list)
    resumes: bool = False
    times: list[float] = field(default_factory=list)
    steps: list[int | None] = field(default_factory=list)


class ColumnReader:
    """Reads the new lines of a run's journal files.

    Args:
        cursor: Where each writer's files were read up to. It is moved along.
        clocks: The order value of each writer's last row of metrics. It is updated.
        with_others: Decode records that are not metrics. They are skipped otherwise, unverified.
    """

    def __init__(self, directory: Path, cursor: Cursor, clocks: dict[str, float], *, with_others: bool) -> None:
        self.cursor, self.clocks, self.with_others = cursor, clocks, with_others
        self._reader = Reader(directory, cursor)

    @property
    def skipped(self) -> int:
        """The number of damaged and repeated lines."""
        return self._reader.skipped

    def chunks(self, files: Iterable[JournalFile]) -> Iterator[Chunk]:
        """Yield the new content of some files; the cursor is after the last chunk yielded."""
        for file in files:
            offset = self.cursor.offset(file)
            if offset is None:
                continue
            for lines, start, end in line_batches(file, offset):
                with _no_collections():
                    chunk = self._decode(file, lines, start)
                self.cursor.pass_by(file, end)
                yield chunk

    def _decode(self, file: JournalFile, lines: list[bytes], start: int) -> Chunk:
        # The positions of lines that are not metrics: usually few, so the others cost nothing each.
        others = [position for position, line in enumerate(lines) if not line.startswith(METRICS_PREFIX)]
        rows = self._decode_rows(file, lines, others, start)
        if rows is None:
            return self._decode_one_by_one(file, lines, start)
        chunk = Chunk(file)
        self._add_rows(chunk, rows, [])
        if self.with_others:
            self._add_others(chunk, lines, others, rows, start)
        else:
            chunk.resumes = any(_RESUME in lines[position] for position in others)
        return chunk

    def _decode_rows(self, file: JournalFile, lines: list[bytes], others: list[int], start: int) -> list[Row] | None:
        """Return the verified rows of ordinary lines; None if one of them needs line-by-line decoding."""
        metric_lines = lines if not others else [line for line in lines if line.startswith(METRICS_PREFIX)]
        try:
            rows = _decode_rows(b"\n".join(metric_lines)) if metric_lines else []
            # Fewer than lines, if one of them was blank.
            if len(rows) != len(metric_lines) or not are_intact(metric_lines, rows):
                return None
            numbers: list[int] = []
            for own, position in _between(rows, others):
                numbers += [row.number for row in own]
                if position is not None:
                    numbers.append(peek_number(lines[position]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
            return None
        return rows if self._advance(file, numbers, start) else None

    def _advance(self, file: JournalFile, numbers: list[int], start: int) -> bool:
        """Whether the lines have consecutive new numbers, so that none of them is a repetition."""
        sequence = self._reader.line_numbers(file, start)
        if numbers[0] < 0:  # written by version 0.1, which had no numbers
            return sequence.following is None and max(numbers) < 0
        first = numbers[0] if sequence.following is None else sequence.following
        if numbers != list(range(first, first + len(numbers))):
            return False
        sequence.following = first + len(numbers)
        return True

    def _add_others(self, chunk: Chunk, lines: list[bytes], others: list[int], rows: list[Row], start: int) -> None:
        """Add the records that are not metrics, and the times and steps of all of them in the order of the lines."""
        end, done = start, 0
        for own, position in _between(rows, others):
            chunk.times += [row.time for row in own]
            chunk.steps += [row.step for row in own]
            if position is not None:
                end += sum(map(len, lines[done : position + 1])) + position + 1 - done
                done = position + 1
                entry = self._reader.entry(lines[position], chunk.file, end, is_new=True)
                if entry is not None:
                    self._add_other(chunk, entry)

    def _add_other(self, chunk: Chunk, entry: JournalEntry) -> None:
        chunk.times.append(entry.record.time)
        chunk.steps.append(getattr(entry.record, "step", None))
        chunk.others.append(entry)

    def _decode_one_by_one(self, file: JournalFile, lines: list[bytes], start: int) -> Chunk:
        """Decode lines as `Reader` does: damaged and repeated ones are skipped and counted."""
        chunk, end = Chunk(file), start
        rows: list[Row] = []
        odd: list[tuple[int, str, Any]] = []
        for line in lines:
            end += len(line) + 1
            entry = self._reader.entry(line, file, end)
            if entry is None:
                continue
            record = entry.record
            if not isinstance(record, Metrics):
                chunk.resumes = chunk.resumes or _RESUME in line
                if self.with_others:
                    self._add_other(chunk, entry)
                continue
            if self.with_others:
                chunk.times.append(record.time)
                chunk.steps.append(record.step)
            numbers = {name: as_float(value) for name, value in record.values.items()}
            odd += [(len(rows), name, record.values[name]) for name, number in numbers.items() if number is None]
            known = {name: number for name, number in numbers.items() if number is not None}
            rows.append(Row(step=clamped_step(record.step), values=known, time=record.time, axis=record.axis))
        self._add_rows(chunk, rows, odd)
        return chunk

    def _add_rows(self, chunk: Chunk, rows: list[Row], odd: list[tuple[int, str, Any]]) -> None:
        """Group rows into blocks; ``odd`` has values that are not numbers, with the position of their row."""
        import numpy as np

        if not rows:
            return
        times = np.array([row.time for row in rows], dtype=np.float64)
        orders = self._orders(chunk.file, times)
        for position, name, value in odd:
            row = rows[position]
            place = (row.axis, name, row.step, row.time, float(orders[position]))
            chunk.odd.append(OddValue(chunk.file, *place, value))
        for (axis, *names), positions in _groups(rows).items():
            if not names:
                continue
            own = rows if positions is None else [rows[position] for position in positions]
            part = slice(None) if positions is None else np.array(positions)
            values = np.fromiter(
                # One view of a dict at a time: a list of them would set off the garbage collector again and again.
                itertools.chain.from_iterable(row.values.values() for row in own),
                dtype=np.float64,
                count=len(own) * len(names),
            )
            by_name = np.ascontiguousarray(values.reshape(len(own), len(names)).T)
            steps = _step_array([row.step for row in own])
            chunk.blocks.append(Block(chunk.file, axis, tuple(names), steps, times[part], orders[part], by_name))

    def _orders(self, file: JournalFile, times: Any) -> Any:
        """Order values that place rows after their writer's earlier ones: their times, wherever these increase.

        Rows of one writer keep the order of its journal, session after session. Rows of processes that write at the
        same time are ordered by their times.
        """
        import numpy as np

        before = self.clocks.get(file.writer)
        if before is None:  # a new session continues after the writer's earlier ones
            before = -math.inf
            for writer, clock in self.clocks.items():
                name, session, *_ = writer.split("-")
                if name == file.name and int(session) < file.session:
                    before = max(before, clock)
        if times[0] > before and (times[1:] > times[:-1]).all():
            self.clocks[file.writer] = float(times[-1])
            return times
        orders = []
        for time in times.tolist():
            before = time if time > before else min(math.nextafter(before, math.inf), sys.float_info.max)
            orders.append(before)
        self.clocks[file.writer] = before
        return np.array(orders)


def _between(rows: list[Row], others: list[int]) -> Iterator[tuple[list[Row], int | None]]:
    """Yield the rows before each line that is not metrics, with its position, and those after the last one."""
    done = 0
    for count, position in enumerate(others):
        yield rows[done : position - count], position
        done = position - count
    yield rows[done:], None


def _groups(rows: list[Row]) -> dict[tuple[str, ...], list[int] | None]:
    """The positions of the rows by axis and names; None instead of all positions, which is faster and usual."""
    axis, names = rows[0].axis, list(rows[0].values)
    if all([list(row.values) == names and row.axis == axis for row in rows]):  # noqa: C419 - a list is faster
        return {(axis, *names): None}
    groups: dict[tuple[str, ...], list[int] | None] = {}
    for position, row in enumerate(rows):
        key = (row.axis, *row.values)
        group = groups.get(key)
        if group is None:
            groups[key] = [position]
        else:
            group.append(position)
    return groups


def as_float(value: Any) -> float | None:
    """A value as a float; None if it is not a number."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def without_obsolete(block: Block, marks: ResumeMarks) -> list[Block]:
    """The rows of a block that no later session of its writer repeated; see `drop_obsolete` for the rules."""
    import numpy as np

    file = block.file
    resumes = [*marks.resumes.get((file.name, block.axis), ()), *marks.resumes.get((file.name, EVERY_AXIS), ())]
    # Only marks of later sessions: a session's own rows come after its mark and count.
    limits = [step for session, step in resumes if session > file.session]
    kept = block.step <= min(limits) if limits else np.ones(len(block), dtype=bool)
    if block.axis == "eval" and marks.evaluated:
        # By name: a session may evaluate only some metrics again.
        steps = block.step.tolist()
        latest = marks.evaluated
        parts = []
        for position, name in enumerate(block.names):
            repeated = np.array([latest.get((file.name, step, name), 0) > file.session for step in steps])
            parts.append(_part(block, kept & ~repeated, [position]))
        return [part for part in parts if len(part)]
    if kept.all():
        return [block]
    part = _part(block, kept, list(range(len(block.names))))
    return [part] if len(part) else []


def is_obsolete(value: OddValue, marks: ResumeMarks) -> bool:
    """Whether a later session of its writer repeated a value."""
    import numpy as np

    time = np.array([value.time])
    block = Block(value.file, value.axis, (value.name,), np.array([value.step]), time, time, time.reshape(1, 1))
    return not without_obsolete(block, marks)


def _part(block: Block, kept: Any, names: list[int]) -> Block:
    chosen = tuple(block.names[position] for position in names)
    values = block.values[names][:, kept]
    return Block(block.file, block.axis, chosen, block.step[kept], block.time[kept], block.order[kept], values)


def _step_array(steps: list[int]) -> Any:
    import numpy as np

    try:
        return np.array(steps, dtype=np.int64)
    except OverflowError:
        return np.array([clamped_step(step) for step in steps], dtype=np.int64)

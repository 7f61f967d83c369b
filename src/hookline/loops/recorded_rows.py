"""Reads the records of a run's main writer, in the order of its journal, with resumes applied.

Rows of metrics are decoded in batches, since a long run has little else. Rows and samples that a later session recorded
again are left out, and so are the events of the earlier session about them.

Values from a device are written a little later than other records. They have the time of their ``log``, so records of
one session whose times go back by a few seconds are sorted by time, within two batches.
"""

import itertools
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from hookline._record.reader import (
    EVERY_AXIS,
    MAIN,
    Reader,
    ResumeMarks,
    drop_obsolete,
    find_marks,
    journal_directory,
)
from hookline._record.records import AnyRecord, Event, Metrics
from hookline._record.row_batches import METRICS_PREFIX, Row, are_intact, line_batches, peek_number
from hookline._record.segment import JournalFile, journal_files

CLOCK_SECONDS = 60.0
"""How far the times of one session may go back because values came from a device; further is a changed clock."""


class RecordedRow(Row, tag_field="kind", tag="metrics"):
    """A line of metrics whose values are all numbers; whole numbers stay whole."""

    values: dict[str, int | float]


Recorded: TypeAlias = AnyRecord | RecordedRow

_decode_rows = msgspec.json.Decoder(RecordedRow).decode_lines
_time_of = operator.attrgetter("time")


def recorded_rows(run_dir: Path) -> Iterator[Recorded]:
    """Yield the records of a run's main writer; metrics as `RecordedRow`, or as `Metrics` where a value is no number.

    Raises:
        ConfigError: The directory is not a run's.
    """
    directory = journal_directory(run_dir)
    found = [file for file in journal_files(directory) if file.name == MAIN]
    sessions = [list(files) for _, files in itertools.groupby(found, key=lambda file: file.session)]
    # Only a later session makes rows obsolete, so a run that was never resumed needs no pass for the marks.
    marks = find_marks(found) if len(sessions) > 1 else ResumeMarks()
    reader = Reader(directory)
    for files in sessions:
        is_last = files[0].session == found[-1].session
        for batch in _sorted_by_time(batch for file in files for batch in _batches(reader, file)):
            for record in batch:
                if is_last or not _is_obsolete(record, files[0], marks):
                    yield record


def _batches(reader: Reader, file: JournalFile) -> Iterator[list[Recorded]]:
    for lines, start, end in line_batches(file, 0):
        batch = _ordinary(reader, file, lines, start)
        yield _one_by_one(reader, file, lines, start) if batch is None else batch
        reader.cursor.pass_by(file, end)


def _ordinary(reader: Reader, file: JournalFile, lines: list[bytes], start: int) -> list[Recorded] | None:
    """Decode lines at once; None if one of them is damaged, repeated, or has a value that is no number."""
    flags = [line.startswith(METRICS_PREFIX) for line in lines]
    metric_lines = lines if all(flags) else list(itertools.compress(lines, flags))
    try:
        rows: list[Any] = _decode_rows(b"\n".join(metric_lines)) if metric_lines else []
        if len(rows) != len(metric_lines) or not are_intact(metric_lines, rows):
            return None
        found = iter(rows)
        numbers = [
            next(found).number if is_row else peek_number(line) for line, is_row in zip(lines, flags, strict=True)
        ]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
        return None
    sequence = reader.line_numbers(file, start)
    first = numbers[0] if sequence.following is None else sequence.following
    if first < 0 or numbers != list(range(first, first + len(numbers))):
        return None
    if len(rows) == len(lines):
        sequence.following = first + len(numbers)
        return rows
    # The others are decoded one by one. Their numbers are noted there, so those of the rows are noted here.
    found, end = iter(rows), start
    records: list[Recorded] = []
    for line, is_row, number in zip(lines, flags, numbers, strict=True):
        end += len(line) + 1
        if is_row:
            sequence.following = number + 1
            records.append(next(found))
        elif (entry := reader.entry(line, file, end)) is not None:
            records.append(entry.record)
    return records


def _one_by_one(reader: Reader, file: JournalFile, lines: list[bytes], start: int) -> list[Recorded]:
    records: list[Recorded] = []
    end = start
    for line in lines:
        end += len(line) + 1
        entry = reader.entry(line, file, end)
        if entry is not None:
            records.append(entry.record)
    return records


def _sorted_by_time(batches: Iterator[list[Recorded]]) -> Iterator[list[Recorded]]:
    held: list[Recorded] = []
    for batch in batches:
        both = held + batch
        times = [record.time for record in both]
        if all(map(operator.le, times, times[1:])):
            if held:
                yield held
            held = batch
            continue
        back = max(before - after for before, after in itertools.pairwise(times))
        if back <= CLOCK_SECONDS:
            both.sort(key=_time_of)  # stable: records of one time keep their order
        # The later ones wait: the next batch may have records that belong before them.
        yield both[: len(held)]
        held = both[len(held) :]
    yield held


def _is_obsolete(record: Recorded, file: JournalFile, marks: ResumeMarks) -> bool:
    if isinstance(record, RecordedRow):
        known = Metrics(time=record.time, step=record.step, values=dict(record.values), axis=record.axis)
        if drop_obsolete(known, file, marks):
            return True
        record.values = known.values  # without evaluations that a later session repeated
        return False
    if isinstance(record, Event) and record.step is not None:
        resumes = [*marks.resumes.get((file.name, EVERY_AXIS), ()), *marks.resumes.get((file.name, "train"), ())]
        return any(session > file.session and record.step > step for session, step in resumes)
    return drop_obsolete(record, file, marks)

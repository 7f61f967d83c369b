"""The index's state of a run: its listing data, and how much of its journals is in the tables."""

import math
import sys
from typing import Any

import msgspec

from hookline._record.reader import JournalEntry
from hookline._record.records import Event, Metrics
from hookline.sinks.run_progress import clamped_step
from hookline.store.journal_files import FileState, Stamp
from hookline.store.run_summary import RunSummary

CLOCK_SECONDS = 10.0
"""How far a record's time may go back: device values are written a little later than others."""
MAX_CLOCK_BACK_SECONDS = 1e15
"""A larger step back is not a time."""


class ReadState(msgspec.Struct):
    """How much of a run's journals is in the tables, and the problems found in them.

    Attributes:
        positions: The file number and offset that each writer was read up to.
        files: Each file that was read, and how far.
        rows: The number of rows by table.
        parquet: The run's Parquet files by table, with sizes and checksums; empty while its rows are in the database.
        times: The time of each writer's last record.
        clocks: The order value of each writer's last row of metrics; the next one has to be larger.
    """

    positions: dict[str, tuple[int, int]] = {}
    files: dict[str, FileState] = {}
    rows: dict[str, int] = {}
    parquet: dict[str, tuple[str, int, int]] = {}
    generation: int = 0
    is_compact: bool = False
    skipped: int = 0
    lost: int = 0
    clock_back_seconds: float = 0.0
    clock_back_step: int | None = None
    times: dict[str, float] = {}
    clocks: dict[str, float] = {}
    replaced: int = 0

    def copy(self) -> "ReadState":
        """A copy that can be changed independently."""
        copy: ReadState = msgspec.structs.replace(self)
        copy.positions, copy.files, copy.clocks = dict(self.positions), dict(self.files), dict(self.clocks)
        copy.rows, copy.times, copy.parquet = dict(self.rows), dict(self.times), dict(self.parquet)
        return copy

    def note(self, entry: JournalEntry) -> None:
        """Update the clock check and the count of lost records."""
        record, writer = entry.record, entry.file.writer
        before = self.times.get(writer)
        self.times[writer] = record.time
        if before is not None and before - record.time > max(CLOCK_SECONDS, self.clock_back_seconds):
            self.clock_back_seconds = min(before - record.time, MAX_CLOCK_BACK_SECONDS)
            step = getattr(record, "step", None)
            self.clock_back_step = None if step is None else clamped_step(step)
        if isinstance(record, Event) and record.name == "records_lost":
            count = record.data.get("count")
            self.lost += clamped_step(count) if isinstance(count, int) else 0

    def order(self, entry: JournalEntry) -> float | None:
        """An order value that places a row of metrics behind its writer's earlier ones; None if its time does.

        Rows of one writer keep the order of its journal, session after session. Rows of processes that write at the
        same time are ordered by their times.
        """
        if not isinstance(entry.record, Metrics):
            return None
        file, time = entry.file, entry.record.time
        before = self.clocks.get(file.writer)
        if before is None:  # a new session continues behind the writer's earlier ones
            before = -math.inf
            for writer, clock in self.clocks.items():
                name, session, *_ = writer.split("-")
                if name == file.name and int(session) < file.session:
                    before = max(before, clock)
        if time > before:
            self.clocks[file.writer] = time
            return None
        order = self.clocks[file.writer] = min(math.nextafter(before, math.inf), sys.float_info.max)
        return order

    @property
    def problems(self) -> list[str]:
        """The problems found while reading, as sentences."""
        found = []
        if self.skipped:
            lines = "1 line is not a record" if self.skipped == 1 else f"{self.skipped:,} lines are not records"
            found.append(f"{lines}; skipped")
        if self.lost:
            found.append(f"{self.lost:,} records could not be written: the disk was full, or a journal was truncated")
        if self.clock_back_seconds:
            where = "" if self.clock_back_step is None else f" at step {self.clock_back_step:,}"
            found.append(f"the clock went back by {self.clock_back_seconds:,.0f} s{where}: times are not in order")
        if self.replaced:
            found.append("a journal file was truncated, removed or replaced: the current content is shown")
        return found


class RunState(msgspec.Struct):
    """Everything the index keeps about a run.

    Attributes:
        is_live: The run was alive when last listed. What it wrote since need not show in its files' times.
    """

    facts_stamp: Stamp | None = None
    facts: dict[str, Any] = {}
    facts_problem: str = ""
    stamps: dict[str, Stamp] = {}
    is_live: bool = True
    summary: RunSummary = msgspec.field(default_factory=RunSummary)
    read: ReadState | None = None

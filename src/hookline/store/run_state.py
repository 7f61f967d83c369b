"""What the index remembers of a run: what was listed, and how much of its journals is in the tables."""

import math
import sys
from typing import Any

import msgspec

from hookline._record.reader import JournalEntry
from hookline._record.records import Event, Metrics
from hookline._record.segment import JournalFile
from hookline.sinks.run_progress import within_limits
from hookline.store.journal_files import Seen, Stamp
from hookline.store.run_summary import RunSummary

CLOCK_SECONDS = 10.0
"""How far a record's time may lie before that of the one before: what comes from a device is written a little later."""

LONGEST_SECONDS = 1e15
"""Times that lie further apart are no times."""


class ReadState(msgspec.Struct):
    """How much of a run's journals is in the tables, and what was noticed in them.

    Attributes:
        files: Each file that was read, and how far.
        rows: How many rows there are, by table.
        clocks: The time of each writer's last row of metrics, by which the next one has to come behind it.
        parquet: The run's Parquet files by table, with their sizes and checksums; empty while its rows are in the
            database.
    """

    places: dict[str, tuple[int, int]] = {}
    files: dict[str, Seen] = {}
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

    def note(self, parcel: JournalEntry) -> None:
        """Take note of what a record says besides its rows."""
        record, writer = parcel.record, parcel.file.writer
        before = self.times.get(writer)
        self.times[writer] = record.time
        if before is not None and before - record.time > max(CLOCK_SECONDS, self.clock_back_seconds):
            self.clock_back_seconds = min(before - record.time, LONGEST_SECONDS)
            step = getattr(record, "step", None)
            self.clock_back_step = None if step is None else within_limits(step)
        if isinstance(record, Event) and record.name == "records_lost":
            count = record.data.get("count")
            self.lost += within_limits(count) if isinstance(count, int) else 0

    def order(self, parcel: JournalEntry) -> float | None:
        """The time by which a row of metrics comes behind what its writer recorded before; None where its own does so.

        Rows of one writer are in the order of its journal, its sessions one behind the other. Those of processes that
        write at the same time are in the order of their times.
        """
        if not isinstance(parcel.record, Metrics):
            return None
        time, before = parcel.record.time, self._clock(parcel.file)
        if time > before:
            self.clocks[parcel.file.writer] = time
            return None
        order = self.clocks[parcel.file.writer] = min(math.nextafter(before, math.inf), sys.float_info.max)
        return order

    def _clock(self, file: JournalFile) -> float:
        known = self.clocks.get(file.writer)
        if known is not None:
            return known
        earlier = (time for writer, time in self.clocks.items() if _is_earlier(writer, file))
        return max(earlier, default=-math.inf)

    @property
    def problems(self) -> list[str]:
        """What was noticed, in words."""
        said = []
        if self.skipped:
            lines = (
                "1 line is no record and is" if self.skipped == 1 else f"{self.skipped:,} lines are no records and are"
            )
            said.append(f"{lines} left out")
        if self.lost:
            said.append(f"{self.lost:,} records could not be written: there was no room, or a journal was truncated")
        if self.clock_back_seconds:
            where = "" if self.clock_back_step is None else f" at step {self.clock_back_step:,}"
            said.append(f"the clock went back by {self.clock_back_seconds:,.0f} s{where}: times are not in order")
        if self.replaced:
            said.append("a journal became shorter, was removed or replaced by another one: what is there now is shown")
        return said


def _is_earlier(writer: str, file: JournalFile) -> bool:
    """Whether a writer is an earlier session of the one of a file."""
    name, session, *_ = writer.split("-")
    return name == file.name and int(session) < file.session


class RunState(msgspec.Struct):
    """Everything that is kept about a run.

    Attributes:
        is_live: It was alive when it was looked at: what it wrote since need not show in the times of its files.
    """

    facts_stamp: Stamp | None = None
    facts: dict[str, Any] = {}
    facts_problem: str = ""
    stamps: dict[str, Stamp] = {}
    is_live: bool = True
    glance: RunSummary = msgspec.field(default_factory=RunSummary)
    read: ReadState | None = None

"""Updates the tables from the journals of runs, reading only new records.

Appended records are added. If earlier records no longer count (a resume discarded them, an evaluation was repeated, a
file was replaced), the whole run is read again with the reader's own rules. A run's rows and its read position always
change together. Small changes of many runs are written in one transaction.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hookline._record.files import boot_id
from hookline._record.reader import (
    DELIVERY_WRITER,
    Cursor,
    ResumeMarks,
    add_writer_prefix,
    drop_obsolete,
    find_marks,
    is_resume,
)
from hookline._record.segment import JournalFile
from hookline.store import compaction
from hookline.store.columns import Chunk, ColumnReader, is_obsolete, without_obsolete
from hookline.store.index import Index, duckdb_module, sql_quote
from hookline.store.journal_files import file_states, find_holes, grown_files, is_unchanged, regular_journal_files
from hookline.store.run_info import ReadState, RunLocation
from hookline.store.tables import TABLES, Rows, row_selects

logger = logging.getLogger("hookline")

_BATCH_ROWS, _BATCH_RUNS = 200_000, 200
"""How many rows are kept in memory, and how many runs are written in one transaction."""
COMPACT_ROWS = 50_000
"""The rows of a smaller ended run stay in the database: thousands of tiny files would take longer to write and read."""
_TURN_SECONDS = 0.001
"""Long enough for a thread that waits for the lock to take it."""
_ATTEMPTS = 3
"""How often a run is read again because it was resumed while being read."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """How many runs had new records, and how many rows these gave."""

    runs: int = 0
    rows: int = 0

    def __add__(self, other: "Ingested") -> "Ingested":
        return Ingested(self.runs + other.runs, self.rows + other.rows)


@dataclass(slots=True)
class _Batch:
    """The new rows of a run from one pass over its journals.

    Attributes:
        rows: Those that are not staged.
        is_staged: Some rows are in the staging tables already, because they were too many to keep in memory.
        has_resume: A resume discards earlier records.
        evaluated: Writer, step and session of evaluations, which replace those of earlier sessions.
    """

    read: ReadState
    rows: Rows = field(default_factory=Rows)
    count: int = 0
    is_staged: bool = False
    has_resume: bool = False
    evaluated: set[tuple[str, int, int]] = field(default_factory=set)


@dataclass(slots=True)
class _Change:
    """Rows of a run that the next transaction adds to the database, and its read position after them.

    Attributes:
        before: The read position that the rows follow.
        replaces: The run's earlier rows in the database are removed.
    """

    run: str
    before: ReadState | None
    read: ReadState
    rows: Rows
    replaces: bool


def ingest(
    index: Index, runs: Sequence[tuple[RunLocation, bool]], progress: Callable[[int, int], None] | None = None
) -> Ingested:
    """Bring the tables up to date with some runs.

    Args:
        runs: For each run its location, and whether it is over: such a run records nothing more, and its rows may move
            to Parquet files.
        progress: Called with the number of runs read so far, and their total number.
    """
    ingested, writer = Ingested(), _Writer(index)
    known = {location.id: (location, is_over) for location, is_over in runs}
    for done, (location, is_over) in enumerate(runs, start=1):
        if index.urgent:
            time.sleep(_TURN_SECONDS)
        with index.lock:
            index.check()  # another thread may have closed it
            try:
                ingested += _Ingestion(index, location, is_over, writer).run()
                if done == len(runs) or writer.is_full:
                    # Still under the lock, so that no other thread can interfere before the records are written.
                    for run in writer.write():
                        index.clear_staged()
                        _Ingestion(index, *known[run], writer).run()
                    writer.write()
            finally:
                # After an error as well: staged rows must not end up among the next run's.
                index.clear_staged()
        if progress is not None:
            progress(done, len(runs))
    return ingested


class _Writer:
    """Collects small changes of many runs and writes them in one transaction.

    Changes that are not written when an error occurs are dropped: the next call reads their records again.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._open_count = index.open_count
        self._changes: list[_Change] = []
        self._rows = 0

    @property
    def is_full(self) -> bool:
        return self._rows >= _BATCH_ROWS or len(self._changes) >= _BATCH_RUNS

    def add(self, change: _Change) -> None:
        self._changes.append(change)
        self._rows += change.rows.count

    def write(self) -> list[str]:
        """Write the changes; returns the runs that have to be read again.

        The lock is not held between two runs. Another thread may have read the same records and written them first, or
        the database may have been reopened in an earlier state.
        """
        collected, self._changes, self._rows = self._changes, [], 0
        is_reopened = self._index.open_count != self._open_count
        self._open_count = self._index.open_count
        changes = [
            change for change in collected if not is_reopened and self._index.state(change.run).read is change.before
        ]
        if changes:
            self._write(changes)
        written = {change.run for change in changes}
        return [change.run for change in collected if change.run not in written]

    def _write(self, changes: list[_Change]) -> None:
        states = [self._index.state(change.run) for change in changes]
        # Before the transaction, which saves them together with the rows; put back if that fails.
        before = [state.read for state in states]
        for state, change in zip(states, changes, strict=True):
            state.read = change.read
        try:
            with self._index.transaction() as connection:
                replaced = [change.run for change in changes if change.replaces]
                for table in TABLES if replaced else ():
                    connection.execute(f"DELETE FROM live_{table} WHERE run IN (SELECT unnest(?))", [replaced])
                batches = [(change.run, change.rows) for change in changes]
                for table in {table for change in changes for table in change.rows.counts()}:
                    self._index.insert(f"live_{table}", table, batches)
                self._index.save_in(connection, [change.run for change in changes])
        except BaseException:
            for state, read in zip(states, before, strict=True):
                state.read = read
            raise


class _Ingestion:
    def __init__(self, index: Index, location: RunLocation, is_over: bool, writer: _Writer) -> None:
        self._index, self._location, self._run, self._is_over = index, location, location.id, is_over
        self._writer = writer
        self._files = regular_journal_files(location.journal)
        read = index.state(location.id).read
        self._has_rows = read is not None and not read.is_compact  # in the database

    def run(self) -> Ingested:
        ingested = self._update()
        read = self._index.state(self._run).read
        # Only of ended runs: a file in use always has zeros after its lines.
        if self._is_over and read and find_holes(self._files, read.files):
            self._index.mark_dirty(self._run)
        return ingested

    def _update(self) -> Ingested:
        # The state of the run's rows in the tables, or in Parquet files that are still valid.
        state = self._index.state(self._run)
        # The files may have been removed or replaced by others since the state was saved.
        if state.read is None or not compaction.has_all_files(self._index, self._run, state.read):
            found = compaction.load(self._index, self._run)
            is_valid = found is not None and compaction.has_all_files(self._index, self._run, found)
            state.read = found if is_valid else None
            self._index.mark_dirty(self._run)
        if state.read is not None and state.read.is_compact and not self._survived_reboot(state.read):
            compaction.discard(self._index, self._run, state.read)
        compaction.find_leftovers(self._index, self._run)
        read = state.read
        if read is None:
            return self._read_all(replaced=0)
        # A file was replaced or cut: rows that came from it cannot be distinguished from others, so all are read again.
        if not is_unchanged(self._files, read.files):
            return self._read_all(replaced=read.replaced + 1)
        grown = grown_files(self._files, read.files)
        if not grown:
            return self._keep_unchanged(read)
        # Rows are in the order of sessions and files, so new rows of an earlier one cannot simply be appended.
        latest: dict[str, int] = {}
        for file in self._files:
            latest[file.name] = max(file.session, latest.get(file.name, 0))
        cursor = Cursor(read.positions)
        if any(file.session < latest[file.name] or cursor.offset(file) is None for file in grown):
            return self._read_all(replaced=read.replaced)
        return self._append(read)

    def _keep_unchanged(self, read: ReadState) -> Ingested:
        if self._is_over and not read.is_compact and sum(read.rows.values()) >= COMPACT_ROWS:
            self._compact(read, _Batch(read.copy()))
        return Ingested()

    def _survived_reboot(self, read: ReadState) -> bool:
        """Whether the Parquet files can be trusted. They are not synced, so after a reboot they are compared once."""
        boot = boot_id()
        if read.boot != boot:
            if not compaction.is_intact(self._index, self._run, read):
                return False
            read.boot = boot
            self._index.mark_dirty(self._run)
        return True

    def _append(self, before: ReadState) -> Ingested:
        # Without marks: those that are new concern rows in the tables, which needs a full reading anyway (below).
        batch = self._stage(before.copy(), ResumeMarks(), only_new=True)
        if batch.read.positions == before.positions:  # only part of a line was new
            return self._keep_unchanged(before)
        # Rows that no longer count are in the tables already, and the reader's rules need the whole run.
        if batch.has_resume or self._repeats_evaluations(batch, before):
            return self._read_all(replaced=before.replaced)
        self._keep(before, batch)
        return Ingested(1, batch.count)

    def _read_all(self, replaced: int) -> Ingested:
        for _ in range(_ATTEMPTS):
            self._files = regular_journal_files(self._location.journal)
            view = _sessions_and_marks(self._files)
            self._index.clear_staged()  # of an earlier attempt
            batch = self._stage(ReadState(replaced=replaced), view[1], only_new=False)
            # A resume that came while the rows were read discards some of them: marks and rows must be of one state.
            if _sessions_and_marks(regular_journal_files(self._location.journal)) == view:
                break
        self._keep(None, batch)
        return Ingested(1, batch.count)

    def _stage(self, read: ReadState, marks: ResumeMarks, *, only_new: bool) -> _Batch:
        batch = _Batch(read)
        reader = ColumnReader(self._location.journal, Cursor(dict(read.positions)), read.clocks, with_others=True)
        # The delivery's journal last: it records that the process died, after everything that process recorded.
        for chunk in reader.chunks(sorted(self._files, key=lambda file: file.name == DELIVERY_WRITER)):
            # A first session has no earlier one to discard.
            if only_new and chunk.file.session:
                _note_repetitions(chunk, batch)
            read.note(chunk)
            _add_chunk(chunk, marks, batch.rows)
            # In batches: memory is bounded by rows, not by the length of a run.
            if batch.rows.count >= _BATCH_ROWS:
                self._index.stage(self._run, batch.rows)
                _count_rows(batch)
                batch.rows, batch.is_staged = Rows(), True
        _count_rows(batch)
        read.skipped += reader.skipped
        read.positions = reader.cursor.places
        read.files = file_states(self._files, reader.cursor, read.files)
        return batch

    def _repeats_evaluations(self, batch: _Batch, before: ReadState) -> bool:
        """Whether evaluations of earlier sessions were done again."""
        sources = self._sources("metrics", before)
        if not batch.evaluated or not sources:
            return False
        query = (
            "SELECT 1 FROM {} AS old JOIN (SELECT unnest(?) AS writer, unnest(?) AS step, unnest(?) AS session) AS new "
            "USING (writer, step) WHERE old.axis = 'eval' AND old._session < new.session LIMIT 1"
        )
        columns = [list(values) for values in zip(*batch.evaluated, strict=True)]
        return any(self._index.connection.execute(query.format(source), columns).fetchall() for source in sources)

    def _sources(self, table: str, read: ReadState | None) -> list[str]:
        """The SQL sources of the run's rows that were read before."""
        if read is None or not read.rows.get(table):
            return []
        if not read.is_compact:
            return [f"(SELECT * FROM live_{table} WHERE run = {sql_quote(self._run)})"]
        return [f"read_parquet({sql_quote(str(compaction.paths(self._index, self._run, read)[table]))})"]

    def _keep(self, before: ReadState | None, batch: _Batch) -> None:
        """Move the new rows, and the earlier ones, to their place, and save the read position."""
        read = batch.read
        is_in_database = before is not None and not before.is_compact
        if self._is_over and sum(read.rows.values()) >= COMPACT_ROWS and self._compact(before, batch):
            return
        read.parquet, read.is_compact = {}, False
        if not batch.is_staged and (is_in_database or before is None):
            earlier = self._index.state(self._run).read
            replaces = before is None and self._has_rows
            self._writer.add(_Change(self._run, earlier, read, batch.rows, replaces))
            if self._is_over:
                find_holes(self._files, read.files)
            return
        self._index.stage(self._run, batch.rows)
        new = {table: [f"fresh_{table}"] for table in TABLES}
        everything = {table: [*self._sources(table, before), *new[table]] for table in TABLES}
        self._move_to_database(read, new if is_in_database else everything, clear=not is_in_database)

    def _compact(self, before: ReadState | None, batch: _Batch) -> bool:
        """Write the run's rows to Parquet files; returns whether that was possible."""
        index, earlier = self._index, self._index.state(self._run).read
        if index.is_private:
            return False
        try:
            with contextlib.ExitStack() as registrations:
                sources = {table: self._sources(table, before) for table in TABLES}
                for table in TABLES if batch.is_staged else ():
                    sources[table].append(f"fresh_{table}")
                for table in batch.rows.counts():
                    for arrays, columns in row_selects(table, [(self._run, batch.rows)]):
                        source = registrations.enter_context(index.registered(arrays))
                        sources[table].append(f"(SELECT {columns} FROM {source})")
                filled = {table: parts for table, parts in sources.items() if parts and batch.read.rows.get(table)}
                compact = compaction.write(index, self._run, batch.read, filled)
        except (OSError, duckdb_module().Error) as error:
            logger.warning("%s stays in the database: its Parquet files cannot be written: %s", self._run, error)
            return False
        # Only after the files are complete and named. A crash in between leaves both, and the saved state says which
        # count.
        if earlier is not None and not earlier.is_compact:
            self._move_to_database(compact, {}, clear=True)
        else:
            index.state(self._run).read = compact
            index.mark_dirty(self._run)
        return True

    def _move_to_database(self, read: ReadState, sources: dict[str, list[str]], *, clear: bool) -> None:
        """Change the run's live rows and its read position in one transaction."""
        state = self._index.state(self._run)
        # Before the transaction, which saves it together with the rows; put back if that fails.
        before, state.read = state.read, read
        try:
            with self._index.transaction() as connection:
                for table in TABLES if clear else ():
                    connection.execute(f"DELETE FROM live_{table} WHERE run = ?", [self._run])
                for table, parts in sources.items():
                    for part in parts:
                        connection.execute(f"INSERT INTO live_{table} SELECT * FROM {part}")
                self._index.save_in(connection, [self._run])
        except BaseException:
            state.read = before
            raise


def _sessions_and_marks(files: list[JournalFile]) -> tuple[set[tuple[str, int]], ResumeMarks]:
    """The sessions, and which records they discard of each other; with one session per writer there are none."""
    sessions = {(file.name, file.session) for file in files}
    has_several = len(sessions) > len({name for name, _ in sessions})
    return sessions, find_marks(files) if has_several else ResumeMarks()


def _note_repetitions(chunk: Chunk, batch: _Batch) -> None:
    """Note what may discard rows of earlier sessions."""
    batch.has_resume = batch.has_resume or any(is_resume(entry.record) for entry in chunk.others)
    name, session = chunk.file.name, chunk.file.session
    for block in chunk.blocks:
        if block.axis == "eval":
            batch.evaluated.update((name, step, session) for step in block.step.tolist())
    batch.evaluated.update((name, odd.step, session) for odd in chunk.odd if odd.axis == "eval")


def _add_chunk(chunk: Chunk, marks: ResumeMarks, rows: Rows) -> None:
    has_marks = bool(marks.resumes or marks.evaluated)
    for block in chunk.blocks:
        for part in without_obsolete(block, marks) if has_marks else [block]:
            rows.add_block(part)
    for odd in chunk.odd:
        if not (has_marks and is_obsolete(odd, marks)):
            rows.add_odd(odd)
    for entry in chunk.others:
        if not (has_marks and drop_obsolete(entry.record, entry.file, marks)):
            add_writer_prefix(entry.record, entry.file)
            rows.add(entry)


def _count_rows(batch: _Batch) -> None:
    batch.count += batch.rows.count
    for table, count in batch.rows.counts().items():
        batch.read.rows[table] = batch.read.rows.get(table, 0) + count

"""Brings the tables up to date with a run's journals by reading only what is new.

Appended records are added. If earlier records no longer count (a resume discarded them, an evaluation was repeated, a
file was replaced), the whole run is read again with the reader's own rules. A run's rows and its read position always
change together.
"""

import logging
from dataclasses import dataclass, field

from hookline._record.reader import Cursor, Reader, ResumeMarks, add_writer_prefix, drop_obsolete, find_marks, is_resume
from hookline._record.records import Metrics
from hookline._record.segment import JournalFile
from hookline.sinks.run_progress import clamped_step
from hookline.store import compaction
from hookline.store.index import Index, duckdb_module, sql_quote
from hookline.store.journal_files import file_states, find_holes, grown_files, is_unchanged, regular_journal_files
from hookline.store.run_info import RunLocation
from hookline.store.run_state import ReadState
from hookline.store.tables import TABLES, Rows

logger = logging.getLogger("hookline")

_BATCH_ROWS = 50_000
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
    """The staged rows of one pass over the journals.

    Attributes:
        has_resume: A resume discards earlier records.
        evaluated: Writer, step and session of evaluations, which replace those of earlier sessions.
    """

    read: ReadState
    rows: int = 0
    has_resume: bool = False
    evaluated: set[tuple[str, int, int]] = field(default_factory=set)


def ingest(index: Index, location: RunLocation, *, is_over: bool) -> Ingested:
    """Bring the tables up to date with a run.

    Args:
        is_over: The run records nothing more: its rows move to Parquet files.
    """
    with index.lock:
        index.check()  # another thread may have closed it
        try:
            return _Ingestion(index, location, is_over).run()
        finally:
            # After an error as well: what is staged must not get into the next run's rows.
            index.clear_staged()


class _Ingestion:
    def __init__(self, index: Index, location: RunLocation, is_over: bool) -> None:
        self._index, self._location, self._run, self._is_over = index, location, location.id, is_over
        self._files = regular_journal_files(location.journal)

    def run(self) -> Ingested:
        ingested = self._update()
        read = self._index.state(self._run).read
        # Only of ended runs: a file in use always has zeros behind its lines.
        if self._is_over and read and find_holes(self._files, read.files):
            self._index.mark_dirty(self._run)
        return ingested

    def _update(self) -> Ingested:
        read = self._known_state()
        if read is None:
            return self._read_all(replaced=0)
        # A file was replaced or cut: rows that came from it cannot be distinguished from others, so all are read again.
        if not is_unchanged(self._files, read.files):
            return self._read_all(replaced=read.replaced + 1)
        grown = grown_files(self._files, read.files)
        if not grown:
            return self._keep_unchanged(read)
        # Rows come in the order of sessions and files: what an earlier one gained cannot simply be appended.
        latest: dict[str, int] = {}
        for file in self._files:
            latest[file.name] = max(file.session, latest.get(file.name, 0))
        cursor = Cursor(read.positions)
        if any(file.session < latest[file.name] or cursor.offset(file) is None for file in grown):
            return self._read_all(replaced=read.replaced)
        return self._append(read)

    def _known_state(self) -> ReadState | None:
        """The state of the run's rows in the tables, or in Parquet files that are still valid."""
        state = self._index.state(self._run)
        # The files may have been removed or replaced by others since the state was saved.
        if state.read is None or not compaction.has_all_files(self._index, self._run, state.read):
            found = compaction.load(self._index, self._run)
            is_valid = found is not None and compaction.has_all_files(self._index, self._run, found)
            state.read = found if is_valid else None
            self._index.mark_dirty(self._run)
        compaction.find_leftovers(self._index, self._run)
        return state.read

    def _keep_unchanged(self, read: ReadState) -> Ingested:
        if self._is_over and not read.is_compact and not self._index.is_private:
            self._keep(read, read, staged=[])
        return Ingested()

    def _append(self, before: ReadState) -> Ingested:
        # Without marks: those that are new concern rows in the tables, which needs a full reading anyway (below).
        batch = self._stage(before.copy(), ResumeMarks(), only_new=True)
        if batch.read.positions == before.positions:  # only part of a line was new
            return self._keep_unchanged(before)
        # Rows that no longer count are in the tables already, and the reader's rules need the whole run.
        if batch.has_resume or self._repeats_evaluations(batch, before):
            return self._read_all(replaced=before.replaced)
        staged = [table for table, count in batch.read.rows.items() if count > before.rows.get(table, 0)]
        self._keep(before, batch.read, staged)
        return Ingested(1, batch.rows)

    def _read_all(self, replaced: int) -> Ingested:
        for _ in range(_ATTEMPTS):
            self._files = regular_journal_files(self._location.journal)
            view = _sessions_and_marks(self._files)
            self._index.clear_staged()  # of an earlier attempt
            batch = self._stage(ReadState(replaced=replaced), view[1], only_new=False)
            # A resume that came while the rows were read discards some of them: marks and rows must be of one state.
            if _sessions_and_marks(regular_journal_files(self._location.journal)) == view:
                break
        self._keep(None, batch.read, [table for table, count in batch.read.rows.items() if count])
        return Ingested(1, batch.rows)

    def _stage(self, read: ReadState, marks: ResumeMarks, *, only_new: bool) -> _Batch:
        batch, rows = _Batch(read), Rows()
        reader = Reader(self._location.journal, Cursor(dict(read.positions)))
        has_marks = bool(marks.resumes or marks.evaluated)
        for entry in reader.new(self._files):
            record, file = entry.record, entry.file
            # A first session has no earlier one to discard.
            if only_new and file.session:
                if is_resume(record):
                    batch.has_resume = True
                elif isinstance(record, Metrics) and record.axis == "eval":
                    batch.evaluated.add((file.name, clamped_step(record.step), file.session))
            if has_marks and drop_obsolete(record, file, marks):
                continue
            add_writer_prefix(record, file)
            read.note(entry)
            rows.add(entry, read.order(entry))
            # In batches: memory is bounded by rows, not by the length of a run.
            if rows.count >= _BATCH_ROWS:
                self._flush(batch, rows)
                rows = Rows()
        self._flush(batch, rows)
        read.skipped += reader.skipped
        read.positions = reader.cursor.places
        read.files = file_states(self._files, reader.cursor, read.files)
        return batch

    def _flush(self, batch: _Batch, rows: Rows) -> None:
        self._index.stage(self._run, rows)
        batch.rows += rows.count
        for table, found in rows.tables.items():
            if found:
                batch.read.rows[table] = batch.read.rows.get(table, 0) + len(found)

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

    def _keep(self, before: ReadState | None, read: ReadState, staged: list[str]) -> None:
        """Move the staged rows, and the earlier ones, to their place, and save the read position."""
        new = {table: [f"fresh_{table}"] for table in staged}
        everything = {table: [*self._sources(table, before), *new.get(table, [])] for table in TABLES}
        if self._is_over and self._compact(read, everything):
            return
        is_appended = before is not None and not before.is_compact
        read.parquet, read.is_compact = {}, False
        self._move_to_database(read, new if is_appended else everything, clear=not is_appended)

    def _compact(self, read: ReadState, sources: dict[str, list[str]]) -> bool:
        """Write the run's rows to Parquet files; returns whether that was possible."""
        index, before = self._index, self._index.state(self._run).read
        if index.is_private:
            return False
        try:
            filled = {table: parts for table, parts in sources.items() if parts}
            compact = compaction.write(index, self._run, read, filled)
        except (OSError, duckdb_module().Error) as error:
            logger.warning("%s stays in the database: its Parquet files cannot be written: %s", self._run, error)
            return False
        # Only after the files are complete and named. A crash in between leaves both, and the saved state says which
        # count.
        if before is not None and not before.is_compact:
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

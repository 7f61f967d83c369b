"""Brings the tables up to date with a run's journals: reads what is new, and only that.

Most of the time that is what was appended, which is added. Where what was read before no longer counts (a resume took
it back, an evaluation was done again, a file was replaced) the run is read anew, by the reader's own rules. The rows of
a run and how far it was read change together.
"""

import logging
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hookline._record.reader import (
    Cursor,
    Reader,
    ResumeMarks,
    add_writer_prefix,
    drop_obsolete,
    find_marks,
    is_resume,
)
from hookline._record.records import Metrics
from hookline._record.segment import JournalFile
from hookline.sinks.run_progress import within_limits
from hookline.store import compaction
from hookline.store.index import Index, duckdb_module, quoted
from hookline.store.journal_files import grown, is_same, look_for_holes, own_files, seen
from hookline.store.run_info import Place
from hookline.store.run_state import ReadState
from hookline.store.tables import TABLES, Rows

logger = logging.getLogger("hookline")

_BATCH_ROWS = 50_000
_ATTEMPTS = 3
"""How often a run is read anew because it was taken up while it was read."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """How much was read: of how many runs, how many rows."""

    runs: int = 0
    rows: int = 0

    def __add__(self, other: "Ingested") -> "Ingested":
        return Ingested(self.runs + other.runs, self.rows + other.rows)


@dataclass(slots=True)
class _News:
    """What was read in one go."""

    read: ReadState
    rows: int = 0
    takes_back: bool = False
    evaluated: set[tuple[str, int, int]] = field(default_factory=set)


def ingest(index: Index, place: Place, *, is_over: bool) -> Ingested:
    """Bring the tables up to date with a run.

    Args:
        is_over: It records nothing more: its rows go to Parquet files.
    """
    with index.lock:
        index.check()  # another thread may have closed it
        try:
            return _Intake(index, place, is_over).take()
        finally:
            index.clear_stage()


class _Intake:
    def __init__(self, index: Index, place: Place, is_over: bool) -> None:
        self._index, self._place, self._run, self._is_over = index, place, place.id, is_over
        self._found = own_files(place.journal)

    def take(self) -> Ingested:
        taken = self._take()
        read = self._index.state(self._run).read
        if self._is_over and read and look_for_holes(self._found, read.files):
            self._index.touch(self._run)
        return taken

    def _take(self) -> Ingested:
        read = self._known()
        if read is None:
            return self._read_anew(replaced=0)
        if not is_same(self._found, read.files):
            return self._read_anew(replaced=read.replaced + 1)
        new = grown(self._found, read.files)
        if not new:
            return self._as_it_is(read)
        if self._are_behind(new, Cursor(read.places)):
            return self._read_anew(replaced=read.replaced)
        return self._append(read)

    def _are_behind(self, new: list[JournalFile], cursor: Cursor) -> bool:
        """Whether there is something new in files that were passed: of an earlier session, or before the last one."""
        latest = _latest_sessions(self._found)
        return any(file.session < latest[file.name] or cursor.offset(file) is None for file in new)

    def _known(self) -> ReadState | None:
        """What is in the tables of the run, or in Parquet files that are still good."""
        state = self._index.state(self._run)
        if state.read is None or not compaction.is_whole(self._index, self._run, state.read):
            found = compaction.load(self._index, self._run)
            is_good = found is not None and compaction.is_whole(self._index, self._run, found)
            state.read = found if is_good else None
            self._index.touch(self._run)
        compaction.look_for_leftovers(self._index, self._run)
        return state.read

    def _as_it_is(self, read: ReadState) -> Ingested:
        if self._is_over and not read.is_compact and not self._index.is_private:
            self._keep(read, read, fresh={})
        return Ingested()

    def _append(self, before: ReadState) -> Ingested:
        news = self._stage(_copied(before), ResumeMarks(), only_new=True)
        if news.read.places == before.places:  # a piece of a line
            return self._as_it_is(before)
        if news.takes_back or self._does_again(news, before):
            return self._read_anew(replaced=before.replaced)
        self._keep(before, news.read, fresh=_added(before, news.read))
        return Ingested(1, news.rows)

    def _read_anew(self, replaced: int) -> Ingested:
        for _ in range(_ATTEMPTS):
            self._found = own_files(self._place.journal)
            view = _view(self._found)
            self._index.clear_stage()  # of an attempt before
            news = self._stage(ReadState(replaced=replaced), view[1], only_new=False)
            if _view(own_files(self._place.journal)) == view:
                break
        self._keep(None, news.read, fresh=news.read.rows)
        return Ingested(1, news.rows)

    def _stage(self, read: ReadState, marks: ResumeMarks, *, only_new: bool) -> _News:
        news, rows = _News(read), Rows()
        reader = Reader(self._place.journal, Cursor(dict(read.places)))
        has_marks = bool(marks.resumes or marks.evaluated)
        for parcel in reader.new(self._found):
            record, file = parcel.record, parcel.file
            if only_new and file.session:
                _note_what_takes_back(news, record, file)
            if has_marks and drop_obsolete(record, file, marks):
                continue
            add_writer_prefix(record, file)
            read.note(parcel)
            rows.add(parcel, read.order(parcel))
            if rows.count >= _BATCH_ROWS:
                self._put(news, rows)
                rows = Rows()
        self._put(news, rows)
        read.skipped += reader.skipped
        read.places = reader.cursor.places
        read.files = seen(self._found, reader.cursor, read.files)
        return news

    def _put(self, news: _News, rows: Rows) -> None:
        self._index.stage(self._run, rows)
        news.rows += rows.count
        for table, found in rows.tables.items():
            if found:
                news.read.rows[table] = news.read.rows.get(table, 0) + len(found)

    def _does_again(self, news: _News, before: ReadState) -> bool:
        """Whether evaluations of earlier sessions were done again."""
        parts = self._parts("metrics", before)
        if not news.evaluated or not parts:
            return False
        again = (
            "SELECT 1 FROM {} AS old JOIN (SELECT unnest(?) AS writer, unnest(?) AS step, unnest(?) AS session) AS new "
            "USING (writer, step) WHERE old.axis = 'eval' AND old._session < new.session LIMIT 1"
        )
        columns = [list(values) for values in zip(*news.evaluated, strict=True)]
        return any(self._index.connection.execute(again.format(part), columns).fetchall() for part in parts)

    def _parts(self, table: str, read: ReadState | None) -> list[str]:
        """Where the rows of the run are that were read before."""
        if read is None or not read.rows.get(table):
            return []
        if not read.is_compact:
            return [f"(SELECT * FROM live_{table} WHERE run = {quoted(self._run)})"]
        return [f"read_parquet({quoted(str(compaction.paths(self._index, self._run, read)[table]))})"]

    def _keep(self, before: ReadState | None, read: ReadState, fresh: dict[str, int]) -> None:
        """Have the rows that wait, and those from before, where they belong, and note how far the run was read."""
        old, waiting = {table: self._parts(table, before) for table in TABLES}, _waiting(fresh)
        if self._is_over and self._compact(read, {table: [*old[table], *waiting.get(table, [])] for table in TABLES}):
            return
        is_added = before is not None and not before.is_compact
        added = waiting if is_added else {table: [*old[table], *waiting.get(table, [])] for table in TABLES}
        read.parquet, read.is_compact = {}, False
        self._move(read, added, clear=not is_added)

    def _compact(self, read: ReadState, sources: dict[str, list[str]]) -> bool:
        """Write the run's rows to Parquet files; whether that was possible."""
        index, before = self._index, self._index.state(self._run).read
        if index.is_private:
            return False
        try:
            was_live = before is not None and not before.is_compact
            filled = {table: parts for table, parts in sources.items() if parts}
            compact = compaction.write(index, self._run, read, filled)
        except (OSError, duckdb_module().Error) as error:
            logger.warning("%s stays in the database: its files cannot be written: %s", self._run, error)
            return False
        if was_live:
            self._move(compact, {}, clear=True)
        else:
            index.state(self._run).read = compact
            index.touch(self._run)
        return True

    def _move(self, read: ReadState, sources: dict[str, list[str]], *, clear: bool) -> None:
        """Change the live rows of the run and how far it was read together."""
        state = self._index.state(self._run)
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


def _note_what_takes_back(news: _News, record: Any, file: JournalFile) -> None:
    if is_resume(record):
        news.takes_back = True
    elif isinstance(record, Metrics) and record.axis == "eval":
        news.evaluated.add((file.name, within_limits(record.step), file.session))


def _latest_sessions(found: list[JournalFile]) -> dict[str, int]:
    latest: dict[str, int] = {}
    for file in found:
        latest[file.name] = max(file.session, latest.get(file.name, 0))
    return latest


def _view(found: list[JournalFile]) -> tuple[set[tuple[str, int]], ResumeMarks]:
    """The sessions, and what they take back of each other; nothing can where each writer has but one."""
    sessions = {(file.name, file.session) for file in found}
    has_several = len(sessions) > len({name for name, _ in sessions})
    return sessions, find_marks(found) if has_several else ResumeMarks()


def _copied(read: ReadState) -> ReadState:
    """A copy that can be changed, with the same files."""
    copy: ReadState = msgspec.structs.replace(read)
    copy.places, copy.files, copy.clocks = dict(read.places), dict(read.files), dict(read.clocks)
    copy.rows, copy.times, copy.parquet = dict(read.rows), dict(read.times), dict(read.parquet)
    return copy


def _waiting(fresh: dict[str, int]) -> dict[str, list[str]]:
    return {table: [f"fresh_{table}"] for table, count in fresh.items() if count}


def _added(before: ReadState, after: ReadState) -> dict[str, int]:
    return {table: count - before.rows.get(table, 0) for table, count in after.rows.items()}

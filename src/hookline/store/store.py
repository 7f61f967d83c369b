"""`Store`: lists the runs below a root and gives queries a snapshot of their records.

Listing reads only the two ends of each journal. A query first reads the new records of the runs it covers. All methods
are thread-safe; the threads of a process share one index.
"""

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hookline._engine.errors import ConfigError
from hookline.store import compaction
from hookline.store.index import DamagedIndexError, Index, duckdb_module, may_be_file_damage, sql_quote
from hookline.store.ingest import Ingested, ingest
from hookline.store.journal_files import Stamp, describe_damage, regular_journal_files
from hookline.store.query_limits import QueryError, limited
from hookline.store.run_info import RunInfo, RunLocation, find_runs, read_facts, run_info
from hookline.store.run_state import ReadState
from hookline.store.run_summary import Liveness, RunSummary, summarize
from hookline.store.tables import HOOKS, ORDER_COLUMN, ORDERED_METRICS, RUN_COLUMNS, TABLES, run_arrays

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

logger = logging.getLogger("hookline")

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Called with the number of runs read so far, and their total number."""

_LIVE = ("running", "stalled")
_STORES: "weakref.WeakValueDictionary[Path, Store]" = weakref.WeakValueDictionary()
_STORES_LOCK = threading.Lock()


def open_store(root: str | Path) -> "Store":
    """The store of a root, shared by the whole process.

    Raises:
        ConfigError: The directory does not exist.
        MissingExtraError: DuckDB is not installed.
    """
    path = Path(root).resolve()
    if not path.is_dir():
        raise missing_root_error(path)
    with _STORES_LOCK:
        store = _STORES.get(path)
        if store is None:
            store = _STORES[path] = Store(path)
        return store


def missing_root_error(root: Path) -> ConfigError:
    """The error for a root that is not a directory: most often nothing was recorded yet."""
    if root.exists():
        return ConfigError(f"{root} is a file, not a directory with runs. Give another one (--root).")
    return ConfigError(
        f"There are no runs yet: the directory {root} does not exist. "
        "Start a run with hl.run(...) or hookline demo --quick, or give another directory (--root)."
    )


class Store:
    """An open store. Get one with `open_store`, or use `hookline.runs`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.index = Index(root)
        weakref.finalize(self, Index.close, self.index)
        self._logged: set[tuple[str, str]] = set()
        self._pruned_at = 0

    def close(self) -> None:
        """Release the index for other processes until the next use. May be called repeatedly."""
        self.index.close()

    def list_runs(self, liveness: Liveness) -> list[RunInfo]:
        """All runs with their current status, the latest first."""
        return self._retry_once(lambda: self._list_runs(liveness), [])

    def _list_runs(self, liveness: Liveness) -> list[RunInfo]:
        with self.index.lock:
            self.index.check()
            found = list(find_runs(self.root))
            infos = [self._describe(location, liveness) for location in found]
            self._forget_deleted([location.id for location in found])
            self.index.save()
        return sorted(infos, key=lambda info: (info.started or 0.0, info.id), reverse=True)

    def refresh(self, run: RunInfo, liveness: Liveness) -> RunInfo:
        """One run with its current status."""
        with self.index.lock:
            return self._describe(RunLocation(run.project, run.directory), liveness)

    def ingest(self, runs: Sequence[RunInfo], progress: Progress | None = None) -> Ingested:
        """Read the new records of some runs."""
        # Before the index's own lock, which is taken inside: see `Index.writer_lock`.
        with self.index.reader_lock():
            ingested = self._retry_once(lambda: self._ingest(runs, progress), runs)
        # After the lock is released: this thread's own shared lock would keep `prune` from the exclusive one.
        compaction.prune(self.index)
        return ingested

    def _ingest(self, runs: Sequence[RunInfo], progress: Progress | None = None) -> Ingested:
        ingested = Ingested()
        self.index.check()
        for done, info in enumerate(runs, start=1):
            ingested += ingest(self.index, RunLocation(info.project, info.directory), is_over=info.is_over)
            if progress is not None:
                progress(done, len(runs))
        self.index.save()
        return ingested

    @contextlib.contextmanager
    def snapshot(self, runs: Sequence[RunInfo], query: str = "") -> Iterator["DuckDBPyConnection"]:
        """A read-only connection that sees the current tables of some runs.

        Args:
            query: Only the tables it names are defined; all of them if it names none.

        Raises:
            DamagedIndexError: The index, or one of its files, is damaged.
            QueryError: A query within the context fails.
            QueryTimeoutError: A `QueryLimit` ended it.
        """
        try:
            # Until the last row is read: DuckDB opens files only when it reaches them.
            with self.index.reader_lock():
                cursor, compact = self._retry_once(lambda: self._open_cursor(runs, query), runs)
                with contextlib.closing(cursor), self._detect_damage(lambda: compact, is_own=False), limited(cursor):
                    yield cursor
        finally:
            compaction.prune(self.index)

    def _open_cursor(self, runs: Sequence[RunInfo], query: str) -> tuple["DuckDBPyConnection", dict[str, ReadState]]:
        """A cursor for a snapshot, and the runs whose Parquet files it reads."""
        self.index.check()
        open_count = self.index.open_count
        self._ingest(runs)
        with self.index.lock, contextlib.ExitStack() as on_failure:
            self.index.check()
            if self.index.open_count != open_count:  # another thread reopened it: the rows just read may be gone
                raise DamagedIndexError("The index was closed or rebuilt meanwhile. Try again.")
            cursor = self.index.connection.cursor()
            on_failure.callback(cursor.close)
            self._define_views(cursor, runs, query.lower())
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            # A first read fixes the snapshot; otherwise it would be that of the first query.
            cursor.execute("SELECT count(*) FROM meta").fetchall()
            on_failure.pop_all()
            return cursor, self._compact_states(runs)

    def _define_views(self, cursor: "DuckDBPyConnection", runs: Sequence[RunInfo], query: str) -> None:
        every = {"runs", "hooks", ORDERED_METRICS, *TABLES}
        names = {name for name in every if name in query} or every
        if "runs" in names:
            arrays, expressions = run_arrays(runs)
            columns = ", ".join(f'{each} AS "{name}"' for each, name in zip(expressions, RUN_COLUMNS, strict=True))
            cursor.register("listed", arrays)
            cursor.execute(f"CREATE TEMP TABLE runs AS SELECT {columns} FROM listed")
            cursor.unregister("listed")
        for name, table in TABLES.items():
            if name in names or (name in ("metrics", "events") and "hooks" in names):
                cursor.execute(f"CREATE TEMP VIEW {name} AS {self._select(name, runs, table.shown)}")
        if ORDERED_METRICS in names:
            cursor.execute(f"CREATE TEMP VIEW {ORDERED_METRICS} AS {self.select_ordered_metrics(runs)}")
        if "hooks" in names:
            cursor.execute(f"CREATE TEMP VIEW hooks AS {HOOKS}")

    def select_ordered_metrics(self, runs: Sequence[RunInfo]) -> str:
        """A query for the metrics of some runs with an additional column for their order."""
        return self._select("metrics", runs, f"{TABLES['metrics'].shown}, coalesce(_order, time) AS {ORDER_COLUMN}")

    def _select(self, table: str, runs: Sequence[RunInfo], columns: str) -> str:
        """A query for the rows of some runs, in the database and in files."""
        live, files = [], []
        for info in runs:
            read = self.index.state(info.id).read
            if read is None or not read.rows.get(table):
                continue
            if read.is_compact:
                files.append(str(compaction.paths(self.index, info.id, read)[table]))
            else:
                live.append(info.id)
        parts = [f"SELECT {columns} FROM live_{table} WHERE run IN ({', '.join(map(sql_quote, live)) or 'NULL'})"]
        if files:
            parts.append(f"SELECT {columns} FROM read_parquet([{', '.join(map(sql_quote, files))}])")
        return " UNION ALL ".join(parts)

    def _retry_once(self, work: Callable[[], T], runs: Sequence[RunInfo]) -> T:
        """Do something with the index; if it or Parquet files of the runs are damaged, rebuild them and try again."""
        try:
            with self._detect_damage(lambda: self._compact_states(runs), is_own=True):
                return work()
        except DamagedIndexError:
            # Once: damage that comes back after a rebuild has a cause that another attempt does not remove.
            with self._detect_damage(lambda: self._compact_states(runs), is_own=True):
                return work()

    @contextlib.contextmanager
    def _detect_damage(self, compact: Callable[[], dict[str, ReadState]], *, is_own: bool) -> Iterator[None]:
        """Detect damage in the index and in Parquet files, and have them rebuilt.

        Args:
            compact: Returns the runs whose files are read.
            is_own: No user query runs, so the files may be the cause of any failure.

        Raises:
            DamagedIndexError: Something is damaged.
            QueryError: Another error.
        """
        try:
            with self.index.detect_damage():
                yield
        except duckdb_module().Error as error:
            if is_own or may_be_file_damage(error):
                self._discard_damaged(compact())
            raise QueryError(str(error)) from None

    def _compact_states(self, runs: Sequence[RunInfo]) -> dict[str, ReadState]:
        """The states of those runs that have their rows in Parquet files."""
        with self.index.lock:
            states = {info.id: self.index.state(info.id).read for info in runs}
        return {run: read for run, read in states.items() if read is not None and read.is_compact}

    def _discard_damaged(self, compact: dict[str, ReadState]) -> None:
        # Reads all the files, which takes long: only after a failure, and without the index's lock.
        damaged = [run for run, read in compact.items() if not compaction.is_intact(self.index, run, read)]
        if not damaged:
            return
        with self.index.lock:
            for run in damaged:
                compaction.discard(self.index, run, compact[run])
        names = ", ".join(damaged)
        logger.info("%s: files of the index are damaged and will be rebuilt: %s", self.root, names)
        raise DamagedIndexError(f"The index is damaged: the files of {names} will be rebuilt. Try again.") from None

    def _describe(self, location: RunLocation, liveness: Liveness) -> RunInfo:
        try:
            return self._describe_or_raise(location, liveness)
        except Exception as error:  # one broken run must not hide the others
            problem = f"its record cannot be read: {type(error).__name__}: {error}"
            if (location.id, problem) not in self._logged:
                self._logged.add((location.id, problem))
                logger.exception("Only the name of %s is listed: its record cannot be read.", location.id)
            return run_info(location, {}, RunSummary(), status="killed", problems=[problem])

    def _describe_or_raise(self, location: RunLocation, liveness: Liveness) -> RunInfo:
        state = self.index.state(location.id)
        facts_stamp = Stamp.of(location.facts)
        if facts_stamp is None or facts_stamp != state.facts_stamp:
            state.facts_stamp = facts_stamp
            state.facts, state.facts_problem = read_facts(location.facts)
            self.index.mark_dirty(location.id)
        files = regular_journal_files(location.journal)
        stamps = {file.path.name: stamp for file in files if (stamp := Stamp.of(file.path)) is not None}
        status = liveness.status(state.summary, location.directory, state.facts)
        if stamps != state.stamps or state.is_live or status in _LIVE:
            before = state.stamps, state.is_live
            state.stamps, state.summary = stamps, summarize(files)
            status = liveness.status(state.summary, location.directory, state.facts)
            state.is_live = status in _LIVE
            if (state.stamps, state.is_live) != before:
                self.index.mark_dirty(location.id)
        problems = [state.facts_problem] if state.facts_problem else []
        if status not in _LIVE:
            problems += [] if files else ["there is no journal"]
            problems += describe_damage(files, state.read.files if state.read else {})
        problems += state.read.problems if state.read else []
        return run_info(location, state.facts, state.summary, status=status, problems=problems)

    def _forget_deleted(self, existing: Sequence[str]) -> None:
        gone = self.index.states.keys() - set(existing)
        if gone:
            self.index.forget(gone)
            for run in gone if not self.index.is_private else ():
                compaction.remove(self.index, run)
        # Once per opening: runs may have been deleted while no process had the index open.
        is_due = self._pruned_at != self.index.open_count and not self.index.is_private
        if is_due and compaction.remove_all_except(self.index, existing):
            self._pruned_at = self.index.open_count

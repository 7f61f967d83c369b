"""`Store`: lists the runs below a root and gives queries a snapshot of their records.

Listing reads only the two ends of each journal. A query first reads the new records of the runs it covers. All methods
are thread-safe; the threads of a process share one index.
"""

import contextlib
import itertools
import logging
import os
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from hookline._engine.errors import ConfigError
from hookline._record.segment import JournalFile
from hookline.store import compaction
from hookline.store.edits import read_edits
from hookline.store.index import DamagedIndexError, Index, duckdb_module, may_be_file_damage, sql_quote
from hookline.store.ingest import Ingested, ingest
from hookline.store.journal_files import Stamp, describe_damage, regular_journal_files
from hookline.store.query_limits import QueryError, limited
from hookline.store.run_columns import (
    ColumnCache,
    Key,
    MetricFacts,
    MetricStatistics,
    RunColumns,
    statistics_of,
)
from hookline.store.run_info import (
    ReadState,
    RunInfo,
    RunLocation,
    RunRecords,
    RunState,
    find_stamped_runs,
    read_facts,
    run_info,
)
from hookline.store.run_summary import GrowingSummary, Liveness, RunSummary
from hookline.store.search import SearchIndex
from hookline.store.tables import (
    CONSOLE_COLUMNS,
    HOOKS,
    METRIC_NAME_COLUMNS,
    METRIC_NAMES,
    ORDER_COLUMN,
    ORDERED_METRICS,
    RUN_COLUMNS,
    TABLES,
    console_arrays,
    metric_name_arrays,
    run_arrays,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

logger = logging.getLogger("hookline")

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Called with the number of runs read so far, and their total number."""

_LIVE = ("running", "stalled")
_MIN_CHECKS, _CHECK_SHARE = 50, 50
"""At each listing, the files of this many unchanged runs, or of one in so many, are looked at."""
_STORES: "weakref.WeakValueDictionary[Path, Store]" = weakref.WeakValueDictionary()
_STORES_LOCK = threading.Lock()

_MAX_STATISTICS = 200
"""Per run; more than the columns of any table."""
_FACTS = "facts"
_MAX_FACTS = 100
"""The metrics of a run with more are not kept."""


class _KeptMetric(msgspec.Struct, array_like=True):
    """A metric of an ended run. Packed, it takes a fifth of the memory."""

    name: str
    axis: str
    facts: MetricFacts
    statistics: MetricStatistics | None


_decode_facts = msgspec.msgpack.Decoder(list[_KeptMetric]).decode


class Background(Protocol):
    """A thread that reads runs ahead of requests; see `hookline.store.background`."""

    @property
    def note(self) -> str:
        """Its progress as a sentence; empty when it has none to report."""

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller is this thread."""

    def request(self) -> AbstractContextManager[None]:
        """Pause while a request is answered."""


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
    """An open store. Get one with `open_store`, or use `hookline.runs`.

    Attributes:
        records: Given to each listed run for its queries.
        background: Reads runs ahead of requests, if it was started.
        before_read: Called with the runs whose records are about to be read: their journals may be copies.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.index = Index(root)
        self.records: RunRecords | None = None
        self.before_read: Callable[[Sequence[RunInfo]], None] | None = None
        weakref.finalize(self, Index.close, self.index)
        self._columns, self._columns_pid = ColumnCache(), os.getpid()
        self._infos: dict[str, RunInfo] = {}
        self._statistics: dict[str, tuple[RunInfo, dict[Any, list[Any]]]] = {}
        self._growing: dict[str, GrowingSummary] = {}
        # Ended runs, the one whose files were looked at longest ago first.
        self._checked: OrderedDict[str, None] = OrderedDict()
        self.background: Background | None = None
        self.search = SearchIndex(self.index.folder)
        self._logged: set[tuple[str, str]] = set()
        self._pruned_at = 0

    def close(self) -> None:
        """Release the index for other processes until the next use. May be called repeatedly."""
        self.index.close()

    def list_runs(self, liveness: Liveness, *, seconds: float = -1.0) -> list[RunInfo]:
        """All runs with their current status, the latest first.

        Args:
            seconds: How long to wait while another thread reads a run; by default as long as it takes.

        Raises:
            BusyIndexError: It takes longer.
        """
        return self._retry_once(lambda: self._list_runs(liveness, seconds), [])

    def _list_runs(self, liveness: Liveness, seconds: float) -> list[RunInfo]:
        with self.paused_background(), self.index.urgent_lock(seconds):
            self.index.check()
            found = list(find_stamped_runs(self.root))
            due = self._due_for_check(len(found))
            infos = []
            for location, stamp in found:
                info = self._listed(location, stamp) if location.id not in due else None
                infos.append(info or self._describe(location, liveness, stamp))
            existing = [info.id for info in infos]
            gone = self.index.states.keys() - set(existing)
            if gone:
                self.index.forget(gone)
                self._columns.forget(gone)
                for run in gone:
                    self._checked.pop(run, None)
                    self._growing.pop(run, None)
                    self._infos.pop(run, None)
                    self._statistics.pop(run, None)
                for run in gone if not self.index.is_private else ():
                    compaction.remove(self.index, run)
            # Once per opening: runs may have been deleted while no process had the index open.
            is_due = self._pruned_at != self.index.open_count and not self.index.is_private
            if is_due and compaction.remove_all_except(self.index, existing):
                self._pruned_at = self.index.open_count
            self.index.save()
        return sorted(infos, key=lambda info: (info.started or 0.0, info.id), reverse=True)

    def refresh(self, run: RunInfo, liveness: Liveness) -> RunInfo:
        """One run with its current status."""
        with self.paused_background(), self.index.urgent_lock():
            location = RunLocation(run.project, run.directory)
            return self._describe(location, liveness, Stamp.of(location.facts))

    def is_read(self, run: RunInfo) -> bool:
        """Whether the tables have records of a run."""
        return self.index.state(run.id).read is not None

    def journal_bytes(self, run: RunInfo) -> int:
        """The size of a run's journals, as of the last listing."""
        return sum(stamp.size for stamp in self.index.state(run.id).stamps.values())

    def ingest(self, runs: Sequence[RunInfo], progress: Progress | None = None) -> Ingested:
        """Read the new records of some runs."""
        # Before the index's own lock, which is taken inside: see `Index.writer_lock`.
        with self.index.reader_lock():
            ingested = self._retry_once(lambda: self._ingest(runs, progress), runs)
        # After the lock is released: this thread's own shared lock would keep `prune` from the exclusive one.
        compaction.prune(self.index)
        return ingested

    def _ingest(self, runs: Sequence[RunInfo], progress: Progress | None = None) -> Ingested:
        if self.before_read is not None:
            self.before_read(runs)
        self.index.check()
        wanted = [(RunLocation(info.project, info.directory), info.is_over) for info in runs]
        ingested = ingest(self.index, wanted, progress)
        self.index.save()
        return ingested

    def columns(self, runs: Sequence[RunInfo]) -> Iterator[RunColumns]:
        """Yield the metrics of some runs as columns, up to date with their journals. The database is not used."""
        if self.before_read is not None:
            self.before_read(runs)
        wanted = [(RunLocation(info.project, info.directory), self._column_folder(info), info.is_over) for info in runs]
        with self.paused_background():
            yield from self._column_cache().current(wanted)

    def metric_facts(self, runs: Sequence[RunInfo]) -> Iterator[tuple[RunInfo, dict[Key, MetricFacts]]]:
        """Yield each run with its metrics. Those of ended runs are kept: reading very many columns takes seconds."""
        known = [self._kept_facts(info) for info in runs]
        columns = self.columns([info for info, kept in zip(runs, known, strict=True) if kept is None])
        for info, kept in zip(runs, known, strict=True):
            if kept is not None:
                yield info, {(each.name, each.axis): each.facts for each in kept}
                continue
            own = next(columns)
            facts = own.facts()
            if info.is_over and len(facts) <= _MAX_FACTS:
                rows = [_KeptMetric(*key, each, statistics_of(own.column(*key).value)) for key, each in facts.items()]
                self.statistics(info)[_FACTS] = [msgspec.msgpack.encode(rows)]
            yield info, facts

    def known_statistics(self, info: RunInfo, name: str) -> dict[str, MetricStatistics | None] | None:
        """The statistics of a metric of an ended run by axis, if its metrics were read before; else None."""
        kept = self._kept_facts(info)
        return None if kept is None else {each.axis: each.statistics for each in kept if each.name == name}

    def _kept_facts(self, info: RunInfo) -> list["_KeptMetric"] | None:
        kept = self.statistics(info).get(_FACTS) if info.is_over else None
        return None if kept is None else _decode_facts(kept[0])

    def statistics(self, info: RunInfo) -> dict[Any, list[Any]]:
        """The values computed from the metrics of an ended run; empty if the run has changed since."""
        known = self._statistics.get(info.id)
        # A run that is looked at again gets an equal object.
        if known is None or (known[0] is not info and known[0] != info) or len(known[1]) > _MAX_STATISTICS:
            known = self._statistics[info.id] = (info, {})
        return known[1]

    def _column_cache(self) -> ColumnCache:
        # A forked child starts with an empty one: a thread of its parent may have held the locks of this one.
        if self._columns_pid != os.getpid():
            self._columns, self._columns_pid = ColumnCache(), os.getpid()
        return self._columns

    def paused_background(self) -> AbstractContextManager[None]:
        """Keep runs from being read ahead while a request is answered."""
        background = self.background
        return contextlib.nullcontext() if background is None or background.is_current_thread else background.request()

    def has_column_file(self, info: RunInfo) -> bool:
        """Whether the columns of an ended run are in a file, so that its journal need not be read for them."""
        return self._column_cache().get(RunLocation(info.project, info.directory), self._column_folder(info)).load()

    def _column_folder(self, info: RunInfo) -> Path | None:
        can_write = not self.index.folder.is_symlink() and os.access(self.root, os.W_OK)
        return compaction.run_folder(self.index, info.id) if can_write and info.is_over else None

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
            with self.paused_background(), self.index.reader_lock():
                cursor, compact = self._retry_once(lambda: self._open_cursor(runs, query), runs)
                self.index.cursors.add(cursor)
                try:
                    with (
                        contextlib.closing(cursor),
                        self._detect_damage(lambda: compact, is_own=False),
                        limited(cursor),
                    ):
                        yield cursor
                finally:
                    self.index.cursors.discard(cursor)
        finally:
            compaction.prune(self.index)

    def _open_cursor(self, runs: Sequence[RunInfo], query: str) -> tuple["DuckDBPyConnection", dict[str, ReadState]]:
        """A cursor for a snapshot, and the runs whose Parquet files it reads."""
        self.index.check()
        open_count = self.index.open_count
        names = _named_tables(query)
        # Some tables come from elsewhere, and a query over only those need not wait for the records of all runs.
        if names - _DERIVED:
            self._ingest(runs)
        # Before the lock of the index: reading columns takes others, and perhaps long.
        metric_names = None
        if METRIC_NAMES in names:
            metric_names = metric_name_arrays((info.id, facts) for info, facts in self.metric_facts(runs))
        with self.index.urgent_lock(), contextlib.ExitStack() as on_failure:
            self.index.check()
            if self.index.open_count != open_count:  # another thread reopened it: the rows just read may be gone
                raise DamagedIndexError("The index was closed or rebuilt in the meantime. Try again.")
            cursor = self.index.connection.cursor()
            on_failure.callback(cursor.close)
            self._define_views(cursor, runs, names)
            if metric_names is not None:
                _create_table(cursor, METRIC_NAMES, METRIC_NAME_COLUMNS, metric_names)
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            # A first read fixes the snapshot; otherwise it would be that of the first query.
            cursor.execute("SELECT count(*) FROM meta").fetchall()
            on_failure.pop_all()
            return cursor, self._compact_states(runs)

    def _define_views(self, cursor: "DuckDBPyConnection", runs: Sequence[RunInfo], names: set[str]) -> None:
        if "runs" in names:
            _create_table(cursor, "runs", RUN_COLUMNS, run_arrays(runs))
        if "console" in names:
            _create_table(cursor, "console", CONSOLE_COLUMNS, console_arrays(runs))
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
        """Run an operation on the index; if it or the runs' Parquet files are damaged, rebuild them and retry once."""
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
        # Reads all the files, which takes long: done only after a failure, and without the index's lock.
        damaged = [run for run, read in compact.items() if not compaction.is_intact(self.index, run, read)]
        if not damaged:
            return
        with self.index.lock:
            for run in damaged:
                compaction.discard(self.index, run, compact[run])
        names = ", ".join(damaged)
        logger.info("%s: files of the index are damaged and will be rebuilt: %s", self.root, names)
        raise DamagedIndexError(f"The index is damaged: the files of {names} will be rebuilt. Try again.") from None

    def _describe(self, location: RunLocation, liveness: Liveness, facts_stamp: Stamp | None) -> RunInfo:
        try:
            return self._describe_or_raise(location, liveness, facts_stamp)
        except Exception as error:  # one broken run must not hide the others
            problem = f"its record cannot be read: {type(error).__name__}: {error}"
            if (location.id, problem) not in self._logged:
                self._logged.add((location.id, problem))
                logger.exception("Only the name of %s is listed: its record cannot be read.", location.id)
            return run_info(location, {}, RunSummary(), status="killed", problems=[problem], records=self.records)

    def _due_for_check(self, count: int) -> set[str]:
        """The runs whose files are looked at again although nothing shows a change: a few at each listing.

        Damage and changes in place do not show in the times of directories. With few runs, all of them are checked.
        """
        budget = max(_MIN_CHECKS, count // _CHECK_SHARE)
        due = set(itertools.islice(self._checked, budget))
        for run in due:
            self._checked.move_to_end(run)
        return due

    def _listed(self, location: RunLocation, stamp: Stamp) -> RunInfo | None:
        """The earlier listing of an ended run, if neither its facts nor its set of journal files changed."""
        state = self.index.states.get(location.id)
        # Only if it recorded its end: one that seems killed may be on another machine and send more.
        if state is None or not state.summary.has_ended or state.facts_stamp != stamp or state.journal is None:
            return None
        if location.journal_stamp != state.journal:
            return None
        if location.edits_stamp != state.edits_stamp:
            return None
        info = self._infos.get(location.id)
        problems = self._problems(state)
        if info is None or not _is_described(info, location, problems):
            # Of an earlier process: its status was decided when it was listed then.
            info = self._infos[location.id] = self._info(location, state, problems)
            self._checked.setdefault(location.id)
        return info

    @staticmethod
    def _problems(state: RunState) -> list[str]:
        found = [problem for problem in (state.facts_problem, state.edits_problem) if problem]
        return [*found, *state.damage, *(state.read.problems if state.read else [])]

    def _describe_or_raise(self, location: RunLocation, liveness: Liveness, facts_stamp: Stamp | None) -> RunInfo:
        state = self.index.state(location.id)
        before = (state.stamps, state.is_live, state.journal, state.damage, state.status)
        has_changed = self._read_facts(location, state, facts_stamp)
        has_grown = self._summarize(location, state)
        growing = self._growing.get(location.id)
        was_live = state.is_live
        only_path = None if growing is None else growing.only_path
        state.status = liveness.status(state.summary, location.directory, state.facts, only_path)
        state.is_live = state.status in _LIVE
        if state.is_live:
            state.damage = []  # its files always have a torn end
        elif has_grown or was_live:
            files = regular_journal_files(location.journal)
            state.stamps = _stamps(files)
            state.damage = [] if files else ["there is no journal"]
            state.damage += describe_damage(files, state.read.files if state.read else {})
        if (state.stamps, state.is_live, state.journal, state.damage, state.status) != before:
            self.index.mark_dirty(location.id)
            has_changed = True
        info, problems = self._infos.get(location.id), self._problems(state)
        if has_changed or has_grown or info is None or not _is_described(info, location, problems):
            info = self._infos[location.id] = self._info(location, state, problems)
        if state.summary.has_ended:
            self._growing.pop(location.id, None)
            self._checked.setdefault(location.id)
        return info

    def _read_facts(self, location: RunLocation, state: RunState, stamp: Stamp | None) -> bool:
        """Read the facts of a run if they changed; returns whether they did."""
        has_changed = stamp is None or stamp != state.facts_stamp
        if has_changed:
            state.facts_stamp = stamp
            state.facts, state.facts_problem = read_facts(location.facts)
        edits_stamp = location.edits_stamp
        if edits_stamp != state.edits_stamp:
            state.edits_stamp, has_changed = edits_stamp, True
            state.edits, state.edits_problem = read_edits(location.directory)
        if has_changed:
            self.index.mark_dirty(location.id)
        return has_changed

    def _summarize(self, location: RunLocation, state: RunState) -> bool:
        """Update the summary of a run; returns whether its journal may have changed."""
        # Before the files are listed, so that a file created in the meantime makes the stamp outdated.
        journal = location.journal_stamp
        growing = self._growing.get(location.id) if journal is not None and journal == state.journal else None
        state.journal = journal
        if growing is not None:
            has_grown, state.summary = growing.refresh(), growing.summary
            if not (has_grown and growing.summary.has_ended):
                return has_grown
        files = regular_journal_files(location.journal)
        stamps = _stamps(files)
        if stamps != state.stamps or state.is_live or not state.summary.has_ended:
            growing = self._growing[location.id] = GrowingSummary(files)
            state.stamps, state.summary = stamps, growing.summary
        return True

    def _info(self, location: RunLocation, state: RunState, problems: list[str]) -> RunInfo:
        return run_info(
            location,
            state.facts,
            state.summary,
            status=state.status,
            problems=problems,
            records=self.records,
            edits=state.edits,
        )


def _is_described(info: RunInfo, location: RunLocation, problems: list[str]) -> bool:
    return list(info.problems) == problems and info.directory == location.directory


def _stamps(files: Sequence[JournalFile]) -> dict[str, Stamp]:
    return {file.path.name: stamp for file in files if (stamp := Stamp.of(file.path)) is not None}


_ALIAS = re.compile(r"\bas\s+\w+")
"""A column may have the name of a table, which the query then need not read."""
_DERIVED = {"runs", "console", METRIC_NAMES}
"""The tables that are created for a query, from data outside the index."""


def _named_tables(query: str) -> set[str]:
    """The tables that a query may name; all but the console if it names none."""
    text = _ALIAS.sub("", query.lower())
    every = {"runs", "hooks", ORDERED_METRICS, *TABLES}
    named = {name for name in (*every, "console", METRIC_NAMES) if name in text}
    return named or every


def _create_table(
    cursor: "DuckDBPyConnection", name: str, columns: dict[str, str], content: tuple[dict[str, Any], list[str]]
) -> None:
    """Create a temporary table from arrays and the expressions of its columns."""
    arrays, expressions = content
    shown = ", ".join(f'{expression} AS "{column}"' for expression, column in zip(expressions, columns, strict=True))
    cursor.register("content", arrays)
    cursor.execute(f"CREATE TEMP TABLE {name} AS SELECT {shown} FROM content")
    cursor.unregister("content")

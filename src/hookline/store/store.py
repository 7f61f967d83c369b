"""`Store`: the runs below a root, and queries over what they recorded.

Listing reads no more than the two ends of each journal. A query first reads what is new in the runs that it concerns.
All methods can be called from several threads; those of one process share an index.
"""

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hookline._engine.errors import ConfigError
from hookline.store import compaction
from hookline.store.index import DamagedIndexError, Index, duckdb_module, may_be_of_a_file, quoted
from hookline.store.ingest import Ingested, ingest
from hookline.store.journal_files import Stamp, damage, own_files
from hookline.store.query_limits import QueryError, limited
from hookline.store.run_info import Place, RunInfo, places, read_facts, run_info
from hookline.store.run_state import ReadState, RunState
from hookline.store.run_summary import Liveness, RunSummary, summarize
from hookline.store.tables import HOOKS, IN_ORDER, ORDER, RUN_COLUMNS, TABLES, run_columns

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

logger = logging.getLogger("hookline")

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Called with how many runs are read, and how many there are."""

_LIVE = ("running", "stalled")
_OPEN: "weakref.WeakValueDictionary[Path, Store]" = weakref.WeakValueDictionary()
_OPENING = threading.Lock()


def open_store(root: str | Path) -> "Store":
    """The store of a root; everybody in this process gets the same.

    Raises:
        ConfigError: There is no such directory.
        MissingExtraError: DuckDB is not installed.
    """
    path = Path(root).resolve()
    if not path.is_dir():
        raise no_runs_yet(path)
    with _OPENING:
        store = _OPEN.get(path)
        if store is None:
            store = _OPEN[path] = Store(path)
        return store


def no_runs_yet(root: Path) -> ConfigError:
    """What is said where a root is no directory: mostly nothing was recorded yet."""
    if root.exists():
        return ConfigError(f"{root} is a file, and runs lie in a directory. Give another one (--root).")
    return ConfigError(
        f"There are no runs here yet: there is no such directory as {root}. "
        "Start one with hl.run(...) or hookline demo --quick, or give another directory (--root)."
    )


class Store:
    """An open store. Get one with `open_store`, or use `hookline.runs`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.index = Index(root)
        weakref.finalize(self, Index.close, self.index)
        self._said: set[tuple[str, str]] = set()
        self._pruned = 0

    def close(self) -> None:
        """Let another process have the index, until the next use. May be called again."""
        self.index.close()

    def _list(self, liveness: Liveness) -> list[RunInfo]:
        with self.index.lock:
            self.index.check()
            found = list(places(self.root))
            infos = [self._look(place, liveness) for place in found]
            self._forget_others(found)
            self.index.save()
        return sorted(infos, key=lambda info: (info.started or 0.0, info.id), reverse=True)

    def list(self, liveness: Liveness) -> list[RunInfo]:
        """All runs as they are now, the latest first."""
        return self._twice(lambda: self._list(liveness), [])

    def take_in(self, runs: Sequence[RunInfo], progress: Progress | None = None) -> Ingested:
        """Read what is new in some runs."""
        with self.index.reading():
            taken = self._twice(lambda: self._take_in(runs, progress), runs)
        compaction.prune(self.index)
        return taken

    def _twice(self, work: Callable[[], T], runs: Sequence[RunInfo]) -> T:
        """Do something to the index, and once more where it or files of the runs turn out to be damaged."""
        try:
            with self._watched(lambda: self._compact(runs), is_own=True):
                return work()
        except DamagedIndexError:
            with self._watched(lambda: self._compact(runs), is_own=True):
                return work()

    @contextlib.contextmanager
    def _watched(self, compact: Callable[[], dict[str, ReadState]], *, is_own: bool) -> Iterator[None]:
        """Look out for damage, in the index and in files, which are then made anew.

        Args:
            compact: Gives the runs whose files are read.
            is_own: No query of a user is run: whatever fails, the files may be to blame.

        Raises:
            DamagedIndexError: There was some.
            QueryError: Something else is wrong.
        """
        try:
            with self.index.watched():
                yield
        except duckdb_module().Error as error:
            if is_own or may_be_of_a_file(error):
                self._give_up_damaged(compact())
            raise QueryError(str(error)) from None

    def _compact(self, runs: Sequence[RunInfo]) -> dict[str, ReadState]:
        """Those runs whose rows are in files, and what is known about these."""
        with self.index.lock:
            known = {info.id: self.index.state(info.id).read for info in runs}
        return {run: read for run, read in known.items() if read is not None and read.is_compact}

    def _give_up_damaged(self, compact: dict[str, ReadState]) -> None:
        damaged = [run for run, read in compact.items() if not compaction.is_intact(self.index, run, read)]
        if not damaged:
            return
        with self.index.lock:
            for run in damaged:
                compaction.give_up(self.index, run, compact[run])
        names = ", ".join(damaged)
        logger.info("%s: files of the index are damaged, and made anew: %s", self.root, names)
        raise DamagedIndexError(f"The index is damaged: the files of {names} will be made anew. Ask again.") from None

    def _take_in(self, runs: Sequence[RunInfo], progress: Progress | None) -> Ingested:
        taken = Ingested()
        self.index.check()
        for done, info in enumerate(runs, start=1):
            place = Place(info.project, info.directory)
            taken += ingest(self.index, place, is_over=info.is_over)
            if progress is not None:
                progress(done, len(runs))
        self.index.save()
        return taken

    def look(self, run: RunInfo, liveness: Liveness) -> RunInfo:
        """One run as it is now."""
        with self.index.lock:
            return self._look(Place(run.project, run.directory), liveness)

    @contextlib.contextmanager
    def snapshot(self, runs: Sequence[RunInfo], query: str = "") -> Iterator["DuckDBPyConnection"]:
        """A connection that sees the tables of some runs as they are now, and can change nothing.

        Args:
            query: Only the tables whose names it has are there; all where it has none.

        Raises:
            DamagedIndexError: The index, or a file of it, turned out to be damaged.
            QueryError: What is done within the context fails.
            QueryTimeoutError: A `QueryLimit` ended it.
        """
        try:
            with self.index.reading():  # until the last row was read: DuckDB opens files when it comes to them
                cursor, compact = self._twice(lambda: self._opened(runs, query), runs)
                with contextlib.closing(cursor), self._watched(lambda: compact, is_own=False), limited(cursor):
                    yield cursor
        finally:
            compaction.prune(self.index)

    def _opened(self, runs: Sequence[RunInfo], query: str) -> tuple["DuckDBPyConnection", dict[str, ReadState]]:
        """A connection for a snapshot, and the runs whose files it reads."""
        self.index.check()
        begun = self.index.begun
        self._take_in(runs, None)
        with self.index.lock, contextlib.ExitStack() as otherwise:
            self.index.check()
            if self.index.begun != begun:  # by another thread: what was read is not in it
                raise DamagedIndexError("The index was closed or made anew meanwhile. Ask again.")
            cursor = self.index.connection.cursor()
            otherwise.callback(cursor.close)
            self._define_views(cursor, runs, _named_in(query))
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            cursor.execute("SELECT count(*) FROM meta").fetchall()  # now, or the view would be that of the first query
            otherwise.pop_all()
            return cursor, self._compact(runs)

    def _look(self, place: Place, liveness: Liveness) -> RunInfo:
        """A run as it is now; whatever goes wrong about it is its own problem, and the others are listed."""
        try:
            return self._looked_at(place, liveness)
        except Exception as error:
            why = f"what it recorded cannot be made out: {type(error).__name__}: {error}"
            if (place.id, why) not in self._said:
                self._said.add((place.id, why))
                logger.exception("%s is listed by its name alone.", place.id)
            return run_info(place, {}, RunSummary(), status="killed", problems=[why])

    def _looked_at(self, place: Place, liveness: Liveness) -> RunInfo:
        state = self.index.state(place.id)
        self._look_at_facts(place, state)
        found = own_files(place.journal)
        stamps = {file.path.name: stamp for file in found if (stamp := Stamp.of(file.path)) is not None}
        word = liveness.word(state.glance, place.directory, state.facts)
        if stamps != state.stamps or state.is_live or word in _LIVE:
            before = state.stamps, state.is_live
            state.stamps, state.glance = stamps, summarize(found)
            word = liveness.word(state.glance, place.directory, state.facts)
            state.is_live = word in _LIVE
            if (state.stamps, state.is_live) != before:
                self.index.touch(place.id)
        problems = [state.facts_problem] if state.facts_problem else []
        if word not in _LIVE:
            problems += [] if found else ["there is no journal"]
            problems += damage(found, state.read.files if state.read else {})
        problems += state.read.problems if state.read else []
        return run_info(place, state.facts, state.glance, status=word, problems=problems)

    def _look_at_facts(self, place: Place, state: RunState) -> None:
        stamp = Stamp.of(place.facts)
        if stamp is None or stamp != state.facts_stamp:
            state.facts_stamp = stamp
            state.facts, state.facts_problem = read_facts(place.facts)
            self.index.touch(place.id)

    def _forget_others(self, found: Iterable[Place]) -> None:
        gone = self.index.states.keys() - {place.id for place in found}
        if gone:
            self.index.forget(gone)
            for run in gone if not self.index.is_private else ():
                compaction.remove(self.index, run)
        is_due = (
            self._pruned != self.index.begun and not self.index.is_private
        )  # runs may have gone while nobody looked
        if is_due and compaction.remove_others(self.index, (place.id for place in found)):
            self._pruned = self.index.begun

    def _define_views(self, cursor: "DuckDBPyConnection", runs: Sequence[RunInfo], names: set[str]) -> None:
        if "runs" in names:
            _define_runs(cursor, runs)
        for name in TABLES:
            if name in names or (name in ("metrics", "events") and "hooks" in names):
                cursor.execute(f"CREATE TEMP VIEW {name} AS {self.rows_of(name, runs)}")
        if IN_ORDER in names:
            cursor.execute(f"CREATE TEMP VIEW {IN_ORDER} AS {self.metrics_in_order(runs)}")
        if "hooks" in names:
            cursor.execute(f"CREATE TEMP VIEW hooks AS {HOOKS}")

    def rows_of(self, table: str, runs: Sequence[RunInfo]) -> str:
        """A query for the rows of some runs, in the database and in files."""
        return self._rows_of(table, runs, TABLES[table].shown)

    def metrics_in_order(self, runs: Sequence[RunInfo]) -> str:
        """A query for the metrics of some runs with one column more: their order."""
        return self._rows_of("metrics", runs, f"{TABLES['metrics'].shown}, coalesce(_order, time) AS {ORDER}")

    def _rows_of(self, table: str, runs: Sequence[RunInfo], shown: str) -> str:
        live, files = [], []
        for info in runs:
            read = self.index.state(info.id).read
            if read is None or not read.rows.get(table):
                continue
            if read.is_compact:
                files.append(str(compaction.paths(self.index, info.id, read)[table]))
            else:
                live.append(info.id)
        parts = [f"SELECT {shown} FROM live_{table} WHERE run IN ({', '.join(map(quoted, live)) or 'NULL'})"]
        if files:
            parts.append(f"SELECT {shown} FROM read_parquet([{', '.join(map(quoted, files))}])")
        return " UNION ALL ".join(parts)


def _define_runs(cursor: "DuckDBPyConnection", runs: Sequence[RunInfo]) -> None:
    arrays, expressions = run_columns(runs)
    cursor.register("listed", arrays)
    made = zip(expressions, RUN_COLUMNS, strict=True)
    columns = ", ".join(f'{expression} AS "{name}"' for expression, name in made)
    cursor.execute(f"CREATE TEMP TABLE runs AS SELECT {columns} FROM listed")
    cursor.unregister("listed")


def _named_in(query: str) -> set[str]:
    every = {"runs", "hooks", IN_ORDER, *TABLES}
    return {name for name in every if name in query.lower()} or every

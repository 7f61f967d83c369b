"""`Index`: the database of a store, derived from the journals and safe to delete at any time.

It lies in ``<root>/.hookline/``: ``index.duckdb`` with the state of each run and the rows of live ones, and a folder
with Parquet files for each ended run. One process owns it at a time. Another process, or one that cannot write there,
keeps a private index in memory and gives the same answers. A damaged index, or one of another version, is rebuilt. A
closed one opens again on the next use. A forked child never touches what its parent has open.

The database cannot access files outside that folder, load extensions or reach the network, and this cannot be changed
once it is open. It holds for users' queries and for our own.
"""

import contextlib
import ctypes
import fcntl
import functools
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hookline._engine.errors import HooklineError, MissingExtraError
from hookline.store.run_info import RunState
from hookline.store.tables import TABLES, VERSION, Rows, row_selects

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

logger = logging.getLogger("hookline")

COMPACT_RUNS = "runs"
"""The folder with the Parquet files of runs."""
FOLDER = ".hookline"
"""The folder of a root with derived data."""
DATABASE = "index.duckdb"
_READERS_LOCK = "readers.lock"
MEMORY_LIMIT = "2GB"
_CLOSE_SECONDS, _INTERRUPT_SECONDS = 10.0, 0.05
"""How long closing waits for queries in progress to end, and how often it interrupts them."""
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "pandas_analyze_sample": "0",  # treat object columns as texts, regardless of the first thousand values
    "preserve_insertion_order": "true",
}

_OPENED_BY: dict[Path, int] = {}
"""The process that opened each database: a forked child must not use what it inherits."""
_INDEXES: "weakref.WeakSet[Index]" = weakref.WeakSet()


class DamagedIndexError(HooklineError, OSError):
    """The index is damaged. The next query rebuilds it, so the same call can be repeated."""


class BusyIndexError(HooklineError):
    """Another thread is using the index for a long time."""


class Index:
    """An open index.

    Args:
        root: The directory with the runs.

    Attributes:
        note: Why the index is private; empty if it is on disk.
        rebuild_reason: Why the index was rebuilt; empty if it was not.
        states: The state of each run by its id.
        open_count: How often it was opened: results from before a reopening may no longer be in it.
        rejected: The generation of a run's Parquet files that a private index found to be damaged.
        prune_pending: Runs with Parquet files that may no longer be in use.
        cursors: The cursors of queries in progress.
        urgent: The threads that wait for the lock in `urgent_lock` or hold it.
        leftovers_checked: Runs whose folders were checked for such files since the index was opened.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / FOLDER
        self.lock = threading.RLock()
        self.note = self.rebuild_reason = ""
        self.states: dict[str, RunState] = {}
        self.open_count = 0
        self.rejected: dict[str, int] = {}
        self.prune_pending: set[str] = set()
        self.leftovers_checked: set[str] = set()
        self.cursors: set[DuckDBPyConnection] = set()
        self.urgent: set[object] = set()
        self._unsaved: set[str] = set()
        self._staged: set[str] = set()
        self._sources = itertools.count()
        self._inode = 0
        self._damage = ""
        self._is_closed = True
        self._open()
        _INDEXES.add(self)
        _register_fork_handler()

    @property
    def is_private(self) -> bool:
        """Whether it is in memory, for this process only."""
        return bool(self.note)

    @contextlib.contextmanager
    def urgent_lock(self, seconds: float = -1.0) -> Iterator[None]:
        """Hold the lock; a thread that reads many runs lets go of it after the run that it is at.

        Without this, that thread would take the lock again before the one that waits for it wakes up.

        Args:
            seconds: How long to wait for the lock; by default as long as it takes.

        Raises:
            BusyIndexError: It took longer.
        """
        waiter = object()
        self.urgent.add(waiter)
        try:
            if not self.lock.acquire(timeout=seconds):
                raise BusyIndexError("Another thread reads a long run. Try again.")
            try:
                yield
            finally:
                self.lock.release()
        finally:
            self.urgent.discard(waiter)

    def close(self) -> None:
        """Save unsaved states and release the database until the next `check`."""
        with self.lock:
            if self._is_closed:
                return
            self._is_closed = True
            # Anything that is not saved is read again from the journals.
            with contextlib.suppress(duckdb_module().Error):
                self.save()
            self._close_connection()
            if not self.is_private:
                _OPENED_BY.pop(self.folder / DATABASE, None)

    def _close_connection(self) -> None:
        # DuckDB refuses to close a connection while a cursor of it runs a query. At this point nobody waits for such a
        # query any more, so it is interrupted, and again until it has ended: an interrupt between two statements has
        # no effect.
        deadline = time.monotonic() + _CLOSE_SECONDS
        while True:
            try:
                self.connection.close()
            except duckdb_module().Error:
                if time.monotonic() > deadline:
                    raise
                for cursor in list(self.cursors):
                    with contextlib.suppress(duckdb_module().Error):  # closed in the meantime
                        cursor.interrupt()
                time.sleep(_INTERRUPT_SECONDS)
            else:
                return

    def check(self) -> None:
        """Reopen the index if it was closed, deleted, replaced, or found to be damaged."""
        with self.lock:
            if self._is_closed:
                self.rebuild_reason = self._damage = ""
                self._open()
            elif self._damage:
                self._reopen()
            # DuckDB would keep writing to a deleted file, and nobody else would see the result.
            elif not self.is_private and _inode(self.folder / DATABASE) != self._inode:
                self._reopen()
                self.rebuild_reason = "it was deleted or replaced"

    def _reopen(self) -> None:
        with contextlib.suppress(duckdb_module().Error):
            self.connection.close()
        if self._damage and not self.is_private:  # the file of a private index's root may be another process's
            self._remove(self.folder / DATABASE, self._damage)
        self._damage = ""
        self._open()

    def abandon(self) -> None:
        """In a forked child: leave the parent's connection alone, without even closing it; `check` opens a new one."""
        self.lock = threading.RLock()  # a thread of the parent may have held the old one
        self.urgent = set()
        self._is_closed = True
        # The extra reference keeps the connection from being collected, which would crash the child.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.connection))

    @contextlib.contextmanager
    def detect_damage(self) -> Iterator[None]:
        """Detect damage, which shows only when the damaged part is read; the next `check` rebuilds the index.

        Raises:
            DamagedIndexError: The database is damaged.
        """
        try:
            yield
        except duckdb_module().Error as error:
            if not is_damage(error):
                raise
            self._damage = str(error)
            raise DamagedIndexError(f"The index is damaged and will be rebuilt. Try again. {error}") from None

    @contextlib.contextmanager
    def reader_lock(self) -> Iterator[None]:
        """Keep every process from removing Parquet files meanwhile; without effect where files cannot be locked."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                # For reading: another user's process, which cannot write here, takes a shared lock all the same.
                descriptor = os.open(self.folder / _READERS_LOCK, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield

    @contextlib.contextmanager
    def writer_lock(self) -> Iterator[bool]:
        """Whether no thread or process holds the reader lock; if so, none gets it meanwhile."""
        # The reader lock is taken before ``lock``, here after it. That cannot deadlock, because this one does not wait.
        with self.lock, contextlib.ExitStack() as stack:
            is_locked = False
            with contextlib.suppress(OSError):
                descriptor = os.open(self.folder / _READERS_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_locked = True
            yield is_locked

    def state(self, run: str) -> RunState:
        """The state of a run. Call `mark_dirty` after changing it."""
        return self.states.setdefault(run, RunState())

    def mark_dirty(self, run: str) -> None:
        """Have the next `save` write the state of a run."""
        self._unsaved.add(run)

    def forget(self, runs: Iterable[str]) -> None:
        """Remove the rows and states of deleted runs."""
        gone = list(runs)
        with self.transaction() as connection:
            for table in TABLES:
                connection.execute(f"DELETE FROM live_{table} WHERE run IN (SELECT unnest(?))", [gone])
            connection.execute("DELETE FROM states WHERE run IN (SELECT unnest(?))", [gone])
        # After the commit: if it failed, memory must still say what the database holds.
        for run in gone:
            self.states.pop(run, None)
            self._unsaved.discard(run)

    def save(self) -> None:
        """Save the states that changed."""
        runs = [run for run in self._unsaved if run in self.states]
        if runs:
            with self.transaction() as connection:
                self.save_in(connection, runs)

    def save_in(self, connection: "DuckDBPyConnection", runs: list[str]) -> None:
        """Save the states of some runs within a transaction."""
        texts = [msgspec.json.encode(self.states[run]).decode() for run in runs]
        connection.execute("DELETE FROM states WHERE run IN (SELECT unnest(?))", [runs])
        connection.execute("INSERT INTO states SELECT unnest(?), unnest(?)", [runs, texts])
        self._unsaved.difference_update(runs)

    @contextlib.contextmanager
    def transaction(self) -> Iterator["DuckDBPyConnection"]:
        """A transaction, committed at the end and rolled back on an error."""
        with self.lock:
            self.connection.begin()
            try:
                yield self.connection
            # Interrupts as well: an open transaction would fail every later one.
            except BaseException:
                self.connection.rollback()
                raise
            self.connection.commit()

    def stage(self, run: str, rows: Rows) -> None:
        """Insert rows into the staging tables, until all new records of a run are read."""
        for name in rows.counts():
            # Before the insert: if that fails, `clear_staged` empties the table all the same.
            self._staged.add(name)
            self.insert(f"fresh_{name}", name, [(run, rows)])

    def insert(self, target: str, name: str, batches: Sequence[tuple[str, Rows]]) -> None:
        """Insert the rows of a table of several runs, of which some have such rows."""
        for arrays, columns in row_selects(name, batches):
            with self.registered(arrays) as source:
                self.connection.execute(f"INSERT INTO {target} SELECT {columns} FROM {source}")

    @contextlib.contextmanager
    def registered(self, arrays: dict[str, Any]) -> Iterator[str]:
        """Make arrays a table within the context, and return its name."""
        source = f"arrays_{next(self._sources)}"
        self.connection.register(source, arrays)
        try:
            yield source
        finally:
            self.connection.unregister(source)

    def clear_staged(self) -> None:
        """Empty the staging tables."""
        for name in self._staged:
            self.connection.execute(f"CREATE OR REPLACE TEMP TABLE fresh_{name} ({TABLES[name].definition})")
        self._staged = set()

    def _open(self) -> None:
        self.note, self.states, self._unsaved = "", {}, set()
        self.prune_pending, self.leftovers_checked = set(), set()
        path = self.folder / DATABASE
        try:
            self._prepare_folder()
            self.connection = self._connect_or_replace(path)
            # Created by the owner, because processes without permission to write can only open it.
            (self.folder / _READERS_LOCK).touch()
            self._inode = _inode(path)
            _OPENED_BY[path] = os.getpid()
        except (OSError, duckdb_module().Error) as error:
            self.note = "another process is using it" if _is_in_use(error) else str(error).splitlines()[0]
            logger.info("%s: the index is kept in memory, for this process only: %s", self.folder, self.note)
            self.connection = _connect(":memory:", self.folder)
        self._is_closed = False
        self.open_count += 1
        # The tables are temporary, so a new connection has none of them: all are created.
        self._staged = set(TABLES)
        self.clear_staged()

    def _prepare_folder(self) -> None:
        if _OPENED_BY.get(self.folder / DATABASE, os.getpid()) != os.getpid():
            raise OSError("the parent of this forked process is using it")
        self.folder.mkdir(parents=True, exist_ok=True)
        # Files would be written and removed at the link's target.
        if self.folder.is_symlink():
            raise OSError(f"{self.folder} is a link")

    def _connect_or_replace(self, path: Path) -> "DuckDBPyConnection":
        duckdb, damage = duckdb_module(), ""
        try:
            with contextlib.ExitStack() as on_failure:
                connection = _connect(str(path), self.folder)
                # While it is open, DuckDB would give the next connection the same database.
                on_failure.callback(connection.close)
                if self._load(connection):
                    on_failure.pop_all()
                    return connection
        except duckdb.Error as error:
            # Not damage: removing the file would take it from the process that uses it.
            if _is_in_use(error):
                raise
            damage = str(error)
        self._remove(path, damage)
        self.states = {}
        return _connect(str(path), self.folder)

    def _remove(self, path: Path, damage: str) -> None:
        if damage:
            logger.info("%s is damaged and will be rebuilt: %s", path, damage)
            self.rebuild_reason = "it was damaged"
        # The log as well: DuckDB would replay it into the new database.
        for file in (path, path.with_name(f"{DATABASE}.wal")):
            file.unlink(missing_ok=True)

    def _load(self, connection: "DuckDBPyConnection") -> bool:
        """Load the saved states; returns whether they are of this version."""
        if connection.execute("SELECT version FROM meta").fetchall() != [(VERSION,)]:
            return False
        try:
            saved = connection.execute("SELECT run, state FROM states").fetchall()
            self.states = {run: msgspec.json.decode(text, type=RunState) for run, text in saved}
        except msgspec.DecodeError:
            return False
        return True


def _connect(path: str, folder: Path) -> "DuckDBPyConnection":
    """Open a database with its tables and lock it down to the files of a folder."""
    # A folder per process: private indexes of several processes share the parent.
    settings = _SETTINGS | {"memory_limit": MEMORY_LIMIT, "temp_directory": str(folder / f"spilled-{os.getpid()}")}
    connection: DuckDBPyConnection = duckdb_module().connect(path, config=settings)
    try:
        # Before anything else: a database from elsewhere may have views in place of these tables.
        # Not the whole folder: a server keeps its tokens and its audit log there, which no query may read.
        allowed = (folder / COMPACT_RUNS, settings["temp_directory"])
        listed = ", ".join(sql_quote(f"{each}/") for each in allowed)
        connection.execute(f"SET allowed_directories = [{listed}]")
        # In this order: the second setting freezes the first, and the third freezes all of them.
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        connection.execute("CREATE TABLE IF NOT EXISTS meta (version INTEGER)")
        connection.execute("INSERT INTO meta SELECT ? WHERE NOT EXISTS (FROM meta)", [VERSION])
        connection.execute("CREATE TABLE IF NOT EXISTS states (run VARCHAR, state VARCHAR)")
        for name, table in TABLES.items():
            connection.execute(f"CREATE TABLE IF NOT EXISTS live_{name} ({table.definition})")
    except BaseException:
        connection.close()
        raise
    return connection


def sql_quote(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def duckdb_module() -> Any:
    """Import DuckDB.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import duckdb
        import numpy  # noqa: F401 - DuckDB reads columns from NumPy arrays
    except ImportError:
        raise MissingExtraError("Querying runs", "ui") from None
    return duckdb


def is_damage(error: Exception) -> bool:
    """Whether the database file is damaged, or was invalidated when DuckDB found that out.

    The error's type is checked too: messages about a user's query quote the query.
    """
    duckdb = duckdb_module()
    message = str(error).partition("\n")[0].lower()
    if isinstance(error, duckdb.IOException):
        return "corrupt database file" in message or ("could not read enough bytes" in message and DATABASE in message)
    # Errors in a user's query can say "corrupt" as well, but they are of other types.
    internal = (duckdb.FatalException, duckdb.InternalException, duckdb.SerializationException)
    is_internal = type(error) is duckdb.Error or isinstance(error, internal)
    return is_internal and any(words in message for words in ("corrupt", "checksum", "been invalidated"))


def may_be_file_damage(error: Exception) -> bool:
    """Whether a query may have failed because of a damaged Parquet file; checking the files tells."""
    duckdb = duckdb_module()
    internal = (duckdb.FatalException, duckdb.InternalException, duckdb.SerializationException)
    kinds = (duckdb.IOException, duckdb.InvalidInputException, *internal)
    return type(error) is duckdb.Error or isinstance(error, kinds)


@functools.cache
def _register_fork_handler() -> None:
    def abandon_all() -> None:
        for index in list(_INDEXES):
            index.abandon()

    os.register_at_fork(after_in_child=abandon_all)


def _is_in_use(error: Exception) -> bool:
    return "lock on file" in str(error)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0

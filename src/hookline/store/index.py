"""`Index`: the database behind a store, which is derived from the journals and can be deleted at any time.

It lies in ``<root>/.hookline/``: ``index.duckdb`` with what is known about each run and the rows of live ones, and a
folder with Parquet files for each run that has ended. One process has it at a time; another one, or one that cannot
write there, keeps a private index in memory, with the same answers. What is damaged or of another version is made anew.
One that was closed is opened again when it is next used. A forked child never touches what its parent has open.

The database can touch no file outside that folder, load no extension and reach no network, and that cannot be changed
once it is open: this holds for queries of users as for our own.
"""

import contextlib
import ctypes
import fcntl
import functools
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hookline._engine.errors import HooklineError, MissingExtraError
from hookline.store.run_state import RunState
from hookline.store.tables import TABLES, VERSION, Rows, columns

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

logger = logging.getLogger("hookline")

FOLDER = ".hookline"
"""The folder of a root that holds what is derived from it."""
DATABASE = "index.duckdb"
_READERS = "readers.lock"
MEMORY_LIMIT = "2GB"
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "pandas_analyze_sample": "0",  # texts are texts, whatever the first thousand look like
    "preserve_insertion_order": "true",
}


_OPENED: dict[Path, int] = {}
"""Which process opened each database: what a forked child inherits of it must not be used."""
_INDEXES: "weakref.WeakSet[Index]" = weakref.WeakSet()


class DamagedIndexError(HooklineError, OSError):
    """The index turned out to be damaged. What was asked can be asked again, of one that is made anew."""


class Index:
    """An open index.

    Args:
        root: The directory with the runs.

    Attributes:
        note: Why it is private; empty where it is kept on disk.
        made_anew: What happened to it, so that it had to be made anew; empty where nothing did.
        states: What is known about each run, by its id.
        refused: The generation of a run's files that a private index found to be damaged.
        unpruned: The runs with files that may not count any more.
        looked_at: The runs whose files were looked at for some of those since it was opened.
        begun: How often it was opened: what was looked up before may not be in it any more.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / FOLDER
        self.lock = threading.RLock()
        self.note = self.made_anew = ""
        self.states: dict[str, RunState] = {}
        self.begun = 0
        self._unsaved: set[str] = set()
        self._staged: set[str] = set()
        self._inode = 0
        self.refused: dict[str, int] = {}
        self.unpruned: set[str] = set()
        self.looked_at: set[str] = set()
        self._damage = ""
        self._is_closed = True
        self._begin()
        _INDEXES.add(self)
        _look_out_for_forks()

    @property
    def is_private(self) -> bool:
        """Whether it is in memory, for this process alone."""
        return bool(self.note)

    def close(self) -> None:
        """Save what is not saved and let another process have it, until the next `check`."""
        with self.lock:
            if self._is_closed:
                return
            self._is_closed = True
            with contextlib.suppress(duckdb_module().Error):
                self.save()
            self.connection.close()
            if not self.is_private:
                _OPENED.pop(self.folder / DATABASE, None)

    def check(self) -> None:
        """Begin again if it was closed, deleted, replaced, or found to be damaged."""
        with self.lock:
            if self._is_closed:
                self.made_anew = self._damage = ""
                self._begin()
            elif self._damage:
                self._begin_again()
            elif not self.is_private and _inode(self.folder / DATABASE) != self._inode:
                self._begin_again()
                self.made_anew = "it was deleted or replaced"

    def _begin_again(self) -> None:
        with contextlib.suppress(duckdb_module().Error):
            self.connection.close()
        if self._damage and not self.is_private:  # what lies on disk may be another process's
            self._remove(self.folder / DATABASE, self._damage)
        self._damage = ""
        self._begin()

    def abandon(self) -> None:
        """In a forked child: never touch what the parent has open, not even to close it; the next `check` begins anew.

        A thread of the parent may have had the lock.
        """
        self.lock = threading.RLock()
        self._is_closed = True
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.connection))  # or collecting it would end the child

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look out for damage, which shows only when the damaged part is read; the next `check` begins again.

        Raises:
            DamagedIndexError: There was some.
        """
        try:
            yield
        except duckdb_module().Error as error:
            if not is_damage(error):
                raise
            self._damage = str(error)
            raise DamagedIndexError(f"The index is damaged, and will be made anew. Ask again. {error}") from None

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Keep every process from removing files of runs meanwhile; where files cannot be locked, nothing does."""
        with contextlib.ExitStack() as at_end:
            with contextlib.suppress(OSError):
                descriptor = os.open(self.folder / _READERS, os.O_RDONLY | os.O_CLOEXEC)
                at_end.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no thread or process is `reading`, and none begins to meanwhile."""
        with self.lock, contextlib.ExitStack() as at_end:
            is_alone = False
            with contextlib.suppress(OSError):
                descriptor = os.open(self.folder / _READERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                at_end.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_alone = True
            yield is_alone

    def state(self, run: str) -> RunState:
        """What is known about a run, to be changed; `touch` it then."""
        return self.states.setdefault(run, RunState())

    def touch(self, run: str) -> None:
        """Note that what is known about a run has to be saved."""
        self._unsaved.add(run)

    def forget(self, runs: Iterable[str]) -> None:
        """Remove all there is of runs that are no more."""
        gone = list(runs)
        with self.transaction() as connection:
            for table in TABLES:
                connection.execute(f"DELETE FROM live_{table} WHERE run IN (SELECT unnest(?))", [gone])
            connection.execute("DELETE FROM states WHERE run IN (SELECT unnest(?))", [gone])
        for run in gone:
            self.states.pop(run, None)
            self._unsaved.discard(run)

    def save(self) -> None:
        """Write down what is known about the runs that were touched."""
        runs = [run for run in self._unsaved if run in self.states]
        if runs:
            with self.transaction() as connection:
                self.save_in(connection, runs)

    def save_in(self, connection: "DuckDBPyConnection", runs: list[str]) -> None:
        """The same for some runs, as a part of a transaction."""
        texts = [msgspec.json.encode(self.states[run]).decode() for run in runs]
        connection.execute("DELETE FROM states WHERE run IN (SELECT unnest(?))", [runs])
        connection.execute("INSERT INTO states SELECT unnest(?), unnest(?)", [runs, texts])
        self._unsaved.difference_update(runs)

    @contextlib.contextmanager
    def transaction(self) -> Iterator["DuckDBPyConnection"]:
        """All of it or nothing."""
        with self.lock:
            self.connection.begin()
            try:
                yield self.connection
            except BaseException:
                self.connection.rollback()
                raise
            self.connection.commit()

    def stage(self, run: str, rows: Rows) -> None:
        """Put rows where they wait until all of a run's news are read."""
        for name, found in rows.tables.items():
            if found:
                arrays, expressions = columns(TABLES[name], found)
                self._staged.add(name)
                self.connection.register("arrays", arrays)
                try:
                    self.connection.execute(
                        f"INSERT INTO fresh_{name} SELECT ?, {', '.join(expressions)} FROM arrays", [run]
                    )
                finally:
                    self.connection.unregister("arrays")

    def clear_stage(self) -> None:
        """Have nothing wait."""
        for name in self._staged:
            self.connection.execute(f"CREATE OR REPLACE TEMP TABLE fresh_{name} ({TABLES[name].definition})")
        self._staged = set()

    def _begin(self) -> None:
        self.note, self.states, self._unsaved = "", {}, set()
        self.unpruned, self.looked_at = set(), set()
        self.connection = self._open()
        self._is_closed = False
        self.begun += 1
        self._staged = set(TABLES)
        self.clear_stage()

    def _open(self) -> "DuckDBPyConnection":
        duckdb = duckdb_module()
        path = self.folder / DATABASE
        try:
            self._check_folder()
            connection = self._connect_or_replace(path)
            (self.folder / _READERS).touch()
            self._inode = _inode(path)
            _OPENED[path] = os.getpid()
        except (OSError, duckdb.Error) as error:
            self.note = _reason(error)
            logger.info("%s: the index is kept in memory, for this process alone: %s", self.folder, self.note)
            connection = _connect(":memory:", self.folder)
        return connection

    def _check_folder(self) -> None:
        """Make sure that the folder can be used, by this process.

        Raises:
            OSError: It cannot.
        """
        if _OPENED.get(self.folder / DATABASE, os.getpid()) != os.getpid():
            raise OSError("the process that this one was forked from has it")
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.folder.is_symlink():
            raise OSError(f"{self.folder} is a link")

    def _connect_or_replace(self, path: Path) -> "DuckDBPyConnection":
        duckdb, damage = duckdb_module(), ""
        try:
            with contextlib.ExitStack() as otherwise:
                connection = _connect(str(path), self.folder)
                otherwise.callback(connection.close)  # or the next one would be of the same database
                if self._load(connection):
                    otherwise.pop_all()
                    return connection
        except duckdb.Error as error:
            if _is_in_use(error):
                raise
            damage = str(error)
        self._remove(path, damage)
        self.states = {}
        return _connect(str(path), self.folder)

    def _remove(self, path: Path, damage: str) -> None:
        if damage:
            logger.info("%s is damaged, and made anew: %s", path, damage)
            self.made_anew = "it was damaged"
        for file in (path, path.with_name(f"{DATABASE}.wal")):
            file.unlink(missing_ok=True)

    def _load(self, connection: "DuckDBPyConnection") -> bool:
        """Read what was saved; whether it is of this version."""
        if connection.execute("SELECT version FROM meta").fetchall() != [(VERSION,)]:
            return False
        try:
            saved = connection.execute("SELECT run, state FROM states").fetchall()
            self.states = {run: msgspec.json.decode(text, type=RunState) for run, text in saved}
        except msgspec.DecodeError:
            return False
        return True


def _connect(path: str, folder: Path) -> "DuckDBPyConnection":
    """Open a database, with its tables, that can touch nothing but the files in a folder."""
    settings = _SETTINGS | {"memory_limit": MEMORY_LIMIT, "temp_directory": str(folder / f"spilled-{os.getpid()}")}
    connection: DuckDBPyConnection = duckdb_module().connect(path, config=settings)
    try:
        # First of all: a database from elsewhere may have views in the place of these tables.
        connection.execute(f"SET allowed_directories = [{quoted(str(folder) + '/')}]")
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


def quoted(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def duckdb_module() -> Any:
    """DuckDB.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import duckdb
        import numpy  # noqa: F401 - DuckDB takes columns as arrays
    except ImportError:
        raise MissingExtraError("Querying runs", "ui") from None
    return duckdb


def is_damage(error: Exception) -> bool:
    """Whether the database is not as DuckDB left it, or cannot be used any more since it found that out.

    The words alone say nothing: those of a user's query stand in the messages about it.
    """
    duckdb = duckdb_module()
    said = str(error).partition("\n")[0].lower()
    if isinstance(error, duckdb.IOException):
        return "corrupt database file" in said or ("could not read enough bytes" in said and DATABASE in said)
    own = (duckdb.FatalException, duckdb.InternalException, duckdb.SerializationException)
    is_own = type(error) is duckdb.Error or isinstance(error, own)
    return is_own and any(words in said for words in ("corrupt", "checksum", "been invalidated"))


def may_be_of_a_file(error: Exception) -> bool:
    """Whether a query may have failed because a Parquet file is damaged; a look at the files tells."""
    duckdb = duckdb_module()
    own = (duckdb.FatalException, duckdb.InternalException, duckdb.SerializationException)
    kinds = (duckdb.IOException, duckdb.InvalidInputException, *own)
    return type(error) is duckdb.Error or isinstance(error, kinds)


@functools.cache
def _look_out_for_forks() -> None:
    os.register_at_fork(after_in_child=_abandon_all)


def _abandon_all() -> None:
    for index in list(_INDEXES):
        index.abandon()


def _is_in_use(error: Exception) -> bool:
    return "lock on file" in str(error)


def _reason(error: Exception) -> str:
    return "another process has it" if _is_in_use(error) else str(error).splitlines()[0]


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0

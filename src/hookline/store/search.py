"""`SearchIndex`: finds the samples of ended runs that contain a text, with FTS5 of the standard library's SQLite.

It is derived data in ``.hookline/search.sqlite``: safe to delete at any time, and rebuilt when it is damaged, of
another version, or mostly about deleted runs. One process writes it, in the background, in short transactions: a
process that is killed leaves the last one. Other processes only read it and never wait: if it has no answer, the query
scans the texts, with the same result. Its size is bounded by `MAX_BYTES` and by the free space of the disk.

The index has the trigrams of each text, so it finds any text of three characters or more, inside of words and in every
script, ignoring case. Live runs are not in it: they are scanned, which is fast for what they have.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hookline.store.query_limits import check_limits
from hookline.store.run_info import RunInfo

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

logger = logging.getLogger("hookline")

DATABASE = "search.sqlite"
_LOCK = "search.lock"
VERSION = 1
MIN_CHARACTERS = 3
MAX_MATCHES = 50_000
"""A text that more samples contain is found as fast by a scan."""
MAX_BYTES = 16 << 30
_FREE_SHARE = 0.1
_BATCH_BYTES, _BATCH_ROWS = 4 << 20, 500
_MIN_REBUILD_ROWS = 20_000
_BUSY_SECONDS = 0.3
_PROGRESS_STEPS = 200_000
TEXTS = ("completion", "prompt", "coalesce(CAST(completion_messages AS VARCHAR), '')")
"""The searched parts of a sample, as SQL."""

_SCHEMA = f"""
PRAGMA page_size = 8192;
CREATE TABLE runs(no INTEGER PRIMARY KEY, run TEXT, ended REAL, rows INTEGER, complete INTEGER);
CREATE TABLE samples(row INTEGER PRIMARY KEY, no INTEGER, id TEXT);
CREATE VIRTUAL TABLE texts USING fts5(completion, prompt, messages, content='', columnsize=0, tokenize='trigram');
PRAGMA user_version = {VERSION};
"""
_FOREIGN = "SELECT count(*) FROM sqlite_schema WHERE type != 'table' AND name NOT LIKE 'sqlite_autoindex_%'"
"""Counts objects that this module does not create: a foreign view or trigger would run someone else's SQL."""
_HEADER, _WRITE_VERSIONS = b"SQLite format 3\0", b"\1\1"
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")


class Matches(NamedTuple):
    """The samples that contain a text.

    Attributes:
        runs: The runs that the index has completely; others have to be scanned.
        found: The run and the id of each.
    """

    runs: frozenset[str]
    found: list[tuple[str, str]]


@cache
def has_fts5() -> bool:
    """Return whether this Python's SQLite has FTS5 with trigrams."""
    try:
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            connection.execute("CREATE VIRTUAL TABLE t USING fts5(x, tokenize='trigram')")
    except sqlite3.Error:
        return False
    return True


class SearchIndex:
    """The search index of a root.

    Args:
        folder: The folder with the index of the store.

    Attributes:
        problem: Why it is not used or not updated, as a sentence; empty if it is.
        pending: The number of runs that are not in it yet; None if not yet counted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / DATABASE
        self.problem = "" if has_fts5() else "This Python's SQLite has no FTS5: searches read every text."
        self.pending: int | None = None
        self._is_damaged = False

    @property
    def note(self) -> str:
        """The reason why searches are slow, as a sentence; empty if they are not."""
        if self.problem or not self.pending:
            return self.problem
        runs = "1 run is" if self.pending == 1 else f"{self.pending:,} runs are"
        return f"The search index is being built: {runs} not in it yet and read for each search."

    def find(self, text: str, runs: Sequence[RunInfo]) -> Matches | None:
        """Find the samples of some runs that contain a text; None if a scan is needed or as fast."""
        ended = {info.id: info.ended for info in runs if info.is_over}
        if len(text) < MIN_CHARACTERS or "\0" in text or not ended or not has_fts5() or not self._is_usable():
            return None
        try:
            with self._opened(read_only=True) as connection:
                if connection.execute(_FOREIGN).fetchone() != (0,):
                    return None
                return _find(connection, text, ended)
        except sqlite3.Error as error:
            self._note_damage(error)
            check_limits()  # a cancelled search needs no scan
            return None

    def update(
        self,
        runs: Sequence[RunInfo],
        open_rows: Callable[[RunInfo], contextlib.AbstractContextManager["DuckDBPyConnection"]],
        proceed: Callable[[], bool],
    ) -> None:
        """Add the ended runs that are not in it.

        Args:
            runs: All runs of the root.
            open_rows: Opens a snapshot of a run.
            proceed: Called between batches; returns whether to continue.
        """
        if not has_fts5():
            return
        with self._exclusive() as is_owner:
            if not is_owner:
                return
            try:
                self._update(runs, open_rows, proceed)
            except sqlite3.Error as error:
                self._note_damage(error)
                if not self._is_damaged:
                    self.problem = f"The search index cannot be written: {error}. Searches read every text."

    def _update(
        self,
        runs: Sequence[RunInfo],
        open_rows: Callable[[RunInfo], contextlib.AbstractContextManager["DuckDBPyConnection"]],
        proceed: Callable[[], bool],
    ) -> None:
        if self._is_damaged:
            self._remove()
        try:
            self._prepare(runs)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self._remove()
            self._prepare(runs)
        with self._opened() as connection:
            known = dict(connection.execute("SELECT run, ended FROM runs WHERE complete"))
        missing = [info for info in runs if info.is_over and (info.id not in known or known[info.id] != info.ended)]
        self.problem = ""
        for place, info in enumerate(missing):
            self.pending = len(missing) - place
            if not proceed():
                return
            if self._is_full():
                self.problem = (
                    "The search index is as large as the disk allows; searches of other runs read every text."
                )
                return
            with self._opened() as connection, open_rows(info) as rows:
                if not _add_run(connection, info, rows, proceed):
                    return
        self.pending = 0

    def _prepare(self, runs: Iterable[RunInfo]) -> None:
        """Create the database, or remove one that is outdated."""
        existing = {info.id: info.ended for info in runs if info.is_over}
        if not self._is_usable():
            self._remove()
        if self.path.exists():
            with self._opened() as connection:
                [(version,)] = connection.execute("PRAGMA user_version")
                stale = all_rows = 0
                if connection.execute(_FOREIGN).fetchone() != (0,):
                    version = None
                if version == VERSION:
                    columns = "no, run, ended, coalesce(CAST(rows AS INTEGER), 0), complete"
                    for no, run, ended, rows, complete in connection.execute(f"SELECT {columns} FROM runs").fetchall():
                        all_rows += rows
                        if not complete or run not in existing or existing[run] != ended:
                            stale += rows
                            with connection:  # its texts stay, and are never found
                                connection.execute("UPDATE runs SET complete = 0 WHERE no = ?", [no])
            if version == VERSION and (stale < _MIN_REBUILD_ROWS or stale < all_rows / 2):
                return
            self._remove()
        with self._opened() as connection:
            connection.executescript(_SCHEMA)

    @contextlib.contextmanager
    def _opened(self, *, read_only: bool = False) -> Iterator[sqlite3.Connection]:
        # By its URI: a reader must not create a file. Not in WAL mode, which needs a directory that readers can write.
        mode = "ro" if read_only else "rwc"
        connection = sqlite3.connect(f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=_BUSY_SECONDS)
        try:
            if read_only:
                connection.set_progress_handler(_is_cancelled, _PROGRESS_STEPS)
            else:
                connection.execute("PRAGMA synchronous = NORMAL")
            yield connection
        finally:
            connection.close()

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[bool]:
        """Whether this process may write; it does not wait for another one."""
        with contextlib.ExitStack() as stack:
            is_owner = False
            with contextlib.suppress(OSError):
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                descriptor = os.open(self.folder / _LOCK, flags, 0o644)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_owner = True
            yield is_owner

    def _is_full(self) -> bool:
        usage = shutil.disk_usage(self.folder)
        return self.path.stat().st_size > MAX_BYTES or usage.free < _FREE_SHARE * usage.total

    def _is_usable(self) -> bool:
        """Whether SQLite may open the files, which may come from elsewhere.

        It follows links. It deletes the file that the end of a journal names as that of several databases, which ours
        never has. A database in WAL mode, which ours never is, has more files.
        """
        try:
            kinds = [file.lstat().st_mode for file in self._files() if os.path.lexists(file)]
            if not kinds or not all(map(stat.S_ISREG, kinds)):
                return False
            with self.path.open("rb") as file:
                head = file.read(20)
            if len(head) == 20 and (head[:16] != _HEADER or head[18:] != _WRITE_VERSIONS):
                return False
            journal = self._files()[1]
            if not journal.exists():
                return True
            with journal.open("rb") as file:
                file.seek(max(0, journal.stat().st_size - len(_JOURNAL_MAGIC)))
                return file.read() != _JOURNAL_MAGIC
        except OSError:
            return False

    def _files(self) -> list[Path]:
        return [self.path, *(self.path.with_name(f"{DATABASE}{end}") for end in ("-journal", "-wal", "-shm"))]

    def _remove(self) -> None:
        for file in self._files():
            file.unlink(missing_ok=True)
        self._is_damaged = False

    def _note_damage(self, error: sqlite3.Error) -> None:
        if _is_damage(error) and not self._is_damaged:
            logger.info("%s is damaged and will be rebuilt: %s", self.path, error)
            self._is_damaged = True


def _find(connection: sqlite3.Connection, text: str, ended: dict[str, float | None]) -> Matches | None:
    rows = connection.execute("SELECT no, run, ended FROM runs WHERE complete").fetchall()
    covered = {no: run for no, run, at in rows if run in ended and ended[run] == at}
    if not covered:
        return None
    phrase = '"' + text.replace('"', '""') + '"'
    # The numbers of runs are few, the rows many: runs are filtered here, not by a join.
    query = (
        "SELECT samples.no, samples.id FROM texts CROSS JOIN samples ON samples.row = texts.rowid "
        "WHERE texts MATCH ? LIMIT ?"
    )
    found = connection.execute(query, [phrase, MAX_MATCHES + 1]).fetchall()
    if len(found) > MAX_MATCHES:
        return None
    return Matches(frozenset(covered.values()), [(covered[no], key) for no, key in found if no in covered])


def _add_run(
    connection: sqlite3.Connection, info: RunInfo, rows: "DuckDBPyConnection", proceed: Callable[[], bool]
) -> bool:
    """Add the samples of a run; returns False if interrupted, and the next call starts over."""
    rows.execute(f"SELECT id, {', '.join(TEXTS)} FROM samples")
    with connection:
        entry = "INSERT INTO runs(run, ended, rows, complete) VALUES (?, ?, 0, 0)"
        no = connection.execute(entry, [info.id, info.ended]).lastrowid
    [(last,)] = connection.execute("SELECT coalesce(max(row), 0) FROM samples").fetchall()
    count, batch, size = 0, [], 0
    while True:
        fetched = rows.fetchmany(_BATCH_ROWS)
        batch += fetched
        size += sum(len(text) for row in fetched for text in row[1:])
        if fetched and size < _BATCH_BYTES:
            continue
        with connection:
            numbered = list(enumerate(batch, start=last + 1))
            connection.executemany("INSERT INTO samples VALUES (?, ?, ?)", [(at, no, row[0]) for at, row in numbered])
            insert = "INSERT INTO texts(rowid, completion, prompt, messages) VALUES (?, ?, ?, ?)"
            connection.executemany(insert, [(at, *row[1:]) for at, row in numbered])
            last, count = last + len(batch), count + len(batch)
            is_complete = not fetched
            connection.execute("UPDATE runs SET rows = ?, complete = ? WHERE no = ?", [count, is_complete, no])
        batch, size = [], 0
        if is_complete:
            return True
        if not proceed():
            return False


def _is_cancelled() -> int:
    try:
        check_limits()
    except Exception:  # the limit's error is raised by the caller: none can pass through SQLite
        return 1
    return 0


def _is_damage(error: sqlite3.Error) -> bool:
    text = str(error)
    return isinstance(error, sqlite3.DatabaseError) and (
        "malformed" in text or "not a database" in text or "no such " in text or "corrupt" in text
    )

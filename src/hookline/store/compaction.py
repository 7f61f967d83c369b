"""The Parquet files of runs that have ended: one a table, in a folder of the index for each run.

``run.json`` beside them says which files count and which state of the journals they show, and is replaced as a whole: a
process that dies while it writes leaves the files before valid. Another process, or one whose database is gone, takes
them over without reading the journals again. Files that it no longer names are removed once no query runs, in
this process or another (see `Index.reading`). Files are on the disk before ``run.json`` names them, and it knows their
checksums: where a query fails, `is_intact` tells whether they are to blame.
"""

import contextlib
import hashlib
import re
import shutil
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hookline._record.files import sync_file
from hookline.store.index import Index, quoted
from hookline.store.run_state import ReadState
from hookline.store.tables import TABLES, VERSION

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_RUNS = "runs"
_SIDECAR = "run.json"
_ASIDE = ".run.json.partial"
_CHUNK = 1 << 20
_NAME = re.compile(r"\w+-(\d+)\.parquet")


class Sidecar(msgspec.Struct):
    """What stands beside a run's Parquet files."""

    version: int
    run: str
    read: ReadState


def home(index: Index, run: str) -> Path:
    """The folder of a run's files; its name has no character that means something in a pattern."""
    readable = re.sub(r"[^\w-]+", "_", run)[:80]
    return index.folder / _RUNS / f"{readable}-{hashlib.sha256(run.encode()).hexdigest()[:12]}"


def write(index: Index, run: str, read: ReadState, sources: dict[str, list[str]]) -> ReadState:
    """Make the files of a run, from the tables or files that hold its rows; what is known about it with them.

    Where one of them cannot be written, what was there before still counts, and nothing of the new ones is left.
    """
    folder = home(index, run)
    folder.mkdir(parents=True, exist_ok=True)
    generation = 1 + max((number for _, number in _files(folder)), default=0)
    try:
        written = _written(index.connection, sources, folder, generation)
        compact: ReadState = msgspec.structs.replace(read, parquet=written, generation=generation, is_compact=True)
        _put(folder, Sidecar(VERSION, run, compact))
    except BaseException:
        _remove_files(folder, lambda number: number == generation)
        (folder / _ASIDE).unlink(missing_ok=True)
        raise
    _remove_files(folder, lambda number: number < generation - 1)  # few are left where files cannot be locked, too
    index.unpruned.add(run)
    return compact


def look_for_leftovers(index: Index, run: str) -> None:
    """Have `prune` look at a run's files, if there are some that may not count; once, while an index is open."""
    if run in index.looked_at or index.is_private:
        return
    index.looked_at.add(run)
    read = index.state(run).read
    named = {name for name, _, _ in read.parquet.values()} if read else set()
    if any(path.name not in named for path, _ in _files(home(index, run))):
        index.unpruned.add(run)


def prune(index: Index) -> None:
    """Remove files that nothing names, unless a query is running that may read them; then the next call does."""
    if not index.unpruned or index.is_private:
        return
    with index.alone() as is_alone:
        for run in list(index.unpruned) if is_alone else ():
            found = load(index, run)
            named = {name for name, _, _ in found.parquet.values()} if found else set()
            for path, _ in _files(home(index, run)):
                if path.name not in named:
                    path.unlink(missing_ok=True)
            index.unpruned.discard(run)


def remove_others(index: Index, runs: Iterable[str]) -> bool:
    """Remove the files of all runs but these; whether no query was running, which would have kept them."""
    known = {home(index, run).name for run in runs}
    with contextlib.suppress(FileNotFoundError), index.alone() as is_alone:
        for folder in (index.folder / _RUNS).iterdir() if is_alone else ():
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)
        return is_alone
    return True


def load(index: Index, run: str) -> ReadState | None:
    """What the files of a run show; None where there are none of this version."""
    try:
        found = msgspec.json.decode((home(index, run) / _SIDECAR).read_bytes(), type=Sidecar)
    except (OSError, msgspec.DecodeError):
        return None
    is_ours = (found.version, found.run) == (VERSION, run) and index.refused.get(run) != found.read.generation
    return found.read if is_ours else None


def paths(index: Index, run: str, read: ReadState) -> dict[str, Path]:
    """A run's files by table."""
    folder = home(index, run)
    return {table: folder / name for table, (name, _, _) in read.parquet.items()}


def is_whole(index: Index, run: str, read: ReadState) -> bool:
    """Whether all files are there, with the sizes that they were written with."""
    folder = home(index, run)
    with contextlib.suppress(OSError):
        return all((folder / name).stat().st_size == size for name, size, _ in read.parquet.values())
    return False


def is_intact(index: Index, run: str, read: ReadState) -> bool:
    """Whether all files are what was written; reads them."""
    folder = home(index, run)
    with contextlib.suppress(OSError):
        return all(_checksum(folder / name) == checksum for name, _, checksum in read.parquet.values())
    return False


def give_up(index: Index, run: str, read: ReadState) -> None:
    """Have a run whose files are damaged read again from its journals; a private index leaves them to others."""
    if index.state(run).read != read:  # which was done
        return
    index.state(run).read = None
    index.touch(run)
    if index.is_private:
        index.refused[run] = read.generation
    else:
        remove(index, run)


def remove(index: Index, run: str) -> None:
    """Remove a run's files."""
    shutil.rmtree(home(index, run), ignore_errors=True)


def _written(
    connection: "DuckDBPyConnection", sources: dict[str, list[str]], folder: Path, generation: int
) -> dict[str, tuple[str, int, int]]:
    written: dict[str, tuple[str, int, int]] = {}
    for name, parts in sources.items():
        path = folder / f"{name}-{generation}.parquet"
        _copy(connection, name, parts, path)
        sync_file(path)
        written[name] = (path.name, path.stat().st_size, _checksum(path))
    return written


def _copy(connection: "DuckDBPyConnection", table: str, parts: list[str], path: Path) -> None:
    rows = " UNION ALL ".join(f"SELECT * FROM {part}" for part in parts)
    layout = f"FORMAT parquet, COMPRESSION lz4_raw, ROW_GROUP_SIZE {TABLES[table].group_rows}"
    target = f"{quoted(str(path))} ({layout})"
    connection.execute(f"COPY (SELECT * FROM ({rows}) ORDER BY {TABLES[table].order}) TO {target}")


def _put(folder: Path, sidecar: Sidecar) -> None:
    aside = folder / _ASIDE
    aside.write_bytes(msgspec.json.encode(sidecar))
    sync_file(aside)
    aside.replace(folder / _SIDECAR)


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _remove_files(folder: Path, is_unwanted: Callable[[int], bool]) -> None:
    for path, number in _files(folder):
        if is_unwanted(number):
            path.unlink(missing_ok=True)


def _files(folder: Path) -> list[tuple[Path, int]]:
    found = [(path, _NAME.fullmatch(path.name)) for path in folder.glob("*.parquet")]
    return [(path, int(match[1])) for path, match in found if match]

"""The Parquet files of ended runs: one per table, in a folder of the index for each run.

``run.json`` beside them names the files in use and the state of the journals they show. It is replaced atomically, so a
process that dies while writing leaves the earlier files valid. Another process, or one with a new database, uses the
files without reading the journals again. Files no longer named are removed once no query runs in any process (see
`Index.reader_lock`). ``run.json`` has their checksums: after a reboot, and when a query fails, `is_intact` tells
whether the files are damaged.
"""

import contextlib
import hashlib
import re
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from hookline._record.files import boot_id, sync_file
from hookline.store.index import COMPACT_RUNS, Index, sql_quote
from hookline.store.run_info import ReadState
from hookline.store.tables import TABLES, VERSION

_SIDECAR = "run.json"
_PARTIAL = ".run.json.partial"
_CHUNK_BYTES = 1 << 20
_FILE_NAME = re.compile(r"\w+-(\d+)\.parquet")


class Sidecar(msgspec.Struct):
    """The content of ``run.json`` beside a run's Parquet files."""

    version: int
    run: str
    read: ReadState


def run_folder(index: Index, run: str) -> Path:
    """The folder of a run's files; its name has no character with a meaning in a glob pattern."""
    readable = re.sub(r"[^\w-]+", "_", run)[:80]
    return index.folder / COMPACT_RUNS / f"{readable}-{hashlib.sha256(run.encode()).hexdigest()[:12]}"


def write(index: Index, run: str, read: ReadState, sources: dict[str, list[str]]) -> ReadState:
    """Write a run's files from the tables or files that hold its rows, and return its state with them.

    If that fails, the earlier files stay in use and the new ones are removed.
    """
    folder = run_folder(index, run)
    folder.mkdir(parents=True, exist_ok=True)
    # New names each time: a query in another process may still be reading the files of the generation before.
    generation = 1 + max((number for _, number in _parquet_files(folder)), default=0)
    written: dict[str, tuple[str, int, int]] = {}
    try:
        for name, parts in sources.items():
            path = folder / f"{name}-{generation}.parquet"
            rows = " UNION ALL ".join(f"SELECT * FROM {part}" for part in parts)
            # Version 2 has encodings for sorted steps and for floats: a fifth smaller.
            layout = f"FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2, ROW_GROUP_SIZE {TABLES[name].group_rows}"
            index.connection.execute(
                f"COPY (SELECT * FROM ({rows}) ORDER BY {TABLES[name].order}) TO {sql_quote(str(path))} ({layout})"
            )
            # They can be derived again, so they are not synced: a file of an earlier boot is compared with its checksum
            # before it is used. Without a boot id, it must be there as a whole once the sidecar names it.
            if not boot_id():
                sync_file(path)
            written[name] = (path.name, path.stat().st_size, _checksum(path))
        compact: ReadState = msgspec.structs.replace(
            read, parquet=written, generation=generation, is_compact=True, boot=boot_id()
        )
        # Written aside and renamed: this one step makes the new files count.
        partial = folder / _PARTIAL
        partial.write_bytes(msgspec.json.encode(Sidecar(VERSION, run, compact)))
        if not boot_id():
            sync_file(partial)
        partial.replace(folder / _SIDECAR)
    except BaseException:
        # By looking, because a COPY that failed may have left a file that is not in ``written``.
        for path, number in _parquet_files(folder):
            if number == generation:
                path.unlink(missing_ok=True)
        (folder / _PARTIAL).unlink(missing_ok=True)
        raise
    # Where files cannot be locked, `prune` never runs: keep no more than the generation before.
    for path, number in _parquet_files(folder):
        if number < generation - 1:
            path.unlink(missing_ok=True)
    index.prune_pending.add(run)
    return compact


def find_leftovers(index: Index, run: str) -> None:
    """Have `prune` check a run's folder if it has unnamed files; done once while an index is open."""
    # Once, because it reads the directory, and this is called before every query.
    if run in index.leftovers_checked or index.is_private:
        return
    index.leftovers_checked.add(run)
    if _unnamed_files(index, run, index.state(run).read):
        index.prune_pending.add(run)


def prune(index: Index) -> None:
    """Remove unnamed files, unless a running query may read them; then the next call does."""
    if not index.prune_pending or index.is_private:
        return
    with index.writer_lock() as is_locked:
        for run in list(index.prune_pending) if is_locked else ():
            # What the sidecar on the disk names is what other processes use.
            for path in _unnamed_files(index, run, load(index, run)):
                path.unlink(missing_ok=True)
            index.prune_pending.discard(run)


def remove_all_except(index: Index, runs: Iterable[str]) -> bool:
    """Remove the files of all other runs; returns False if a running query prevented it."""
    known = {run_folder(index, run).name for run in runs}
    with contextlib.suppress(FileNotFoundError), index.writer_lock() as is_locked:
        for folder in (index.folder / COMPACT_RUNS).iterdir() if is_locked else ():
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)
        return is_locked
    return True


def load(index: Index, run: str) -> ReadState | None:
    """The state that a run's files show; None if there are none of this version."""
    try:
        found = msgspec.json.decode((run_folder(index, run) / _SIDECAR).read_bytes(), type=Sidecar)
    except (OSError, msgspec.DecodeError):
        return None
    is_valid = (found.version, found.run) == (VERSION, run) and index.rejected.get(run) != found.read.generation
    return found.read if is_valid else None


def paths(index: Index, run: str, read: ReadState) -> dict[str, Path]:
    """A run's files by table."""
    folder = run_folder(index, run)
    return {table: folder / name for table, (name, _, _) in read.parquet.items()}


def has_all_files(index: Index, run: str, read: ReadState) -> bool:
    """Whether all files are there with their sizes."""
    folder = run_folder(index, run)
    # Sizes only, since this runs before each query; checksums are compared when one has failed.
    with contextlib.suppress(OSError):
        return all((folder / name).stat().st_size == size for name, size, _ in read.parquet.values())
    return False


def is_intact(index: Index, run: str, read: ReadState) -> bool:
    """Whether all files match their checksums; reads them."""
    folder = run_folder(index, run)
    with contextlib.suppress(OSError):
        return all(_checksum(folder / name) == checksum for name, _, checksum in read.parquet.values())
    return False


def discard(index: Index, run: str, read: ReadState) -> None:
    """Have a run with damaged files read again from its journals; a private index leaves the files to their owner."""
    if index.state(run).read != read:  # another thread already did
        return
    index.state(run).read = None
    index.mark_dirty(run)
    if index.is_private:
        # Remembered by generation: when the owner has written new files, they are used again.
        index.rejected[run] = read.generation
    else:
        remove(index, run)


def remove(index: Index, run: str) -> None:
    """Remove a run's files."""
    shutil.rmtree(run_folder(index, run), ignore_errors=True)


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _unnamed_files(index: Index, run: str, read: ReadState | None) -> list[Path]:
    named = {name for name, _, _ in read.parquet.values()} if read else set()
    return [path for path, _ in _parquet_files(run_folder(index, run)) if path.name not in named]


def _parquet_files(folder: Path) -> list[tuple[Path, int]]:
    found = [(path, _FILE_NAME.fullmatch(path.name)) for path in folder.glob("*.parquet")]
    return [(path, int(match[1])) for path, match in found if match]

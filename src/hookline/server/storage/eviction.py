"""`CopyLimit`: keeps the local copy of an object store within its size.

The least recently used content is removed first:

- Blobs are deleted. The next request for one fetches it again.
- Journals of ended runs lose their middle, once their rows are in the index: a hole in the file gives the space back,
  and the file keeps its size, its time and its two ends, from which runs are listed. Queries use the index. If that has
  to be built again, the journals are filled first.

Journals that are short, or whose run has not ended, stay, and so does the index: a run with a long journal needs about
two megabytes and its part of the index. Where the system makes no holes (on macOS), journals stay whole.
"""

import contextlib
import ctypes
import errno
import heapq
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hookline._engine.errors import HooklineError
from hookline._record.blobs import BLOBS, is_digest
from hookline._record.reader import JOURNAL
from hookline.store import compaction
from hookline.store.journal_files import grown_files, is_unchanged, regular_journal_files
from hookline.store.run_info import RunInfo
from hookline.store.store import Store

logger = logging.getLogger("hookline")

HEAD_BYTES = 64 << 10
TAIL_BYTES = 2 << 20
"""Kept at the end of a journal: more than listing a run reads."""
EVICTED = ".evicted"
"""In the directory of a run whose journals have holes."""
_ENOUGH = 0.9
"""How full the copy is after a trim, so that the next one is not due at once."""
_PUNCH_HOLE, _KEEP_SIZE = 2, 1
_BLOCK = 4096


class _Candidate(NamedTuple):
    last_use: float
    size: int
    path: Path
    run: RunInfo | None


class CopyLimit:
    """Limits the size of a copy.

    Args:
        store: The store over the copy.
        limit_bytes: Its maximum size.
        last_use: Returns when a run was last requested; None if it was not.
        fill: Fetches the journals of a run again.
    """

    def __init__(
        self,
        store: Store,
        limit_bytes: int,
        *,
        last_use: Callable[[RunInfo], float | None],
        fill: Callable[[RunInfo], None],
    ) -> None:
        self._store, self._limit = store, limit_bytes
        self._last_use, self._fill = last_use, fill
        self._lock = threading.Lock()
        self._is_reported = False

    def trim(self, runs: list[RunInfo]) -> int:
        """Remove the least recently used content if the copy is too large; returns how many bytes were removed.

        Args:
            runs: All runs of the copy.
        """
        used = disk_usage(self._store.root)
        if used <= self._limit:
            return 0
        excess, removed = used - int(_ENOUGH * self._limit), 0
        candidates = [*self._blobs(), *(each for info in runs if (each := self._run(info)) is not None)]
        heapq.heapify(candidates)
        while candidates and removed < excess:
            candidate = heapq.heappop(candidates)
            with contextlib.suppress(OSError):
                if candidate.run is None:
                    candidate.path.unlink()
                    removed += candidate.size
                else:
                    removed += self._evict(candidate.run)
        if removed < used - self._limit and not self._is_reported:
            self._is_reported = True
            logger.warning(
                "The local copy has %s bytes, more than --cache-bytes: the rest is needed to list the runs, or "
                "belongs to runs that have not ended. Increase --cache-bytes.",
                f"{used - removed:,}",
            )
        return removed

    def before_read(self, info: RunInfo) -> None:
        """Fill the journals of a run before its records are read, unless the index has them."""
        marker = info.directory / EVICTED
        if not marker.exists():
            return
        with self._lock:
            if marker.exists() and not self._is_indexed(info):
                self._fill(info)
                marker.unlink(missing_ok=True)

    def _blobs(self) -> Iterator[_Candidate]:
        for path in (self._store.root / BLOBS).glob("??/*"):
            with contextlib.suppress(OSError):
                found = path.lstat()
                if is_digest(path.name):
                    yield _Candidate(max(found.st_atime, found.st_mtime), found.st_blocks * 512, path, None)

    def _run(self, info: RunInfo) -> _Candidate | None:
        if not info.is_over or (info.directory / EVICTED).exists():
            return None
        size = sum(_hole(file.path)[1] for file in regular_journal_files(info.directory / JOURNAL))
        if not size:
            return None
        return _Candidate(self._last_use(info) or info.ended or 0.0, size, info.directory, info)

    def _evict(self, info: RunInfo) -> int:
        if not self._is_indexed(info):  # a run that was not requested yet
            self._store.ingest([info])
            for _ in self._store.columns([info]):
                pass
        removed = 0
        # Under the index's lock no thread reads journals; rows in the index are not read again.
        with self._lock, self._store.index.lock:
            if not self._is_indexed(info):
                return 0
            # First: if this is interrupted, the journals count as incomplete.
            (info.directory / EVICTED).touch()
            for file in regular_journal_files(info.directory / JOURNAL):
                start, length = _hole(file.path)
                if length and _punch_hole(file.path, start, length):
                    removed += length
            if not removed:
                (info.directory / EVICTED).unlink(missing_ok=True)
        return removed

    def _is_indexed(self, info: RunInfo) -> bool:
        """Whether the index on disk has the rows of a run, and the journals are unchanged since."""
        index = self._store.index
        files = regular_journal_files(info.directory / JOURNAL)
        try:
            with index.lock:
                index.check()
                read = index.state(info.id).read
                return (
                    read is not None
                    and not index.is_private
                    and compaction.has_all_files(index, info.id, read)
                    and all(state.hole == -1 for state in read.files.values())
                    and is_unchanged(files, read.files)
                    and not grown_files(files, read.files)
                    and self._store.has_column_file(info)
                )
        except HooklineError:  # it is damaged, and is built again
            return False


def disk_usage(root: Path) -> int:
    """Return the disk space of the files below a directory, without their holes."""
    used = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(OSError):
                used += os.lstat(f"{folder}/{name}").st_blocks * 512
    return used


def _hole(path: Path) -> tuple[int, int]:
    """Return the offset and length of the hole for a journal."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        end = (found.st_size - TAIL_BYTES) // _BLOCK * _BLOCK
        if end > HEAD_BYTES:
            return HEAD_BYTES, end - HEAD_BYTES
    return 0, 0


def _punch_hole(path: Path, start: int, length: int) -> bool:
    """Free the disk space of a part of a file, keeping its size and time; returns whether that worked."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        if not _fallocate(descriptor, start, length):
            return False
        os.utime(descriptor, ns=(found.st_atime_ns, found.st_mtime_ns))
        return True
    finally:
        os.close(descriptor)


def _fallocate(descriptor: int, start: int, length: int) -> bool:
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if call is None:
        return False
    arguments = (ctypes.c_int(_PUNCH_HOLE | _KEEP_SIZE), ctypes.c_int64(start), ctypes.c_int64(length))
    if call(ctypes.c_int(descriptor), *arguments) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    raise OSError(number, os.strerror(number))

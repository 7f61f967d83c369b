"""Compresses the journals of ended runs, on request or for a server in the background.

Only runs that have ended (finished, failed, stopped or killed) and that no process holds are compressed, and only the
files that `hookline._record.compression` accepts. Nothing else changes: queries, sinks, exports and the index read
compressed files, and positions in them stay valid.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hookline._record.compression import compress_directory
from hookline._record.reader import CONSOLE, JOURNAL
from hookline._record.run_directory import is_alive
from hookline.store.run_info import RunInfo

logger = logging.getLogger("hookline")

DAY_SECONDS = 86400.0
_CHECK_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class CompressedRun:
    """The result of compressing or unpacking the journals of a run.

    Attributes:
        run: The run's id.
        files: How many files were replaced; in a dry run, how many would be.
        before: The size of these files before, in bytes.
        after: Their size afterwards; None in a dry run, which does not know it.
        skipped: Why other files were left alone, by name.
        refused: Why the whole run was left alone; empty if it was not.
    """

    run: str
    files: int = 0
    before: int = 0
    after: int | None = 0
    skipped: dict[str, str] = field(default_factory=dict)
    refused: str = ""


def ended_before(runs: Iterable[RunInfo], days: float) -> list[RunInfo]:
    """The runs that are over and recorded nothing for this many days."""
    before = time.time() - days * DAY_SECONDS
    when = ((info, info.ended or info.last_seen or info.started) for info in runs)
    return [info for info, ended in when if info.is_over and ended is not None and ended < before]


def compress_runs(
    runs: Sequence[RunInfo],
    *,
    undo: bool = False,
    dry_run: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> list[CompressedRun]:
    """Compress the journals of runs, or unpack them.

    Args:
        progress: Called with the number of runs done, and their total number.

    Raises:
        MissingExtraError: The package for zstd is not installed.
    """
    results = []
    for done, info in enumerate(runs, start=1):
        results.append(_compress_run(info, undo=undo, dry_run=dry_run))
        progress(done, len(runs))
    return results


def _compress_run(
    info: RunInfo, *, undo: bool = False, dry_run: bool = False, is_stopping: Callable[[], bool] = lambda: False
) -> CompressedRun:
    # Check the lock as well: a process may be delivering the run's last rows, or have resumed it since the listing.
    #     Unpacking does not affect such a process.
    is_held = is_alive(info.directory)
    if not undo and (not info.is_over or is_held):
        return CompressedRun(info.id, refused="it is still running")
    if not undo and is_held is None:
        return CompressedRun(info.id, refused="its lock cannot be read")
    if info.directory.is_symlink():
        return CompressedRun(info.id, refused="it is a link, which is not followed")
    files = before = after = 0
    skipped: dict[str, str] = {}
    try:
        for folder in (JOURNAL, CONSOLE):
            found = compress_directory(info.directory / folder, undo=undo, dry_run=dry_run, is_stopping=is_stopping)
            files, before, after = files + found.files, before + found.before, after + found.after
            skipped |= {f"{folder}/{name}": reason for name, reason in found.skipped.items()}
    except OSError as error:  # no permission, or another process is compressing it
        skipped[folder] = error.strerror or str(error)
    return CompressedRun(info.id, files, before, None if dry_run else after, skipped)


class BackgroundCompression:
    """A thread that compresses runs once they have been over for some days. It looks at its start, and every hour.

    Args:
        list_runs: Returns the current runs.
        days: How many days after its end a run is compressed.
    """

    def __init__(self, list_runs: Callable[[], Iterable[RunInfo]], days: float) -> None:
        self._list_runs, self._days = list_runs, days
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hookline-compress", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current file."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                for info in ended_before(self._list_runs(), self._days):
                    if not self._stopping.is_set():
                        self._log(_compress_run(info, is_stopping=self._stopping.is_set))
            except Exception as error:  # retried later: a fault of the disk or the index may be temporary
                logger.warning("Runs are not compressed now: %s", error)
            if self._stopping.wait(_CHECK_SECONDS):
                return

    def _log(self, done: CompressedRun) -> None:
        if done.files:
            logger.info(
                "%s: compressed %d journal files, %d to %d bytes", done.run, done.files, done.before, done.after
            )
        for name, reason in done.skipped.items():
            logger.debug("%s: %s is not compressed: %s", done.run, name, reason)

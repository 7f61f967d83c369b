"""`ConsoleWriter`: the record of what one process of a run prints; and where that record is.

Console lines are in journals of their own, in the folder ``console`` of a run's directory: reading metrics is never
slowed down by them, and sinks do not get them. The files have the format of the journal (see `journal`), with its
guarantees: a line that was written survives ``kill -9``, a full disk is a counted loss.

The size is bounded: of each writer the first `HEAD_FILES` and the last `TAIL_FILES` files are kept. Lines are
numbered, so readers see how many were removed in between (see `console_reader`).

A writer belongs to one thread (that of `console_capture`), except `tail`, which any thread may call.
"""

import contextlib
import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from hookline._record.journal import Journal
from hookline._record.reader import CONSOLE
from hookline._record.records import ConsoleLine, LogLine, encode, valid_text
from hookline._record.segment import journal_files

logger = logging.getLogger("hookline")

REST = ".rest"
"""The suffix of the file with what a killed process could no longer record."""
FAULTS = ".faults"
"""The suffix of the file with the report of a crash in C code."""
FILE_BYTES = 1 << 20
HEAD_FILES, TAIL_FILES = 4, 28
LAST_LINES = 200
"""How many lines a failure is recorded with."""

Redact = Callable[[str], str]


def writer_name(rank: int) -> str:
    """Return the writer's name of a rank: ``console``, ``console_rank1``, ..."""
    return CONSOLE if rank == 0 else f"{CONSOLE}_rank{rank}"


def rank_of(writer: str) -> int:
    """Return the rank of a writer by its name; 0 for a name of another form."""
    number = writer.removeprefix(f"{CONSOLE}_rank")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 10 else 0


def actor_of(writer: str) -> str:
    """Return the name of the actor that a writer belongs to, e.g. ``rollout0``; empty for that of a rank."""
    name = writer.removeprefix(CONSOLE).removeprefix("_")
    return "" if not name or writer == writer_name(rank_of(writer)) else name


class ConsoleWriter:
    """Writes the console lines of one process of a run.

    Args:
        run_dir: The run's directory.
        rank: The process's rank.
        actor: The name of an actor, which has no rank: letters, digits and ``_``.
        step: Returns the number of completed steps; called by the thread that writes.
        redact: Called with each line; its result is recorded.
        file_bytes: The size of one file.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        rank: int = 0,
        actor: str = "",
        step: Callable[[], int | None] = lambda: None,
        redact: Redact | None = None,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self.directory, self.name = Path(run_dir) / CONSOLE, f"{CONSOLE}_{actor}" if actor else writer_name(rank)
        # In the names of its journal and of what its pump saves after a crash: one belongs to the other.
        self.token = secrets.token_hex(3)
        self.lost = 0
        self.step = step
        self._redact, self._file_bytes = redact, file_bytes
        self._journal: Journal | None = None
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._lock = threading.Lock()  # of the last lines, which other threads read
        self._bytes_at_cut = 0
        self._has_failed = False

    def line(
        self, text: str, stream: str, time: float, *, step: int | None = None, partial: bool = False, end: int = 0
    ) -> None:
        """Record a line of a stream, at the present step by default.

        Args:
            partial: Whether the line has no end yet.
            end: The offset after the line in what the stream printed.
        """
        text = self._redacted(text)
        if not partial:
            with self._lock:
                self._last.append(text)
        self._append(ConsoleLine(time=time, text=text, stream=stream, step=self._at(step), partial=partial, end=end))

    def log(self, level: str, logger: str, message: str, time: float, *, step: int | None = None) -> None:
        """Record a record of the standard library's logging, or a warning."""
        message = self._redacted(message)
        self._append(LogLine(time=time, level=level, logger=logger, message=message, step=self._at(step)))

    def _at(self, step: int | None) -> int | None:
        return self.step() if step is None else step

    def tail(self) -> list[str]:
        """Return the last lines."""
        with self._lock:
            return list(self._last)

    def close(self) -> None:
        """Finish the files."""
        if self._journal is not None:
            with contextlib.suppress(OSError):
                self._journal.close()

    def _append(self, record: ConsoleLine | LogLine) -> None:
        # Nothing here may stop the thread: it has to empty the pipes for as long as the program prints.
        try:
            if self._journal is None:
                # With the first line: a run that prints nothing has no such files.
                # Without a prepared file: this thread may wait for the next one.
                self._journal = Journal(
                    self.directory,
                    name=self.name,
                    token=self.token,
                    segment_bytes=self._file_bytes,
                    prepares=False,
                )
            if not self._journal.append(encode(record)):
                self.lost += 1
            if self._journal.bytes_written - self._bytes_at_cut >= self._file_bytes:
                self._bytes_at_cut = self._journal.bytes_written
                # Before any is removed: a file that is removed before it is closed counts as lost, and is restored.
                self._journal.close_complete_files()
                self._remove_middle(self._journal.writer)
        except Exception as error:
            self.lost += 1
            if not self._has_failed:
                self._has_failed = True
                logger.warning("Console lines cannot be recorded in %s: %s. The run continues.", self.directory, error)

    def _remove_middle(self, writer: str) -> None:
        own = [file for file in journal_files(self.directory) if file.writer == writer]
        for name in middle_files({file.path.name: file.number for file in own}):
            with contextlib.suppress(OSError):
                (self.directory / name).unlink()

    def _redacted(self, text: str) -> str:
        if self._redact is not None:
            try:
                text = self._redact(text)
            except Exception:  # what could not be redacted must not be recorded
                text = "(this line could not be redacted)"
        return valid_text(text)


def middle_files(numbers: dict[str, int]) -> list[str]:
    """Return the files of one writer between the first `HEAD_FILES` and the last `TAIL_FILES`, which are removed.

    Args:
        numbers: The number of each of its files, by name.
    """
    newest = max(numbers.values(), default=0)
    return [name for name, number in numbers.items() if HEAD_FILES <= number <= newest - TAIL_FILES]


def is_console_file(name: str) -> bool:
    """Return whether a file of this name holds console lines, and not records of a journal."""
    return name.partition("-")[0].partition("_")[0] == CONSOLE

"""Reads console lines and crash reports of a run, while its processes live, and after they died.

Lines of all writers are merged by time. Of a line that had no end yet, only the last state is returned. Where files
were removed to bound the size, a line of the stream ``note`` says how many lines are missing. What a killed process
could no longer record comes from the file that its pump left (``.rest``), the report of a crash in C code from the file
of `faulthandler` (``.faults``). Either may not be redacted on the disk yet (see `console_rest`), so `redact_secrets` is
applied here, whenever they are read. Functions that the run was given for redaction are not known here.

The directory may have been received from elsewhere: links are not followed, sizes are bounded, and what is not a record
is skipped.
"""

import contextlib
import heapq
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from hookline._record.console import FAULTS, REST, actor_of, rank_of, writer_name
from hookline._record.console_rest import is_of_process, leftover_files, read_bounded, rest_lines
from hookline._record.reader import CONSOLE, JOURNAL, MAIN, LineNumbers, read_lines
from hookline._record.records import FAILURE, INTERRUPT, ConsoleLine, Event, LogLine, decode, decode_numbered
from hookline._record.redaction import redact_secrets
from hookline._record.segment import JournalFile, end_of_data, journal_files, open_journal

LOG = "log"
"""The stream of `logging` records and warnings."""
STREAMS = ("stdout", "stderr", "note", LOG)
SHOWN = ("stdout", "stderr", "note")
"""The streams that are shown unless others are asked for: most log records are printed on one of them as well."""
_TAIL_BYTES = 2 << 20
_MAX_FAULT_CHARACTERS = 64 << 10
_PAGE_FILES = 2


class ConsoleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A console line.

    Attributes:
        stream: ``stdout``, ``stderr``, ``log`` or ``note``.
        partial: Whether the line had no end when it was recorded.
        level, logger: Of a log record.
        actor: The name of the actor that printed it, which has no rank; empty for a line of a rank.
    """

    time: float
    rank: int
    stream: str
    text: str
    step: int | None = None
    partial: bool = False
    level: str = ""
    logger: str = ""
    actor: str = ""


class CrashReport(msgspec.Struct, frozen=True, kw_only=True):
    """Why a process of a run failed.

    Attributes:
        type: The exception's type; ``crash`` for a crash in C code.
        place: The innermost place in the user's own code: ``file``, ``line``, ``function``, and its ``source`` from
            line ``first`` on.
        console: The last lines before it.
        is_interrupt: Whether the run was interrupted or left by ``sys.exit``, and did not fail.
    """

    rank: int
    time: float
    step: int | None
    type: str
    message: str
    traceback: str = ""
    place: dict[str, Any] | None = None
    console: list[str] = []
    is_interrupt: bool = False


def console_files(run_dir: str | Path) -> list[JournalFile]:
    """Return the files with console lines, without links."""
    directory = Path(run_dir) / CONSOLE
    return [] if directory.is_symlink() else journal_files(directory, follow_links=False)


def read_console(
    run_dir: str | Path,
    *,
    streams: Collection[str] = SHOWN,
    rank: int | None = None,
    search: str | None = None,
    newest_files: int | None = None,
) -> Iterator[ConsoleRow]:
    """Return the console lines of a run by time.

    Args:
        streams: Which streams: ``stdout``, ``stderr``, ``note``, ``log``.
        rank: Only the lines of this process.
        search: A text in the line, ignoring case.
        newest_files: Read only so many files of each writer, the newest.
    """
    by_writer: dict[str, list[JournalFile]] = {}
    found = console_files(run_dir)
    for file in found:
        if rank is None or file.name == writer_name(rank):
            by_writer.setdefault(file.writer, []).append(file)
    rests = {
        path: list(_rest_rows(path, found))
        for path in leftover_files(run_dir, REST)
        if rank is None or _writer_of_file(path) == writer_name(rank)
    }
    parts: list[Iterable[ConsoleRow]] = []
    for files in by_writer.values():
        # What a killed process left begins with the line that had no end yet.
        continued = {row.stream for path, rows in rests.items() if is_of_process(files[0], path) for row in rows}
        parts.append(_writer_rows(files[-newest_files:] if newest_files else files, continued))
    parts += rests.values()
    wanted = (search or "").lower()
    for row in heapq.merge(*parts, key=lambda row: row.time):
        if row.stream in streams and wanted in row.text.lower():
            yield row


class ConsolePage(msgspec.Struct, frozen=True):
    """Some of the console lines of a run, by time; ``ranks`` are those that recorded any."""

    lines: list[ConsoleRow]
    has_earlier: bool
    ranks: list[int]


def console_page(
    run_dir: str | Path, *, limit: int, offset: int = 0, search: str | None = None, **which: Any
) -> ConsolePage:
    """Return the last lines before those that are skipped from the end.

    Args:
        limit: How many lines.
        offset: How many of the last ones to skip.
        search: As for `read_console`.
        which: ``streams`` and ``rank`` of `read_console`.
    """
    files = console_files(run_dir)
    others = leftover_files(run_dir, REST)
    writers = {file.name for file in files} | {_writer_of_file(path) for path in others}
    ranks = sorted({rank_of(writer) for writer in writers if not actor_of(writer)})
    # Most requests are for the end, and two files hold enough of it: a long record is not read for that.
    for newest in (_PAGE_FILES, None) if offset == 0 and not search else (None,):
        last: deque[ConsoleRow] = deque(maxlen=limit + offset + 1)
        last.extend(read_console(run_dir, search=search, newest_files=newest, **which))
        if len(last) == limit + offset + 1:
            break
    rows = list(last)
    end = len(rows) - offset
    return ConsolePage(rows[max(0, end - limit) : max(0, end)], end > limit, ranks)


def as_row(record: Any, file: JournalFile) -> ConsoleRow | None:
    """Return the console line in a record; None for another kind of record."""
    rank = rank_of(file.name)
    facts: dict[str, Any]
    if isinstance(record, ConsoleLine):
        facts = {"stream": record.stream, "text": record.text, "partial": record.partial}
    elif isinstance(record, LogLine):
        facts = {"stream": LOG, "text": record.message, "level": record.level, "logger": record.logger}
    else:
        return None
    return ConsoleRow(time=record.time, rank=rank, step=record.step, actor=actor_of(file.name), **facts)


def _writer_rows(files: list[JournalFile], continued: Collection[str]) -> Iterator[ConsoleRow]:
    numbers, partial = LineNumbers(), dict[str, ConsoleRow]()
    for file in files:
        for line, _ in _lines(file.path):
            try:
                number, record = decode_numbered(line)
            except msgspec.DecodeError:
                continue
            row = as_row(record, file)
            if row is None or numbers.is_repeated(number):
                continue
            if numbers.missing:
                (first, last) = numbers.missing.pop()
                text = f"({last - first + 1:,} lines were removed here to bound the size of the record)"
                yield ConsoleRow(time=row.time, rank=row.rank, stream="note", text=text)
            partial.pop(row.stream, None)  # its later state, or its end
            if row.partial:
                partial[row.stream] = row
            else:
                yield row
    yield from sorted((row for row in partial.values() if row.stream not in continued), key=lambda row: row.time)


def _lines(path: Path) -> Iterator[tuple[bytes, int]]:
    with contextlib.suppress(OSError):  # removed meanwhile, or not a regular file
        yield from read_lines(path)


def _rest_rows(path: Path, files: list[JournalFile]) -> Iterator[ConsoleRow]:
    writer = _writer_of_file(path)
    for time, stream, text in rest_lines(path, files):
        row = ConsoleRow(time=time, rank=rank_of(writer), stream=stream, text=redact_secrets(text))
        yield msgspec.structs.replace(row, actor=actor_of(writer))


def crash_reports(run_dir: str | Path) -> list[CrashReport]:
    """Return why processes of a run failed, the first first; of each only the last session."""
    found = [report for file in _last_files(run_dir) if (report := _report(file)) is not None]
    for path in leftover_files(run_dir, FAULTS):
        text = redact_secrets(read_bounded(path).decode("utf-8", "replace")[:_MAX_FAULT_CHARACTERS])
        if text.strip():
            rank, message = rank_of(_writer_of_file(path)), text.lstrip().partition("\n")[0]
            time = path.stat(follow_symlinks=False).st_mtime
            last = [row.text for row in read_console(run_dir, rank=rank, newest_files=2)][-200:]
            found.append(
                CrashReport(
                    rank=rank, time=time, step=None, type="crash", message=message, traceback=text, console=last
                )
            )
    return sorted(found, key=lambda report: (report.time, report.rank))


def _last_files(run_dir: str | Path) -> list[JournalFile]:
    """Return the last file of each process's journal."""
    directory = Path(run_dir) / JOURNAL
    files = [] if directory.is_symlink() else journal_files(directory, follow_links=False)
    sessions = {file.name: file.session for file in files if file.name == MAIN or file.name.startswith("rank")}
    last = {file.writer: file for file in files if sessions.get(file.name) == file.session}
    return list(last.values())


def _report(file: JournalFile) -> CrashReport | None:
    found = None
    number = file.name.removeprefix("rank")
    rank = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else 0
    for line in _tail(file.path).split(b"\n"):
        # A search for bytes first: most lines are rows of metrics.
        if b'"failure"' not in line and b'"interrupt"' not in line:
            continue
        with contextlib.suppress(msgspec.DecodeError):
            record = decode(line)
            if isinstance(record, Event) and record.name in (FAILURE, INTERRUPT):
                with contextlib.suppress(msgspec.ValidationError):
                    known = {key: record.data.get(key) for key in ("type", "message", "traceback", "place", "console")}
                    facts = {key: value for key, value in known.items() if value is not None}
                    facts |= {"rank": rank, "time": record.time, "step": record.step}
                    found = msgspec.convert(facts | {"is_interrupt": record.name == INTERRUPT}, CrashReport)
    return found


def _tail(path: Path) -> bytes:
    with contextlib.suppress(OSError), open_journal(path, follow_links=False) as file:
        end = end_of_data(file, 0, file.size)
        begin = max(0, end - _TAIL_BYTES)
        return file.pread(end - begin, begin)
    return b""


def _writer_of_file(path: Path) -> str:
    return path.name.partition("-")[0]

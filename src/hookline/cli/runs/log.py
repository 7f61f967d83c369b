"""``hookline runs log``: prints what the processes of a run printed.

Colours of the recorded text are shown on a terminal and removed elsewhere. Everything else that a terminal would
interpret is escaped.
"""

import re
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from hookline._record.console_reader import LOG, SHOWN, ConsoleRow, as_row, console_files, read_console
from hookline._record.reader import CONSOLE, Reader
from hookline._record.terminal import one_line, printable_json
from hookline.cli.output import wrong_input
from hookline.cli.runs.reference import LATEST, Root, locate
from hookline.cli.runs.tail import INTERRUPTED, POLL_SECONDS, RunOrLatest
from hookline.store.journal_files import regular_journal_files
from hookline.store.run_info import RunLocation, read_facts
from hookline.store.run_summary import Liveness, summarize

_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")
_RESET = "\x1b[0m"

Lines = Annotated[int, typer.Option("--lines", "-n", min=0, help="How many lines to print, the last ones; 0 for all.")]


def log_command(
    run: RunOrLatest = LATEST,
    *,
    root: Root = Path("runs"),
    search: Annotated[str | None, typer.Option(help="Only lines with this text, ignoring case.")] = None,
    stderr: Annotated[bool, typer.Option("--stderr", help="Only standard error.")] = False,
    records: Annotated[bool, typer.Option("--records", help="Only records of `logging`, and warnings.")] = False,
    rank: Annotated[int | None, typer.Option(min=0, help="Only the process of this rank.")] = None,
    lines: Lines = 200,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the run ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each line as a line of JSON.")] = False,
) -> None:
    """Print what a run printed: standard output and error of all its processes."""
    with wrong_input(as_json=as_json):
        place = locate(root, run)
    streams = ("stderr",) if stderr else (LOG,) if records else SHOWN
    printer = _Printer(streams, rank, search, as_json=as_json)
    reader = Reader(place.directory / CONSOLE)
    found: Iterator[ConsoleRow]
    if follow:
        # By the reader that is followed: no line is printed twice.
        found = iter(sorted(_new(place, reader, printer), key=lambda row: row.time))
    else:
        found = read_console(place.directory, streams=streams, rank=rank, search=search)
    rows = list(deque(found, maxlen=lines or None))
    printer.has_ranks = len({(row.rank, row.actor) for row in rows}) > 1
    for row in rows:
        printer.print(row)
    if follow:
        try:
            _follow(place, reader, printer)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    elif not rows and not as_json:
        is_filtered = stderr or records or rank is not None or search
        typer.echo("No recorded lines match." if is_filtered else "No lines were recorded.", err=True)


def _follow(place: RunLocation, reader: Reader, printer: "_Printer") -> None:
    liveness, facts = Liveness(), read_facts(place.facts)[0]
    is_last = False
    while True:
        for row in _new(place, reader, printer):
            printer.print(row)
        if is_last:
            return
        status = liveness.status(summarize(regular_journal_files(place.journal)), place.directory, facts)
        # Once more after the end: lines may have come since the last look.
        is_last = status not in ("running", "stalled")
        if not is_last:
            time.sleep(POLL_SECONDS)


def _new(place: RunLocation, reader: Reader, printer: "_Printer") -> Iterator[ConsoleRow]:
    for entry in reader.new(console_files(place.directory)):
        row = as_row(entry.record, entry.file)
        if row is not None and not row.partial and printer.matches(row):
            yield row


class _Printer:
    """Prints lines."""

    def __init__(self, streams: tuple[str, ...], rank: int | None, search: str | None, *, as_json: bool) -> None:
        self._streams, self._rank, self._search, self._as_json = streams, rank, (search or "").lower(), as_json
        self._has_colours = sys.stdout.isatty()
        self.has_ranks = False

    def matches(self, row: ConsoleRow) -> bool:
        """Whether a line is one of those asked for."""
        is_of_rank = self._rank is None or (row.rank == self._rank and not row.actor)
        return is_of_rank and row.stream in self._streams and self._search in row.text.lower()

    def print(self, row: ConsoleRow) -> None:
        """Print a line, unbuffered."""
        if self._as_json:
            typer.echo(printable_json(msgspec.json.encode(row).decode()))
        else:
            head = f"[{row.actor or f'rank {row.rank}'}] " if self.has_ranks or row.actor else ""
            head += f"{one_line(row.level)} {one_line(row.logger)}: " if row.stream == LOG else ""
            typer.echo(head + terminal_text(row.text, "colour" if self._has_colours else "plain"), color=True)
        sys.stdout.flush()


def terminal_text(text: str, style: Literal["colour", "plain"]) -> str:
    """Return a recorded line for a terminal, or without colours; other control characters are escaped."""
    parts = _COLOUR.split(text)
    shown = [part if index % 2 else "\t".join(map(one_line, part.split("\t"))) for index, part in enumerate(parts)]
    if style == "plain":
        return "".join(shown[::2])
    return "".join(shown) + (_RESET if len(parts) > 1 else "")

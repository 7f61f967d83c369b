"""``hookline runs tail``: prints the records of a run as they are written.

Begins with the last few lines and follows until the run ends. The exit status is 0 if it finished or was stopped, and
1 if it failed or was killed. Ctrl-C ends the command, not the run.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from hookline._record.reader import MAIN, JournalEntry, Reader, add_writer_prefix, journal_directory
from hookline._record.recorder import cleaned
from hookline._record.records import Event, LogLine, Metrics, Sample, Status
from hookline._record.terminal import one_line, printable_json
from hookline.cli.output import console, wrong_input
from hookline.cli.runs.reference import LATEST, Root, complete, locate
from hookline.cli.runs.text import STATUS_STYLES, number
from hookline.store.journal_files import regular_journal_files
from hookline.store.outcomes import main_metrics
from hookline.store.run_info import RunLocation, read_facts
from hookline.store.run_summary import Liveness, summarize

POLL_SECONDS = 0.2
INTERRUPTED = 130
_FAILED = ("failed", "killed")
_EXCERPT = 100
_LOUD = ("error", "alert", "failed", "not_finite", "hang", "lost")

RunOrLatest = Annotated[
    str,
    typer.Argument(
        metavar="[RUN]", help="An id, a name, a part of an id, a directory, or 'latest'.", autocompletion=complete
    ),
]
Names = Annotated[str | None, typer.Option(help="Only these metrics, e.g. loss,reward; * matches anything.")]
Lines = Annotated[int, typer.Option("--lines", "-n", min=0, help="How many existing lines to print first.")]


def tail_command(
    run: RunOrLatest = LATEST,
    *,
    root: Root = Path("runs"),
    metrics: Names = None,
    samples: Annotated[bool, typer.Option("--samples", help="Also show samples.")] = False,
    events: Annotated[
        bool, typer.Option("--events", help="Show all events and log lines, not only errors and alerts.")
    ] = False,
    lines: Lines = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print each record as a line of JSON.")] = False,
) -> None:
    """Follow a run until it ends; the exit status is 1 if it failed or was killed."""
    with wrong_input(as_json=as_json):
        place = locate(root, run)
        journal_directory(place.directory)
    wanted = [name.strip() for name in (metrics or "").split(",") if name.strip()]
    printer = _Printer(_Choice(wanted, samples=samples, events=events), as_json=as_json)
    try:
        status = _follow(place, printer, lines)
    except KeyboardInterrupt:
        typer.echo(f"{one_line(place.id)} is no longer followed.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if status in _FAILED:
        raise typer.Exit(1)


def _follow(place: RunLocation, printer: "_Printer", lines: int) -> str:
    """Print records until the run ends; return its status."""
    earlier: deque[JournalEntry] | None = deque(maxlen=lines)
    status = ""
    for news in following(place):
        if isinstance(news, JournalEntry):
            if not printer.choice.shows(news):
                continue
            if earlier is not None:
                earlier.append(news)
            else:
                printer.print_record(news)
        else:
            for entry in earlier or ():
                printer.print_record(entry)
            earlier = None
            if news != status:
                printer.print_status(status, news)
            status = news
    return status


def following(
    place: RunLocation,
    *,
    liveness: Liveness | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[JournalEntry | str]:
    """Yield a run's records as they are written, and its status whenever it has caught up.

    It returns when the run has ended. A run that ended in an earlier session and was resumed has not.
    """
    reader = Reader(journal_directory(place.directory))
    liveness = liveness or Liveness()
    facts = read_facts(place.facts)[0]
    was_over = False
    while True:
        is_new = False
        for entry in reader.new():
            is_new = True
            add_writer_prefix(entry.record, entry.file)
            yield entry
        status = liveness.status(summarize(regular_journal_files(place.journal)), place.directory, facts)
        is_over = status not in ("running", "stalled")
        if is_over and is_new:  # records may have come since the last read
            continue
        yield status
        if is_over and was_over:
            return
        was_over = is_over
        sleep(POLL_SECONDS)


class _Choice:
    """Selects the records to show."""

    def __init__(self, metrics: list[str], *, samples: bool, events: bool) -> None:
        self._metrics, self._samples, self._events = metrics, samples, events

    def shows(self, entry: JournalEntry) -> bool:
        """Whether a record is shown."""
        match entry.record:
            case Metrics(values=values):
                return bool(self.names(list(values)))
            case Sample():
                return self._samples
            case Status(status=status):
                return status != "heartbeat"
            case Event(name=name):
                return self._events or any(word in name for word in _LOUD)
            case LogLine():
                return self._events
        return False

    def names(self, given: list[str]) -> list[str]:
        """The metrics of a row to show, in display order."""
        if not self._metrics:
            return main_metrics(given)
        return [name for wanted in self._metrics for name in given if fnmatchcase(name, wanted)]


class _Printer:
    """Prints records, one per line, unbuffered."""

    def __init__(self, choice: _Choice, *, as_json: bool) -> None:
        self.choice, self._as_json = choice, as_json
        self._out = console()

    def print_record(self, entry: JournalEntry) -> None:
        """Print a record."""
        if self._as_json:
            document = {"writer": entry.file.name, **msgspec.to_builtins(cleaned(entry.record))}
            self._print(msgspec.json.encode(document).decode())
        else:
            self._print(_text(entry, self.choice))

    def _print(self, line: str | Text) -> None:
        if isinstance(line, str):
            typer.echo(printable_json(line))
        else:
            self._out.print(line, soft_wrap=True)
        sys.stdout.flush()

    def print_status(self, before: str, status: str) -> None:
        """Print that a run stalled, continues or died, which it cannot record itself."""
        if status in ("stalled", "killed") or (before == "stalled" and status == "running"):
            messages = {"stalled": "has made no progress for a while", "killed": "died without a final status"}
            document = {"writer": "", "kind": "status", "status": status, "message": messages.get(status, "continues")}
            text = Text.assemble((status, STATUS_STYLES[status]), f": the run {document['message']}")
            self._print(msgspec.json.encode(document).decode() if self._as_json else text)


def _text(entry: JournalEntry, choice: _Choice) -> Text:
    record = entry.record
    text = Text(time.strftime("%H:%M:%S", time.localtime(record.time)), style="dim")
    line = Text.assemble(text, f"  {entry.file.name}" if entry.file.name != MAIN else "")
    step = getattr(record, "step", None)
    line.append("" if step is None else f"  step {step}")
    match record:
        case Metrics():
            line.append("" if record.axis == "train" else f"  {one_line(record.axis)}", style="cyan")
            for name in choice.names(list(record.values)):
                line.append(f"  {one_line(name)} ").append(number(record.values[name]), style="bold")
        case Sample():
            line.append(f"  sample {_excerpt(record.prompt)} -> {_excerpt(record.completion)}")
            line.append("" if record.total is None else f"  reward {number(record.total)}")
        case Status():
            line.append(f"  {one_line(record.status)}", style=STATUS_STYLES.get(record.status, "bold"))
            line.append(f": {one_line(record.message)}" if record.message else "")
        case Event():
            loud = any(word in record.name for word in _LOUD)
            line.append(f"  {one_line(record.name)}", style="bold red" if loud else "magenta")
            line.append("".join(f"  {one_line(name)}={number(value)}" for name, value in record.data.items()))
        case LogLine():
            line.append(f"  {one_line(record.level)} {one_line(record.logger)}: {one_line(record.message)}")
    return line


def _excerpt(text: str) -> str:
    return one_line(text if len(text) <= _EXCERPT else f"{text[: _EXCERPT - 1]}…")

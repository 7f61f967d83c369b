"""``hookline runs tail``: what a run records, as it records it.

Begins with the last few lines, follows until the run is over, however it ends, and says how that was: the exit status
is 0 if it finished or was stopped, 1 if it failed or was killed. Ctrl-C ends the following, not the run.
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
from hookline.cli.runs.text import STATUS_STYLES, main_metrics, number
from hookline.store.journal_files import regular_journal_files
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
Names = Annotated[str | None, typer.Option(help="Only these, e.g. loss,reward; * stands for anything.")]
Lines = Annotated[int, typer.Option("--lines", "-n", min=0, help="Begin with so many lines of what is there.")]


def tail_command(
    run: RunOrLatest = LATEST,
    *,
    root: Root = Path("runs"),
    metrics: Names = None,
    samples: Annotated[bool, typer.Option("--samples", help="Show samples, too.")] = False,
    events: Annotated[
        bool, typer.Option("--events", help="Show all events and log lines, not only alarming ones.")
    ] = False,
    lines: Lines = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print each record as a line of JSON.")] = False,
) -> None:
    """Follow a run live until it is over; the exit status is 1 if it failed or was killed."""
    with wrong_input(as_json=as_json):
        place = locate(root, run)
        journal_directory(place.directory)
    wanted = [name.strip() for name in (metrics or "").split(",") if name.strip()]
    printer = _Printer(_Choice(wanted, samples=samples, events=events), as_json=as_json)
    try:
        word = _follow(place, printer, lines)
    except KeyboardInterrupt:
        typer.echo(f"{one_line(place.id)} is not followed any more.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if word in _FAILED:
        raise typer.Exit(1)


def _follow(place: RunLocation, printer: "_Printer", lines: int) -> str:
    """Print until the run is over, and say how it is."""
    earlier: deque[JournalEntry] | None = deque(maxlen=lines)
    word = ""
    for news in following(place):
        if isinstance(news, JournalEntry):
            if not printer.choice.shows(news):
                continue
            if earlier is not None:
                earlier.append(news)
            else:
                printer.print_record(news)
        else:
            for parcel in earlier or ():
                printer.print_record(parcel)
            earlier = None
            if news != word:
                printer.print_word(word, news)
            word = news
    return word


def following(
    place: RunLocation,
    *,
    liveness: Liveness | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[JournalEntry | str]:
    """A run's records as they are written; and whenever all are given, the word that says how it is.

    It ends when the run is over. One that said so in an earlier session and was taken up again is not.
    """
    reader = Reader(journal_directory(place.directory))
    liveness = liveness or Liveness()
    facts = read_facts(place.facts)[0]
    was_over = False
    while True:
        is_new = False
        for parcel in reader.new():
            is_new = True
            add_writer_prefix(parcel.record, parcel.file)
            yield parcel
        word = liveness.status(summarize(regular_journal_files(place.journal)), place.directory, facts)
        is_over = word not in ("running", "stalled")
        if is_over and is_new:  # what came between the two looks is read first
            continue
        yield word
        if is_over and was_over:
            return
        was_over = is_over
        sleep(POLL_SECONDS)


class _Choice:
    """What is to be shown."""

    def __init__(self, metrics: list[str], *, samples: bool, events: bool) -> None:
        self._metrics, self._samples, self._events = metrics, samples, events

    def shows(self, parcel: JournalEntry) -> bool:
        """Whether a record is shown."""
        match parcel.record:
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
        """Those metrics of a row that are shown, in the order to show them in."""
        if not self._metrics:
            return main_metrics(given)
        return [name for wanted in self._metrics for name in given if fnmatchcase(name, wanted)]


class _Printer:
    """Prints records, each on a line, at once."""

    def __init__(self, choice: _Choice, *, as_json: bool) -> None:
        self.choice, self._as_json = choice, as_json
        self._out = console()

    def print_record(self, parcel: JournalEntry) -> None:
        """Print a record."""
        if self._as_json:
            document = {"writer": parcel.file.name, **msgspec.to_builtins(cleaned(parcel.record))}
            self._print(msgspec.json.encode(document).decode())
        else:
            self._print(_text(parcel, self.choice))

    def _print(self, line: str | Text) -> None:
        if isinstance(line, str):
            typer.echo(printable_json(line))
        else:
            self._out.print(line, soft_wrap=True)
        sys.stdout.flush()

    def print_word(self, before: str, word: str) -> None:
        """Say that a run stalled, goes on, or died: what it cannot say itself."""
        if word in ("stalled", "killed") or (before == "stalled" and word == "running"):
            said = {"stalled": "has completed nothing for a while", "killed": "died without saying why"}
            document = {"writer": "", "kind": "status", "status": word, "message": said.get(word, "goes on")}
            text = Text.assemble((word, STATUS_STYLES[word]), f": the run {document['message']}")
            self._print(msgspec.json.encode(document).decode() if self._as_json else text)


def _text(parcel: JournalEntry, choice: _Choice) -> Text:
    record = parcel.record
    text = Text(time.strftime("%H:%M:%S", time.localtime(record.time)), style="dim")
    line = Text.assemble(text, f"  {parcel.file.name}" if parcel.file.name != MAIN else "")
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

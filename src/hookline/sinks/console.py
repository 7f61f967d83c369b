"""What is recorded as lines on the terminal, for people who watch; plain lines where there is none.

Rows of training are shown at a bounded rate: of those in between only the latest is shown, and the
last one always. Evaluations, statuses, events and log lines are all shown, samples as an excerpt now
and then. Rows and samples are those of the run's main writer; of the others only what happens to them
is shown.

Lines go through ``sys.stdout`` or ``sys.stderr`` as it is at the moment, each batch in one piece, so
that a live progress bar, which puts itself in their place, shows them above itself. A stream that was
closed (``| head``) is given up, not waited for. A kill may repeat the lines of one batch.
"""

import copy
import io
import logging
import math
import secrets
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from hookline._engine.errors import OptionError
from hookline._record.reader import MAIN, JournalEntry
from hookline._record.records import BOOKKEEPING, Event, LogLine, Metrics, Rewards, Sample, Status
from hookline._record.sink import Sink, register_sink
from hookline._record.terminal import one_line
from hookline.sinks.output_files import DeliveredPositions

logger = logging.getLogger("hookline")

Line = list[tuple[str, str]]
"""Pieces of text, each with its style."""

EXCERPT = 60
_HIDDEN = "hooks/"
_UNSAID = BOOKKEEPING | {"eval"}
"""Events that are not shown: of an evaluation, its row says more."""
_LOUD = "bold white on red"
_STATUS_STYLES = {"finished": "bold green", "failed": "bold red", "stopped": "bold yellow"}
_LEVEL_STYLES = {"WARNING": "yellow", "ERROR": "bold red", "CRITICAL": _LOUD, "DEBUG": "dim"}


@register_sink("console")
@dataclass(eq=False)
class ConsoleSink(Sink):
    """Prints a line for each row of metrics, and for what else happens.

    Args:
        stream: ``"stderr"`` or ``"stdout"``.
        every_seconds: How much time lies between two rows of training that are shown; 0 shows them all.
        metrics: Names of metrics to show, or beginnings of names (``"val/"``); all but ``hooks/`` where none are given.
        sample_seconds: How much time lies between two excerpts of samples; 0 shows them all, None shows none.
        name: What the sink is called in its run.
    """

    stream: Literal["stdout", "stderr"] = "stderr"
    every_seconds: float = 1.0
    metrics: tuple[str, ...] = ()
    sample_seconds: float | None = 30.0
    name: str | None = None

    def __post_init__(self) -> None:
        if self.stream not in ("stdout", "stderr"):
            raise OptionError(f"stream={self.stream!r}: give 'stdout' or 'stderr'.")
        for name in ("every_seconds", "sample_seconds"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise OptionError(f"{name}={value!r}: give a number of seconds.")
        self.metrics = (self.metrics,) if isinstance(self.metrics, str) else tuple(self.metrics)
        self._delivered: DeliveredPositions | None = None
        self._rows = Thinned(self.every_seconds)
        self._samples = Thinned(self.sample_seconds or 0.0)
        self._is_closed = False

    @classmethod
    def uses(cls, settings: Mapping[str, Any]) -> list[str]:
        return []

    def open(self, run_dir: Path, state: Any) -> Any:
        state = state or {"token": secrets.token_hex(4)}
        self._delivered = DeliveredPositions(run_dir, state["token"])
        return state

    def write(self, entries: Sequence[JournalEntry]) -> dict[str, Any]:
        assert self._delivered is not None
        before = copy.copy(self._rows), copy.copy(self._samples)
        lines = [line for entry in entries if not self._delivered.has(entry) for line in self._lines(entry)]
        try:
            self._print(lines)
        except OSError:
            self._rows, self._samples = before
            raise
        self._delivered.add(*entries)
        return {"token": self._delivered.token}

    def beat(self) -> None:
        self._print(self._rows.late(time.time()))

    def close(self) -> None:
        self._print(self._rows.late(math.inf))
        if self._delivered is not None:
            self._delivered.close()

    def _lines(self, entry: JournalEntry) -> Iterable[Line]:
        record = entry.record
        match record:
            case Metrics() | Sample() | Rewards() if entry.file.name != MAIN:
                return []
            case Sample() if self.sample_seconds is None:
                return []
            case Metrics(axis="eval"):
                return [self._row(entry, record)]
            case Metrics():
                return self._rows.due(record.time, self._row(entry, record))
            case Sample():
                return self._samples.now(record.time, _sample(entry, record))
            case Status():
                return [*self._rows.late(math.inf), _status(entry, record)]
            case Event() if record.name in _UNSAID:
                return []
            case Event():
                return [_event(entry, record)]
            case LogLine():
                return [_log(entry, record)]
        return []

    def _row(self, entry: JournalEntry, record: Metrics) -> Line:
        shown = [(name, value) for name, value in record.values.items() if self._shows(name)]
        line = _begin(entry)
        if record.axis != "train":
            line.append((f"  {record.axis}", "bold cyan"))
        for name, value in shown:
            text, style = _value(value, "bold cyan" if record.axis == "eval" else "bold")
            line += [(f"  {one_line(name)} ", ""), (text, style)]
        return line if shown else []

    def _shows(self, name: str) -> bool:
        return name.startswith(self.metrics) if self.metrics else not name.startswith(_HIDDEN)

    def _print(self, lines: Iterable[Line]) -> None:
        lines = [line for line in lines if line]
        stream: TextIO | None = getattr(sys, self.stream)
        if not lines or stream is None or self._is_closed:
            return
        try:
            text = _styled(lines) if stream.isatty() else "".join(f"{_plain(line)}\n" for line in lines)
            stream.write(_encodable(text, stream))
            stream.flush()
        except (BrokenPipeError, ValueError) as error:
            self._is_closed = True
            logger.warning("Nothing more is shown on %s: %s", self.stream, error)


class Thinned:
    """Lines at a bounded rate, by the times of their records.

    Args:
        seconds: How much time lies between two of them.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._shown = -math.inf
        self._waiting: tuple[float, Line] | None = None

    def now(self, at: float, line: Line) -> list[Line]:
        """The line, if it is time for one; otherwise it is left out."""
        if at - self._shown < self._seconds:
            return []
        self._shown = at
        return [line]

    def due(self, at: float, line: Line) -> list[Line]:
        """The line, if it is time for one; otherwise it waits until the next one comes, or until it is late."""
        if not line:
            return []
        self._waiting = (at, line) if at - self._shown < self._seconds else None
        return self.now(at, line)

    def late(self, now: float) -> list[Line]:
        """The line that waits, if it is time for one."""
        if self._waiting is None or now - self._shown < self._seconds:
            return []
        (self._shown, line), self._waiting = self._waiting, None
        return [line]


def _begin(entry: JournalEntry) -> Line:
    line = [(time.strftime("%H:%M:%S", time.localtime(entry.record.time)), "dim")]
    if entry.file.name != MAIN:
        line.append((f"  {entry.file.name}", "dim"))
    step = getattr(entry.record, "step", None)
    return line if step is None else [*line, (f"  step {step}", "")]


def _value(value: Any, style: str) -> tuple[str, str]:
    if isinstance(value, float):
        return (f"{value:.4g}", style) if math.isfinite(value) else (f"{value}!".replace("nan", "NaN"), _LOUD)
    return _cut(str(value)), style


def _sample(entry: JournalEntry, record: Sample) -> Line:
    texts = [("  sample ", ""), (_cut(record.prompt), "dim"), (" -> ", ""), (_cut(record.completion), "")]
    reward = [] if record.total is None else [("  reward ", ""), _value(record.total, "bold")]
    return [*_begin(entry), *texts, *reward]


def _status(entry: JournalEntry, record: Status) -> Line:
    word = (f"  {one_line(record.status)}", _STATUS_STYLES.get(record.status, "bold"))
    message = [(f": {one_line(record.message)}", "")] if record.message else []
    return [*_begin(entry), word, *message]


def _event(entry: JournalEntry, record: Event) -> Line:
    facts = "".join(f"  {one_line(name)}={_value(value, '')[0]}" for name, value in record.data.items())
    style = "bold red" if "error" in record.name else "magenta"
    return [*_begin(entry), (f"  {one_line(record.name)}", style), (facts, "")]


def _log(entry: JournalEntry, record: LogLine) -> Line:
    level = (f"  {one_line(record.level)}", _LEVEL_STYLES.get(record.level, ""))
    return [*_begin(entry), level, (f" {one_line(record.logger)}: {one_line(record.message)}", "")]


def _cut(text: str) -> str:
    return one_line(text if len(text) <= EXCERPT else f"{text[: EXCERPT - 1]}…")


def _plain(line: Line) -> str:
    return "".join(text for text, _ in line)


def _styled(lines: Iterable[Line]) -> str:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=io.StringIO(), force_terminal=True, highlight=False)
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def _encodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)

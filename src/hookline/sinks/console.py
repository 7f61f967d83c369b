"""`ConsoleSink`: records as lines on the terminal, with colours where it supports them.

Training rows are shown at a limited rate: of those in between only the latest is shown, and the last one always.
Evaluations, statuses, events and log lines are all shown, samples as an occasional excerpt. Rows and samples are those
of the run's main writer; of other writers, only statuses, events and log lines are shown.

Lines go through the current ``sys.stdout`` or ``sys.stderr``, one write per batch, so that a live progress bar, which
replaces these streams, shows them above itself. After a stream was closed (``| head``), nothing more is shown. A kill
may repeat the lines of one batch.
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

MOST_LETTERS = 60
_HIDDEN_PREFIX = "hooks/"
_HIDDEN_EVENTS = BOOKKEEPING | {"eval"}  # an evaluation is shown by its row
_ALERT = "bold white on red"
_STATUS_STYLES = {"finished": "bold green", "failed": "bold red", "stopped": "bold yellow"}
_LEVEL_STYLES = {"WARNING": "yellow", "ERROR": "bold red", "CRITICAL": _ALERT, "DEBUG": "dim"}


@register_sink("console")
@dataclass(eq=False)
class ConsoleSink(Sink):
    """Prints a line for each row of metrics, status, event and log line.

    Args:
        stream: ``"stderr"`` or ``"stdout"``.
        every_seconds: The minimum time between two training rows; 0 shows them all.
        metrics: Names or prefixes (``"val/"``) of the metrics to show; by default all but ``hooks/``.
        sample_seconds: The minimum time between two excerpts of samples; 0 shows them all, None shows none.
        name: The sink's name in its run.
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
        self._rows = Throttle(self.every_seconds)
        self._samples = Throttle(self.sample_seconds or 0.0)
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
            case Event() if record.name in _HIDDEN_EVENTS:
                return []
            case Event():
                return [_event(entry, record)]
            case LogLine():
                return [_log(entry, record)]
        return []

    def _row(self, entry: JournalEntry, record: Metrics) -> Line:
        shown = [
            (name, value)
            for name, value in record.values.items()
            if (name.startswith(self.metrics) if self.metrics else not name.startswith(_HIDDEN_PREFIX))
        ]
        line = _prefix(entry)
        if record.axis != "train":
            line.append((f"  {record.axis}", "bold cyan"))
        for name, value in shown:
            text, style = _value(value, "bold cyan" if record.axis == "eval" else "bold")
            line += [(f"  {one_line(name)} ", ""), (text, style)]
        return line if shown else []

    def _print(self, lines: Iterable[Line]) -> None:
        lines = [line for line in lines if line]
        stream: TextIO | None = getattr(sys, self.stream)
        if not lines or stream is None or self._is_closed:
            return
        try:
            if stream.isatty():
                text = _styled(lines)
            else:
                text = "".join("".join(piece for piece, _ in line) + "\n" for line in lines)
            encoding = getattr(stream, "encoding", None) or "utf-8"
            stream.write(text.encode(encoding, "replace").decode(encoding))
            stream.flush()
        except (BrokenPipeError, ValueError) as error:
            self._is_closed = True
            logger.warning("Cannot write to %s, nothing more is shown: %s", self.stream, error)


class Throttle:
    """Limits the rate of lines, by the times of their records.

    Args:
        seconds: The minimum time between two lines.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._shown = -math.inf
        self._held: tuple[float, Line] | None = None

    def now(self, at: float, line: Line) -> list[Line]:
        """The line, if one is due; otherwise it is dropped."""
        if at - self._shown < self._seconds:
            return []
        self._shown = at
        return [line]

    def due(self, at: float, line: Line) -> list[Line]:
        """The line, if one is due; otherwise it is held until the next one arrives or `late` returns it."""
        if not line:
            return []
        self._held = (at, line) if at - self._shown < self._seconds else None
        return self.now(at, line)

    def late(self, now: float) -> list[Line]:
        """The held line, if one is due."""
        if self._held is None or now - self._shown < self._seconds:
            return []
        (self._shown, line), self._held = self._held, None
        return [line]


def _prefix(entry: JournalEntry) -> Line:
    line = [(time.strftime("%H:%M:%S", time.localtime(entry.record.time)), "dim")]
    if entry.file.name != MAIN:
        line.append((f"  {entry.file.name}", "dim"))
    step = getattr(entry.record, "step", None)
    return line if step is None else [*line, (f"  step {step}", "")]


def _value(value: Any, style: str) -> tuple[str, str]:
    if isinstance(value, float):
        return (f"{value:.4g}", style) if math.isfinite(value) else (f"{value}!".replace("nan", "NaN"), _ALERT)
    return _excerpt(str(value)), style


def _sample(entry: JournalEntry, record: Sample) -> Line:
    texts = [("  sample ", ""), (_excerpt(record.prompt), "dim"), (" -> ", ""), (_excerpt(record.completion), "")]
    reward = [] if record.total is None else [("  reward ", ""), _value(record.total, "bold")]
    return [*_prefix(entry), *texts, *reward]


def _status(entry: JournalEntry, record: Status) -> Line:
    word = (f"  {one_line(record.status)}", _STATUS_STYLES.get(record.status, "bold"))
    message = [(f": {one_line(record.message)}", "")] if record.message else []
    return [*_prefix(entry), word, *message]


def _event(entry: JournalEntry, record: Event) -> Line:
    facts = "".join(f"  {one_line(name)}={_value(value, '')[0]}" for name, value in record.data.items())
    style = "bold red" if "error" in record.name else "magenta"
    return [*_prefix(entry), (f"  {one_line(record.name)}", style), (facts, "")]


def _log(entry: JournalEntry, record: LogLine) -> Line:
    level = (f"  {one_line(record.level)}", _LEVEL_STYLES.get(record.level, ""))
    return [*_prefix(entry), level, (f" {one_line(record.logger)}: {one_line(record.message)}", "")]


def _excerpt(text: str) -> str:
    return one_line(text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…")


def _styled(lines: Iterable[Line]) -> str:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=io.StringIO(), force_terminal=True, highlight=False)
    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]

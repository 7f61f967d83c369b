"""`ProgressView`: all runs of an experiment at once, while it goes on.

    with ProgressView(experiment) as view:
        result = experiment.run(watch=view)

On a terminal there is a bar for the whole experiment and one for each of the runs under way, as many as fit, redrawn in
place; what runs print, in this process or in others, appears above it line by line, so that progress bars of their own
do not get in the way. Elsewhere a line is printed when a run starts and when it ends, without control characters.

`TerminalLines`: what anybody prints on a terminal, line by line, while something else is drawn there.

Between `start` and `stop` the process's standard streams that lead to the terminal lead here instead, also those of the
processes it starts, which then see no terminal: their progress bars print lines. What was there before is put back.
"""

import contextlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hookline._engine.state import RunResult
from hookline._record.terminal import terminal_console
from hookline.callbacks.progress_display import DRAWS_PER_SECOND, bar, can_redraw, format_duration, standard_error
from hookline.experiment.experiment import Experiment
from hookline.experiment.job import Progress, Scored
from hookline.experiment.plan import PlannedRun

STREAMS = (1, 2)
"""Standard output and standard error."""


class TerminalLines:
    """Takes over the streams that lead to a terminal.

    Args:
        hear: Called with each line, on a thread of its own.
    """

    def __init__(self, hear: Callable[[str], None]) -> None:
        self._hear = hear
        self._kept: dict[int, int] = {}
        self._thread: threading.Thread | None = None
        self.terminal: TextIO | None = None
        """The terminal itself, to draw on."""

    def start(self) -> bool:
        """Take over; False where neither stream leads to a terminal that this process can reach."""
        taken = [number for number in STREAMS if _is_terminal(number)]
        if not taken:
            return False
        _flush()
        self.terminal = os.fdopen(os.dup(taken[-1]), "w", encoding="utf-8", errors="replace")
        ours, theirs = os.pipe()
        for number in taken:
            self._kept[number] = os.dup(number)
            os.dup2(theirs, number)
        os.close(theirs)
        self._thread = threading.Thread(target=self._listen, args=(ours,), name="hookline-terminal", daemon=True)
        self._thread.start()
        return True

    def stop(self, wait_seconds: float = 2.0) -> None:
        """Put the streams back, and hear what is left; a process that still writes is not waited for longer."""
        _flush()
        for number, kept in self._kept.items():
            os.dup2(kept, number)
            os.close(kept)
        self._kept = {}
        if self._thread is not None:
            self._thread.join(wait_seconds)
            self._thread = None

    def _listen(self, pipe: int) -> None:
        with os.fdopen(pipe, encoding="utf-8", errors="replace", newline="\n") as lines:
            for line in lines:
                with contextlib.suppress(OSError, ValueError):  # a terminal that is gone: nobody may wait for us
                    self._hear(line.rstrip("\r\n").rpartition("\r")[2])  # of what was drawn over, the last


def _is_terminal(number: int) -> bool:
    """Whether a stream leads to a terminal, and Python's own stream of that number writes to it."""
    stream: Any = (sys.stdout, sys.stderr)[number - 1]
    try:
        return bool(os.isatty(number)) and stream.fileno() == number
    except (AttributeError, OSError, ValueError):  # replaced by something else, or closed
        return False


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


MOST_RUNS = 20
"""How many runs have a line of their own at the most."""
STYLES = {"failed": "red", "incomplete": "yellow", "skipped": "yellow", "stopped": "yellow"}
AGAIN = "retried"
ECHOED = 4
"""Columns left free for the ``^C`` that a terminal shows: on a full line it would move everything down."""


@dataclass(slots=True)
class RunLine:
    """A run under way, as far as it was heard of."""

    key: str
    began: float
    step: int = 0
    num_steps: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    doing: str = "starting"

    @property
    def share(self) -> float | None:
        """How much of it is done; None where that is not known."""
        return None if not self.num_steps else min(1.0, self.step / self.num_steps)


class ProgressView:
    """Shows how far an experiment is; give it to ``experiment.run(watch=...)``.

    Args:
        experiment: The one that is run.
        console: Where to show it; standard error by default.
        clock: Seconds, from anywhere.
    """

    def __init__(
        self, experiment: Experiment, *, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._experiment = experiment
        self._console = console
        self._clock = clock
        self._state = _State(experiment.name, [planned.key for planned in experiment.plan()], clock)
        self._display: _Live | _Lines | None = None

    def __enter__(self) -> Self:
        store = self._experiment.store
        found = (store.result(planned.key) for planned in self._experiment.plan())
        self._state.begin(sum(result is not None and result.status == "completed" for result in found))
        console = standard_error() if self._console is None else self._console
        is_live = can_redraw(console) and not console.is_jupyter  # a notebook has no terminal to take over
        self._display = _Live(console, self._state) if is_live else _Lines(console, self._state)
        self._display.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.close()
            self._display = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _picture(self._state, options, over=False)

    def __call__(self, what: str, about: Any) -> None:
        """Take note of what happened to a run: ``started``, ``heard`` or ``ended``."""
        self._state.note(what, about)
        if isinstance(self._display, _Lines):
            self._display.tell(what, about)


class _State:
    """What is known of all runs; changed by the thread that runs the experiment, read by the one that draws."""

    def __init__(self, name: str, keys: list[str], clock: Callable[[], float]) -> None:
        self.name, self.total, self.clock = name, len(keys), clock
        self.found = 0
        """Runs that were complete before."""
        self.ended: Counter[str] = Counter()
        self.began = clock()
        self._running: dict[str, RunLine] = {}
        self._lock = threading.Lock()

    def begin(self, found: int) -> None:
        self.found, self.began = found, self.clock()

    def note(self, what: str, about: Any) -> None:
        with self._lock:
            if what == "started" and isinstance(about, PlannedRun):
                self._running[about.key] = RunLine(about.key, self.clock())
            elif what == "heard" and isinstance(about, Progress | Scored):
                self._hear(about)
            elif what == "ended" and isinstance(about, RunResult):
                self._running.pop(about.run_key, None)
                self.ended.update([about.status] if about.status != AGAIN else [])

    def _hear(self, message: Progress | Scored) -> None:
        line = self._running.get(message.key)
        if line is None:
            return
        if isinstance(message, Scored):
            name = message.eval_result.name
            line.metrics = {f"{name}/{key}": value for key, value in message.eval_result.metrics.items()}
            return
        line.step, line.num_steps, line.doing = message.step, message.num_steps, message.doing
        line.metrics = message.metrics or line.metrics

    def running(self) -> list[RunLine]:
        """Those under way, in the order in which they began."""
        with self._lock:
            return list(self._running.values())

    @property
    def over(self) -> int:
        """How many have ended, with those that were complete before."""
        return self.found + sum(self.ended.values())

    def counts(self) -> Iterator[tuple[str, int]]:
        """How many runs there are of each kind, of the kinds that there are."""
        running = len(self.running())
        completed = self.found + self.ended["completed"]
        counts = {
            "completed": completed,
            **{kind: number for kind, number in self.ended.items() if kind != "completed"},
        }
        counts |= {"running": running, "waiting": self.total - self.over - running}
        return ((kind, number) for kind, number in counts.items() if number)

    def share(self) -> float:
        """How much of the experiment is done."""
        return (self.over + self._under_way()) / self.total

    def seconds_left(self) -> float | None:
        """As long as the rest takes if it goes on as it did since the beginning; None as long as nothing is done."""
        done = sum(self.ended.values()) + self._under_way()
        rest = self.total - self.found - done
        return None if done <= 0 else (self.clock() - self.began) * rest / done

    def _under_way(self) -> float:
        return sum(line.share or 0.0 for line in self.running())


class _Live:
    """Bars that are redrawn in place, below what is printed meanwhile."""

    def __init__(self, console: Console, state: _State) -> None:
        self._console, self._state = console, state
        self._lines = TerminalLines(self._print)
        self._over = False
        self._live: Live | None = None

    def open(self) -> None:
        shares_streams = self._console.file.isatty() and self._lines.start()
        drawn = self._console
        if shares_streams and self._lines.terminal is not None:
            drawn = terminal_console(file=self._lines.terminal)
        self._live = Live(
            self,
            console=drawn,
            refresh_per_second=DRAWS_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)

    def close(self) -> None:
        self._lines.stop()
        self._over = True
        if self._live is not None:
            with contextlib.suppress(OSError):  # the terminal is gone
                self._live.stop()
        if self._lines.terminal is not None:
            with contextlib.suppress(OSError):
                self._lines.terminal.close()

    def _print(self, line: str) -> None:
        if self._live is not None:
            self._live.console.print(Text.from_ansi(line), soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _picture(self._state, options, over=self._over)


class _Lines:
    """A line when a run starts and one when it ends."""

    def __init__(self, console: Console, state: _State) -> None:
        self._console, self._state = console, state

    def open(self) -> None:
        state = self._state
        found = f", {state.found:,} complete already" if state.found else ""
        self._print(f"{state.name}: {state.total:,} runs{found}")

    def tell(self, what: str, about: Any) -> None:
        if what == "started":
            self._print(f"started {about.key}")
        elif what == "ended":
            self._print(f"{about.status} {about.run_key} ({'  '.join(self._ending(about))})")

    def close(self) -> None:
        counts = ", ".join(f"{number:,} {kind}" for kind, number in self._state.counts())
        took = format_duration(self._state.clock() - self._state.began)
        self._print(f"{self._state.name}: {counts}  took {took}")

    def _ending(self, result: RunResult) -> Iterator[str]:
        yield f"{self._state.over:,}/{self._state.total:,}"
        yield f"{result.seconds:.1f} s"
        left = self._state.seconds_left()
        if left is not None and self._state.over < self._state.total:
            yield f"eta {format_duration(left)}"

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


def _picture(state: _State, options: ConsoleOptions, *, over: bool) -> Iterator[RenderableType]:
    """A line for all of it, and one for each run under way, as many as fit."""
    running = state.running()
    room = max(1, min(MOST_RUNS, options.size.height - 3))
    yield _overall(state, over=over)
    if running and not over:
        yield _runs(running[:room], options)
        if len(running) > room:
            yield Text(f"and {len(running) - room:,} more running", style="dim")


def _overall(state: _State, *, over: bool) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=30)
    table.add_column(width=24)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    counts = Text("  ").join(Text(f"{number:,} {kind}", style=STYLES.get(kind, "")) for kind, number in state.counts())
    left = state.seconds_left()
    took = f"took {format_duration(state.clock() - state.began)}"
    times = took if over else "" if left is None else f"eta {format_duration(left)}"
    if state.over == state.total and not over:
        times = "comparing them"
    table.add_row(
        Text(state.name, style="bold"),
        bar(state.share()),
        f"{state.over:,}/{state.total:,} runs",
        counts + Text(f"  {times}"),
    )
    return table


def _runs(lines: list[RunLine], options: ConsoleOptions) -> RenderableType:
    how: Any = {"no_wrap": True, "overflow": "crop" if options.ascii_only else "ellipsis"}
    table = Table.grid(padding=(0, 1))
    table.width = max(20, options.max_width - ECHOED)
    table.add_column(max_width=max(12, options.max_width // 3), **how)
    table.add_column(width=max(8, min(24, options.max_width // 6)), **how)
    table.add_column(ratio=1, **how)
    for line in lines:
        table.add_row(Text(f"  {line.key}"), bar(line.share), _what(line))
    return table


def _what(line: RunLine) -> Text:
    """What a run does, how far it is, and its latest metrics."""
    doing = line.doing if line.doing in ("training", "starting") else f"scoring {line.doing}"
    step = f"step {line.step:,}/{line.num_steps:,}" if line.num_steps else f"step {line.step:,}" if line.step else ""
    words = [step if line.doing == "training" and step else doing]
    metrics = [f"{name} {value:.4g}" for name, value in line.metrics.items() if isinstance(value, int | float)]
    return Text("  ".join([*words, *metrics]))

"""`ProgressView`: shows the progress of all runs of an experiment.

    with ProgressView(experiment) as view:
        result = experiment.run(watch=view)

On a terminal it draws a bar for the experiment and one for each active run, as many as fit, and redraws them in place.
Output of the runs, from this process or others, appears above the bars line by line, so their own progress bars do not
interfere. Elsewhere it prints a line when a run starts and when it ends, without control characters.
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
from hookline._record.terminal import plural, terminal_console
from hookline.callbacks.progress_display import DRAWS_PER_SECOND, bar, can_redraw, format_duration, standard_error
from hookline.experiment.arms import PlannedRun
from hookline.experiment.experiment import Experiment
from hookline.experiment.job import BenchmarkScored, Progress

MAX_RUNS = 20
"""How many runs get a separate line."""
STYLES = {"failed": "red", "incomplete": "yellow", "skipped": "yellow", "stopped": "yellow"}
RETRIED = "retried"
ECHO_WIDTH = 4
"""Columns left free for the ``^C`` that a terminal echoes: on a full line it would move everything down."""


class ProgressView:
    """Shows the progress of an experiment; pass it to ``experiment.run(watch=...)``.

    Args:
        experiment: The experiment to show.
        console: Where to show it; standard error by default.
        clock: Seconds, from any starting point.
    """

    def __init__(
        self, experiment: Experiment, *, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._experiment, self._console = experiment, console
        self._state = _State(experiment.name, experiment.number_of_runs, clock)
        self._display: _Live | _Lines | None = None

    def __enter__(self) -> Self:
        store = self._experiment.store
        found = (store.result(planned.key) for planned in self._experiment.plan())
        self._state.begin(sum(result is not None and result.status == "completed" for result in found))
        console = standard_error() if self._console is None else self._console
        is_live = can_redraw(console) and not console.is_jupyter  # a notebook has no terminal to capture
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
        yield from _render(self._state, options, over=False)

    def __call__(self, event: str, about: Any) -> None:
        """Handle a run event: ``started``, ``message`` or ``ended``."""
        self._state.update(event, about)
        if isinstance(self._display, _Lines):
            self._display.show(event, about)


@dataclass(slots=True)
class _RunProgress:
    key: str
    step: int = 0
    num_steps: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    doing: str = "starting"

    @property
    def share(self) -> float | None:
        """The completed share; None if the number of steps is unknown."""
        return None if not self.num_steps else min(1.0, self.step / self.num_steps)

    def text(self) -> Text:
        """The current activity or step, and the latest metrics."""
        if self.doing not in ("training", "starting"):
            activity = f"scoring {self.doing}"
        elif self.doing == "training" and (self.step or self.num_steps):
            activity = f"step {self.step:,}/{self.num_steps:,}" if self.num_steps else f"step {self.step:,}"
        else:
            activity = self.doing
        metrics = [f"{name} {value:.4g}" for name, value in self.metrics.items() if isinstance(value, int | float)]
        return Text("  ".join([activity, *metrics]))


class _State:
    """The progress of all runs: written by the thread of the experiment, read by the one that draws."""

    def __init__(self, name: str, total: int, clock: Callable[[], float]) -> None:
        self.name, self.total, self.clock = name, total, clock
        self.completed_before = 0
        self.ended: Counter[str] = Counter()
        self.began = clock()
        self._running: dict[str, _RunProgress] = {}
        self._lock = threading.Lock()

    def begin(self, completed_before: int) -> None:
        self.completed_before, self.began = completed_before, self.clock()

    def update(self, event: str, about: Any) -> None:
        with self._lock:
            if event == "started" and isinstance(about, PlannedRun):
                self._running[about.key] = _RunProgress(about.key)
            elif event == "message" and isinstance(about, Progress | BenchmarkScored) and about.key in self._running:
                run = self._running[about.key]
                if isinstance(about, BenchmarkScored):
                    name = about.eval_result.name
                    run.metrics = {f"{name}/{key}": value for key, value in about.eval_result.metrics.items()}
                else:
                    run.step, run.num_steps, run.doing = about.step, about.num_steps, about.doing
                    run.metrics = about.metrics or run.metrics
            elif event == "ended" and isinstance(about, RunResult):
                self._running.pop(about.run_key, None)
                self.ended.update([about.status] if about.status != RETRIED else [])

    def running(self) -> list[_RunProgress]:
        """The active runs, in the order in which they started."""
        with self._lock:
            return list(self._running.values())

    @property
    def done(self) -> int:
        """The number of runs that ended, those of earlier starts included."""
        return self.completed_before + sum(self.ended.values())

    def counts(self) -> dict[str, int]:
        """The number of runs by status, without zeros."""
        running = len(self.running())
        others = {status: number for status, number in self.ended.items() if status != "completed"}
        counts = {"completed": self.completed_before + self.ended["completed"], **others}
        counts |= {"running": running, "waiting": self.total - self.done - running}
        return {status: number for status, number in counts.items() if number}

    def share(self) -> float:
        """The completed share of the experiment."""
        return (self.done + self._active_share()) / self.total

    def seconds_left(self) -> float | None:
        """The time left at the average speed so far; None while nothing is done."""
        done = sum(self.ended.values()) + self._active_share()
        rest = self.total - self.completed_before - done
        return None if done <= 0 else (self.clock() - self.began) * rest / done

    def _active_share(self) -> float:
        return sum(run.share or 0.0 for run in self.running())


class _Live:
    """Draws bars in place, below the output of the runs."""

    def __init__(self, console: Console, state: _State) -> None:
        self._console, self._state = console, state
        self._capture = TerminalCapture(self._print)
        self._is_over = False
        self._live: Live | None = None

    def open(self) -> None:
        console = self._console
        if console.file.isatty() and self._capture.start() and self._capture.terminal is not None:
            console = terminal_console(file=self._capture.terminal)
        self._live = Live(
            self, console=console, refresh_per_second=DRAWS_PER_SECOND, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start(refresh=True)

    def close(self) -> None:
        self._capture.stop()
        self._is_over = True
        with contextlib.suppress(OSError):  # the terminal may be gone
            if self._live is not None:
                self._live.stop()
        with contextlib.suppress(OSError):
            if self._capture.terminal is not None:
                self._capture.terminal.close()

    def _print(self, line: str) -> None:
        if self._live is not None:
            self._live.console.print(Text.from_ansi(line), soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _render(self._state, options, over=self._is_over)


class _Lines:
    """Prints a line when a run starts and when it ends."""

    def __init__(self, console: Console, state: _State) -> None:
        self._console, self._state = console, state

    def open(self) -> None:
        before = self._state.completed_before
        found = f", {before:,} complete already" if before else ""
        self._print(f"{self._state.name}: {plural(self._state.total, 'run')}{found}")

    def show(self, event: str, about: Any) -> None:
        state = self._state
        if event == "started":
            self._print(f"started {about.key}")
        elif event == "ended":
            parts = [f"{state.done:,}/{state.total:,}", f"{about.seconds:.1f} s"]
            left = state.seconds_left()
            if left is not None and state.done < state.total:
                parts.append(f"eta {format_duration(left)}")
            self._print(f"{about.status} {about.run_key} ({'  '.join(parts)})")

    def close(self) -> None:
        counts = ", ".join(f"{number:,} {status}" for status, number in self._state.counts().items())
        took = format_duration(self._state.clock() - self._state.began)
        self._print(f"{self._state.name}: {counts}  took {took}")

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


def _render(state: _State, options: ConsoleOptions, *, over: bool) -> Iterator[RenderableType]:
    """A line for the experiment, and one for each active run, as many as fit."""
    running = state.running()
    room = max(1, min(MAX_RUNS, options.size.height - 3))
    yield _experiment_line(state, over=over)
    if running and not over:
        yield _run_lines(running[:room], options)
        if len(running) > room:
            yield Text(f"and {len(running) - room:,} more running", style="dim")


def _experiment_line(state: _State, *, over: bool) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=30)
    table.add_column(width=24)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    statuses = [Text(f"{number:,} {status}", style=STYLES.get(status, "")) for status, number in state.counts().items()]
    left = state.seconds_left()
    if over:
        times = f"took {format_duration(state.clock() - state.began)}"
    elif state.done == state.total:
        times = "comparing them"
    else:
        times = "" if left is None else f"eta {format_duration(left)}"
    table.add_row(
        Text(state.name, style="bold"),
        bar(state.share()),
        f"{state.done:,}/{state.total:,} runs",
        Text("  ").join(statuses) + Text(f"  {times}"),
    )
    return table


def _run_lines(runs: list[_RunProgress], options: ConsoleOptions) -> RenderableType:
    style: Any = {"no_wrap": True, "overflow": "crop" if options.ascii_only else "ellipsis"}
    table = Table.grid(padding=(0, 1))
    table.width = max(20, options.max_width - ECHO_WIDTH)
    table.add_column(max_width=max(12, options.max_width // 3), **style)
    table.add_column(width=max(8, min(24, options.max_width // 6)), **style)
    table.add_column(ratio=1, **style)
    for run in runs:
        table.add_row(Text(f"  {run.key}"), bar(run.share), run.text())
    return table


class TerminalCapture:
    """Captures output to the terminal, line by line.

    Between `start` and `stop` the standard streams that lead to the terminal lead to a pipe, also those of child
    processes. These then see no terminal, so their progress bars print lines. `stop` restores the streams.

    Args:
        on_line: Called with each line, on a thread of its own.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._originals: dict[int, int] = {}
        self._thread: threading.Thread | None = None
        self.terminal: TextIO | None = None
        """The terminal itself, to draw on."""

    def start(self) -> bool:
        """Redirect the streams; False if none of them leads to a terminal."""
        redirected = [descriptor for descriptor in (1, 2) if _is_terminal(descriptor)]
        if not redirected:
            return False
        _flush()
        self.terminal = os.fdopen(os.dup(redirected[-1]), "w", encoding="utf-8", errors="replace")
        read_end, write_end = os.pipe()
        for descriptor in redirected:
            self._originals[descriptor] = os.dup(descriptor)
            os.dup2(write_end, descriptor)
        os.close(write_end)
        self._thread = threading.Thread(target=self._read, args=(read_end,), name="hookline-terminal", daemon=True)
        self._thread.start()
        return True

    def stop(self, wait_seconds: float = 2.0) -> None:
        """Restore the streams and read the rest of the pipe, without waiting for processes that still write."""
        _flush()
        for descriptor, original in self._originals.items():
            os.dup2(original, descriptor)
            os.close(original)
        self._originals = {}
        if self._thread is not None:
            self._thread.join(wait_seconds)
            self._thread = None

    def _read(self, pipe: int) -> None:
        with os.fdopen(pipe, encoding="utf-8", errors="replace", newline="\n") as lines:
            for line in lines:
                # Keep reading when the terminal is gone: writers would block on a full pipe.
                with contextlib.suppress(OSError, ValueError):
                    self._on_line(line.rstrip("\r\n").rpartition("\r")[2])  # after the last carriage return


def _is_terminal(descriptor: int) -> bool:
    """Whether a standard stream leads to a terminal, and Python's own stream writes to it."""
    stream: Any = (sys.stdout, sys.stderr)[descriptor - 1]
    try:
        return bool(os.isatty(descriptor)) and stream.fileno() == descriptor
    except (AttributeError, OSError, ValueError):  # replaced by another object, or closed
        return False


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()

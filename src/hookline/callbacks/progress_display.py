"""Displays progress on a terminal with rich: the parts that all progress bars share.

- `display_on` shows a training: bars that are redrawn in place, or lines where the console cannot redraw.
- `transient_bar` shows the progress of a command and disappears with it.
- `standard_error`, `can_redraw`, `bar` and the formatting functions serve displays of their own.

A closed display leaves the terminal as it found it: the cursor is visible, and ``sys.stdout``, ``sys.stderr`` and the
handlers of `logging` write where they did before. Until then, their output to the same terminal appears above the bars.
A redirected stream (``> file``) is left alone. A forked child (a data loader's worker) gets the original streams, so it
never waits for a drawing thread that it does not have; the bars may overwrite what it prints.
"""

import contextlib
import functools
import importlib.util
import logging
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text

from hookline._record.terminal import one_line, terminal_console

LINE_SECONDS = 10.0
"""The time between two lines if the console cannot redraw bars."""
DRAWS_PER_SECOND = 5.0
MOST_METRIC_LINES = 2
MOST_METRICS_PER_LINE = 8

_NOT_FINITE = "bold white on red"


def standard_error() -> Console:
    """A console on standard error that falls silent if its reader ends (``| head``) instead of ending the program."""

    class QuietConsole(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True

    # FORCE_COLOR must not bring bars into a log file. Texts of users are not markup.
    interactive = None if _is_terminal(sys.stderr) else False
    return QuietConsole(stderr=True, highlight=False, markup=False, emoji=False, force_interactive=interactive)


def can_redraw(console: Console) -> bool:
    """Whether bars can be redrawn in place: on an interactive terminal, or in a notebook that has ipywidgets."""
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal and console.is_interactive and not console.is_dumb_terminal


def bar(share: float | None, *, is_running: bool = True) -> Bar:
    """A progress bar; while something of unknown length runs, one that pulses."""
    return Bar(total=None if share is None and is_running else 1.0, completed=share or 0.0)


def format_number(number: float) -> str:
    """Formats a number with three digits and a unit.

    >>> format_number(2.5), format_number(999.7), format_number(1_234_567)
    ('2.5', '1k', '1.23M')
    """
    units = iter("kMGTP")
    unit = ""
    while number >= 999.5 and (larger := next(units, "")):
        number, unit = number / 1000, larger
    return f"{number:.3g}{unit}"


def format_duration(seconds: float) -> str:
    """Formats a duration like a clock.

    >>> format_duration(35.4), format_duration(3725), format_duration(90_061)
    ('0:35', '1:02:05', '1d 01:01:01')
    """
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


@contextlib.contextmanager
def transient_bar(
    label: str, *, total: int | None = None, in_bytes: bool = False
) -> Iterator[Callable[[int, int | None], None]]:
    """Shows a bar on standard error while the context is open, if that is a terminal.

    Returns:
        A function that sets how much is done, and the total if it is not None.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn  # costs a tenth of a second

    columns = [TextColumn(label), BarColumn(), DownloadColumn()] if in_bytes else Progress.get_default_columns()
    console = terminal_console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a training at one time, and the options for showing it.

    ``epoch`` counts from 1 and is None if it is not shown; ``share`` is the completed share of the whole run;
    ``in_epoch`` is the completed and total steps of the current epoch, if they are known.
    """

    time: float
    elapsed_seconds: float
    step: int
    num_steps: int | None
    share: float | None
    shows_step: bool = True
    epoch: int | None = None
    num_epochs: int | None = None
    in_epoch: tuple[int, int] | None = None
    steps_per_second: float | None = None
    eta_seconds: float | None = None
    throughput: Mapping[str, float] | None = None
    metrics: Mapping[str, float] | None = None
    validation_batches: int | None = None
    validation_began: float = 0.0
    has_ended: bool = False


class Display(Protocol):
    """Shows progress until it is closed."""

    def show(self, progress: Progress) -> None:
        """Show this from now on; cheap, because the training waits for it."""

    def close(self) -> None:
        """Leave what was shown last, and release the terminal."""


def display_on(console: Console, progress: Progress, *, clock: Callable[[], float]) -> Display:
    """Live bars if the console can redraw them, otherwise lines."""
    return LiveBars(console, progress, clock=clock) if can_redraw(console) else Lines(console, progress)


class LiveBars:
    """Bars that are redrawn in place, with the metrics below them."""

    def __init__(self, console: Console, progress: Progress, *, clock: Callable[[], float]) -> None:
        self._progress = progress
        self._clock = clock
        self._drawn = -math.inf
        # In a notebook, a drawing thread would capture what the script prints at the same time.
        self._draws_in_show = console.is_jupyter
        self._live = Live(
            self,
            console=console,
            auto_refresh=not self._draws_in_show,
            refresh_per_second=DRAWS_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        shared = [name for name in ("stdout", "stderr") if console.is_jupyter or _is_terminal(getattr(sys, name))]
        self._streams = Streams(console, shared if console.is_jupyter or _is_terminal(console.file) else ())
        self._live.start(refresh=True)
        self._streams.redirect()

    def show(self, progress: Progress) -> None:
        """Show this from now on; the drawing thread redraws the bars."""
        self._progress = progress
        if self._draws_in_show and (progress.has_ended or progress.time - self._drawn >= 1 / DRAWS_PER_SECOND):
            self._drawn = progress.time
            self._live.refresh()

    def close(self) -> None:
        """Leave the last bars in place, and restore standard output and error."""
        try:
            with contextlib.suppress(OSError):  # the terminal is gone
                self._live.stop()
        finally:
            self._streams.restore()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        progress = self._progress
        yield _bars(progress, self._clock(), options)
        yield from _metric_lines(progress.metrics or {}, options.max_width)


class Lines:
    """A line at the start, at the end, and at intervals in between."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._printed = -math.inf
        self.show(progress)

    def show(self, progress: Progress) -> None:
        """Print a line if one is due."""
        if not progress.has_ended and progress.time - self._printed < LINE_SECONDS:
            return
        self._printed = progress.time
        parts = [] if progress.epoch is None else [f"epoch {progress.epoch}/{progress.num_epochs}"]
        if progress.shows_step:
            parts.append(_step(progress.step, progress.num_steps))
        if progress.validation_batches is not None:
            parts.append(", ".join(["validating", *_batch(progress.validation_batches)]))
        metrics = list((progress.metrics or {}).items())[:MOST_METRICS_PER_LINE]
        parts += [f"{one_line(name)} {value:.4g}" for name, value in metrics]
        eta = [] if progress.eta_seconds is None else [f"eta {format_duration(progress.eta_seconds)}"]
        parts.append(", ".join([*_rates(progress), *eta, f"{progress.elapsed_seconds:.0f} s"]))
        self._console.print("  ".join(parts), markup=False, emoji=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to release."""


def _bars(progress: Progress, now: float, options: ConsoleOptions) -> Table:
    """A row for the epochs and one for the steps, or one for both, and one for a running validation."""
    style: Any = {"no_wrap": True, "overflow": "crop" if options.ascii_only else "ellipsis"}
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(**style)
    table.add_column(width=max(8, min(40, options.max_width // 6)), **style)
    table.add_column(justify="right", min_width=4, **style)
    table.add_column(ratio=1, **style)  # gives way in a narrow terminal

    def add(label: str, share: float | None, parts: Iterable[str]) -> None:
        percent = "" if share is None else f"{int(100 * share)}%"  # rounded down: 100% means complete
        row_bar = bar(share, is_running=not progress.has_ended)
        table.add_row(Text(label), row_bar, Text(percent), Text("  ".join(parts)))

    times, rates = [], _rates(progress)
    if progress.has_ended:
        times = [f"took {format_duration(progress.elapsed_seconds)}"]
    elif progress.eta_seconds is not None:  # counted down since it was estimated
        times = [f"eta {format_duration(progress.eta_seconds - (now - progress.time))}"]
    if progress.epoch is None:
        add(_step(progress.step, progress.num_steps) if progress.shows_step else "", progress.share, times + rates)
    else:
        label = f"epoch {progress.epoch}/{progress.num_epochs}"
        if not progress.shows_step:
            add(label, progress.share, times + rates)
        else:
            all_steps = [f"{progress.step}/{progress.num_steps} steps"] if progress.in_epoch else []
            add(label, progress.share, times + all_steps)
            done, total = progress.in_epoch or (progress.step, progress.num_steps)
            add(_step(done, total), done / total if total else None, rates)
    if progress.validation_batches is not None:
        seconds = format_duration(now - progress.validation_began)
        add("validating", None, [*_batch(progress.validation_batches), seconds])
    return table


def _metric_lines(metrics: Mapping[str, float], width: int) -> list[Text]:
    """As many metrics as fit into a few lines, none broken in two."""
    lines: list[Text] = []
    for name, value in metrics.items():
        style = "bold" if math.isfinite(value) else _NOT_FINITE
        piece = Text.assemble((f"{one_line(name)} ", "dim"), (f"{value:.4g}", style))
        if lines and lines[-1].cell_len + 2 + piece.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], "  ", piece)
        elif len(lines) == MOST_METRIC_LINES:
            break
        else:
            lines.append(piece)
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    return lines


def _step(step: int, num_steps: int | None) -> str:
    return f"step {step}/{num_steps}" if num_steps else f"step {step}"


def _batch(batches: int) -> list[str]:
    return [f"batch {batches}"] if batches else []


def _rates(progress: Progress) -> list[str]:
    parts, rate = [], progress.steps_per_second
    if rate is not None:
        parts.append(f"{format_number(1 / rate)} s/step" if rate < 1 else f"{format_number(rate)} steps/s")
    for name, value in (progress.throughput or {}).items():
        unit = one_line(name.removesuffix("_per_second"))
        parts.append(f"mfu {value:.0%}" if name == "mfu" else f"{format_number(value)} {unit}/s")
    return parts


class Streams:
    """Redirects ``sys.stdout``, ``sys.stderr`` and the handlers of `logging` that hold them to above the bars.

    Rich's own redirection ends just before the bars are drawn for the last time, so output of other threads could be
    overwritten in between. Here, the owner restores the streams after the last drawing.
    """

    def __init__(self, console: Console, names: Iterable[str]) -> None:
        self._console = console
        self._before = {name: getattr(sys, name) for name in names}
        self._replaced: list[tuple[str, Any, FileProxy]] = []
        self._handlers: list[tuple[logging.StreamHandler[Any], Any, FileProxy]] = []

    def redirect(self) -> None:
        """Replace the streams, also in the handlers of `logging`."""
        for name, stream in self._before.items():
            if not isinstance(stream, FileProxy):  # otherwise other bars have redirected it already
                self._replaced.append((name, stream, FileProxy(self._console, stream)))
                setattr(sys, name, self._replaced[-1][2])
        for handler in _stream_handlers():
            for _, stream, proxy in self._replaced:
                if handler.stream is stream:
                    handler.setStream(proxy)
                    self._handlers.append((handler, stream, proxy))
                    break
        _restore_in_children()
        _in_use.add(self)

    def restore(self) -> None:
        """Restore the streams and the handlers."""
        _in_use.discard(self)
        for handler, stream, proxy in self._handlers:
            if handler.stream is proxy:
                handler.setStream(stream)
        for name, stream, proxy in self._replaced:
            if getattr(sys, name) is proxy:
                setattr(sys, name, stream)
            with contextlib.suppress(OSError, ValueError):  # the terminal is gone
                proxy.flush()
        self._handlers.clear()
        self._replaced.clear()

    def abandon(self) -> None:
        """Restore all in a forked child, without a flush: its lock may be held by a thread of the parent."""
        for handler, stream, proxy in self._handlers:
            if handler.stream is proxy:
                handler.stream = stream
        for name, stream, proxy in self._replaced:
            if getattr(sys, name) is proxy:
                setattr(sys, name, stream)


_in_use: weakref.WeakSet[Streams] = weakref.WeakSet()


@functools.cache
def _restore_in_children() -> None:
    # Cached, because a process cannot unregister it.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_abandon_all)


def _abandon_all() -> None:
    for streams in list(_in_use):
        streams.abandon()
    _in_use.clear()


def _stream_handlers() -> list[logging.StreamHandler[Any]]:
    loggers = [logging.root, *list(logging.root.manager.loggerDict.values())]
    found = [handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers]
    return [handler for handler in found if isinstance(handler, logging.StreamHandler)]


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # missing or closed
        return False

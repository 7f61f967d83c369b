"""Where a training's progress is shown: bars that are redrawn in place, or a line now and then.

Live bars leave the terminal as they found it when they are closed: the cursor is shown, and ``sys.stdout``,
``sys.stderr`` and the handlers of `logging` write where they wrote before. In between, what is written to the
same terminal through these appears above the bars. A stream that leads elsewhere (``> file``) is left alone.
A forked child (a worker of a data loader) gets the streams back, so that it never waits for a thread that it
does not have; what it prints on the terminal may be drawn over.
"""

import contextlib
import functools
import importlib.util
import logging
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text

from hookline._record.terminal import one_line

if TYPE_CHECKING:
    from hookline.callbacks.progress_bar import Progress

LINE_SECONDS = 10.0
"""How often a line is printed where there is no terminal."""

DRAWS_PER_SECOND = 5.0
METRIC_LINES = 2
"""How many lines of metrics stand below the bars."""

METRICS_IN_A_LINE = 8
"""How many metrics a line in a log file shows."""

_LOUD = "bold white on red"


class Display(Protocol):
    """Shows progress until it is closed."""

    def show(self, progress: "Progress") -> None:
        """Take note of where things stand; cheap, as the training waits for it."""

    def close(self) -> None:
        """Leave what was shown last, and give back the terminal."""


def display_on(console: Console, progress: "Progress", *, clock: Callable[[], float]) -> Display:
    """Live bars where the console can redraw them, otherwise lines."""
    if console.is_jupyter:
        is_live = importlib.util.find_spec("ipywidgets") is not None  # without it nothing can be redrawn
    else:
        is_live = console.is_terminal and console.is_interactive and not console.is_dumb_terminal
    return LiveBars(console, progress, clock=clock) if is_live else Lines(console, progress)


def standard_error() -> Console:
    """A console that falls silent when nobody reads it any more (``| head``), instead of ending the program."""

    class Patient(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True

    # A log file has no bars, whatever FORCE_COLOR says. What the script prints is no markup.
    interactive = None if _is_terminal(sys.stderr) else False
    return Patient(stderr=True, highlight=False, markup=False, emoji=False, force_interactive=interactive)


class LiveBars:
    """Bars that are redrawn in place, with a line for a validation under way and the metrics below."""

    def __init__(self, console: Console, progress: "Progress", *, clock: Callable[[], float]) -> None:
        self._progress = progress
        self._clock = clock
        self._drawn = -math.inf
        # In a notebook a thread that draws would take with it what the script prints at the same time.
        self._draws_itself = console.is_jupyter
        shares_terminal = console.is_jupyter or _is_terminal(console.file)
        self._live = Live(
            self,
            console=console,
            auto_refresh=not self._draws_itself,
            refresh_per_second=DRAWS_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        shared = [name for name in ("stdout", "stderr") if console.is_jupyter or _is_terminal(getattr(sys, name))]
        self._streams = Streams(console, shared if shares_terminal else ())
        self._live.start(refresh=True)
        self._streams.redirect()

    def show(self, progress: "Progress") -> None:
        """Let the bars say this from now on."""
        self._progress = progress
        if self._draws_itself and (progress.has_ended or progress.time - self._drawn >= 1 / DRAWS_PER_SECOND):
            self._drawn = progress.time
            self._live.refresh()

    def close(self) -> None:
        """Leave the last bars where they are, and give standard output and error back."""
        try:
            with contextlib.suppress(OSError):  # the terminal is gone
                self._live.stop()
        finally:
            self._streams.restore()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now, progress = self._clock(), self._progress
        yield _bars(progress, now, options)
        yield from _metric_lines(progress.metrics or {}, options.max_width)


class Lines:
    """A line at the start, at the end, and now and then in between."""

    def __init__(self, console: Console, progress: "Progress") -> None:
        self._console = console
        self._printed = -math.inf
        self.show(progress)

    def show(self, progress: "Progress") -> None:
        """Print a line, if it is time for one."""
        if progress.has_ended or progress.time - self._printed >= LINE_SECONDS:
            self._printed = progress.time
            line = "  ".join(_words(progress))
            self._console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing is held."""


def _words(progress: "Progress") -> list[str]:
    """All that a line says."""
    words = [] if progress.epoch is None else [f"epoch {progress.epoch}/{progress.num_epochs}"]
    if progress.shows_step:
        words.append(_step(progress.step, progress.num_steps))
    if progress.validation_batches is not None:
        words.append(", ".join(["validating", *_batch(progress.validation_batches)]))
    metrics = list((progress.metrics or {}).items())[:METRICS_IN_A_LINE]
    words += [f"{one_line(name)} {value:.4g}" for name, value in metrics]
    eta = [] if progress.eta_seconds is None else [f"eta {clock_face(progress.eta_seconds)}"]
    return [*words, ", ".join([*_speeds(progress), *eta, f"{progress.elapsed_seconds:.0f} s"])]


def _bars(progress: "Progress", now: float, options: ConsoleOptions) -> Table:
    """A row for the epochs and one for the steps, or one for both, and one for a validation."""
    table = _grid(options)
    times, speeds = _times(progress, now), _speeds(progress)
    if progress.epoch is None:
        label = _step(progress.step, progress.num_steps) if progress.shows_step else ""
        _add(table, label, progress.share, times + speeds, progress)
    else:
        words = times + (_all_steps(progress) if progress.shows_step else speeds)
        _add(table, f"epoch {progress.epoch}/{progress.num_epochs}", progress.share, words, progress)
        if progress.shows_step:
            done, total = progress.in_epoch or (progress.step, progress.num_steps)
            _add(table, _step(done, total), done / total if total else None, speeds, progress)
    if progress.validation_batches is not None:
        seconds = clock_face(now - progress.validation_began)
        _add(table, "validating", None, [*_batch(progress.validation_batches), seconds], progress)
    return table


def _grid(options: ConsoleOptions) -> Table:
    """Columns for a label, a bar, a percentage, and the rest, which gives way in a narrow terminal."""
    how: Any = {"no_wrap": True, "overflow": "crop" if options.ascii_only else "ellipsis"}
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(**how)
    table.add_column(width=max(8, min(40, options.max_width // 6)), **how)
    table.add_column(justify="right", min_width=4, **how)
    table.add_column(ratio=1, **how)
    return table


def _add(table: Table, label: str, share: float | None, words: Iterable[str], progress: "Progress") -> None:
    """A row with a bar; where the share is not known, one that moves until the training has ended."""
    total = None if share is None and not progress.has_ended else 1.0
    percent = "" if share is None else f"{int(100 * share)}%"  # rounded down: 100% is all of it
    table.add_row(Text(label), Bar(total=total, completed=share or 0.0), Text(percent), Text("  ".join(words)))


def _metric_lines(metrics: Mapping[str, float], width: int) -> list[Text]:
    """Metrics side by side, as many as the lines hold; none is broken in two."""
    lines: list[Text] = []
    for name, value in metrics.items():
        style = "bold" if math.isfinite(value) else _LOUD
        piece = Text.assemble((f"{one_line(name)} ", "dim"), (f"{value:.4g}", style))
        if lines and lines[-1].cell_len + 2 + piece.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], "  ", piece)
        elif len(lines) == METRIC_LINES:
            break
        else:
            lines.append(piece)
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    return lines


def _step(step: int, num_steps: int | None) -> str:
    return f"step {step}/{num_steps}" if num_steps else f"step {step}"


def _batch(batches: int) -> list[str]:
    """The batches that are done, once one is."""
    return [f"batch {batches}"] if batches else []


def _all_steps(progress: "Progress") -> list[str]:
    """The steps of the whole run, beside a bar of one epoch's."""
    return [f"{progress.step}/{progress.num_steps} steps"] if progress.in_epoch else []


def _times(progress: "Progress", now: float) -> list[str]:
    """What is left, counted down since it was known; at the end what it took."""
    if progress.has_ended:
        return [f"took {clock_face(progress.elapsed_seconds)}"]
    if progress.eta_seconds is None:
        return []
    return [f"eta {clock_face(progress.eta_seconds - (now - progress.time))}"]


def _speeds(progress: "Progress") -> list[str]:
    throughput = dict(progress.throughput or {})
    mfu = throughput.pop("mfu", None)
    words = [] if progress.steps_per_second is None else [_rate(progress.steps_per_second)]
    words += [
        f"{abbreviated(value)} {one_line(name.removesuffix('_per_second'))}/s" for name, value in throughput.items()
    ]
    return words if mfu is None else [*words, f"mfu {mfu:.0%}"]


def _rate(steps_per_second: float) -> str:
    if steps_per_second < 1:
        return f"{abbreviated(1 / steps_per_second)} s/step"
    return f"{abbreviated(steps_per_second)} steps/s"


def abbreviated(number: float) -> str:
    """Three digits and a unit.

    >>> abbreviated(2.5), abbreviated(999.7), abbreviated(1_234_567)
    ('2.5', '1k', '1.23M')
    """
    units = iter("kMGTP")
    unit = ""
    while number >= 999.5 and (larger := next(units, "")):
        number, unit = number / 1000, larger
    return f"{number:.3g}{unit}"


def clock_face(seconds: float) -> str:
    """A duration as a clock shows it.

    >>> clock_face(35.4), clock_face(3725), clock_face(90_061)
    ('0:35', '1:02:05', '1d 01:01:01')
    """
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


class Streams:
    """What stands in for ``sys.stdout`` and ``sys.stderr``, and for the handlers that hold on to these.

    Live bars of rich give the streams back a moment before they are drawn for the last time: what another thread writes
    in that moment is drawn over. So the streams are given back here, behind that.
    """

    def __init__(self, console: Console, names: Iterable[str]) -> None:
        self._console = console
        self._before = {name: getattr(sys, name) for name in names}
        self._replaced: list[tuple[str, Any, FileProxy]] = []
        self._handlers: list[tuple[logging.StreamHandler[Any], Any, FileProxy]] = []

    def redirect(self) -> None:
        """Put those in place, and lead the handlers of `logging` to them."""
        for name, stream in self._before.items():
            if not isinstance(stream, FileProxy):  # of other bars, which are drawn around these
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
        """Put the streams back, and lead the handlers to them."""
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
        """Put all back in a forked child, without a flush: that takes a lock, which a thread left behind may hold."""
        for handler, stream, proxy in self._handlers:
            if handler.stream is proxy:
                handler.stream = stream
        for name, stream, proxy in self._replaced:
            if getattr(sys, name) is proxy:
                setattr(sys, name, stream)


_in_use: weakref.WeakSet[Streams] = weakref.WeakSet()


@functools.cache
def _restore_in_children() -> None:
    """Once in a process, as it cannot be taken back."""
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
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False

"""Shows how far training is: a live bar in a terminal or notebook, plain lines in a log file."""

import time
from typing import Any

from hookline.core.callback import Callback
from hookline.core.errors import OptionError
from hookline.core.metrics import readable
from hookline.core.registry import register
from hookline.core.state import LoopArtifacts, LoopState
from hookline.core.subscriber import WRITER_PRIORITY

LINE_SECONDS = 10.0
"""How often a line is printed where there is no terminal."""


@register("progress_bar")
class ProgressBar(Callback):
    """A bar with step, epoch, time left, steps per second and the latest metrics.

    Args:
        refresh_rate: Update every so many steps.
        console: A `rich.console.Console` to draw on; standard error by default.
    """

    priority = WRITER_PRIORITY
    ranks = "zero"

    def __init__(
        self,
        refresh_rate: int = 10,
        show_epoch: bool = True,
        show_step: bool = True,
        show_metrics: bool = True,
        *,
        console: Any = None,
    ) -> None:
        if isinstance(refresh_rate, bool) or not isinstance(refresh_rate, int) or refresh_rate < 1:
            raise OptionError(f"refresh_rate={refresh_rate!r}: give a whole number of steps, at least 1.")
        self.refresh_rate = refresh_rate
        self.show_epoch = show_epoch
        self.show_step = show_step
        self.show_metrics = show_metrics
        self.console = console
        self.configure(every=refresh_rate)
        self._display: _Bar | _Lines | None = None
        self._seen: dict[str, Any] = {}  # the last that came from the device, which a bar does not wait for

    def on_train_start(self, loop: LoopState, /) -> None:
        console = self.console or _standard_error()
        live = console.is_terminal or console.is_jupyter
        self._display = _Bar(console) if live else _Lines(console)
        self._display.show(loop, self._describe(loop))

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        if self._display is not None:
            self._display.show(loop, self._describe(loop))

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        if self._display is not None:
            self._display.show(loop, self._describe(loop), last=True)
        self.close()

    def close(self) -> None:
        if self._display is not None:
            self._display.close()
            self._display = None

    def _describe(self, loop: LoopState) -> str:
        parts = []
        if self.show_epoch and loop.num_epochs and loop.num_epochs > 1:
            parts.append(f"epoch {loop.epoch + 1}/{loop.num_epochs}")
        if self.show_step:
            parts.append(f"step {loop.step}" + (f"/{loop.num_steps}" if loop.num_steps else ""))
        if self.show_metrics:
            self._seen |= readable(loop.metrics)
            numbers = [(k, v) for k, v in self._seen.items() if isinstance(v, int | float) and "hooks/" not in k]
            parts += [f"{name} {value:.4g}" for name, value in numbers[:5]]
        return "  ".join(parts)


def _standard_error() -> Any:
    """A console that falls silent when nobody reads it any more (``| head``), instead of ending the program."""
    from rich.console import Console

    class Patient(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True

    return Patient(stderr=True, highlight=False)


class _Bar:
    """A live bar."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        text = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # the text gives way, not the bar
        self._progress = Progress(
            BarColumn(bar_width=12, table_column=Column(no_wrap=True, width=12)),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.description}", table_column=text, markup=False),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task("", total=None, rate="")
        self._progress.start()

    def show(self, loop: LoopState, text: str, *, last: bool = False) -> None:
        task = self._progress.tasks[0]
        rate = f"{loop.step / task.elapsed:.1f} steps/s" if task.elapsed and loop.step else ""
        self._progress.update(self._task, completed=loop.step, total=loop.num_steps, description=text, rate=rate)

    def close(self) -> None:
        self._progress.stop()


class _Lines:
    """A line now and then, for log files."""

    def __init__(self, console: Any) -> None:
        self._console = console
        self._began = self._printed = time.monotonic()
        self._first = True

    def show(self, loop: LoopState, text: str, *, last: bool = False) -> None:
        now = time.monotonic()
        if self._first or last or now - self._printed >= LINE_SECONDS:
            self._first, self._printed = False, now
            self._console.print(f"{text}  {now - self._began:.0f} s", markup=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing is held."""

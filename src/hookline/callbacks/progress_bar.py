"""Shows the progress of a training: live bars in a terminal or notebook, plain lines in a log file.

The training thread only updates the figures, every ``refresh_rate`` steps; in a terminal, the display's thread draws
them a few times per second. Nothing waits for a device before the end: a metric shows its latest value that has
arrived. Losses come first, so they are visible however many metrics there are. Rates are those of this session, over
the recent past and without validations. `hookline.callbacks.progress_display` does the drawing.
"""

import math
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hookline._engine.checks import require_integer
from hookline._engine.metrics import Deferred
from hookline._engine.moments import Callback
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState, ManifestRow
from hookline._engine.subscriber import WRITER_PRIORITY

if TYPE_CHECKING:
    from hookline.callbacks.progress_display import Display, Progress

MARKS = 20
"""The number of updates that the rate is averaged over."""
MARK_SECONDS = 1.0
"""The minimum time between two updates that count for the rate."""

_THROUGHPUT = "throughput/"
_HIDDEN = ("hooks/", _THROUGHPUT)


@register("progress_bar")
class ProgressBar(Callback):
    """Shows epoch, step, remaining time, steps per second, throughput and the latest metrics.

    With several epochs there are two bars: one for the epochs and one for the steps of the current epoch, or for all
    steps if the length of an epoch is unknown. A third bar appears while a validation runs.

    Args:
        refresh_rate: Update every N steps, and every N batches of a validation.
        show_epoch: Show the epochs, if there are several.
        show_step: Show the number of steps.
        show_metrics: Show the latest metrics, and samples or tokens per second if `ThroughputMonitor` logs them.
        console: A `rich.console.Console` to draw on; standard error by default.
        clock: Returns seconds, for tests.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.refresh_rate = require_integer("refresh_rate", refresh_rate)
        self.show_epoch = show_epoch
        self.show_step = show_step
        self.show_metrics = show_metrics
        self.console = console
        self.configure(every=refresh_rate)
        self._clock = clock
        self._display: Display | None = None
        self._reset(0)

    def _reset(self, step: int) -> None:
        self._pace = Pace(step, self._clock)
        self._has_equal_epochs = True
        self._seen: dict[str, Any] = {}  # the latest values that have arrived from the device
        self._pending: dict[str, Deferred] = {}
        self._validation: tuple[int, float] | None = None  # the completed batches, and when it began

    def on_train_start(self, loop: LoopState, /) -> None:
        from hookline.callbacks.progress_display import display_on, standard_error

        self.close()
        self._reset(loop.step)
        self._display = display_on(self.console or standard_error(), self._progress(loop), clock=self._clock)

    def on_checkpoint_load(self, loop: LoopState, row: ManifestRow, /) -> None:
        self._pace.restart(loop.step)
        self._show(loop)

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        if self._display is None:  # added while training
            self.on_train_start(loop)
        self._validation = None  # left by a validation that failed
        self._pace.mark(loop.step)
        self._has_equal_epochs = self._has_equal_epochs and self._steps_in_epoch(loop) is not None
        self._show(loop)

    def on_validation_start(self, loop: LoopState, /) -> None:
        self._pace.pause()
        self._validation = (0, self._clock())
        self._show(loop)

    def on_validation_batch_end(self, loop: LoopState, outputs: Any, batch: Any, batch_idx: int, /) -> None:
        if self._validation is not None:
            self._validation = (batch_idx + 1, self._validation[1])
            self._show(loop)

    def on_validation_end(self, loop: LoopState, /) -> None:
        self._pace.resume()
        self._validation = None
        self._show(loop)

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        self._read_metrics(loop.metrics, wait=True)
        self._end(loop, is_complete=not loop.stop_requested)

    def on_exception(self, loop: LoopState, error: BaseException, /) -> None:
        self._end(loop, is_complete=False)

    def _end(self, loop: LoopState, *, is_complete: bool) -> None:
        self._validation = None
        self._pace.mark(loop.step)
        try:
            self._show(loop, has_ended=True, is_complete=is_complete)
        finally:
            self.close()

    def close(self) -> None:
        display, self._display = self._display, None
        if display is not None:
            display.close()

    def _show(self, loop: LoopState, *, has_ended: bool = False, is_complete: bool = False) -> None:
        if self._display is not None:
            self._display.show(self._progress(loop, has_ended=has_ended, is_complete=is_complete))

    def _progress(self, loop: LoopState, *, has_ended: bool = False, is_complete: bool = False) -> "Progress":
        from hookline.callbacks.progress_display import Progress

        shows_epoch = bool(self.show_epoch and loop.num_epochs and loop.num_epochs > 1)
        num_steps = loop.num_steps
        batches, began = self._validation or (None, 0.0)
        self._read_metrics(loop.metrics)
        return Progress(
            time=self._clock(),
            elapsed_seconds=self._pace.elapsed_seconds,
            step=loop.step,
            num_steps=num_steps,
            share=_share(loop, is_complete=is_complete),
            shows_step=self.show_step,
            epoch=loop.epoch + 1 if shows_epoch else None,
            num_epochs=loop.num_epochs if shows_epoch else None,
            in_epoch=self._steps_in_epoch(loop) if shows_epoch else None,
            steps_per_second=self._pace.steps_per_second,
            eta_seconds=None if has_ended or not num_steps else self._pace.seconds_for(num_steps - loop.step),
            throughput=_throughput(self._seen),
            metrics=_numbers(self._seen),
            validation_batches=batches,
            validation_began=began,
            has_ended=has_ended,
        )

    def _steps_in_epoch(self, loop: LoopState) -> tuple[int, int] | None:
        """The completed and total steps of the epoch: an equal share of all steps, unless that was seen to be wrong.

        A plan that is cut short (``total=``) has longer epochs than that.
        """
        if not self._has_equal_epochs or not loop.num_steps or not loop.num_epochs or loop.num_steps % loop.num_epochs:
            return None
        length = loop.num_steps // loop.num_epochs
        done = loop.step - loop.epoch * length
        return (done, length) if 0 <= done <= length else None

    def _read_metrics(self, metrics: Mapping[str, Any], *, wait: bool = False) -> None:
        if not self.show_metrics:
            return
        # A pending value is kept until it arrives, even if newer ones follow: if the device lags behind, the newest
        # value is never ready when this runs.
        for name, value in list(self._pending.items()):
            if value.source.ready():
                self._seen[name] = self._pending.pop(name).get()
        for name, value in list(dict.items(metrics) if isinstance(metrics, dict) else metrics.items()):
            if type(value) is Deferred and not wait and not value.source.ready():
                self._pending.setdefault(name, value)
            else:
                self._seen[name] = value.get() if type(value) is Deferred else value


class _Mark(NamedTuple):
    step: int
    seconds: float


class Pace:
    """Measures the speed of this session over the last updates, without pauses.

    The time to the first update, which may include compilation, counts only until there is a second one.

    Args:
        step: The completed steps at the start of the session.
        clock: Returns seconds.
    """

    def __init__(self, step: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._paused_at: float | None = None
        self._paused = 0.0
        self._recurring_pauses = 0.0  # those after the first step, which will recur in the remaining steps
        self.restart(step)

    @property
    def elapsed_seconds(self) -> float:
        """The time since the session began."""
        return self._clock() - self._began

    @property
    def training_seconds(self) -> float:
        """The time since the session began, without pauses."""
        now = self._clock() if self._paused_at is None else self._paused_at
        return now - self._began - self._paused

    def restart(self, step: int) -> None:
        """Start measuring at this step: earlier ones are not this session's."""
        self._start = _Mark(step, self.training_seconds)
        self._marks = deque([self._start], maxlen=MARKS + 1)

    def mark(self, step: int) -> None:
        """Note how many steps are complete now."""
        self.resume()
        if step < self._marks[-1].step:
            self.restart(step)
        if step == self._marks[-1].step:
            return
        mark = _Mark(step, self.training_seconds)
        if len(self._marks) > 1 and mark.seconds - self._marks[-2].seconds < MARK_SECONDS:
            self._marks[-1] = mark
        else:
            self._marks.append(mark)

    def pause(self) -> None:
        """Stop the clock for a validation."""
        if self._paused_at is None:
            self._paused_at = self._clock()

    def resume(self) -> None:
        """Restart the clock after a validation."""
        if self._paused_at is not None:
            seconds, self._paused_at = self._clock() - self._paused_at, None
            self._paused += seconds
            self._recurring_pauses += seconds if len(self._marks) > 1 else 0.0

    @property
    def steps_per_second(self) -> float | None:
        """The rate; None until it is known."""
        first, last = self._marks[0], self._marks[-1]
        if first is self._start and len(self._marks) > 2 and last.seconds - self._marks[1].seconds >= MARK_SECONDS:
            first = self._marks[1]
        steps, seconds = last.step - first.step, last.seconds - first.seconds
        return steps / seconds if steps > 0 and seconds > 0 else None

    def seconds_for(self, steps: int) -> float | None:
        """The estimated time for more steps, with validations as frequent as so far."""
        rate, trained = self.steps_per_second, self.training_seconds - self._start.seconds
        if rate is None or trained <= 0:
            return None
        return max(0, steps) / rate * (1 + self._recurring_pauses / trained)


def _share(loop: LoopState, *, is_complete: bool) -> float | None:
    """The completed share of the run, by steps or else by epochs."""
    if loop.num_steps:
        return min(1.0, max(0.0, loop.step / loop.num_steps))
    if not loop.num_epochs or loop.num_epochs == 1:
        return None
    return 1.0 if is_complete else min(1.0, loop.epoch / loop.num_epochs)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers to show, with losses first, because there may be more than there is room for."""
    rank = {name: 0 if name == "loss" else 1 if re.search(r"(^|[/_])loss$", name) else 2 for name in metrics}
    return {
        name: metrics[name]
        for name in sorted(metrics, key=rank.__getitem__)
        if isinstance(metrics[name], int | float) and not name.startswith(_HIDDEN) and "/hooks/" not in name
    }


def _throughput(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of `ThroughputMonitor`: tokens per second, or samples if there are no tokens, and the MFU."""
    found = {name: metrics.get(f"{_THROUGHPUT}{name}") for name in ("tokens_per_second", "samples_per_second", "mfu")}
    known = {k: v for k, v in found.items() if isinstance(v, int | float) and math.isfinite(v)}
    if "tokens_per_second" in known:
        known.pop("samples_per_second", None)
    return known

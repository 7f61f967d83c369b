"""Shows how far training is: live bars in a terminal or notebook, plain lines in a log file.

The training thread only notes where things stand, every ``refresh_rate`` steps; in a terminal a thread of
the display draws it a few times a second. Nothing waits for a device before the end: of a metric that is still on its
way the latest value that has arrived is shown. Losses come first, so they are shown however many metrics there are.
Rates are those of this session, over the recent past and without validations.
"""

import math
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hookline._engine.errors import OptionError
from hookline._engine.metrics import Deferred
from hookline._engine.moments import Callback
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState, ManifestRow
from hookline._engine.subscriber import WRITER_PRIORITY

if TYPE_CHECKING:
    from hookline.callbacks.progress_display import Display

MARKS = 20
"""Over how many updates the rate is taken."""

MARK_SECONDS = 1.0
"""How much time lies at least between two updates that count for the rate."""

_THROUGHPUT = "throughput/"
_HIDDEN = ("hooks/", _THROUGHPUT)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a training stands at one time, and which of it is to be shown.

    ``epoch`` counts from 1 and is None where it is not shown; ``share`` is that of the whole run; ``in_epoch`` is
    the steps done in this epoch and how many it has, where that is known.
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


@register("progress_bar")
class ProgressBar(Callback):
    """Bars with epoch, step, time left, steps per second, throughput and the latest metrics.

    With several epochs there are two bars, one of the epochs and one of the steps of the current epoch; where
    the length of an epoch is not known, the second is one of all steps. While a validation runs, a line says so.

    Args:
        refresh_rate: Update every so many steps, and every so many batches of a validation.
        show_epoch: Show the epochs, where there are several.
        show_step: Show the number of steps.
        show_metrics: Show the latest metrics, and samples or tokens per second where `ThroughputMonitor` logs them.
        console: A `rich.console.Console` to draw on; standard error by default.
        clock: Seconds, for tests.
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
        if isinstance(refresh_rate, bool) or not isinstance(refresh_rate, int) or refresh_rate < 1:
            raise OptionError(f"refresh_rate={refresh_rate!r}: give a whole number of steps, at least 1.")
        self.refresh_rate = refresh_rate
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
        self._epochs = Epochs()
        self._seen: dict[str, Any] = {}  # the last that came from the device, which a bar does not wait for
        self._arriving: dict[str, Deferred] = {}
        self._validation: tuple[int, float] | None = None  # the batches done, and when it began

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
        self._validation = None  # one that was broken off
        self._pace.mark(loop.step)
        self._epochs.look(loop)
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
        self._pace.go_on()
        self._validation = None
        self._show(loop)

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        self._look_at(loop.metrics, wait=True)
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

    def _progress(self, loop: LoopState, *, has_ended: bool = False, is_complete: bool = False) -> Progress:
        shows_epoch = bool(self.show_epoch and loop.num_epochs and loop.num_epochs > 1)
        num_steps = loop.num_steps
        batches, began = self._validation or (None, 0.0)
        self._look_at(loop.metrics)
        return Progress(
            time=self._clock(),
            elapsed_seconds=self._pace.elapsed_seconds,
            step=loop.step,
            num_steps=num_steps,
            share=_share(loop, is_complete=is_complete),
            shows_step=self.show_step,
            epoch=loop.epoch + 1 if shows_epoch else None,
            num_epochs=loop.num_epochs if shows_epoch else None,
            in_epoch=self._epochs.steps(loop) if shows_epoch else None,
            steps_per_second=self._pace.steps_per_second,
            eta_seconds=None if has_ended or not num_steps else self._pace.seconds_for(num_steps - loop.step),
            throughput=_throughput(self._seen),
            metrics=_numbers(self._seen),
            validation_batches=batches,
            validation_began=began,
            has_ended=has_ended,
        )

    def _look_at(self, metrics: Mapping[str, Any], *, wait: bool = False) -> None:
        """Take note of the values that have arrived.

        A value on its way is kept until it arrives, whatever comes after it: where the device lags behind, the latest
        value is never there when it is looked at.
        """
        if not self.show_metrics:
            return
        for name, value in list(self._arriving.items()):
            if value.source.ready():
                self._seen[name] = self._arriving.pop(name).get()
        for name, value in list(dict.items(metrics) if isinstance(metrics, dict) else metrics.items()):
            if type(value) is Deferred and not wait and not value.source.ready():
                self._arriving.setdefault(name, value)
            else:
                self._seen[name] = value.get() if type(value) is Deferred else value


class _Mark(NamedTuple):
    step: int
    seconds: float


class Pace:
    """How fast training is in this session: by the time spent training, over the last updates.

    The stretch to the first update, in which things are compiled, counts only until there is another.

    Args:
        step: The completed steps that this session begins with.
        clock: Seconds.
    """

    def __init__(self, step: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._paused_at: float | None = None
        self._paused = 0.0
        self._between_steps = 0.0  # of the pauses those after the first step, which more of the same will follow
        self.restart(step)

    @property
    def elapsed_seconds(self) -> float:
        """The time since the session began."""
        return self._clock() - self._began

    @property
    def training_seconds(self) -> float:
        """The same without the pauses."""
        now = self._clock() if self._paused_at is None else self._paused_at
        return now - self._began - self._paused

    def restart(self, step: int) -> None:
        """Count from here on: the steps before are not this session's."""
        self._start = _Mark(step, self.training_seconds)
        self._marks = deque([self._start], maxlen=MARKS + 1)

    def mark(self, step: int) -> None:
        """Note that so many steps are complete now."""
        self.go_on()
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
        """A validation begins."""
        if self._paused_at is None:
            self._paused_at = self._clock()

    def go_on(self) -> None:
        """It is over."""
        if self._paused_at is not None:
            seconds, self._paused_at = self._clock() - self._paused_at, None
            self._paused += seconds
            self._between_steps += seconds if len(self._marks) > 1 else 0.0

    @property
    def steps_per_second(self) -> float | None:
        """The rate, once there is one."""
        first, last = self._marks[0], self._marks[-1]
        if first is self._start and len(self._marks) > 2 and last.seconds - self._marks[1].seconds >= MARK_SECONDS:
            first = self._marks[1]
        steps, seconds = last.step - first.step, last.seconds - first.seconds
        return steps / seconds if steps > 0 and seconds > 0 else None

    def seconds_for(self, steps: int) -> float | None:
        """How long so many more steps will take, with validations that take their share as before."""
        rate, trained = self.steps_per_second, self.training_seconds - self._start.seconds
        if rate is None or trained <= 0:
            return None
        return max(0, steps) / rate * (1 + self._between_steps / trained)


class Epochs:
    """How many steps an epoch has: an equal part of all steps, unless the loop is seen to have other epochs."""

    def __init__(self) -> None:
        self._are_equal = True

    def look(self, loop: LoopState) -> None:
        """Compare with where the loop is after a step: a plan that is cut off (``total=``) has longer epochs."""
        done = self.steps(loop)
        self._are_equal = self._are_equal and done is not None

    def steps(self, loop: LoopState) -> tuple[int, int] | None:
        """The steps done in this epoch and how many it has, where that is known."""
        length = _equal_part(loop) if self._are_equal else None
        done = loop.step - loop.epoch * (length or 0)
        return (done, length) if length and 0 <= done <= length else None


def _equal_part(loop: LoopState) -> int | None:
    if not loop.num_steps or not loop.num_epochs or loop.num_steps % loop.num_epochs:
        return None
    return loop.num_steps // loop.num_epochs


def _share(loop: LoopState, *, is_complete: bool) -> float | None:
    """The share of the run that is done: of its steps, or else of its epochs."""
    if loop.num_steps:
        return min(1.0, max(0.0, loop.step / loop.num_steps))
    if not loop.num_epochs or loop.num_epochs == 1:
        return None
    return 1.0 if is_complete else min(1.0, loop.epoch / loop.num_epochs)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers to show, with losses first: there may be more than there is room for."""
    return {
        name: metrics[name]
        for name in sorted(metrics, key=_rank_of_loss)
        if isinstance(metrics[name], int | float) and not name.startswith(_HIDDEN) and "/hooks/" not in name
    }


def _rank_of_loss(name: str) -> int:
    return 0 if name == "loss" else 1 if re.search(r"(^|[/_])loss$", name) else 2


def _throughput(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What `ThroughputMonitor` logs beside the steps: tokens per second or, where it knows none, samples; the MFU."""
    found = {name: metrics.get(f"{_THROUGHPUT}{name}") for name in ("tokens_per_second", "samples_per_second", "mfu")}
    known = {k: v for k, v in found.items() if isinstance(v, int | float) and math.isfinite(v)}
    if "tokens_per_second" in known:
        known.pop("samples_per_second", None)
    return known

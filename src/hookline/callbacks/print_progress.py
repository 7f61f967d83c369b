"""Prints a plain line to standard output every N steps, without a terminal, colours or rich."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from hookline._engine.errors import OptionError
from hookline._engine.metrics import find_metric, readable
from hookline._engine.moments import Callback
from hookline._engine.registry import register
from hookline._engine.schedules import Schedule
from hookline._engine.state import LoopArtifacts, LoopState
from hookline._engine.subscriber import WRITER_PRIORITY
from hookline._record.terminal import one_line

MOST_METRICS = 6
"""How many metrics a line shows by default."""


@register("print_progress")
class PrintProgress(Callback):
    """Prints step, epoch, metrics and steps per second: ``step 20/100  loss 0.5123  3.1 steps/s``.

    A value that is still on a device is not waited for; the line shows the previous one.

    Args:
        every: Print every N steps, or by a schedule; the last step is always printed.
        metrics: The names to show; by default the first few numbers that were logged.
    """

    priority = WRITER_PRIORITY
    ranks = "zero"

    def __init__(
        self,
        every: int | Schedule = 10,
        metrics: Iterable[str] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if isinstance(metrics, str):
            raise OptionError(f"metrics={metrics!r}: give a list of names.")
        self.metrics = None if metrics is None else tuple(metrics)
        self.configure(every=every)
        self._clock = clock
        self._seen: dict[str, Any] = {}
        self._previous: tuple[int, float] | None = None  # the step and the time of the previous line

    def on_train_start(self, loop: LoopState, /) -> None:
        self._seen = {}
        self._previous = (loop.step, self._clock())

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        self._print(loop)

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        if self._previous is None or loop.step != self._previous[0]:
            self._print(loop)
        if artifacts.stop_reason is not None:
            _write(f"stopped after step {loop.step}: {artifacts.stop_reason}")

    def _print(self, loop: LoopState) -> None:
        self._seen |= readable(loop.metrics)
        parts = [f"step {loop.step}" + (f"/{loop.num_steps}" if loop.num_steps else "")]
        if loop.num_epochs and loop.num_epochs > 1:
            parts.append(f"epoch {loop.epoch + 1}/{loop.num_epochs}")
        if self.metrics is None:
            found = [(name, value) for name, value in self._seen.items() if not name.startswith("hooks/")]
        else:
            found = [(name, find_metric(self._seen, name)) for name in self.metrics]
        shown = [f"{name} {value:.4g}" for name, value in found if isinstance(value, int | float)]
        parts += shown if self.metrics is not None else shown[:MOST_METRICS]
        now = self._clock()
        previous_step, previous_time = self._previous or (loop.step, now)  # None if it was added while training
        steps, seconds = loop.step - previous_step, now - previous_time
        self._previous = (loop.step, now)
        if steps > 0 and seconds > 0:
            parts.append(f"{steps / seconds:.3g} steps/s")
        _write("  ".join(parts))


def _write(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the reader has ended (``| head``)
        sys.stdout.write(f"{one_line(line)}\n")
        sys.stdout.flush()

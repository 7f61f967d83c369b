"""Prints a plain line on standard output every so many steps: no terminal, colours or packages needed."""

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

SHOWN = 6
"""How many metrics a line shows where nobody says which."""


@register("print_progress")
class PrintProgress(Callback):
    """Prints step, epoch, metrics and steps per second: ``step 20/100  loss 0.5123  3.1 steps/s``.

    A value that is still on its way from a device is not waited for; the line shows the one before.

    Args:
        every: Print every so many steps, or as a schedule says; the last step is always printed.
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
        self._before: tuple[int, float] | None = None  # the step and the time of the line before

    def on_train_start(self, loop: LoopState, /) -> None:
        self._seen = {}
        self._before = (loop.step, self._clock())

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        self._print(loop)

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        if self._before is None or loop.step != self._before[0]:
            self._print(loop)
        if artifacts.stop_reason is not None:
            _write(f"stopped after step {loop.step}: {artifacts.stop_reason}")

    def _print(self, loop: LoopState) -> None:
        self._seen |= readable(loop.metrics)
        parts = [f"step {loop.step}" + (f"/{loop.num_steps}" if loop.num_steps else "")]
        if loop.num_epochs and loop.num_epochs > 1:
            parts.append(f"epoch {loop.epoch + 1}/{loop.num_epochs}")
        parts += [f"{name} {value:.4g}" for name, value in self._shown()]
        _write("  ".join([*parts, *self._rate(loop.step)]))

    def _shown(self) -> list[tuple[str, float]]:
        if self.metrics is None:
            found = [(name, value) for name, value in self._seen.items() if not name.startswith("hooks/")]
        else:
            found = [(name, find_metric(self._seen, name)) for name in self.metrics]
        numbers = [(name, value) for name, value in found if isinstance(value, int | float)]
        return numbers if self.metrics is not None else numbers[:SHOWN]

    def _rate(self, step: int) -> list[str]:
        now = self._clock()
        before_step, before_time = self._before or (step, now)  # none where it was added while training
        steps, seconds = step - before_step, now - before_time
        self._before = (step, now)
        return [f"{steps / seconds:.3g} steps/s"] if steps > 0 and seconds > 0 else []


def _write(line: str) -> None:
    """Print a line, unless nobody reads any more (``| head``)."""
    try:
        sys.stdout.write(f"{one_line(line)}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        return

"""The steps of a loop: when one begins and ends, which number it has, and when its row of metrics is written.

Every loop begins and ends its steps in `StepLifecycle`, so a step means the same in each: `on_step_start` with the row
open, `on_step_end` with the step counted and the row still open, then the row is written and `on_log` fires. A row is
always written at its own step's number, also when a subscriber raises in between.

`LoggedSteps` counts the steps of a bare loop that does not use ``run.steps``. Each ``log()`` completes a step, or, once
the loop calls it, each ``step_end()``. Rows are numbered by the index of their step (0, 1, 2), as in other trackers.
There is a loop once a name is logged again or ``step_end`` is called. Until then, rows may be facts logged before
``run.steps``, so they count as no step. Rows with ``step=`` are recorded there and count nothing. Processes agree on
nothing here: a rank may log where the others do not.
"""

import logging
import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from hookline._engine.errors import OptionError
from hookline._engine.metrics import MetricsRow
from hookline._record.recorder import checked_step
from hookline.loops.signals import is_signal

if TYPE_CHECKING:
    from hookline.loops.loop import Loop
    from hookline.loops.run import Run

logger = logging.getLogger("hookline")

Commit = Callable[[int, MetricsRow], None]
"""Writes a row at a step and fires `on_log`."""
Boundary = Literal["unknown", "log", "step_end", "rows"]
"""What completes a step; ``rows``: the loop numbers its steps itself, with ``step=``."""


class StepLifecycle:
    """The step in progress of a loop, if there is one.

    Attributes:
        row: The metrics of the step, from `begin` until they are written.
        is_open: Whether a step has begun that ``loop.step`` does not count yet.
    """

    __slots__ = ("_loop", "is_open", "row")

    def __init__(self, loop: "Loop") -> None:
        self._loop = loop
        self.row: MetricsRow | None = None
        self.is_open = False

    def begin(self) -> MetricsRow:
        """Open the row, fire `on_step_start`, and return the row."""
        row = self.row = MetricsRow()
        # Row and flag before the moment: what subscribers of on_step_start log belongs to this step.
        self.is_open = True
        self._loop.callbacks.on_step_start(self._loop, self._loop.step)
        return row

    def end(
        self, batch: Any, *, completed: int | None = None, number: int | None = None, commit: Commit | None = None
    ) -> None:
        """Count the step, fire `on_step_end`, write the row and fire `on_log`.

        Args:
            batch: The batch of the step.
            completed: The number of completed steps, where the host counts; one more than before by default.
            number: The step that the row is written at; the number of completed steps by default.
            commit: Writes the row at a step; `Loop.commit` by default.
        """
        loop = self._loop
        row = MetricsRow() if self.row is None else self.row
        # Before on_step_end: the weights are updated, and a checkpoint that is saved there counts the step as done.
        step = loop.step = loop.step + 1 if completed is None else completed
        self.is_open = False
        at = step if number is None else number
        try:
            loop.callbacks.on_step_end(loop, step - 1, batch, row)
        except BaseException:
            # The program may catch it and continue with the next step, which would open another row: write this one
            # now, without on_log, which belongs to a step that completed.
            self.row = None
            if row or row.media:
                loop.write_row(at, row)
            raise
        # Before the row is written: what subscribers of on_log log would otherwise go into a row that is in the record
        # already.
        self.row = None
        (commit or loop.commit)(at, row)

    def abandon(self) -> tuple[int, MetricsRow]:
        """Close a step that will not complete; returns its number and what it logged."""
        number, row = self._loop.step + self.is_open, self.row
        self.row, self.is_open = None, False
        return number, MetricsRow() if row is None else row


class LoggedSteps:
    """The steps of a run whose loop does not use ``run.steps``.

    Attributes:
        boundary: What completes a step, once that is known.
    """

    def __init__(self, run: "Run") -> None:
        self._run = run
        self.boundary: Boundary = "unknown"
        self._first_step = MetricsRow()  # logged before it was known that there is a loop
        self._first_names: set[str] = set()  # the same, with the names of media
        self._pending = MetricsRow()  # logged with commit=False
        self._lowest: int | None = None  # the lowest step= of a row
        self._step_before = 0  # run.step before anything was counted here
        self._stop_seen = False

    @property
    def counts(self) -> bool:
        """Whether ``run.step`` is counted here, by `log` or `step_end`."""
        return self.boundary in ("log", "step_end")

    def log(self, metrics: dict[str, Any], *, commit: bool) -> None:
        """Record metrics that were logged without ``step=``, and complete a step where that is the boundary.

        Args:
            metrics: What `collect` returned, perhaps the caller's own dict: it is copied into rows, never kept.
            commit: Whether they complete a step, or wait for the next call.
        """
        run = self._run
        if not commit:
            self._pending.update(metrics)
            return
        if self.boundary == "step_end":
            self._open_step().update(metrics)
            run.metrics.update(metrics)
            return
        if self.boundary == "log" and not self._pending and not self._pending.media:
            self._log_step(metrics)  # the usual case
            return
        merged = self._take_pending()
        merged.update(metrics)
        if self.boundary == "rows":
            run.commit(run.step, merged)
            return
        if self.boundary == "unknown":
            # Facts ahead of run.steps(), or the first step of a loop: not known yet. The row is written at once with
            # the number that fits both, so that no row is ever renumbered.
            names = {*merged, *(merged.media or ())}
            if self._first_names.isdisjoint(names):
                self._first_names |= names
                self._first_step.update(dict.items(merged))  # without media, which are recorded now
                run.log_early(merged)
                return
            self._begin("log")
        self._log_step(merged)

    def step_end(self, batch: Any) -> None:
        """Complete a step with what was logged since the last one."""
        if self.boundary in ("log", "rows"):
            what = "each log() completes a step" if self.boundary == "log" else "its rows are numbered by step="
            raise OptionError(
                f"step_end() in a loop where {what}: use one of them. In a loop with step_end(), call it once in each "
                "iteration, from the first one on."
            )
        if self.boundary == "unknown":
            self._begin("step_end", batch)
            # `_begin` has completed the first step, and this was logged in it.
            if self._pending or self._pending.media:
                self._run.commit(self._run.step - 1, self._take_pending())
            return
        self._open_step().update(self._take_pending())
        self._end_step(batch)

    def row_at(self, step: Any) -> None:
        """Follow the numbers of rows that the loop records with ``step=``."""
        at = checked_step(step)
        if self.boundary == "unknown":
            self._lowest = at if self._lowest is None else min(at, self._lowest)
            # Rows at one and the same number are no loop yet: a program may record all its facts at step 0.
            if at == self._lowest:
                return
            self.boundary, self._step_before = "rows", self._run.step
            if self._run.rank == 0:
                logger.warning(
                    "%r logs with step= and without run.steps(): its steps are the numbers of its rows, callbacks "
                    "only get on_log, and a stop request only takes effect if the loop checks run.stop_requested. "
                    "Write `for ... in run.steps(...)` to get every moment.",
                    self._run.name,
                )
            self._run.start()
        if self.boundary == "rows":
            self._run.step = max(self._run.step, at)
            self._run.commit_held_back()
            if self._run.command_flag[0]:
                self._run.receive_alone()

    def give_up(self) -> None:
        """Stop counting, since the loop uses ``run.steps()`` after all, and undo what was counted."""
        if self.boundary != "unknown":
            self._run.step, self.boundary = self._step_before, "unknown"

    def close(self) -> None:
        """Record what was logged with ``commit=False`` and no later step took."""
        pending = self._take_pending()
        if pending or pending.media:
            self._run.commit(self._run.step, pending)

    def _log_step(self, metrics: dict[str, Any]) -> None:
        self._open_step().update(metrics)
        self._run.metrics.update(metrics)
        self._end_step(None)

    def _begin(self, boundary: Boundary, batch: Any = None) -> None:
        """Complete the first step of the loop: the rows so far are its rows."""
        run = self._run
        self.boundary, self._step_before = boundary, run.step
        run.start()
        recorded = self._first_step
        self._open_step().update(recorded)
        self._end_step(batch, recorded=recorded)

    def _open_step(self) -> MetricsRow:
        run = self._run
        if run.lifecycle.row is not None:
            return run.lifecycle.row
        run.enter_epoch()
        return run.lifecycle.begin()

    def _end_step(self, batch: Any, *, recorded: MetricsRow | None = None) -> None:
        run = self._run
        commit = None if recorded is None else partial(self._commit_added, recorded)
        # The index of the step, not the count after it: rows of such a loop are 0, 1, 2, as in other trackers.
        run.lifecycle.end(batch, number=run.step, commit=commit)
        run.after_step()
        if run.signal is not None and is_signal(run.stop_reason or ""):
            # Nothing can stop a loop that never checks run.stop_requested but an exception. It gets one step to check.
            if self._stop_seen:
                raise KeyboardInterrupt if run.signal == "SIGINT" else SystemExit(128 + signal.Signals[run.signal])
            self._stop_seen = True

    def _commit_added(self, recorded: MetricsRow, index: int, row: MetricsRow) -> None:
        """Commit what subscribers have added to a row; the rest is in the record already."""
        if row.keys() - recorded.keys() or row.media:
            added = MetricsRow({name: row[name] for name in row if name not in recorded})
            added.media = row.media
            self._run.commit(index, added)

    def _take_pending(self) -> MetricsRow:
        pending, self._pending = self._pending, MetricsRow()
        return pending

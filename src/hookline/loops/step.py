"""`LoggedSteps`: counts the steps of a loop that does not use ``run.steps``, by what it logs.

    run = hl.start("mine")
    for batch in loader:
        run.log(loss=train_step(batch))
    run.finish()

Each `log()` completes a step, or, once the loop calls it, each `step_end()`. Rows are numbered by the index of their
step: 0, 1, 2, as in other trackers. Whether there is a loop at all is known when a name is logged again, or when
`step_end` is called. Until then rows may be facts that are logged before ``run.steps``, so they count as no step and
are recorded at the number that the first one has. Rows with ``step=`` are recorded there, and count nothing by
themselves.

Processes agree on nothing here: a rank may log where the others do not.

Warns about bodies of ``run.steps`` whose own counts or iterators begin again after a resume.

A resume gives the body the batches behind those that are done. What the body counts itself, with `enumerate`, or takes
from an iterator of its own, with `next`, starts from the beginning, and the training would differ without an error.
"""

import gc
import io
import logging
import signal
from collections.abc import Iterator
from types import FrameType, GeneratorType
from typing import TYPE_CHECKING, Any, Literal

from hookline._engine.errors import OptionError
from hookline._engine.metrics import MetricsRow
from hookline._record.recorder import checked_step
from hookline.loops.signals import is_signal

if TYPE_CHECKING:
    from hookline.loops.run import Run


logger = logging.getLogger("hookline")

Boundary = Literal["unknown", "log", "step_end", "rows"]
"""What completes a step; ``rows``: the loop numbers its steps itself, with ``step=``."""


class LoggedSteps:
    """The steps of a run whose loop does not use ``run.steps``.

    Attributes:
        boundary: What completes a step, once that is known.
    """

    def __init__(self, run: "Run") -> None:
        self._run = run
        self.boundary: Boundary = "unknown"
        self._first_step = MetricsRow()  # what was logged before it was known that there is a loop
        self._pending = MetricsRow()  # logged with commit=False
        self._lowest: int | None = None  # the lowest step= of a row
        self._step_before = 0  # what run.step was before anything was counted here
        self._stop_seen = False

    @property
    def counts(self) -> bool:
        """Whether ``run.step`` is counted here, by `log` or `step_end`."""
        return self.boundary in ("log", "step_end")

    def log(self, metrics: dict[str, Any], *, commit: bool) -> None:
        """Record metrics that were logged without ``step=``, and complete a step if they do."""
        run = self._run
        if not commit:
            self._pending.update(metrics)
            return
        if self.boundary == "step_end":
            self._open_step().update(metrics)
            run.metrics.update(metrics)
            return
        merged = self._take_pending()
        merged.update(metrics)
        if self.boundary == "rows":
            run.commit(run.step, merged)
            return
        if self.boundary == "unknown":
            if not any(name in self._first_step for name in merged):
                self._first_step.update(merged)
                run.log_early(merged)
                return
            self._begin("log")
        self._open_step().update(merged)
        run.metrics.update(merged)
        self._end_step(None)

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
            if self._pending:
                self._run.commit(self._run.step - 1, self._take_pending())
            return
        self._open_step().update(self._take_pending())
        self._end_step(batch)

    def row_at(self, step: Any) -> None:
        """Look at a row that is about to be recorded at ``step``."""
        at = checked_step(step)
        if self.boundary == "unknown":
            self._lowest = at if self._lowest is None else min(at, self._lowest)
            if at == self._lowest:
                return
            self.boundary, self._step_before = "rows", self._run.step
            if self._run.rank == 0:
                logger.warning(
                    "%r logs with step= and without run.steps(): its steps are those of its rows, callbacks hear of "
                    "rows only, and it is stopped only if the loop looks at run.stop_requested. "
                    "Write `for ... in run.steps(...)` to have all of it.",
                    self._run.name,
                )
            self._run.start()
        if self.boundary == "rows":
            self._run.step = max(self._run.step, at)
            self._run.commit_held_back()

    def give_up(self) -> None:
        """There are ``run.steps()`` after all: they count from where they would have without the rows."""
        if self.boundary != "unknown":
            self._run.step, self.boundary = self._step_before, "unknown"

    def close(self) -> None:
        """Record what waits for a step that does not come any more."""
        pending = self._take_pending()
        if pending:
            self._run.commit(self._run.step, pending)

    def _begin(self, boundary: Boundary, batch: Any = None) -> None:
        """It is known that there is a loop: the rows so far are those of its first step, which is complete."""
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

        def commit(index: int, row: MetricsRow) -> None:
            if recorded is None:
                run.commit(index, row)
            elif row.keys() - recorded.keys():  # what subscribers made of it; the rest is recorded
                run.commit(index, MetricsRow({name: row[name] for name in row if name not in recorded}))

        run.lifecycle.end(batch, number=run.step, commit=commit)
        run.after_step()
        self._leave_after_a_signal()

    def _leave_after_a_signal(self) -> None:
        """End a loop that does not look at ``run.stop_requested``, one step after SIGINT or SIGTERM asked for it."""
        run = self._run
        if run.signal is None or not is_signal(run.stop_reason or ""):
            return
        if not self._stop_seen:
            self._stop_seen = True
            return
        raise KeyboardInterrupt if run.signal == "SIGINT" else SystemExit(128 + signal.Signals[run.signal])

    def _take_pending(self) -> MetricsRow:
        pending, self._pending = self._pending, MetricsRow()
        return pending


def check_resumed_body(steps: Any, frame: FrameType | None, *, name: str, step: int, batch_idx: int) -> None:
    """Look at who asks for the first batch after a resume, once.

    Args:
        steps: The iterator that gives the batches.
        frame: That of the loop.
        name, step, batch_idx: The run, the completed steps, and the index of the batch in its epoch.
    """
    for counter in (each for each in gc.get_referrers(steps) if type(each) is enumerate):
        count = counter.__reduce__()[1][1]  # what the batch under way is numbered with
        if count not in (step, batch_idx):
            logger.warning(
                "%r is resumed after step %d, and enumerate(run.steps(...)) counts from %d again. "
                "Use run.step, or enumerate(run.steps(...), start=run.step).",
                *(name, step, count),
            )
    if frame is None or "next" not in frame.f_code.co_names:
        return
    own = [key for key, value in frame.f_locals.items() if _is_own_iterator(value, steps)]
    if own:
        logger.warning(
            "%r is resumed after step %d, and its loop calls next() on iterators of its own (%s), which begin again "
            "with their first item. Give the data to run.steps(...), which continues behind the batches that are done.",
            *(name, step, ", ".join(own)),
        )


def _is_own_iterator(value: Any, steps: Any) -> bool:
    if not isinstance(value, Iterator) or isinstance(value, io.IOBase) or value is steps:
        return False
    is_ours = isinstance(value, GeneratorType) and isinstance(steps, GeneratorType) and value.gi_code is steps.gi_code
    return not is_ours and steps not in gc.get_referents(value)

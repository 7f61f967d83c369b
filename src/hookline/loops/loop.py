"""`Loop`: what every loop of hookline keeps and offers, whoever drives it.

It implements `LoopState`: counters, metrics, requests. Metrics of a step in progress gather in one
row, which is committed at the end of the step; metrics logged outside of a step are a row of their
own; those logged from another thread wait for the loop's own thread, because moments fire on that
one only.

`StepLifecycle`: the one owner of a step's number, its row of metrics and its moments.

Bare runs, the Trainer, host loops and test loops all begin and end their steps here, so a step means the same in each:
`on_step_start` with the row open, then `on_step_end` with the step counted and the row still open, then the row is
written and `on_log` fires. A row is always written at its own step's number, also when a subscriber raises in between.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import OptionError
from hookline._engine.metrics import MetricsRow, collect, copied, find_metric
from hookline._engine.state import LogContext, ManifestRow
from hookline._record.device import defer, defer_uniform
from hookline._record.reader import MAIN, read
from hookline._record.recorder import Recorder, checked_step
from hookline._record.records import Metrics
from hookline.loops import distributed

Commit = Callable[[int, MetricsRow], None]


class StepLifecycle:
    """The step of a loop that is under way, if one is.

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
        self.is_open = True
        self._loop.callbacks.on_step_start(self._loop, self._loop.step)
        return row

    def end(
        self,
        batch: Any,
        *,
        completed: int | None = None,
        number: int | None = None,
        commit: Commit | None = None,
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
        loop.step = loop.step + 1 if completed is None else completed
        self.is_open = False
        at = loop.step if number is None else number
        try:
            loop.callbacks.on_step_end(loop, loop.step - 1, batch, row)
        except BaseException:
            # The program may catch it and go on with the next step, which would open another row.
            self.row = None
            if row:
                loop.write_row(at, row)
            raise
        self.row = None
        (commit or loop.commit)(at, row)

    def abandon(self) -> tuple[int, MetricsRow]:
        """Close a step that will not complete; returns what it had logged, and the step that belongs to."""
        number, row = self._loop.step + self.is_open, self.row
        self.row, self.is_open = None, False
        return number, MetricsRow() if row is None else row


EVALUATIONS = "eval"
"""The axis of evaluations in the record."""


@dataclass(frozen=True, slots=True)
class Row:
    """Metrics committed together at a step."""

    step: int
    metrics: dict[str, Any]


class Loop(ABC):
    """The state of a loop and its subscribers; drivers add what runs.

    Args:
        callbacks: A `CallbackCollection`, or what one can be made of.
        strict: Let every exception of a subscriber propagate.
        ctx: The experiment-scope context that this run belongs to.
    """

    axis = "train"
    """What this loop's steps count, in the record."""
    name: str = "run"
    """What the run is called."""
    config: Any = None
    """The settings that were given."""

    def __init__(
        self,
        callbacks: Iterable[Any] = (),
        *,
        strict: bool = False,
        ctx: LogContext | None = None,
    ) -> None:
        self.callbacks = callbacks if isinstance(callbacks, CallbackCollection) else CallbackCollection(callbacks)
        self.callbacks.strict = strict or self.callbacks.strict
        self.step = 0
        self.epoch = 0
        self.num_steps: int | None = None
        self.num_epochs: int | None = None
        self.output_dir: Path | None = None
        self.recorder: Recorder | None = None
        self.model: Any = None
        self.optimizer: Any = None
        self.scheduler: Any = None
        self.rank = distributed.rank()
        self.world_size = distributed.world_size()
        self.ctx = ctx or LogContext(rank=self.rank)
        self.metrics = MetricsRow()
        self.validation_metrics: dict[str, Any] = {}
        self._rows: list[Row] = []
        self.samples: list[dict[str, Any]] = []  # where nothing is recorded
        self.checkpoints: list[ManifestRow] = []
        self.summary: dict[str, Any] = {}
        self.stop_reason: str | None = None
        self.checkpoint_requested = False
        self.validation_requested = False
        self._thread = threading.get_ident()
        self.lifecycle = StepLifecycle(self)
        self._held_back: SimpleQueue[tuple[int, dict[str, Any], str | None]] = (
            SimpleQueue()
        )  # with an evaluation's name
        self._committing = False

    @property
    def current_step(self) -> int:
        """Another name for `step`."""
        return self.step

    @property
    def total_steps(self) -> int | None:
        """Another name for `num_steps`."""
        return self.num_steps

    @property
    def current_epoch(self) -> int:
        """Another name for `epoch`."""
        return self.epoch

    @property
    def dir(self) -> Path | None:
        """The run's directory, once it has begun; None where nothing is recorded."""
        return self.output_dir

    @property
    def history(self) -> list[Row]:
        """All rows so far: read back from the record, or kept in memory where there is none."""
        if self.recorder is None or self.output_dir is None:
            return list(self._rows)
        self.recorder.flush()
        return [
            Row(record.step, record.values)
            for record in read(self.output_dir, writer=MAIN)
            if isinstance(record, Metrics)
        ]

    @property
    def in_step(self) -> bool:
        """Whether a step is under way that `step` does not count yet."""
        return self.lifecycle.is_open

    @property
    def trainer(self) -> Any:
        """The loop itself: hook functions are given a worker and look for its trainer."""
        return self

    @property
    def native(self) -> Any:
        """The host framework's own trainer: here the loop itself."""
        return self

    @property
    def stop_requested(self) -> bool:
        """Whether somebody asked for a stop."""
        return self.stop_reason is not None

    @property
    def should_stop(self) -> bool:
        """The same; assigning True asks for a stop, assigning False takes it back."""
        return self.stop_requested

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if value:
            self.request_stop("should_stop was set")
        else:
            self.stop_reason = None

    def request_stop(self, reason: str = "requested") -> None:
        """Ask for a stop at the next step boundary; the first reason is kept."""
        self.stop_reason = self.stop_reason or reason

    def request_checkpoint(self) -> None:
        """Ask for a checkpoint at the next step boundary."""
        self.checkpoint_requested = True

    def request_validation(self) -> None:
        """Ask for a validation at the next step boundary."""
        self.validation_requested = True

    def get_metric(self, name: str) -> Any:
        """The latest value of a metric, or None; ``val_loss`` also finds ``val/loss``."""
        return find_metric(self.metrics, name)

    def log(self, *args: Any, step: int | None = None, **values: Any) -> None:
        """Record metrics: ``log(name, value)``, ``log({...})`` or ``log(name=value)``.

        Args:
            step: The completed count to record them at, where it is not the current one.
        """
        metrics = collect(args, values, defer, defer_uniform)
        row = self.lifecycle.row
        if row is not None and step is None and threading.get_ident() == self._thread:
            row.update(metrics)
            self.metrics.update(metrics)
            return
        at = self.step + self.in_step if step is None else checked_step(step)
        if threading.get_ident() != self._thread:
            self._held_back.put((at, copied(metrics), None))
        elif self._committing:
            self._write(at, metrics)
        else:
            self.commit(at, copied(metrics))

    def log_samples(self, rows: Iterable[Mapping[str, Any]], *, step: int | None = None) -> None:
        """Record samples (prompt, completion, rewards, ...), one mapping each; one may have a ``step`` of its own.

        Args:
            step: The completed count to record them at, where it is not the current one.
        """
        at = self.step + self.in_step if step is None else checked_step(step)
        if self.recorder is not None:
            self.recorder.samples(rows, at, self.axis)
            return
        for row in rows:
            if not isinstance(row, Mapping):
                raise OptionError(f"log_samples(): {row!r} is not a mapping; give a dict per sample.")
            self.samples.append({"step": at, **row})

    def status(self, status: str, /, message: str = "", **data: Any) -> None:
        """Record where the run is, for monitors and sinks: ``run.status("tokenizing", shards=12)``."""
        if self.recorder is not None:
            self.recorder.status(status, message, step=self.step + self.in_step, **data)

    @abstractmethod
    def save_checkpoint(self, path: Any = None) -> ManifestRow:
        """Save a checkpoint now, fire `on_checkpoint`, and return its manifest row."""

    def commit(self, step: int, metrics: dict[str, Any], axis: str | None = None, *, common: bool = False) -> None:
        """Write one row and fire `on_log`; what its subscribers log is written without firing it again.

        Args:
            common: All processes have this row: rank zero records it for them.
        """
        self._write(step, metrics, axis, common=common)
        self._tell(step, metrics)

    def write_row(self, step: int, metrics: dict[str, Any]) -> None:
        """Write one row without firing `on_log`."""
        self._write(step, metrics)

    def evaluated_step(self, *, before_update: bool | None = None) -> int:
        """The completed steps of the weights that an evaluation measures if it is made now.

        Args:
            before_update: Whether it is made before the update of the step under way, where the loop cannot tell.
        """
        return self.step + (self.in_step and not before_update)

    def is_repeated_evaluation(self, name: str) -> bool:
        """Whether the evaluation that begins now was recorded already, before the checkpoint of a resume."""
        return False

    def record_evaluation(
        self,
        name: str,
        metrics: dict[str, Any],
        *,
        step: int | None = None,
        axis: str = EVALUATIONS,
        common: bool = False,
        ends_validation: bool = False,
    ) -> None:
        """Record an evaluation: its row on the axis "eval" with `on_log`, and then `on_eval`.

        Every evaluation goes through here (validations, benchmarks, evaluations of rollouts and of other trainers), so
        subscribers see all of them alike. One that ends on another thread waits for the loop's own, as what is logged.

        Args:
            name: The evaluation's name, for `on_eval`. The names of its metrics begin with it.
            metrics: By full names: ``val/loss`` for ``val``.
            step: The completed steps of the weights that were evaluated; the step under way counts by default.
            axis: What ``step`` counts, where it is not the loop's steps.
            common: All processes have this row: rank zero records it for them.
            ends_validation: Fire the ends of a validation in between: subscribers of those find the metrics.
        """
        at = self.step + self.in_step if step is None else step
        if type(metrics) is dict:  # rather than a row, which has been collected
            metrics = collect((metrics,), {}, defer)
        if threading.get_ident() != self._thread and not ends_validation:
            self._held_back.put((at, copied(metrics), name))
            return
        # A benchmark is recorded in the on_log of its step: what is logged here fires on_log all the same.
        committing, self._committing = self._committing, False
        try:
            self.commit(at, metrics, axis=axis, common=common)
            if self.recorder is not None and (self.rank == 0 or not common):
                self.recorder.event("eval", step=at, evaluator=name)
            if ends_validation:
                self.callbacks.on_validation_epoch_end(self)
                self.callbacks.on_validation_end(self)
            self.callbacks.on_eval(self, at - 1, name, metrics)
        finally:
            self._committing = committing

    def _tell(self, step: int, metrics: dict[str, Any]) -> None:
        self._committing = True
        try:
            self.callbacks.on_log(self, step, metrics)
        finally:
            self._committing = False

    def _write(self, step: int, metrics: dict[str, Any], axis: str | None = None, *, common: bool = False) -> None:
        self.metrics.update(metrics)
        if self.recorder is None:
            self._rows.append(Row(step, copied(metrics)))
        elif metrics and (self.rank == 0 or not common):
            self.recorder.metrics(metrics, step, axis or self.axis)

    def commit_held_back(self) -> None:
        """Commit what other threads logged since the last time."""
        while not self._held_back.empty():  # asked first: an exception at every step would cost more than the rest
            step, metrics, evaluation = self._held_back.get_nowait()
            if evaluation is None:
                self.commit(step, metrics)
            else:
                self.record_evaluation(evaluation, metrics, step=step)

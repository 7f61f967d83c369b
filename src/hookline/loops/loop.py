"""`Loop`: the state of a loop and its subscribers, whichever driver runs it.

It implements `LoopState`: counters, metrics, requests. Metrics of the step in progress gather in one row, which is
committed when the step ends; metrics logged outside of a step are a row of their own. Moments fire on the loop's own
thread only, so metrics logged from other threads wait in a queue until that thread commits them.
"""

import logging
import mmap
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import OptionError
from hookline._engine.metrics import LatestMetrics, MetricsRow, collect, copied, find_metric
from hookline._engine.state import LogContext, ManifestRow
from hookline._record.device import defer, defer_uniform
from hookline._record.reader import MAIN, read
from hookline._record.recorder import Recorder, checked_step
from hookline._record.records import Metrics
from hookline.loops import distributed
from hookline.loops.step import StepLifecycle

if TYPE_CHECKING:
    from hookline._record.artifact_saving import ArtifactSave
    from hookline._record.artifacts import Artifact

logger = logging.getLogger("hookline")

EVALUATIONS = "eval"
"""The axis of evaluations in the record."""


@dataclass(frozen=True, slots=True)
class Row:
    """Metrics committed together at a step."""

    step: int
    metrics: dict[str, Any]


class Loop(ABC):
    """The state of a loop and its subscribers; subclasses add what runs.

    Args:
        callbacks: A `CallbackCollection`, or anything it accepts.
        strict: Let every exception of a subscriber propagate.
        ctx: The experiment-scope context that this run belongs to.
    """

    axis = "train"
    """The axis of this loop's steps in the record."""
    name: str = "run"
    """The name of the run."""
    config: Any = None
    """The settings of the run."""

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
        self.metrics: MetricsRow = LatestMetrics()
        self.validation_metrics: dict[str, Any] = {}
        self._rows: list[Row] = []
        self.samples: list[dict[str, Any]] = []  # only used where nothing is recorded
        self.checkpoints: list[ManifestRow] = []
        self.summary: dict[str, Any] = {}
        self.stop_reason: str | None = None
        self.checkpoint_requested = False
        self.validation_requested = False
        # Not None, so that a step boundary reads it without a check.
        self.command_flag: bytes | mmap.mmap = b"\0"
        """Its first byte is not 0 when a command may wait; read at each step boundary."""
        self._thread = threading.get_ident()
        self.lifecycle = StepLifecycle(self)
        # Logged by other threads: the step, the metrics, and the name of an evaluation. A SimpleQueue may be filled by
        # a signal handler or a finalizer too, which a Queue's lock does not allow.
        self._held_back: SimpleQueue[tuple[int, dict[str, Any], str | None]] = SimpleQueue()
        self._committing = False  # inside on_log, whose subscribers' rows must not fire it again

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
        """The run's directory, once the run has begun; None where nothing is recorded."""
        return self.output_dir

    @property
    def history(self) -> list[Row]:
        """All rows so far, read back from the record, or from memory where nothing is recorded."""
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
        """Whether a step is in progress that `step` does not count yet."""
        return self.lifecycle.is_open

    @property
    def trainer(self) -> Any:
        """The loop itself: hook functions get a worker and read its ``trainer``."""
        return self

    @property
    def native(self) -> Any:
        """The host framework's trainer; here the loop itself."""
        return self

    @property
    def stop_requested(self) -> bool:
        """Whether a stop was requested."""
        return self.stop_reason is not None

    @property
    def should_stop(self) -> bool:
        """Same as `stop_requested`; assigning True requests a stop, assigning False withdraws the request."""
        return self.stop_requested

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if value:
            self.request_stop("should_stop was set")
        else:
            self.stop_reason = None

    def request_stop(self, reason: str = "requested") -> None:
        """Request a stop at the next step boundary; the first reason is kept."""
        self.stop_reason = self.stop_reason or reason

    def request_checkpoint(self) -> None:
        """Request a checkpoint at the next step boundary."""
        self.checkpoint_requested = True

    def request_validation(self) -> None:
        """Request a validation at the next step boundary."""
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
        """Record samples (prompt, completion, rewards, ...), one mapping each, which may have its own ``step``.

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
        """Record the run's status, for monitors and sinks: ``run.status("tokenizing", shards=12)``."""
        if self.recorder is not None:
            self.recorder.status(status, message, step=self.step + self.in_step, **data)

    def save_artifact(
        self,
        name: str,
        files: Any,
        *,
        kind: str = "artifact",
        aliases: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
        reference: bool = False,
        link: bool = False,
    ) -> "ArtifactSave":
        """Save files as a version of an artifact: ``save_artifact("model", "out/", kind="model", aliases=["best"])``.

        Files are hashed and copied on another thread, and equal files are stored once for all runs of the root. They
        may be deleted or replaced at once, but must not be changed in place before ``wait()`` of the result has
        returned. The end of the run waits until everything is saved. If saving fails, that is logged and recorded, and
        training continues. Rank zero saves; other ranks do nothing.

        Args:
            name: The artifact's name; it belongs to the run's project.
            files: A file, a directory, an address such as ``s3://bucket/file``, which is recorded as a reference, or a
                dict of those by their names in the artifact.
            kind: What it is: ``"model"``, ``"dataset"``, ...
            aliases: Names for this version, taken from the version that had them. ``latest`` is set by itself and
                refused here.
            metadata: Anything worth knowing about it, as plain data. Other metadata make another version.
            reference: Record where local files are, with their digests, instead of storing them.
            link: The files are never changed in place, so they may be hard-linked instead of copied.
        """
        has_ended = getattr(self, "has_ended", False)
        if self.rank != 0 or self.recorder is None or has_ended:
            from hookline._record.artifact_saving import ArtifactSave

            if self.rank == 0:
                why = "has ended" if has_ended else "records nothing"
                logger.warning("The artifact %r is not saved: the run %s.", name, why)
            return ArtifactSave(name)
        options: dict[str, Any] = {"kind": kind, "aliases": aliases, "metadata": metadata, "reference": reference}
        return self.recorder.save_artifact(name, files, link=link, step=self.step + self.in_step, **options)

    def use_artifact(self, reference: str, *, root: str | Path | None = None) -> "Artifact":
        """Find a version of an artifact, and record that this run uses it: ``use_artifact("project/model:best")``.

        Args:
            reference: ``project/name:version``. The version is an alias, a number such as ``v3``, or left out for the
                latest; the project is the run's own where it is left out. ``name@sha256:...`` names it by its digest.
            root: The root that it is stored below; the run's by default.

        Raises:
            UnknownNameError: There is no such artifact or version.
        """
        if self.rank == 0 and self.recorder is not None and not getattr(self, "has_ended", False):
            return self.recorder.use_artifact(reference, root=root, step=self.step + self.in_step)
        from hookline._record.artifacts import artifact

        if root is None and self.output_dir is None:
            raise OptionError(f"use_artifact({reference!r}): nothing is recorded, so there is no root; give root=.")
        place = self.output_dir.resolve().parent if self.output_dir is not None else None
        found = root if root is not None else place.parent if place is not None else "runs"
        return artifact(reference, root=found, project="default" if place is None else place.name)

    @abstractmethod
    def save_checkpoint(self, path: Any = None) -> ManifestRow:
        """Save a checkpoint now, fire `on_checkpoint`, and return its manifest row."""

    def commit(self, step: int, metrics: dict[str, Any], axis: str | None = None, *, common: bool = False) -> None:
        """Write one row and fire `on_log`; rows that its subscribers log do not fire it again.

        Args:
            common: All processes have this row, so only rank zero records it.
        """
        # Written before on_log: a subscriber that raises takes no row with it.
        self._write(step, metrics, axis, common=common)
        self._notify_log(step, metrics)

    def write_row(self, step: int, metrics: dict[str, Any]) -> None:
        """Write one row without firing `on_log`."""
        self._write(step, metrics)

    def evaluated_step(self, *, before_update: bool | None = None) -> int:
        """Return the number of completed steps of the weights that an evaluation would measure now.

        Args:
            before_update: Whether the update of the step in progress is still to come, where the loop cannot tell.
        """
        return self.step + (self.in_step and not before_update)

    def is_repeated_evaluation(self, name: str) -> bool:
        """Whether the evaluation that begins now was already recorded before the checkpoint that was resumed."""
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

        Every evaluation takes this path (validations, benchmarks, evaluations of rollouts and of other trainers), so
        subscribers see all of them alike. One that ends on another thread waits for the loop's thread, like metrics.

        Args:
            name: The evaluation's name, for `on_eval`; the prefix of its metrics.
            metrics: The metrics by full name: ``val/loss`` for ``val``.
            step: The completed steps of the evaluated weights; the step in progress counts by default.
            axis: The axis of the row, where ``step`` does not count the loop's steps.
            common: All processes have this row, so only rank zero records it.
            ends_validation: Fire the end moments of a validation before `on_eval`, once the metrics are set.
        """
        at = self.step + self.in_step if step is None else step
        if type(metrics) is dict:  # a MetricsRow has been collected already
            metrics = collect((metrics,), {}, defer)
        if threading.get_ident() != self._thread and not ends_validation:
            self._held_back.put((at, copied(metrics), name))
            return
        # A benchmark runs inside the on_log of its step; its row fires on_log nevertheless.
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

    def _notify_log(self, step: int, metrics: dict[str, Any]) -> None:
        self._committing = True
        try:
            self.callbacks.on_log(self, step, metrics)
        finally:
            self._committing = False

    def _write(self, step: int, metrics: dict[str, Any], axis: str | None = None, *, common: bool = False) -> None:
        if type(metrics) is not dict and metrics.media:  # type: ignore[attr-defined]
            self._record_media(step, metrics, axis)
        # The same as the row's own update() with fewer calls: this runs at each step.
        dict.update(self.metrics, metrics if type(metrics) is dict else dict.items(metrics))
        if self.recorder is None:
            self._rows.append(Row(step, copied(metrics)))
        elif metrics and (self.rank == 0 or not common):
            self.recorder.metrics(metrics, step, axis or self.axis)

    def _record_media(self, step: int, metrics: dict[str, Any], axis: str | None) -> None:
        """Record the media that were logged with a row; each process records its own."""
        if type(metrics) is dict or not isinstance(metrics, MetricsRow):
            return
        media = metrics.take_media()
        if media and self.recorder is not None:
            self.recorder.media(media, step, axis or self.axis, step_now=lambda: self.step + self.in_step)

    def commit_held_back(self) -> None:
        """Commit what other threads have logged since the last call."""
        while not self._held_back.empty():  # checked first: raising queue.Empty at every step would cost more
            step, metrics, evaluation = self._held_back.get_nowait()
            if evaluation is None:
                self.commit(step, metrics)
            else:
                self.record_evaluation(evaluation, metrics, step=step)

"""`HostLoop`: the loop that callbacks see when another framework's trainer runs.

A bridge translates a framework's callbacks into calls of a `HostLoop`, which fires the moments, keeps the counters,
records, and collects what callbacks request. This is all that a bridge does::

    loop = HostLoop("name", callbacks=[...], native=trainer, save=self._save)

    loop.begin()                                 the directory, the journal, the signals
    loop.train_start(step=0, num_steps=100)      on_train_start
    loop.epoch_start(0)                          on_train_epoch_start
    loop.step_start()                            on_step_start; opens the step's row
    loop.batch_start(batch)                      on_train_batch_start
    loop.batch_end({"loss": loss}, batch)        on_train_batch_end
    loop.before_optimizer_step(optimizer)        on_before_optimizer_step
    loop.step_end(batch, {"loss": loss})         on_step_end; writes the row, on_log
    loop.host_log({"lr": 0.1})                   a row of its own, on_log
    requests = loop.requests()                   what callbacks requested: stop, checkpoint, validation
    loop.validation_start()                      on_validation_start, on_validation_epoch_start
    loop.validation_batch_start(batch)
    loop.validation_batch_end(outputs, batch)
    loop.validation_end("val", {"val/loss": 1})  its row, the ends of the validation, on_eval
    loop.checkpoint_saved(path)                  on_checkpoint
    loop.epoch_end()                             on_train_epoch_end
    loop.train_end()                             on_train_end; closes everything

or ``loop.failed(error)`` instead of the last, from the place where the framework's training is called: frameworks do
not report errors to their callbacks. `requests` is called once after each step, where the framework can still stop,
save and validate; processes that train together agree there, so all of them have to call it. What a framework does not
report (batches, the optimizer) is left out; nothing is made up.

The host counts, not the loop: `train_start` and `step_end` take the number of completed steps. A step may be open while
the host validates, saves and ends an epoch; those belong to the completed steps. Metrics that the host gives
(`step_end`, `host_log`, `validation_end`) are the same on all processes, so rank zero records them; what subscribers
log is recorded by each process. SIGINT and SIGTERM request a stop at the host's next boundary.

The host puts `state_dict()` into its checkpoints, in its own format or as a folder (`save`, `load`), which
is an ordinary checkpoint of hookline. ``begin(state=..., row=...)`` resumes it: the callbacks' states, and the very
run, if its directory still exists.

``begin(trains=False)`` is for a host that evaluates without training: it fires and records the validation, without the
start and the end of a training. After a training it continues that run.
"""

import logging
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Unpack

from hookline._engine.errors import CheckpointError, OptionError
from hookline._engine.jax_trees import WeightTree
from hookline._engine.metrics import LatestMetrics, MediaValue, MetricsRow, collect, copied
from hookline._engine.state import ManifestRow
from hookline._record.device import defer
from hookline._record.run_directory import METADATA
from hookline.loops import checkpoint
from hookline.loops.checkpointing import callback_states
from hookline.loops.options import RunOptions
from hookline.loops.session import Session

RESUME_FOLDER = ".resumed"
"""The folder of a run's directory with the state that it is resumed from, while it begins."""
STATE_FOLDER = "hookline"
"""The folder of a host's checkpoint with the state of a `HostLoop`."""

logger = logging.getLogger("hookline")

SaveFunction = Callable[[Path | None], ManifestRow]


class Requests(NamedTuple):
    """What callbacks requested, on any process.

    Attributes:
        stop: The reason to stop; None to continue.
        checkpoint: Save a checkpoint, and report it with `HostLoop.checkpoint_saved`.
        validation: Validate.
    """

    stop: str | None
    checkpoint: bool
    validation: bool


class HostLoop(Session):
    """A recorded loop that another framework's trainer drives; see the module for how a bridge uses it.

    Args:
        name, callbacks: As for every `Session`.
        native: The framework's trainer, as callbacks find it in ``loop.native``.
        save: Saves a checkpoint through the framework, at this path or where the framework keeps them, and returns its
            row: now, followed by `checkpoint_saved`, or, where the framework can only do it at its next boundary, the
            row that it will have. None where the framework saves none.
        options: As for every `Session`.
    """

    package: str | None = None
    """The package whose code the training runs in, of a host that does not report that a training raised."""
    no_gradients: str | None = None
    no_validation_batches: str | None = None
    no_checkpoints: str | None = None
    no_stops: str | None = None
    """Why this host shows no gradients and no batches of its validations, saves nothing and cannot be stopped, for
    callbacks that need it."""

    def __init__(
        self,
        name: str,
        *,
        native: Any,
        save: SaveFunction | None = None,
        callbacks: Iterable[Any] = (),
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__(name, callbacks=callbacks, **options)
        self._native, self._save = native, save
        self._validating = False
        self._trains = True
        self.cannot: Callable[[str], str | None] = lambda name: None
        """Returns why the framework cannot apply a command, such as ``validate``; None where it can."""
        self.gradients_clipped = False
        self.weight_tree: WeightTree | None = None
        """The weights of a host in JAX, for callbacks that average them."""
        self._left_out: set[str] = set()
        self._batch_idx = self._validation_batch_idx = 0

    @property
    def native(self) -> Any:
        """The framework's trainer."""
        return self._native

    @native.setter
    def native(self, trainer: Any) -> None:
        self._native = trainer

    @property
    def is_running(self) -> bool:
        """Whether it has begun and not ended."""
        return self.state == "running"

    @property
    def is_validating(self) -> bool:
        """Whether a validation is under way."""
        return self._validating

    def begin(
        self, *, trains: bool = True, state: Mapping[str, Any] | None = None, row: ManifestRow | None = None
    ) -> None:
        """Start recording, in a new run or, given the state from a checkpoint, in the run that saved it.

        Args:
            trains: Whether a training starts; if not, only validation moments are fired.
            state: The result of `state_dict` in the checkpoint that the host resumes from.
            row: That checkpoint, for `on_checkpoint_load`.
        """
        if state is None and not trains and self.output_dir is not None:
            state = self.state_dict()  # a validation after the training continues its run
        self._trains = trains
        # An earlier training of the same host may have failed in the middle of a step.
        self.lifecycle.abandon()
        self._validating = False
        self.checkpoint_requested = self.validation_requested = False
        if trains:  # forget an earlier training of the same host
            self.step = self.epoch = 0
            self.metrics, self.validation_metrics = LatestMetrics(), {}
            self.checkpoints, self._rows = [], []
            self.output_dir = None
        home = None if state is None else self._home_of(state)
        if state is not None and home is not None:
            self._resume_in(home, state)
        else:
            # The directory of that run is gone, or elsewhere: a new run, which continues with the old one's counters
            # and states.
            super().begin()
            if state is not None:
                self._restore_position(dict(state))
                self.metrics.update(dict(state["metrics"]))
                self.control.restore(state.get("control", {}))
                self.callbacks.load_state_dict(callback_states(state))
        # After the resume, which notes its temporary folder there: callbacks are to see the host's checkpoint.
        self.checkpointing.loaded = replace(row, metrics=dict(self.metrics)) if trains and row is not None else None

    def leave_signals(self) -> None:
        """Give signals back to the host, where nothing would check whether to stop."""
        self._signals.restore()

    def train_start(
        self,
        *,
        step: int = 0,
        epoch: int = 0,
        num_steps: int | None = None,
        num_epochs: int | None = None,
    ) -> None:
        """Start to train, from the beginning or after a number of completed steps."""
        self.step, self.epoch = step, epoch
        self.num_steps, self.num_epochs = num_steps, num_epochs
        self.recording.continue_steps(step)
        self.start()

    def epoch_start(self, epoch: int, *, batches_done: int = 0) -> None:
        """Begin an epoch, or continue it after a number of batches; epochs count from 0."""
        self.epoch, self._batch_idx = epoch, batches_done
        self.callbacks.on_train_epoch_start(self)

    def epoch_end(self) -> None:
        """End the epoch."""
        self.callbacks.on_train_epoch_end(self)

    def step_start(self) -> None:
        """Begin a step: one optimizer update."""
        self.lifecycle.begin()

    def batch_start(self, batch: Any = None, batch_idx: int | None = None) -> None:
        """Begin a forward and backward pass; batches are counted per epoch where the host does not."""
        self._batch_idx = self._batch_idx if batch_idx is None else batch_idx
        self.callbacks.on_train_batch_start(self, batch, self._batch_idx)

    def batch_end(self, outputs: Any = None, batch: Any = None) -> None:
        """End it, with these outputs."""
        self.callbacks.on_train_batch_end(self, outputs, batch, self._batch_idx)
        self._batch_idx += 1

    def before_optimizer_step(self, optimizer: Any, *, clipped: bool = False) -> None:
        """Report that the gradients are complete.

        Args:
            clipped: Whether the host has clipped them already.
        """
        self.gradients_clipped = clipped
        self.callbacks.on_before_optimizer_step(self, optimizer)

    def step_end(self, batch: Any = None, metrics: Mapping[str, Any] | None = None, *, step: int | None = None) -> None:
        """Complete the step, with the host's metrics of it.

        Args:
            step: The number of completed steps; one more than before by default.
        """
        given = collect((dict(metrics or {}),), {}, defer)
        if self.lifecycle.row is None:  # a host that does not report the start of its steps
            self.lifecycle.row = MetricsRow()
        # Before the step ends: subscribers of on_step_end find the host's metrics in the row.
        self.lifecycle.row.update(given)
        self.metrics.update(given)
        self.lifecycle.end(batch, completed=step, commit=partial(self._commit_of_host, given))
        self.commit_held_back()

    def host_log(self, metrics: Mapping[str, Any], *, step: int | None = None, axis: str | None = None) -> None:
        """Record metrics of the host that belong to no step's row."""
        at = self.step + self.in_step if step is None else step
        self.commit(at, copied(collect((dict(metrics),), {}, defer)), axis, common=True)

    def recordable(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics without values that hookline cannot record, such as the images of another tracker.

        There is one warning per name and no error: other trackers may get the same values and support them.
        """
        return {name: value for name, value in metrics.items() if self._can_record(name, value)}

    def _can_record(self, name: str, value: Any) -> bool:
        if isinstance(value, MediaValue):  # not captured twice
            return True
        try:
            collect(({name: value},), {}, lambda on_device: None)  # fetches nothing from a device
        except OptionError as error:
            if name not in self._left_out:
                self._left_out.add(name)
                logger.warning("%s does not record %r: %s", self.name, name, error)
            return False
        return True

    def requests(self) -> Requests:
        """Return what callbacks requested since the last call; called on all processes after each step."""
        # One collective for all three. The requests of all ranks are cleared, since each gets the same answer.
        # Not in the middle of a step, where some hosts come as well.
        waits = self.command_flag[0] != 0 and not self.in_step
        save, validate, has_commands = self._agree(self.checkpoint_requested, self.validation_requested, waits)
        if has_commands:
            self.control.receive()
            save, validate = self._agree(save or self.checkpoint_requested, validate or self.validation_requested)
        self.checkpoint_requested = self.validation_requested = False
        if save:
            # A collective as well: `save` was agreed on, so all ranks enter it.
            self.checkpointing.share_requests(self.step)
        return Requests(self.stop_reason if self._agreed_to_stop else None, save, validate)

    def command_refusal(self, name: str) -> str | None:
        """Return why the framework cannot apply a command; None if it can."""
        if name == "checkpoint" and self._save is None:
            return f"{type(self.native).__name__} saves no checkpoints for its callbacks."
        return self.cannot(name)

    def answer_requests(self) -> None:
        """Save a requested checkpoint at the end; the request has no effect in a host that saves none."""
        if self._save is None:
            self.checkpoint_requested = False
        super().answer_requests()

    def save_at_boundary(self) -> ManifestRow | None:
        """Request a checkpoint, which the framework saves after this boundary; return None."""
        if self.command_refusal("checkpoint") is None:
            self.request_checkpoint()
        return None

    def validation_start(self) -> None:
        """Begin a validation."""
        self._validating, self._validation_batch_idx = True, 0
        self.callbacks.on_validation_start(self)
        self.callbacks.on_validation_epoch_start(self)

    def validation_batch_start(self, batch: Any = None) -> None:
        """Begin a batch of it."""
        self.callbacks.on_validation_batch_start(self, batch, self._validation_batch_idx)

    def validation_batch_end(self, outputs: Any = None, batch: Any = None) -> None:
        """End a batch of it."""
        self.callbacks.on_validation_batch_end(self, outputs, batch, self._validation_batch_idx)
        self._validation_batch_idx += 1

    def validation_end(self, name: str, metrics: Mapping[str, Any], *, step: int | None = None) -> None:
        """End the validation.

        Args:
            name: The name of the evaluation, for `on_eval`.
            metrics: The metrics by full name, such as ``val/loss``.
            step: The number of completed steps, where the host is ahead of what it has reported.
        """
        self._validating = False
        row = self.validation_metrics = MetricsRow()
        row.update(collect((dict(metrics),), {}, defer))  # with media, which a new row would not have
        at = self.step if step is None else step  # an open step continues after the validation
        self.record_evaluation(name, row, step=at, common=True, ends_validation=True)

    def rollout_start(self, step_idx: int, lesson_id: str | None = None) -> None:
        """Report that completions are about to be generated."""
        self.callbacks.on_rollout_start(self, step_idx, lesson_id)

    def rollout_end(self, step_idx: int, rollouts: Any) -> None:
        """Report the scored completions."""
        self.callbacks.on_rollout_end(self, step_idx, rollouts)

    def save_checkpoint(self, path: str | Path | None = None, *, kind: str = "step") -> ManifestRow:
        """Have the host save a checkpoint: now, or at its next boundary where it can only do so there."""
        if self._save is None:
            raise CheckpointError(f"{type(self.native).__name__} saves no checkpoints for its callbacks.")
        return self._save(None if path is None else Path(path))

    def checkpoint_row(self, path: str | Path, *, kind: str = "step", step: int | None = None) -> ManifestRow:
        """Return the row of a checkpoint of the host, which may not be saved yet.

        Args:
            step: The number of completed steps, where it is not the present one.
        """
        place = Path(path)
        files = [place] if place.is_file() else [file for file in place.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        at = self.step + self.in_step if step is None else step
        return ManifestRow(at, place, dict(self.metrics), kind=kind, bytes=size, time=time.time())

    def checkpoint_saved(self, path: str | Path, *, kind: str = "step", step: int | None = None) -> ManifestRow:
        """Report a checkpoint that the host saved.

        Args:
            step: The number of completed steps in it, where the host is ahead of what it has reported.
        """
        row = self.checkpoint_row(path, kind=kind, step=self.step if step is None else step)
        return self.checkpointing.announce(row)

    def state_dict(self, *, step: int | None = None) -> dict[str, Any]:
        """Return the state for the host's checkpoint: counters, metrics, the callbacks' states, and the run.

        Args:
            step: The number of completed steps, where the host is ahead of what it has reported.
        """
        self.callbacks.drain()  # the states of background subscribers include all moments so far
        # Before the state is collected, which holds the position in the journal that is noted here.
        self.recording.secure()
        home = None if self.output_dir is None else str(self.output_dir)
        return self._checkpoint_state(self.step if step is None else step) | {"run": home}

    def train_end(self) -> None:
        """End the training in an orderly way."""
        self.finish(None)

    def failed(self, error: BaseException) -> None:
        """Report the error that ended the training or the validation."""
        if self.is_running:
            self.finish(error)

    def start(self) -> None:
        """Fire `on_train_start`, once; a loop that only validates starts without it."""
        if self._trains:
            super().start()
        elif not self.has_started:
            self.has_started = True
            self.status("running", "validating")

    def _on_signal(self, name: str) -> None:
        # A training that raised leaves the loop running where the host does not report it. A signal outside of the
        # host's code is therefore not for this loop: restore the previous handler and raise the signal again.
        if self.package is not None and not _runs_in(self.package):
            self._signals.restore()
            signal.raise_signal(signal.Signals[name])
        else:
            super()._on_signal(name)

    def _home_of(self, state: Mapping[str, Any]) -> Path | None:
        """The directory of the run that a state was saved in, if it is there and where this loop's runs are."""
        if self.root is None or self.recording.is_joined or not state.get("run"):
            return None
        home = Path(state["run"])
        is_there = (home / METADATA).is_file()
        return home if is_there and home.parent == Path(self.root).resolve() / self.project else None

    def _resume_in(self, home: Path, state: Mapping[str, Any]) -> None:
        # Sessions resume from a checkpoint in the run's directory, so the state becomes one while the run begins.
        folder = home / RESUME_FOLDER
        # Before begin(): the other ranks wait there for rank zero's directory, so they find the folder complete.
        if self.rank == 0:
            checkpoint.save(folder, state, lambda directory: None, step=state["step"], kind="host")
        self.resume_from = folder
        try:
            super().begin()
            self.processes.gather(None)  # all have read it
        finally:
            self.resume_from = None
            if self.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)

    def _commit_of_host(self, given: Mapping[str, Any], step: int, row: MetricsRow) -> None:
        """Write the row of a step: rank zero records the host's metrics, each rank what its subscribers log."""
        own = row if self.rank == 0 else MetricsRow({name: row[name] for name in row if name not in given})
        own.media = row.media
        self._write(step, own)
        # The whole row on every rank: the callbacks of all ranks see what the host reported.
        self._notify_log(step, row)

    def _end(self) -> None:
        if self._trains:
            super()._end()
        else:
            self.state = "completed"
            # No on_train_end: nothing was trained.
            self.commit_held_back()
            self._close()

    def _finish_open_work(self) -> None:
        # The host began a step and did not complete it; values logged in it are kept.
        number, row = self.lifecycle.abandon()
        self._validating = False
        if row or row.media:
            self.commit(number, row)

    def _abandon_step(self) -> None:
        self._validating = False


def _runs_in(package: str) -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == package:
            return True
        frame = frame.f_back
    return False


def save(directory: str | Path, loop: HostLoop) -> None:
    """Put the state of a loop into a checkpoint that the host has saved; rank zero writes.

    Raises:
        CheckpointError: It cannot be written.
    """
    state = loop.state_dict()
    if loop.rank == 0:
        checkpoint.save(Path(directory) / STATE_FOLDER, state, lambda folder: None, step=state["step"], kind="host")


def load(directory: str | Path) -> dict[str, Any] | None:
    """Return the state in a host's checkpoint; None if it is missing or unreadable."""
    folder = Path(directory) / STATE_FOLDER
    checkpoint.recover(folder)
    if not checkpoint.is_checkpoint(folder):
        logger.warning("%s holds no state of callbacks: they start from scratch.", directory)
        return None
    try:
        return checkpoint.load(folder)
    except CheckpointError as error:
        # Not an error: the host's own checkpoint is good, and its training is worth more than the callbacks' states.
        logger.warning("The callbacks start from scratch, without the state in %s. %s", directory, error)
        return None

"""`Session`: a loop from its beginning to its end, recorded; what `Run` and `Trainer` have in common.

Between `begin` and `finish` it has a directory and a journal, turns signals into stop requests, fires
`on_train_start` once and then either `on_train_end` or `on_exception`, saves and takes up checkpoints,
and hands the record to its sinks. Processes that train together stop at the same step, and when one of
them fails the others end as well.

All callbacks of a collection, those in groups too.
"""

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import CheckpointError, OptionError
from hookline._engine.metrics import MetricsRow, collect, copied, plain
from hookline._engine.state import LoopArtifacts, LoopState, ManifestRow
from hookline._engine.torch_models import is_sharded
from hookline._record import run_directory
from hookline._record.device import defer, defer_uniform
from hookline._record.journal import Durability, checked_durability
from hookline._record.recorder import checked_step
from hookline._record.records import HYPERPARAMETERS, NOTES, SUMMARY, parse_nonfinite
from hookline._record.run_directory import checked_notes, checked_tags
from hookline._record.settings import is_open, plain_settings, settings
from hookline.loops import checkpoint, recording
from hookline.loops.checkpoint import unpacked
from hookline.loops.distributed import NOT_REDUCED, Peers, ProcessGroup
from hookline.loops.loop import Commit, Loop
from hookline.loops.rank_means import LooseRow, RankMeans, is_number, is_waiting
from hookline.loops.recording import HookRecord, RecordedDict
from hookline.loops.run_sinks import DRAIN_SECONDS, DeliveryMode, RunSinks
from hookline.loops.signals import StopSignals, is_signal

if TYPE_CHECKING:
    from hookline._record.delivery import SinkState
    from hookline.loops.step import LoggedSteps


def all_callbacks(callbacks: CallbackCollection) -> Iterator[Any]:
    """Go through them in their order."""
    for callback in callbacks:
        if isinstance(callback, CallbackCollection):
            yield from all_callbacks(callback)
        else:
            yield callback


logger = logging.getLogger("hookline")


@runtime_checkable
class CheckpointRule(Protocol):
    """A subscriber that decides when checkpoints are saved, such as `CheckpointCallback`.

    Where several processes train together, each has its own instance, and they may have seen different metrics. Before
    a checkpoint that any of them requested is saved on all, the instances exchange what they know, so that all of them
    count it alike.
    """

    def save_at_end(self, loop: LoopState, /) -> None:
        """Save what is left to save, when training ends or stops."""

    def checkpoint_request(self) -> Any:
        """What this process's instance has requested and knows; anything that can be pickled."""

    def agree_on_checkpoint(self, step: int, requests: list[Any], /) -> None:
        """Take over what the instances of all processes have requested and know, for the checkpoint of a step."""


class Session(Loop):
    """The life of a loop that is recorded; drivers add what is done in it.

    Args:
        name: What the run is called; ``resume="auto"`` finds it by this.
        project: The folder of ``root`` that its directory lies in.
        root: Where runs are recorded; None keeps everything in memory and writes nothing.
        callbacks: Anything a `CallbackCollection` takes, or a collection.
        sinks: Where the record is delivered to: names such as ``"csv"`` and ``"tensorboard"``, mappings
            ``{"wandb": {"project": "mine"}}``, sinks, or functions ``(report_data, step)``.
        config: The settings, recorded as plain data. A mapping or a namespace becomes ``run.config``, a dict with
            attributes whose changes are recorded; an object of another class is ``run.config`` as it is.
        tags: Short words that the run is found by in lists, on the page and in SQL.
        notes: What the run is about, in a few sentences; ``run.notes``.
        resume: Take up an earlier run: its id or directory, a checkpoint's directory, ``"last"`` for the latest
            of this name that has a checkpoint, or ``"auto"`` for the latest of this name that neither finished
            nor is running, if there is one.
        strict: Let exceptions of observers propagate.
        summary: Print how the run ended and what each subscriber cost.
        delivery: ``"thread"`` delivers from this process, ``"process"`` from one that survives it.
        drain_seconds: How long the end of the run waits for its sinks; ``hookline runs sync`` delivers the rest.
        durability: What survives a power cut, besides checkpoints. ``"checkpoint"``: everything recorded before the
            last checkpoint or the end of the run. ``"power"``: everything until about a second before. ``"process"``:
            whatever the system had written by itself. The death of the process takes nothing in any case.
    """

    exchanges_rows: ClassVar[bool] = False
    """Whether its processes end their steps together, and record the means of what they log."""

    def __init__(
        self,
        name: str,
        *,
        project: str = "default",
        root: str | Path | None = "runs",
        callbacks: Iterable[Any] = (),
        sinks: Iterable[Any] = (),
        config: Any = None,
        tags: Iterable[str] = (),
        notes: str = "",
        resume: str | Path | None = None,
        strict: bool = False,
        summary: bool = True,
        delivery: DeliveryMode = "thread",
        drain_seconds: float = DRAIN_SECONDS,
        durability: Durability = "checkpoint",
    ) -> None:
        super().__init__(callbacks, strict=strict)
        if resume is not None:
            recording.checked_resume(resume)
        if resume is not None and root is None:
            raise OptionError(f"resume={resume!r} with root=None: what was not recorded cannot be taken up.")
        self.outlets = RunSinks(sinks, delivery=delivery, drain_seconds=drain_seconds)
        if self.outlets and root is None:
            raise OptionError("sinks= with root=None: sinks are fed from the record. Give a root.")
        self.name = name
        self.durability = checked_durability(durability)
        self.project, self.root = project, root
        self.resume_from = resume
        self.config = RecordedDict(settings(config), self._record_config) if is_open(config) else config
        self.summary = RecordedDict({}, self._record_summary)
        """What the run came to, in values of your own: ``run.summary["best"] = 0.9``, recorded at once."""
        self.added_config: dict[str, Any] = {}
        """Settings that `update_config` added beside a configuration that is an object of another class."""
        self.recorded_config: Any = None
        """What is recorded as the configuration, where that is more than `config`."""
        self.tags = checked_tags(tags)
        self._notes = checked_notes(notes)
        self.state = "created"
        self.seconds = 0.0
        self.ctx.run_key, self.ctx.run_config = name, self.config
        self._prints_summary = summary
        self._signals = StopSignals(self._heard_signal)
        self.signal: str | None = None
        """The signal that asked for a stop, if one did; there may have been another reason before."""
        self.processes = ProcessGroup()
        self.means = RankMeans(self.processes, lambda step, row: self._write(step, row, common=True))
        self.peers: Peers | None = None
        self.hook_record: HookRecord | None = None
        self._secured: dict[str, Any] = {}
        """The journal and how many of its lines were there when the record was last secured, for checkpoints."""
        self._early: list[tuple[int, dict[str, Any]]] = []
        self._logged_steps: LoggedSteps | None = None
        """Counts the steps of a loop that does not use ``run.steps``, as long as it does not."""
        self._loaded: ManifestRow | None = None
        self.resumed_from: Path | None = None
        """The checkpoint that was taken up, if one was."""
        self.afterwards: Callable[[], None] | None = None
        """What is done when training has ended in an orderly way, while it is still recorded."""
        self.resumed_row: dict[str, Any] = {}
        """What was logged of the step in whose body the checkpoint that was taken up was saved."""
        self._train_started = self._closed = self._ended = self._interrupted = self._agreed_to_stop = False
        self._began = 0.0
        self._process = 0

    @property
    def notes(self) -> str:
        """What the run is about, in words; assigning records it."""
        return self._notes

    @notes.setter
    def notes(self, notes: str) -> None:
        self._notes = checked_notes(notes)
        self._update_facts("notes", self._notes or None)
        self._tell_change(NOTES, {"text": self._notes})

    def update_config(self, *given: Any, **values: Any) -> None:
        """Add settings to the recorded configuration, also to one that is an object of a class of its own.

        They are in ``run.json`` at once, and an event says when they came. ``run.config.update(...)`` does the same
        where `config` was a mapping, a namespace or nothing.
        """
        if isinstance(self.config, RecordedDict):
            self.config.update(*given, **values)
            return
        added = RecordedDict({}, self._record_config)
        added.update(*given, **values)
        self.added_config |= added

    def restore_facts(self, known: Mapping[str, Any]) -> None:
        """Take the notes and the summary of the run that is resumed; notes that were given now replace those."""
        if self._notes and self._notes != known.get("notes"):
            self._update_facts("notes", self._notes)
        self._notes = self._notes or str(known.get("notes") or "")
        summary = known.get("summary")
        if isinstance(summary, dict):
            dict.update(self.summary, {name: parse_nonfinite(value) for name, value in summary.items()})

    def _record_config(self, changes: Mapping[str, Any], removed: Iterable[str]) -> None:
        new = {str(name): plain_settings(value) for name, value in changes.items()}
        self._update_facts("config", (new, removed))
        if new:
            self._tell_change(HYPERPARAMETERS, {"values": new})

    def _record_summary(self, changes: Mapping[str, Any], removed: Iterable[str]) -> None:
        new = {str(name): plain(value) for name, value in changes.items()}
        self._update_facts("summary", (new, removed))
        self._tell_change(SUMMARY, {"values": new, "removed": list(removed)})

    def _update_facts(self, name: str, change: Any) -> None:
        """Write a change to ``run.json``, on rank zero; also after the end, when results are often put together."""
        if self.recorder is not None and self.output_dir is not None and self.rank == 0:
            run_directory.update(self.output_dir, name, change)

    def _tell_change(self, event: str, data: Mapping[str, Any]) -> None:
        """Record a change as an event, which sinks follow."""
        if self.recorder is not None and self.rank == 0 and not self._ended:
            self.recorder.event(event, step=self.step, **data)

    @property
    def ending(self) -> str:
        """How it ended, in the word that the record has for it: "finished", "stopped" or "failed"."""
        return "stopped" if self._interrupted else {"completed": "finished"}.get(self.state, self.state)

    @property
    def how_to_be_taken_up(self) -> str:
        """What to do so that there is a checkpoint when it is taken up."""
        return "Give the callback 'checkpoint', or let it save sooner."

    @property
    def other_axes(self) -> dict[str, int]:
        """The steps of axes in the record that do not count what `step` counts."""
        return {}

    def begin(self) -> None:
        """Make or find the directory, take up what is to be resumed, and listen to signals."""
        self._thread, self._process = threading.get_ident(), os.getpid()
        self._train_started = self._closed = self._ended = self._interrupted = self._agreed_to_stop = False
        self.ctx.status, self.ctx.error = "running", None
        self.stop_reason = self.signal = None
        recording.begin(self)
        self.state = "running"
        self._began = time.perf_counter()
        self._signals.install()
        atexit.register(self._end_with_the_program)

    def _heard_signal(self, name: str) -> None:
        self.signal = name
        self.request_stop(name)

    def _end_with_the_program(self) -> None:
        """End a run that began and was never left: `finish` was not called, or an error ended the program."""
        error = getattr(sys, "last_value", None)  # the exception that nobody caught, if there was one
        self.finish(error if isinstance(error, BaseException) else SystemExit("the program ended"))

    def finish(self, error: BaseException | None = None) -> None:
        """Close everything, after an orderly end or after an error.

        Args:
            error: What ended the run, if it was an error.
        """
        atexit.unregister(self._end_with_the_program)
        if os.getpid() != self._process:
            return  # a forked child that leaves: the run is its parent's
        try:
            if error is None:
                self._end()
            else:
                self._fail(error)
        finally:
            self._signals.restore()
            self.seconds = time.perf_counter() - self._began
        if self._prints_summary and self.rank == 0 and (self.dir is not None or len(self.callbacks)):
            from hookline.loops.summary import print_summary

            print_summary(self)

    def start(self) -> None:
        """Fire `on_train_start`, once, and then what had to wait for it."""
        if self._train_started or self.state != "running":
            return
        self._train_started = True
        if self.recorder is not None:
            num_steps, num_epochs = self.num_steps, self.num_epochs
            self.recorder.status("running", step=self.step, num_steps=num_steps, num_epochs=num_epochs)
        if self.hook_record is not None:
            self.hook_record.open()
        self.callbacks.on_train_start(self)
        if self._loaded is not None:
            loaded, self._loaded = self._loaded, None
            self.callbacks.on_checkpoint_load(self, loaded)
        early, self._early = self._early, []
        for step, metrics in early:
            self._tell(step, metrics)

    def log(self, *args: Any, step: int | None = None, reduce: Any = None, commit: bool = True, **values: Any) -> None:
        """Record metrics: ``log(name, value)``, ``log({...})`` or ``log(name=value)``.

        Args:
            step: The completed count to record them at, where it is not the current one.
            commit: Whether this completes a step, in a loop whose steps are counted by `log`; otherwise the metrics
                wait for the next call. In other loops it makes no difference: a step's metrics are one row.
            reduce: What is recorded where several processes train together. Left out, it is the mean over those that
                logged the name, exchanged at the end of the step. ``"sum"``, ``"min"``, ``"max"`` and ``"mean"`` are
                exchanged there as well, whichever process logged something, and are a row of their own. ``"none"``
                records each process's own value.
        """
        row = self.lifecycle.row
        if (
            row is not None
            and step is None
            and reduce is None
            and self._logged_steps is None
            and self._train_started
            and not self._ended
            and threading.get_ident() == self._thread
        ):
            # Within a step, which is nearly always: what `Loop.log` does, with fewer calls. After the work of a
            # training step the caches are cold, and a Python call costs microseconds.
            metrics = collect(args, values, defer, defer_uniform, as_dict=True)
            items = metrics if type(metrics) is dict else list(dict.items(metrics))
            dict.update(row, items)
            dict.update(self.metrics, items)
            return
        if self._logged_steps is not None and self._log_without_steps(args, values, step, reduce, commit):
            return
        if self._ended:
            logger.warning("%s has ended: what is logged now is not recorded.", self.name)
        elif reduce == NOT_REDUCED:
            self._log_own(collect(args, values, defer), step)
        elif reduce is not None and step is not None:
            raise OptionError(f"log(step={step}, reduce={reduce!r}): what is reduced belongs to the step under way.")
        elif reduce is not None and self.processes.reductions.takes(reduce, self.world_size):
            self.processes.reductions.add(collect(args, values, defer), reduce)
        elif self._train_started or self.state != "running":
            super().log(*args, step=step, **values)
        else:
            self.log_early(copied(collect(args, values, defer)), step=step)

    def _log_own(self, metrics: dict[str, Any], step: int | None) -> None:
        """Record what only concerns this process."""
        at = self.step + self.in_step if step is None else checked_step(step)
        if self.world_size == 1 or threading.get_ident() != self._thread:
            super().log(metrics, step=step)
            return
        super()._write(at, copied(metrics))
        if not self._committing:  # what is logged in on_log does not fire it again
            self._tell(at, metrics)

    def log_early(self, metrics: dict[str, Any], *, step: int | None = None) -> None:
        """Record a row that belongs to no step, at the present count or at ``step``.

        The first moment is `on_train_start`, and waits until the plan is known: `on_log` waits for it.
        """
        at = self.step if step is None else checked_step(step)
        self._write(at, metrics)
        if self._train_started:
            self._tell(at, metrics)
        else:
            self._early.append((at, metrics))

    def _log_without_steps(
        self, args: tuple[Any, ...], values: dict[str, Any], step: int | None, reduce: Any, commit: bool
    ) -> bool:
        """Count a row as a step where the loop has no others; returns whether it is recorded."""
        return False

    def sinks(self) -> list["SinkState"]:
        """How each sink stands: ``ok``, ``lagging`` or ``refused``, how much it was given, what is wrong."""
        return self.outlets.states()

    def save_checkpoint(self, path: str | Path | None = None, *, kind: str = "step") -> ManifestRow:
        """Save the loop's counters, the callbacks' states and what belongs to this loop, and return the row.

        Rank zero writes, unless the loop's processes each have something to save.
        """
        step = self.step + self.in_step
        place = self._checkpoint_path(path, step)
        self.secure_record()
        return self._saved(self._write_checkpoint(place, step, kind))

    def secure_record(self) -> None:
        """Have what was recorded so far where a resume finds it: it continues behind the checkpoint that is saved next.

        Raises:
            CheckpointError: It cannot be brought to the disk.
        """
        if self.recorder is None:
            return
        self.recorder.flush()
        journal = self.recorder.journal
        self._secured = {"writer": journal.writer, "lines": journal.lines_written}
        try:
            if self.durability != "process":
                journal.sync()
        except OSError as error:
            raise CheckpointError(f"The record before the checkpoint cannot be brought to the disk: {error}") from error

    def _saved(self, row: ManifestRow) -> ManifestRow:
        """Record a checkpoint that was written, and fire `on_checkpoint`."""
        self.checkpoints.append(row)
        if self.recorder is not None and self.rank == 0:
            self.recorder.event("checkpoint", step=row.step, path=str(row.path), bytes=row.bytes, kind=row.kind)
        self.callbacks.on_checkpoint(self, row)
        return row

    def _write_checkpoint(self, place: Path, step: int, kind: str) -> ManifestRow:
        if self.rank != 0:
            return ManifestRow(step=step, path=place, metrics=dict(self.metrics), kind=kind)
        self.callbacks.drain()  # so that the states are those of all moments so far
        return checkpoint.save(place, self._state(step), self._save_files, step=step, kind=kind)

    def load_checkpoint(self, path: str | Path) -> ManifestRow:
        """Take up a checkpoint: counters, metrics, the callbacks' states, and what else belongs to this loop."""
        path = Path(path)
        with unpacked(path) as directory:
            state = checkpoint.load(directory)
            self.callbacks.check_state_dict(_callback_states(state))  # before anything is changed
            if (directory / checkpoint.CALLBACK_SHARDS).is_dir():
                from hookline.loops.sharded import read_callback_shards

                state["callbacks"] = read_callback_shards(state["callbacks"], directory, self.model)
            self._load_files(directory)
            self._place_at(state)
            self.metrics.update(state["metrics"])
            self._load_states(state)
            row = replace(checkpoint.row_of(directory, state), path=path)
        self.resumed_from = path
        if self._train_started:
            self.callbacks.on_checkpoint_load(self, row)
        else:
            self._loaded = row
        return row

    def _load_states(self, state: Mapping[str, Any]) -> None:
        """Give the callbacks their states."""
        self.callbacks.load_state_dict(_callback_states(state))

    def _place_at(self, state: dict[str, Any]) -> None:
        """Set the counters to those of a checkpoint."""
        self.step, self.epoch = state["step"], state["epoch"]

    def _save_files(self, directory: Path) -> None:
        """Write what belongs to this loop into a checkpoint's directory."""

    def _load_files(self, directory: Path) -> None:
        """Read it back; nothing is changed before all of it was read."""

    def answer_requests(self) -> None:
        """Save a checkpoint that was asked for, unless a step is under way."""
        if self.checkpoint_requested and not self.in_step:
            self.checkpoint_requested = False
            self.save_checkpoint()

    def _checkpoint_rules(self) -> list[CheckpointRule]:
        return [callback for callback in all_callbacks(self.callbacks) if isinstance(callback, CheckpointRule)]

    def _share_checkpoint_requests(self, step: int) -> None:
        """Let the rules of all processes agree on the checkpoint of a step that is about to be saved on all of them.

        Every process has to call this, also one that has no rules.
        """
        if self.world_size == 1:
            return
        rules = self._checkpoint_rules()
        everyones = self.processes.gather([rule.checkpoint_request() for rule in rules])
        for index, rule in enumerate(rules):
            rule.agree_on_checkpoint(step, [requests[index] for requests in everyones if len(requests) == len(rules)])

    def _must_stop(self) -> bool:
        self._agree()
        return self._agreed_to_stop

    def _agree(self, *wishes: bool) -> tuple[bool, ...]:
        """Settle with the other processes what happens now; returns which of the wishes some process has."""
        if self.world_size == 1:
            self._agreed_to_stop = self._stops(self.stop_reason)
            return wishes
        agreed = self.processes.agree(self.stop_reason, self.means.has_rows, *wishes)
        has_rows, *granted = agreed.wishes
        if has_rows:
            for step, axis, metrics in self.means.shared_rows():
                self._write(step, metrics, axis, common=True)
        if agreed.reduced:
            self.commit(self.step, agreed.reduced, common=True)
        if agreed.stop_reason is not None or any(granted):
            self.means.settle()  # a checkpoint may follow, and the rows before it must be there
        if agreed.stop_reason is not None:  # never assigned otherwise: a signal may have set a reason meanwhile
            self.stop_reason = agreed.stop_reason
        self._agreed_to_stop = self._stops(agreed.stop_reason)
        return tuple(granted)

    def _stops(self, reason: str | None) -> bool:
        """Whether a reason cuts the training short: one given at the last planned step does not, unless by a signal."""
        is_done = self.num_steps is not None and self.step >= self.num_steps
        return reason is not None and (is_signal(reason) or not is_done)

    def _exchanges(self) -> bool:
        """Whether what is logged is exchanged with the other processes of a training that is under way."""
        return (
            self.exchanges_rows
            and self.world_size > 1
            and self._logged_steps is None
            and self.state == "running"
            and self.processes.is_connected()
        )

    def _write(self, step: int, metrics: dict[str, Any], axis: str | None = None, *, common: bool = False) -> None:
        if common or self.world_size == 1 or is_waiting(metrics) or not self._exchanges():
            super()._write(step, metrics, axis, common=common)
        elif metrics:
            self.metrics.update(metrics)
            self.means.keep(LooseRow(step, axis or self.axis, copied(metrics)))

    def _share_step(self) -> Commit | None:
        """Exchange the numbers of the step that ends now; returns how its row is committed, where that is special."""
        if self.world_size == 1 or (row := self.lifecycle.row) is None or not self._exchanges():
            return None
        shared = self.means.share(row, self.step + 1)
        self.metrics.update(row)

        def commit(step: int, row: MetricsRow) -> None:
            dict.update(row, shared)  # one that was read meanwhile may stand there as this process's own
            later = {name: value for name, value in dict.items(row) if name not in shared}
            numbers = {name: value for name, value in later.items() if is_number(value)}
            others = {name: value for name, value in later.items() if name not in numbers}
            self._write(step, MetricsRow({**shared, **others}), common=True)
            if numbers:  # logged in on_step_end
                self._write(step, MetricsRow(numbers))
            self._tell(step, row)

        return commit

    def _settle(self) -> None:
        """Complete what is under way at an orderly end."""

    def _end(self) -> None:
        try:
            self._settle()
            self.start()
            self.commit_held_back()
            if self._exchanges():
                self.means.settle()
            self.answer_requests()
            if not self._stops(self.stop_reason):
                self.stop_reason = None
            self.state = self.ctx.status = "stopped" if self.stop_requested else "completed"
            self._save_last()
            self.callbacks.on_train_end(self, self.artifacts())
            self.answer_requests()
            if self.afterwards is not None:
                self.afterwards()
            self._close()
        except BaseException as error:
            self._fail(error)
            raise

    def _save_last(self) -> None:
        """Save what rules want saved at the end, so that whoever is told of the end finds it."""
        for rule in self._checkpoint_rules():
            rule.save_at_end(self)

    def _fail(self, error: BaseException) -> None:
        self.state = "failed"
        self._interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
        number, row = self.lifecycle.abandon()
        self._leave_step()
        if row:  # what the step that failed had logged is what explains it
            self._write(number, row)
        self.ctx.status, self.ctx.error = "failed", self.explain(error)
        try:
            self.callbacks.on_exception(self, error)
        finally:
            self._close()
            self.processes.close()

    def _leave_step(self) -> None:
        """Forget the step that was under way."""

    def explain(self, error: BaseException) -> str:
        """Why the run fails: this error, or that of another process that came first."""
        own = f"{type(error).__name__}: {error}"
        reason = own if self.peers is None else self.peers.explain(own)
        if reason != own:
            error.add_note(f"hookline: {reason}")
        return reason

    def _close(self) -> None:
        """Close the callbacks, once, and keep what those on other threads still logged."""
        if not self._closed:
            self._closed = True
            try:
                self.callbacks.close()
            except BaseException:
                self.state = "failed"
                raise
            finally:
                self.commit_held_back()
                for step, axis, metrics in self.means.take_rows():
                    super()._write(step, metrics, axis)  # the processes do not meet any more
                if self.processes.reductions:
                    logger.warning("log(reduce=...) after the last step: the processes do not meet any more.")
                self._ended = True
                recording.end(self, self.ending)

    def _state(self, step: int) -> dict[str, Any]:
        """What a checkpoint holds of the loop itself."""
        states = self.callbacks.state_dict()
        if self._is_sharded():
            from hookline.loops.sharded import taken_from

            states = taken_from(states, "callbacks", {})  # all processes have written theirs
        state = {"step": step, "epoch": self.epoch, "metrics": plain(dict(self.metrics)), "callbacks": states}
        return state | ({"journal": self._secured} if self._secured else {})

    def _is_sharded(self) -> bool:
        """Whether several processes have a part of the model each."""
        return self.world_size > 1 and self.model is not None and is_sharded(self.model)

    def _write_callback_shards(self, directory: Path) -> None:
        """Write what this process has of the sharded tensors in callbacks' states."""
        from hookline.loops.sharded import write_callback_shards

        write_callback_shards(self.callbacks.state_dict(), directory, self.processes.group())

    def artifacts(self) -> LoopArtifacts:
        """What the loop leaves behind, as it is now."""
        there = tuple(row for row in self.checkpoints if row.path.exists())  # callbacks may have deleted others
        return LoopArtifacts(self.step, dict(self.metrics), there, self.output_dir, self.stop_reason)

    def _checkpoint_path(self, path: str | Path | None, step: int) -> Path:
        if path is not None:
            return Path(path)
        if self.rank != 0 and self.output_dir is None:
            return Path("checkpoints") / f"step-{step:08d}"  # rank zero writes
        if self.output_dir is None:
            why = "Nothing is recorded (root=None)" if self.root is None else "It has no directory before it begins"
            raise CheckpointError(f"Where to? {why}: give save_checkpoint(path).")
        return self.output_dir / "checkpoints" / f"step-{step:08d}"


def _callback_states(state: Mapping[str, Any]) -> dict[str, Any]:
    """The callbacks' states in a checkpoint; earlier versions listed those that could not be saved, and are empty."""
    left_out = state.get("left_out", ())
    return {name: own for name, own in state["callbacks"].items() if name not in left_out}

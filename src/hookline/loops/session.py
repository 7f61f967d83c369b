"""`Session`: a recorded loop from its beginning to its end; the base of `Run`, `Trainer` and host loops.

Between `begin` and `finish` a session has a directory and a journal, turns signals into stop requests, and fires
`on_train_start` once and then either `on_train_end` or `on_exception`. It holds what it needs, each with one job:

    lifecycle       the step in progress: its number, row and moments   (`hookline.loops.step`)
    recording       directory, journal, sinks                           (`hookline.loops.recording`)
    facts           configuration, tags, notes, summary                 (`hookline.loops.run_facts`)
    checkpointing   saving, loading, resuming                           (`hookline.loops.checkpointing`)
    control         commands from outside                               (`hookline.loops.control`)
    processes       the other processes and the collectives with them   (`hookline.loops.distributed`)
    means           metrics averaged over the processes                 (`hookline.loops.rank_means`)

Processes that train together stop at the same step, and when one of them fails the others end as well.
"""

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hookline._engine.defaults import PROJECT, ROOT
from hookline._engine.errors import OptionError
from hookline._engine.metrics import MetricsRow, collect, copied, is_collected
from hookline._engine.state import LoopArtifacts, ManifestRow
from hookline._engine.subscriber_list import SubscriberList
from hookline._record.console_capture import ConsoleMode
from hookline._record.crash import message_of
from hookline._record.device import defer, defer_uniform
from hookline._record.journal import Durability
from hookline._record.recorder import checked_step
from hookline._record.redaction import Redact
from hookline._record.source_code import Code
from hookline.config.variables import choose
from hookline.loops.checkpointing import Checkpointing
from hookline.loops.control import Control, Tunable
from hookline.loops.distributed import PeerWatch, ProcessGroup
from hookline.loops.loop import Loop
from hookline.loops.rank_means import NOT_REDUCED, LooseRow, RankMeans, is_number, is_reduction, is_waiting
from hookline.loops.recording import HookRecord, Recording, check_resume
from hookline.loops.run_facts import RunFacts
from hookline.loops.run_sinks import DRAIN_SECONDS, DeliveryMode, RunSinks
from hookline.loops.signals import StopSignals, is_signal
from hookline.loops.step import Commit

if TYPE_CHECKING:
    from hookline._record.delivery import SinkState
    from hookline.loops.step import LoggedSteps

logger = logging.getLogger("hookline")


class Session(Loop):
    """A recorded loop from its beginning to its end; subclasses add what it does.

    Args:
        name: The name of the run; ``resume="auto"`` finds it by this.
        project: The folder of ``root`` that contains its directory.
        root: Where runs are recorded; None keeps everything in memory and writes nothing.
        callbacks: A `CallbackCollection`, or anything it accepts.
        sinks: Where the record is delivered: names such as ``"csv"`` and ``"tensorboard"``, mappings
            ``{"wandb": {"project": "mine"}}``, sinks, or functions ``(report_data, step)``.
        config: The settings, recorded as plain data. A mapping or a namespace becomes ``run.config``, a dict with
            attributes whose changes are recorded; an object of another class stays ``run.config``.
        tags: Short words that the run is found by in lists, on the page and in SQL.
        notes: A description of the run in a few sentences; ``run.notes``.
        resume: Resume an earlier run: its id or directory, a checkpoint's directory, ``"last"`` for the latest
            of this name that has a checkpoint, or ``"auto"`` for the latest of this name that neither finished
            nor is running, if there is one.
        strict: Let exceptions of subscribers propagate.
        summary: Print how the run ended and the cost of each subscriber.
        delivery: ``"thread"`` delivers from this process, ``"process"`` from one that survives it.
        drain_seconds: How long the end of the run waits for its sinks; ``hookline runs sync`` delivers the rest.
        durability: What survives a power cut, besides checkpoints. ``"checkpoint"``: everything recorded before the
            last checkpoint or the end of the run. ``"power"``: everything until about a second before. ``"process"``:
            what the system had written by itself. The death of the process loses nothing in any case.
        console: Record what the process prints. True chooses the level: that of file descriptors, with C code and child
            processes, where output goes to a file or a pipe; that of Python on a terminal and in notebooks.
            ``"fd"`` and ``"python"`` ask for one of them; False records nothing.
        code: How much of the code is recorded besides the git commit: ``"diff"`` the changes against it, ``"all"`` also
            untracked files, ``"none"`` or False nothing.
        redact: A function that is called with every text before it is recorded and returns what is recorded, a regular
            expression whose matches are replaced, ``"module:function"``, or a list of these. Well-known secrets are
            redacted as well; False records everything unchanged.
        control: Whether the owner of the run may send commands to it while it runs (`hl.control`). ``"own"`` offers no
            learning rates by itself; ``HOOKLINE_CONTROL=off`` switches it off.
        resume_commands: ``"apply"`` repeats the commands that were applied after the resumed checkpoint, at the same
            steps; ``"drop"`` does not.
    """

    exchanges_rows: ClassVar[bool] = False
    """Whether its processes end their steps together, and record the means of what they log."""
    saves_together: ClassVar[bool] = False
    """Whether all processes save a checkpoint together; otherwise rank zero saves it alone."""
    control_refusal: ClassVar[str | None] = None
    """Why loops of this kind do not listen to commands, where they do not."""

    def __init__(
        self,
        name: str,
        *,
        project: str = PROJECT,
        root: str | Path | None = ROOT,
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
        console: ConsoleMode = True,
        code: Code | Literal[False] = "diff",
        redact: Redact = None,
        control: bool | Literal["own"] = True,
        resume_commands: Literal["apply", "drop"] = "apply",
    ) -> None:
        name, project, root, tags, sinks, callbacks, resume = choose(
            name=name, project=project, root=root, tags=tags, sinks=sinks, callbacks=callbacks, resume=resume
        )
        if not isinstance(name, str):
            raise OptionError(f"name={name!r:.80}: give a string.")
        if isinstance(config, bool | int | float | str | bytes):
            raise OptionError(f"config={config!r:.80}: give a dict, a dataclass, or another object with settings.")
        super().__init__(callbacks, strict=strict)
        if resume is not None:
            check_resume(resume)
            if root is None:
                raise OptionError(f"resume={resume!r} with root=None: a run that was not recorded cannot be resumed.")
        self.name = name
        run_sinks = RunSinks(sinks, delivery=delivery, drain_seconds=drain_seconds)
        self.recording = Recording(
            self,
            project=project,
            root=root,
            durability=durability,
            console=console,
            sinks=run_sinks,
            code=code,
            redact=redact,
        )
        self.facts = RunFacts(self, config=config, tags=tags, notes=notes)
        self.checkpointing = Checkpointing(self)
        self.control = Control(self, mode=control, resume_commands=resume_commands)
        self.processes = ProcessGroup()
        self.means = RankMeans(self.processes, lambda step, row: self._write(step, row, common=True))
        self.config = self.facts.config
        self.summary = self.facts.summary
        """Results in values of your own: ``run.summary["best"] = 0.9``, recorded at once."""
        self.recorded_config: Any = None
        """What is recorded as the configuration, where `config` is only a part of it."""
        self.resume_from = resume
        self.run_id: str | None = None
        """The name of the new run's directory, where a bridge gives it; a readable unique one by default."""
        self.description: dict[str, Any] = {}
        """What a bridge adds to ``run.json`` of a new run, such as the group that its host knows."""
        self.resumed_row: dict[str, Any] = {}
        """What the step in progress had logged when the resumed checkpoint was saved in its body."""
        self.rows_are_indexed = False
        """Whether the resumed checkpoint is that of a loop whose rows are numbered from 0, by `LoggedSteps`."""
        self.state = "created"
        self.seconds = 0.0
        self.ctx.run_key, self.ctx.run_config = name, self.config
        self.signal: str | None = None
        """The signal that requested a stop, if one did; there may have been another reason before."""
        self.hook_record: HookRecord | None = None
        self.peers: PeerWatch | None = None
        self.afterwards: Callable[[], None] | None = None
        """Called when training has ended in an orderly way, while the session is still recorded."""
        self.has_started = self.has_ended = False
        self._closed = self._interrupted = self._agreed_to_stop = False
        self._early: list[tuple[int, dict[str, Any]]] = []  # rows before on_train_start, whose on_log waits for it
        self._logged_steps: LoggedSteps | None = None  # counts the steps of a loop that does not use run.steps
        self._signals = StopSignals(self._on_signal)
        self._prints_summary = summary
        self._began = 0.0
        self._process = 0

    @property
    def project(self) -> str:
        """The folder of `root` that contains the run's directory."""
        return self.recording.project

    @property
    def root(self) -> str | Path | None:
        """Where runs are recorded; None where nothing is."""
        return self.recording.root

    @property
    def durability(self) -> Durability:
        """What survives a power cut, besides checkpoints."""
        return self.recording.durability

    @property
    def tags(self) -> tuple[str, ...]:
        """Short words that the run is found by."""
        return self.facts.tags

    def _repr_html_(self) -> str:
        from hookline._engine import notebook
        from hookline.loops.summary import summary_html

        return notebook.display(lambda: summary_html(self))

    @property
    def notes(self) -> str:
        """A description of the run in words; assigning records it."""
        return self.facts.notes

    @notes.setter
    def notes(self, notes: str) -> None:
        self.facts.notes = notes

    @property
    def resumed_from(self) -> Path | None:
        """The checkpoint that was resumed, if one was."""
        return self.checkpointing.resumed_from

    @property
    def ending(self) -> str:
        """How the run ended, as the record has it: "finished", "stopped" or "failed"."""
        return "stopped" if self._interrupted else {"completed": "finished"}.get(self.state, self.state)

    @property
    def resume_hint(self) -> str:
        """What to do so that there is a checkpoint to resume from."""
        return "Give the callback 'checkpoint', or let it save sooner."

    @property
    def other_axes(self) -> dict[str, int]:
        """The steps of axes in the record that do not count what `step` counts."""
        return {}

    def update_config(self, *given: Any, **values: Any) -> None:
        """Add settings to the recorded configuration, also to one that is an object of a class of its own.

        They are in ``run.json`` at once, and an event says when they were added. ``run.config.update(...)`` does the
        same where `config` was a mapping, a namespace or nothing.
        """
        self.facts.update_config(*given, **values)

    def tunable(
        self,
        name: str,
        value: Any,
        *,
        min: float | None = None,  # noqa: A002 - what they are called
        max: float | None = None,  # noqa: A002
        choices: Iterable[Any] | None = None,
    ) -> Tunable:
        """Offer a parameter that may be changed while the run is live, and return the object that holds its value.

            clip = run.tunable("clip", 1.0, min=0, max=10)
            for batch in run.steps(loader):
                train_step(batch, clip.value)

        A later call with the same name returns the same object. The value belongs to checkpoints.

        Args:
            name: Its name in commands: ``hookline control RUN set clip 0.5``.
            value: Its value at the beginning: a number, a text, True or False. Commands give one of the same type.
            min: The lowest value accepted.
            max: The highest value accepted.
            choices: The values accepted, where only some are.
        """
        return self.control.tunable(name, value, (min, max), choices)

    def command_refusal(self, name: str) -> str | None:
        """Return why this loop cannot apply a command, such as ``validate``; None if it can."""
        return None

    def subscriber_lists(self) -> list[SubscriberList]:
        """Return the lists whose subscribers commands can change."""
        return [self.callbacks]

    def save_at_boundary(self) -> ManifestRow | None:
        """Save a checkpoint between two steps, on all processes; None where this loop cannot save one right now."""
        if self.output_dir is None or (self.world_size > 1 and not self.saves_together):
            return None
        self.checkpointing.share_requests(self.step)
        return self.save_checkpoint()

    def sinks(self) -> list["SinkState"]:
        """Return the state of each sink: ``ok``, ``lagging`` or ``refused``, how much it was given, and its error."""
        return self.recording.sinks.states()

    def begin(self) -> None:
        """Create or find the directory, resume if asked to, and take over the signals."""
        # Here and not in __init__: the loop belongs to the thread and the process that begin it. Moments fire on this
        # thread, and `finish` tells a forked child by the process.
        self._thread, self._process = threading.get_ident(), os.getpid()
        self.has_started = self.has_ended = False
        self._closed = self._interrupted = self._agreed_to_stop = False
        self.ctx.status, self.ctx.error = "running", None
        self.stop_reason = self.signal = None
        # Before the signals: a Ctrl-C while a run is searched for interrupts at once, and an error here leaves no
        # handler behind.
        self.recording.begin()
        self.state = "running"
        self._began = time.perf_counter()
        self._signals.install()
        # A run without a `with` may never be finished: without this its record would have no ending.
        atexit.register(self._end_with_the_program)

    def _on_signal(self, name: str) -> None:
        # In a signal handler, between any two bytecodes of the training: assignments only, no lock and no journal.
        self.signal = name
        self.request_stop(name)

    def _end_with_the_program(self) -> None:
        """End a run that began and was never left: `finish` was not called, or an error ended the program."""
        error = getattr(sys, "last_value", None)  # the uncaught exception, if there was one
        self.finish(error if isinstance(error, BaseException) else SystemExit("the program ended"))

    def finish(self, error: BaseException | None = None) -> None:
        """Close everything, after an orderly end or after an error.

        Args:
            error: The error that ended the run, if one did.
        """
        # First: if what follows raises, the program ends next, and must not end this run once more.
        atexit.unregister(self._end_with_the_program)
        if os.getpid() != self._process:
            return  # a forked child that exits: the run, its journal and its lock are the parent's
        try:
            if error is None:
                self._end()
            else:
                self._fail(error)
        finally:
            # Last: a first signal while the run ends must not cut off its last checkpoint.
            self._signals.restore()
            self.seconds = time.perf_counter() - self._began
        if self._prints_summary and self.rank == 0 and (self.dir is not None or len(self.callbacks)):
            from hookline.loops.summary import print_summary

            print_summary(self)

    def start(self) -> None:
        """Fire `on_train_start`, once, and then what had to wait for it."""
        if self.has_started or self.state != "running":
            return
        # Before anything fires: a validation in on_train_start comes back here.
        self.has_started = True
        if self.recorder is not None:
            num_steps, num_epochs = self.num_steps, self.num_epochs
            self.recorder.status("running", step=self.step, num_steps=num_steps, num_epochs=num_epochs)
        if self.hook_record is not None:
            self.hook_record.open()
        self.callbacks.on_train_start(self)
        self.control.started()
        # No moment comes before on_train_start, so a checkpoint that was loaded earlier is announced after it.
        loaded, self.checkpointing.loaded = self.checkpointing.loaded, None
        if loaded is not None:
            self.callbacks.on_checkpoint_load(self, loaded)
        # Their rows are in the record since they were logged. Only on_log had to wait.
        early, self._early = self._early, []
        for step, metrics in early:
            self._notify_log(step, metrics)

    def log(self, *args: Any, step: int | None = None, reduce: Any = None, commit: bool = True, **values: Any) -> None:
        """Record metrics: ``log(name, value)``, ``log({...})`` or ``log(name=value)``.

        Args:
            step: The completed count to record them at, where it is not the current one.
            commit: Whether this completes a step, in a loop whose steps are counted by `log`; otherwise the metrics
                wait for the next call. In other loops it has no effect: a step's metrics are one row.
            reduce: What is recorded where several processes train together. By default, the mean over those that
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
            and self.has_started
            and not self.has_ended
            and threading.get_ident() == self._thread
        ):
            # Within a step, which is nearly always: the same as `Loop.log` with fewer calls. After the work of a
            # training step the caches are cold, and a Python call costs microseconds.
            given = values if not args else args[0] if len(args) == 1 and not values else None
            if type(given) is dict and is_collected(given):
                dict.update(row, given)
                dict.update(self.metrics, given)
                return
            metrics = collect(args, values, defer, defer_uniform, as_dict=True)
            items = metrics if type(metrics) is dict else list(dict.items(metrics))
            if type(metrics) is MetricsRow and metrics.media:
                row.media = (row.media or {}) | metrics.media
            dict.update(row, items)
            dict.update(self.metrics, items)
            return
        if self._logged_steps is not None and self._log_without_steps(args, values, step, reduce, commit):
            return
        if self.has_ended:
            logger.warning("%s has ended: values logged now are not recorded.", self.name)
        elif reduce == NOT_REDUCED:
            self._log_own(collect(args, values, defer), step)
        elif reduce is not None and step is not None:
            raise OptionError(f"log(step={step}, reduce={reduce!r}): a reduced value belongs to the step in progress.")
        # One process falls through once the name is checked: its own value is the reduction.
        elif reduce is not None and is_reduction(reduce) and self.world_size > 1:
            metrics = collect(args, values, defer)
            self._record_media(self.step + self.in_step, metrics, None)
            self.means.reduce_later(metrics, reduce)
        elif self.has_started or self.state != "running":
            super().log(*args, step=step, **values)
        else:
            self.log_early(copied(collect(args, values, defer)), step=step)

    def _log_own(self, metrics: dict[str, Any], step: int | None) -> None:
        """Record metrics of this process alone."""
        at = self.step + self.in_step if step is None else checked_step(step)
        if self.world_size == 1 or threading.get_ident() != self._thread:
            super().log(metrics, step=step)
            return
        # Not self._write, which would keep the row for the exchange with the others.
        super()._write(at, copied(metrics))
        if not self._committing:  # rows logged in on_log do not fire it again
            self._notify_log(at, metrics)

    def record_evaluation(self, name: str, metrics: dict[str, Any], **options: Any) -> None:
        """Record an evaluation, and answer the commands that asked for one."""
        super().record_evaluation(name, metrics, **options)
        if options.get("ends_validation"):
            self.control.completed("validate", f"Validated {name} at step {self.step}.")

    def log_early(self, metrics: dict[str, Any], *, step: int | None = None) -> None:
        """Record a row that belongs to no step, at the present count or at ``step``.

        The first moment is `on_train_start`, which waits until the number of steps is known; `on_log` waits for it.
        """
        at = self.step if step is None else checked_step(step)
        self._write(at, metrics)
        if self.has_started:
            self._notify_log(at, metrics)
        else:
            self._early.append((at, metrics))

    def _log_without_steps(
        self, args: tuple[Any, ...], values: dict[str, Any], step: int | None, reduce: Any, commit: bool
    ) -> bool:
        """Count a row as a step where the loop has no others; returns whether it is recorded."""
        return False

    def save_checkpoint(self, path: str | Path | None = None, *, kind: str = "step") -> ManifestRow:
        """Save the loop's counters, the callbacks' states and the loop's own files, and return the row.

        Rank zero writes, unless the processes of this kind of loop save together.
        """
        return self.checkpointing.save(path, kind=kind)

    def load_checkpoint(self, path: str | Path) -> ManifestRow:
        """Restore a checkpoint: counters, metrics, the callbacks' states, and the loop's own files."""
        return self.checkpointing.load(path)

    def _checkpoint_state(self, step: int) -> dict[str, Any]:
        """Return the loop's state for a checkpoint, as plain values and tensors."""
        return self.checkpointing.base_state(step)

    def _restore_position(self, state: dict[str, Any]) -> None:
        """Set the counters to those of a checkpoint."""
        self.step, self.epoch = state["step"], state["epoch"]

    def _save_common_files(self, directory: Path) -> None:
        """Write the files of the loop that one process has all of; called on rank zero."""

    def _save_rank_files(self, directory: Path, *, before_step: bool = False) -> None:
        """Write this process's own files, where all processes save together.

        Args:
            before_step: Whether the checkpoint goes back to the beginning of the step in progress.
        """

    def _load_files(self, directory: Path) -> None:
        """Read them all, and only then change anything."""

    def answer_requests(self) -> None:
        """Save a requested checkpoint, unless a step is in progress."""
        if self.checkpoint_requested and not self.in_step:
            self.checkpoint_requested = False
            self.save_checkpoint()

    def _must_stop(self) -> bool:
        self._agree()
        return self._agreed_to_stop

    def _agree(self, *wishes: bool) -> tuple[bool, ...]:
        """Agree with the other processes on what happens now; returns which of the wishes some process has."""
        if self.world_size == 1:
            self._agreed_to_stop = self.stop_reason is not None and self._cuts_short(self.stop_reason)
            return wishes
        # A collective: every rank comes here at every boundary, also one that wishes nothing. Whether there are rows
        # and reductions to exchange travels in the same message, so all ranks enter those collectives below, or none.
        agreed = self.processes.agree(self.stop_reason, self.means.has_rows, self.means.has_reductions, *wishes)
        has_rows, has_reductions, *granted = agreed.wishes
        if has_rows:
            for step, axis, metrics in self.means.shared_rows():
                self._write(step, metrics, axis, common=True)
        if has_reductions:
            self.commit(self.step, self.means.reduced_row(), common=True)
        if agreed.stop_reason is not None or any(granted):
            self.means.settle()  # a checkpoint may follow, and the rows before it must be written
        if agreed.stop_reason is not None:  # never assigned otherwise: a signal may have set a reason in the meantime
            self.stop_reason = agreed.stop_reason
        # By what was agreed, not by self.stop_reason: a signal that came after the exchange is known here alone. A rank
        # that stopped by it would leave the others in their next collective.
        self._agreed_to_stop = self._cuts_short(agreed.stop_reason)
        return tuple(granted)

    def _cuts_short(self, reason: str | None) -> bool:
        """Whether a reason cuts the training short; at the last planned step only a signal does."""
        # A rule that stops at the last planned step has shortened nothing: that run counts as completed.
        is_done = self.num_steps is not None and self.step >= self.num_steps
        return reason is not None and (is_signal(reason) or not is_done)

    def _exchanges(self) -> bool:
        """Whether what is logged is exchanged with the other processes of a running training."""
        # A loop that only logs is left out: its ranks need not log in step, so a collective there might wait forever. A
        # launcher may have set the world size while nobody is connected yet.
        return (
            self.exchanges_rows
            and self.world_size > 1
            and self._logged_steps is None
            and self.state == "running"
            and self.processes.is_connected()
        )

    def _write(self, step: int, metrics: dict[str, Any], axis: str | None = None, *, common: bool = False) -> None:
        if type(metrics) is not dict and metrics.media:  # type: ignore[attr-defined]
            self._record_media(step, metrics, axis)
        # A row with values on a device is not kept for the boundary: there all ranks would wait for the slowest device.
        if common or self.world_size == 1 or is_waiting(metrics) or not self._exchanges():
            super()._write(step, metrics, axis, common=common)
        elif metrics:
            self.metrics.update(metrics)
            self.means.keep(LooseRow(step, axis or self.axis, copied(metrics)))

    def _share_step(self) -> Commit | None:
        """Exchange the numbers of the step that ends now; returns how to commit its row, where that differs."""
        if self.world_size == 1 or (row := self.lifecycle.row) is None or not self._exchanges():
            return None
        # Before on_step_end, so that the callbacks of all ranks decide by the same numbers. The step is not counted
        # yet.
        shared = self.means.share(row, self.step + 1)
        self.metrics.update(row)

        def commit(step: int, row: MetricsRow) -> None:
            self._record_media(step, row, None)
            dict.update(row, shared)  # a value that a subscriber read in the meantime is this process's own
            later = {name: value for name, value in dict.items(row) if name not in shared}
            numbers = {name: value for name, value in later.items() if is_number(value)}
            others = {name: value for name, value in later.items() if name not in numbers}
            # Equal on all ranks, so rank zero records them; of values that are no numbers, rank zero's are recorded.
            self._write(step, MetricsRow({**shared, **others}), common=True)
            if numbers:  # logged in on_step_end, after the exchange
                self._write(step, MetricsRow(numbers))
            self._notify_log(step, row)

        return commit

    def _finish_open_work(self) -> None:
        """Complete open work at an orderly end."""

    def _abandon_step(self) -> None:
        """Forget the step in progress, after an error."""

    def _end(self) -> None:
        try:
            self._finish_open_work()
            # Also for a run without a single step: a start is never missing before an end.
            self.start()
            self.commit_held_back()
            if self._exchanges():
                # Waits for the device values of the last steps: the checkpoint and on_train_end below get the means.
                self.means.settle()
            self.answer_requests()
            if not self._cuts_short(self.stop_reason):
                self.stop_reason = None
            self.state = self.ctx.status = "stopped" if self.stop_requested else "completed"
            self.checkpointing.save_at_end()
            self.callbacks.on_train_end(self, self.artifacts())
            # A subscriber of on_train_end may have requested a checkpoint, and no boundary follows.
            self.answer_requests()
            if self.afterwards is not None:
                self.afterwards()
            self._close()
        # A second signal raises in here. The run is then recorded as stopped, and everything is closed all the same.
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        self.state = "failed"
        self._interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
        number, row = self.lifecycle.abandon()
        self._abandon_step()
        if row or row.media:  # the metrics of the failed step often explain the failure
            self._write(number, row)
        # Before on_exception, whose subscribers may take long: `explain` leaves the note that the other processes watch
        # for.
        self.ctx.status, self.ctx.error = "failed", self.explain(error)
        self.recording.record_failure(error)
        try:
            self.callbacks.on_exception(self, error)
        finally:
            self._close()
            # Only after a failure: the collectives of others that wait for this process fail instead of hanging.
            self.processes.close()

    def explain(self, error: BaseException) -> str:
        """Return why the run fails: this error, or that of another process which came first."""
        # Redacted here: the other processes read it in a file, and an experiment in the run's result.
        own = self.recording.redactor(f"{type(error).__name__}: {message_of(error)}")
        reason = own if self.peers is None else self.peers.explain(own)
        if reason != own:
            error.add_note(f"hookline: {reason}")
        return reason

    def _close(self) -> None:
        # `_end` may fail after it has closed, and `_fail` closes again.
        if self._closed:
            return
        self._closed = True
        try:
            self.callbacks.close()
        except BaseException:
            self.state = "failed"
            raise
        finally:
            # Closing drains background subscribers, which may have logged until now.
            self.commit_held_back()
            for step, axis, metrics in self.means.take_rows():
                super()._write(step, metrics, axis)  # not averaged: the other processes may be gone
            if self.means.has_reductions:
                logger.warning(
                    "log(reduce=...) after the last step is ignored: there is no further synchronization point."
                )
            # Only now, since `log` refuses from here on, and the rows above had to be written.
            self.has_ended = True
            self.recording.end()

    def artifacts(self) -> LoopArtifacts:
        """Return the loop's current artifacts."""
        existing = tuple(row for row in self.checkpoints if row.path.exists())  # callbacks may have deleted others
        return LoopArtifacts(self.step, dict(self.metrics), existing, self.output_dir, self.stop_reason)

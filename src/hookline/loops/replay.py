"""`replay()` fires the moments of a recorded run to subscribers: what would this rule have done?

The engine is the one of a live run: order, cadence, isolation and costs are those of `CallbackCollection`, and steps
and rows take the path of every `Loop`. The moments come in the order of the journal of rank zero. Resumes are applied,
so a run of several sessions is replayed as one training. Clocks of subscribers show the recorded time.

A replay writes nothing into the run and delivers nothing. Checkpoints that a subscriber saves are empty directories in
a temporary one, which is `loop.output_dir` and is removed at the end. A requested stop is noted, and the replay
continues, so several rules can be compared; after it, the loop behaves as if nothing was requested.

A recording has no model, optimizer, batches and outputs. These are None, and moments about them do not fire;
`Replay.unavailable` names them for each subscriber. Two things are not recorded and derived: the epoch, from the
planned numbers of steps and epochs, and steps without a row, from the numbers of the rows around them.
"""

import itertools
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, cast

from hookline._engine.collection import CallbackCollection
from hookline._engine.defaults import ROOT, resolved
from hookline._engine.errors import OptionError, UnknownNameError
from hookline._engine.failures import Failure, Policy
from hookline._engine.metrics import MetricsRow, plain
from hookline._engine.registration import FlatRegistration
from hookline._engine.schedules import Schedule, Seconds
from hookline._engine.state import LogContext, LoopArtifacts, ManifestRow
from hookline._engine.subscriber_list import SubscriberList
from hookline._record.reader import JOURNAL, MAIN, read
from hookline._record.records import FAILURE, INTERRUPT, Event, Metrics, Sample, Status
from hookline._record.run_directory import METADATA, read_metadata
from hookline.loops.checkpointing import checkpoint_rules
from hookline.loops.loop import EVALUATIONS, Loop, Row
from hookline.loops.recorded_rows import Recorded, RecordedRow, recorded_rows
from hookline.loops.replay_result import (
    MOST_ALERTS,
    MOST_ERRORS,
    MOST_VALUES,
    Recording,
    Replay,
    ReplayedAlert,
    ReplayedCheckpoint,
    ReplayedStop,
    ReplayedValue,
)
from hookline.loops.run_facts import RecordedDict

MOST_EMPTY_STEPS = 1_000_000
"""How many steps without a row are fired one by one; a larger gap is skipped."""
MOST_BEFORE_START = 10_000
"""How many records may come before the start of training."""
ROLLOUTS = "rollout"
NOT_FIRED = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_optimizer_step",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_weights_update",
)
"""Moments of a training that do not fire in a replay, besides `on_checkpoint_load`: there is no resume."""
_REAL_CLOCKS = (time.monotonic, time.time, time.perf_counter)


class RecordedError(Exception):
    """The error that ended a recorded run, for `on_exception`; its message has the type of the original."""


def replay(run: Any, callbacks: Any, *, root: str | Path = ROOT, strict: bool = False) -> Replay:
    """Fire the moments of a recorded run to subscribers, and return what they would have done.

        result = hl.replay("runs/default/2026-11-18-warm-lake-1", [EarlyStoppingCallback("val/loss", patience=3)])
        result.stops[0].step

    Args:
        run: A run's directory, its id below ``root`` (``project/run``), a `RunInfo`, or a `Run`.
        callbacks: Callbacks, hooks, logger functions, or a `CallbackCollection`; a path is that of a configuration
            file. Give new ones: they are used, and closed at the end, as in a training.
        root: Where runs are recorded, for an id; by default the directory of ``HOOKLINE_ROOT``, or ``runs``.
        strict: Raise the first exception of a subscriber.

    Raises:
        UnknownNameError: There is no such run.
        ConfigError: The directory is not a run's, or the configuration has a mistake.
    """
    directory = _directory_of(run, Path(resolved(root)))
    if isinstance(callbacks, str | Path):
        from hookline.config.loading import load_callbacks

        callbacks = load_callbacks(callbacks)
    # A cost report now and then, which a live run logs as metrics, would be different at each replay.
    collection = CallbackCollection(callbacks, strict=strict, policy=Policy(report_seconds=1e9))
    with tempfile.TemporaryDirectory(prefix="hookline-replay-") as place:
        loop = ReplayLoop(directory, collection, Path(place), strict=strict)
        return Replayer(loop).run()


def _directory_of(run: Any, root: Path) -> Path:
    given = next((found for name in ("directory", "dir") if isinstance(found := getattr(run, name, None), Path)), run)
    if not isinstance(given, str | Path):
        raise OptionError(f"replay({run!r:.100}): give a run's directory or id, a RunInfo, or a Run that was recorded.")
    for directory in (Path(given), root / given):
        if (directory / METADATA).is_file() or (directory / JOURNAL).is_dir():
            return directory.resolve()
    raise UnknownNameError(f"There is no run {str(given)!r}, neither as a directory nor in {root.resolve()}.")


class ReplayLoop(Loop):
    """The loop that subscribers see in a replay: a recorded run, at the step that is being replayed.

    Args:
        directory: The run's directory, which is only read.
        callbacks: The subscribers.
        place: A temporary directory for what they write.
    """

    is_replay = True
    """Whether what subscribers do has no effect outside of them; a live loop has no such attribute."""

    def __init__(self, directory: Path, callbacks: CallbackCollection, place: Path, *, strict: bool = False) -> None:
        self._subscribers: dict[int, str] = {}
        self._unavailable: dict[str, dict[str, None]] = {}
        facts = read_metadata(directory)
        super().__init__(callbacks, strict=strict, ctx=LogContext(ids=dict(_mapping(facts.get("parents")))))
        self.rank, self.world_size = 0, 1
        self.recorded_dir = directory
        """The directory of the recorded run."""
        self.id = f"{directory.parent.name}/{directory.name}"
        self.name = str(facts.get("name") or directory.name)
        self.config = RecordedDict(_mapping(facts.get("config")), lambda changes, removed: None)
        self.ctx.run_key, self.ctx.run_config = self.name, self.config
        self.ctx.output_dir = self.output_dir = place
        started = facts.get("started")
        self.now = float(started) if isinstance(started, int | float) and abs(started) < 1e12 else 0.0
        self.recorder = cast(Any, ReplayRecorder(self))
        self.result = Replay(Recording(self.id, self.name, directory))
        self._alive: dict[str, ReplayedCheckpoint] = {}
        self._files_may_have_changed = False
        self._requested_by = ""
        for flat in callbacks.flatten():
            for each in (flat.registration.subscriber, flat.registration.target):
                self._subscribers[id(each)] = flat.path
        self.result.subscribers = [flat.path for flat in callbacks.flatten()]

    # What a recording does not have

    def _missing(self, name: str) -> None:
        needed = self._unavailable.setdefault(self.caller(), {})
        needed.setdefault(f"loop.{name}")

    @property
    def model(self) -> Any:
        """None: a recording has no model."""
        return self._missing("model")

    @model.setter
    def model(self, value: Any) -> None:
        """Ignored, as `Loop` sets it to None."""

    @property
    def optimizer(self) -> Any:
        """None: a recording has no optimizer."""
        return self._missing("optimizer")

    @optimizer.setter
    def optimizer(self, value: Any) -> None:
        """Ignored."""

    @property
    def scheduler(self) -> Any:
        """None: a recording has no scheduler."""
        return self._missing("scheduler")

    @scheduler.setter
    def scheduler(self, value: Any) -> None:
        """Ignored."""

    @property
    def native(self) -> Any:
        """None: a recording has no trainer."""
        return self._missing("native")

    @property
    def history(self) -> list[Row]:
        """The recorded rows up to the present step."""
        return [
            Row(record.step, record.values)
            for record in read(self.recorded_dir, writer=MAIN)
            if isinstance(record, Metrics) and record.step <= self.step + self.in_step
        ]

    # What subscribers do

    def caller(self) -> str:
        """Return the name of the subscriber that is calling; an empty text if it is not known.

        Found on the stack: nothing else tells a loop who calls it, and only what is rare or small asks.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is _HANDLE_RESULT:
                flat: FlatRegistration = frame.f_locals["flat"]
                return flat.path
            own = frame.f_locals.get("self") if "self" in frame.f_code.co_varnames else None
            if own is not None and (name := self._subscribers.get(id(own))) is not None:
                return name
            if frame.f_code is _REPLAY:
                break
            frame = frame.f_back
        return ""

    def request_stop(self, reason: str = "requested") -> None:
        """Note that a subscriber would stop the training here."""
        super().request_stop(reason)
        subscriber = self.caller()
        if all(stop.subscriber != subscriber for stop in self.result.stops):
            self.result.stops.append(ReplayedStop(self.step + self.in_step, reason, subscriber))

    def log(self, *args: Any, step: int | None = None, **values: Any) -> None:
        """Note what a subscriber logs; later subscribers see it, as in a live run."""
        options = {name: values.pop(name) for name in ("reduce", "commit") if name in values}
        del options  # they say how several processes, or a loop without steps, record it
        known = dict(args[0]) if len(args) == 1 and isinstance(args[0], Mapping) else {}
        known = known or ({args[0]: args[1]} if len(args) == 2 else {})
        self._note_values(known | values, self.step + self.in_step if step is None else step)
        super().log(*args, step=step, **values)

    def log_samples(self, rows: Iterable[Mapping[str, Any]], *, step: int | None = None) -> None:
        """Ignore samples, but refuse what a live run refuses."""
        for row in rows:
            if not isinstance(row, Mapping):
                raise OptionError(f"log_samples(): {row!r} is not a mapping; give a dict per sample.")

    def save_artifact(self, name: str, files: Any, **options: Any) -> Any:
        """Save nothing; the result is that of a run that records nothing."""
        from hookline._record.artifact_saving import ArtifactSave

        return ArtifactSave(name)

    def use_artifact(self, reference: str, *, root: str | Path | None = None) -> Any:
        """Find a version of an artifact in the root of the recorded run."""
        from hookline._record.artifacts import artifact

        project = self.recorded_dir.parent
        return artifact(reference, root=project.parent if root is None else root, project=project.name)

    def save_checkpoint(self, path: Any = None, *, kind: str = "step") -> ManifestRow:
        """Note a checkpoint, as an empty directory with a manifest, and fire `on_checkpoint`."""
        assert self.output_dir is not None
        step = self.step + self.in_step
        name = f"step-{step:08d}"
        place = self.output_dir / "checkpoints" / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "manifest.json").write_text(f'{{"step": {step}}}')
        if name not in self._alive:
            saved = self._alive[name] = ReplayedCheckpoint(step, self.caller() or self._requested_by)
            self.result.checkpoints.append(saved)
        row = ManifestRow(step=step, path=place, metrics=dict(self.metrics), kind=kind, time=self.now)
        self.checkpoints.append(row)
        self._files_may_have_changed = True
        self.callbacks.on_checkpoint(self, row)
        return row

    def request_checkpoint(self) -> None:
        """Request a checkpoint; it counts for the subscriber that requests it first."""
        if not self.checkpoint_requested:
            self._requested_by = self.caller()
        super().request_checkpoint()

    def answer_requests(self) -> None:
        """Save a requested checkpoint, unless a step is in progress; nothing validates here."""
        self.validation_requested = False
        if self.checkpoint_requested and not self.in_step:
            self.checkpoint_requested = False
            self.save_checkpoint()
        if self._files_may_have_changed:
            self._note_deletions()

    def load_checkpoint(self, path: Any) -> ManifestRow:
        """Refuse: a replay goes forward only."""
        raise OptionError("load_checkpoint() in a replay: a recording cannot go back to a checkpoint.")

    def _note_values(self, values: Mapping[str, Any], step: int) -> None:
        result, subscriber = self.result, self.caller()
        for name, value in values.items():
            if len(result.values) < MOST_VALUES:
                result.values.append(ReplayedValue(step, str(name), plain(value), subscriber))
            else:
                self.leave_out("values")

    def note_alert(self, facts: Mapping[str, Any], step: int | None) -> None:
        """Note an alert of a subscriber."""
        if len(self.result.alerts) < MOST_ALERTS:
            self.result.alerts.append(alert_of(facts, step, self.caller()))
        else:
            self.leave_out("alerts")

    def note_failure(self, failure: Failure) -> None:
        """Note an exception of a subscriber."""
        if len(self.result.errors) < MOST_ERRORS:
            self.result.errors.append(failure)
        else:
            self.leave_out("errors")

    def leave_out(self, what: str) -> None:
        """Count something that has no room in the result."""
        self.result.left_out[what] = self.result.left_out.get(what, 0) + 1

    def _note_deletions(self) -> None:
        self._files_may_have_changed = False
        assert self.output_dir is not None
        for name, saved in list(self._alive.items()):
            if not (self.output_dir / "checkpoints" / name).exists():
                saved.deleted_at = self.step
                del self._alive[name]

    def _write(self, step: int, metrics: dict[str, Any], axis: str | None = None, *, common: bool = False) -> None:
        # Nothing is recorded; the latest values are those of a live loop.
        dict.update(self.metrics, metrics if type(metrics) is dict else dict.items(metrics))

    def unavailable(self) -> dict[str, list[str]]:
        """Return the values that subscribers needed and the recording lacks."""
        # Not from `plan`, which leaves out those that were disabled in the meantime.
        for flat in self.callbacks.flatten():
            for moment in NOT_FIRED:
                if moment in flat.registration.bindings:
                    self._unavailable.setdefault(flat.path, {}).setdefault(moment)
        return {name: list(needs) for name, needs in self._unavailable.items() if name}


class ReplayRecorder:
    """Stands in for the recorder of a live run: notes alerts, and records nothing."""

    def __init__(self, loop: ReplayLoop) -> None:
        self._loop = loop

    def event(self, name: str, /, *, step: int | None = None, **data: Any) -> None:
        """Note an alert; other events are ignored."""
        if name == "alert":
            self._loop.note_alert(data, step)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _ignore


def _ignore(*args: Any, **options: Any) -> None:
    """Stands in for everything else that a recorder does."""


class Replayer:
    """Turns the records of a run into moments: all of them with `run`, or as they come with `begin` and `feed`.

    Args:
        loop: The loop that the subscribers see.
    """

    def __init__(self, loop: ReplayLoop) -> None:
        self.loop = loop
        self.recording = loop.result.recording
        self._axis = "train"
        self._has_started = False
        self._early: list[Recorded] = []
        self._first_number = 1
        self._steps_per_epoch: int | None = None
        self._epoch_is_open = False
        self._evaluation: tuple[int, dict[str, Any]] | None = None
        self._samples: list[Sample] = []
        self._end: BaseException | None = None
        # Checkpoints of the recording are news to subscribers, except where they save their own at the same moments.
        self._fires_recorded_checkpoints = not checkpoint_rules(loop.callbacks)

    def run(self) -> Replay:
        """Replay everything, and return the result."""
        loop, result = self.loop, self.loop.result
        began = time.perf_counter()
        clocks = self.prepare()
        try:
            self._replay()
        except Exception as error:
            if loop.callbacks.strict:
                raise
            # A critical subscriber failed, or all of them do: a live training would end here.
            result.ended_by = error
            loop.callbacks.on_exception(loop, error)
        finally:
            try:
                loop.callbacks.close()
            finally:
                for owner, name, clock in clocks:
                    setattr(owner, name, clock)
                result.costs = loop.callbacks.costs()
                result.unavailable = loop.unavailable()
                result.seconds = time.perf_counter() - began
        return result

    def prepare(self) -> list[tuple[Any, str, Any]]:
        """Note failures instead of logging them, and let clocks show the recorded time; returns the real clocks."""
        health = self.loop.callbacks.health
        health.on_failure, health.log_failure = self.loop.note_failure, lambda failure: None
        return list(_use_clock(self.loop))

    def _replay(self) -> None:
        records = recorded_rows(self.recording.directory)
        beginning = list(itertools.islice(records, MOST_BEFORE_START))
        self.begin(beginning)
        self.feed(itertools.chain(beginning, records))
        self._finish_groups(None)
        self._finish()

    def feed(self, records: Iterable[Recorded]) -> None:
        """Fire the moments of some records, in their order."""
        loop, axis = self.loop, self._axis
        for record in records:
            loop.now = record.time
            if self._evaluation is not None or self._samples:
                self._finish_groups(record)
            if type(record) is RecordedRow and record.axis == axis and self._has_started:
                self._row(record.step, record.values)  # nearly always
            else:
                self._record(record)

    def begin(self, beginning: Sequence[Recorded]) -> None:
        """Decide which rows are the loop's steps, and whether they are numbered from 0."""
        rows = [record for record in beginning if isinstance(record, RecordedRow | Metrics)]
        if all(row.axis != self._axis for row in rows) and any(row.axis == ROLLOUTS for row in rows):
            self._axis = self.loop.axis = ROLLOUTS
        starts = [record for record in beginning if isinstance(record, Status) and record.status == "running"]
        # A loop without `run.steps` has no epochs, and numbers its rows 0, 1, 2, ...
        numbers = list(dict.fromkeys(row.step for row in rows if row.axis == self._axis))
        has_plan = any(isinstance(record.data.get("num_epochs"), int) for record in starts)
        if not has_plan and numbers[:1] == [0] and numbers == list(range(len(numbers))):
            self._first_number = 0

    def _record(self, record: Recorded) -> None:
        match record:
            case RecordedRow() | Metrics():
                if not self._has_started and record.axis == self._axis and len(self._early) < MOST_BEFORE_START:
                    self._early.append(record)  # on_log waits for on_train_start
                elif record.axis == self._axis:
                    self._start()
                    self._row(record.step, record.values)
                else:
                    self._row_of_other_axis(record.axis, record.step, record.values)
            case Status(status="running"):
                self._plan(record.data)
                self._end, self.recording.status = None, "running"
                self._start()
            case Status(status="finished" | "failed" | "stopped"):
                self.recording.status = record.status
                self.recording.error = record.message if record.status == "failed" else None
            case Event():
                self._event(record)
            case Sample():
                self._start()
                self._samples.append(record)

    def _plan(self, data: Mapping[str, Any]) -> None:
        steps, epochs = data.get("num_steps"), data.get("num_epochs")
        self.loop.num_steps = steps if isinstance(steps, int) else None
        self.loop.num_epochs = epochs if isinstance(epochs, int) else None
        # One epoch lasts to the end, however long it is.
        self._steps_per_epoch = None
        if isinstance(steps, int) and isinstance(epochs, int) and epochs > 0 and steps > 0 and steps % epochs == 0:
            self._steps_per_epoch = steps // epochs

    def _start(self) -> None:
        if self._has_started:
            return
        self._has_started = True
        self.loop.callbacks.on_train_start(self.loop)
        early, self._early = self._early, []
        for record in cast(list[Metrics], early):
            self._row(record.step, record.values)

    def _row(self, number: int, values: dict[str, Any]) -> None:
        """Complete the step of a row; a row of a step that is complete is one that was logged beside it."""
        loop = self.loop
        self.recording.rows += 1
        missing = number - self._first_number - loop.step
        # A row far ahead, past the planned end, is one that was logged with a number of its own.
        is_beyond = missing > 0 and loop.num_steps is not None and loop.step + missing >= loop.num_steps
        if missing < 0 or is_beyond:
            loop.commit(number, values)
            loop.answer_requests()
            return
        if missing:
            self._advance(loop.step + missing)
        self._step(number, values)

    def _step(self, number: int, values: dict[str, Any]) -> None:
        # Every row of a long run passes here: as few calls as the moments need.
        loop = self.loop
        lifecycle = loop.lifecycle
        row = lifecycle.row
        if row is None:
            self._enter_epoch()
            loop.stop_reason = None  # a live training would have ended; what subscribers do now is another decision
            row = lifecycle.begin()
        dict.update(row, values)
        dict.update(loop.metrics, values)
        lifecycle.end(None, number=number)
        if loop.checkpoint_requested or loop._files_may_have_changed or loop.validation_requested:
            loop.answer_requests()

    def _advance(self, step: int) -> None:
        """Complete steps without a row up to a number of completed steps."""
        loop = self.loop
        if step - loop.step > MOST_EMPTY_STEPS:
            loop.step = step - MOST_EMPTY_STEPS
        while loop.step < step:
            self._step(loop.step + self._first_number, {})

    def _enter_epoch(self) -> None:
        """Fire the end of an epoch, if it is complete, and the start of the next one, before a step."""
        per_epoch = self._steps_per_epoch
        loop = self.loop
        if self._epoch_is_open and per_epoch is not None and loop.step and loop.step % per_epoch == 0:
            self._leave_epoch()
        if not self._epoch_is_open and loop.num_epochs is not None and (per_epoch or loop.num_epochs == 1):
            loop.epoch = loop.step // per_epoch if per_epoch else 0
            self._epoch_is_open = True
            loop.callbacks.on_train_epoch_start(loop)

    def _leave_epoch(self) -> None:
        self._epoch_is_open = False
        self.loop.callbacks.on_train_epoch_end(self.loop)
        self.loop.answer_requests()

    def _row_of_other_axis(self, axis: str, step: int, values: dict[str, Any]) -> None:
        loop = self.loop
        self.recording.rows += 1
        self._start()
        if axis == EVALUATIONS:
            if step > loop.step and self._first_number:
                self._open_step(step)
            # Its name comes in the next record: the moments wait for it.
            self._evaluation = (step, values)
        elif axis == "benchmark":
            loop.commit(step, values)
        else:  # rollouts of a learner, whose own row has on_log
            dict.update(loop.metrics, values)

    def _open_step(self, step: int) -> None:
        """Complete the steps before one, and begin it: its evaluation was made in its body."""
        self._advance(step - 1)
        if not self.loop.in_step:
            self._enter_epoch()
            self.loop.stop_reason = None
            self.loop.lifecycle.begin()

    def _finish_groups(self, record: Recorded | None) -> None:
        """Fire what several records are about, if this one is about something else."""
        if self._samples and not isinstance(record, Sample):
            samples, self._samples = self._samples, []
            for (axis, step), group in itertools.groupby(samples, key=lambda sample: (sample.axis, sample.step)):
                if axis == ROLLOUTS:
                    self._rollouts(step, list(group))
        if self._evaluation is not None:
            step, values = self._evaluation
            self._evaluation = None
            is_named = isinstance(record, Event) and record.name == "eval"
            name = record.data.get("evaluator") if isinstance(record, Event) and is_named else None
            self._evaluated(step, values, name if isinstance(name, str) else None)

    def _evaluated(self, step: int, values: dict[str, Any], name: str | None) -> None:
        loop = self.loop
        self.recording.evaluations += 1
        callbacks = loop.callbacks
        if name is None:  # the process died before it recorded the name
            loop.commit(step, values)
            return
        is_validation = bool(values) and all(key.startswith(f"{name}/") for key in values)
        metrics = MetricsRow(values)
        if is_validation:
            callbacks.on_validation_start(loop)
            callbacks.on_validation_epoch_start(loop)
            loop.validation_metrics = metrics
        loop.commit(step, metrics)
        if is_validation:
            callbacks.on_validation_epoch_end(loop)
            callbacks.on_validation_end(loop)
        callbacks.on_eval(loop, step - 1, name, metrics)
        loop._files_may_have_changed = True  # a value that came after the checkpoint may let a rule delete another
        loop.answer_requests()

    def _rollouts(self, step: int, samples: list[Sample]) -> None:
        from hookline.rl.types import Completion, Rollout, Task

        rollouts = [
            Rollout(
                Task(each.prompt, each.expected, each.group or ""),
                Completion(each.completion),
                each.rewards,
                each.total if isinstance(each.total, int | float) else 0.0,
                advantage=each.advantage,
                lesson=each.lesson,
            )
            for each in samples
        ]
        loop = self.loop
        loop.callbacks.on_rollout_start(loop, step - 1, samples[0].lesson)
        loop.callbacks.on_rollout_end(loop, step - 1, rollouts)

    def _event(self, event: Event) -> None:
        recording, step = self.recording, event.step
        if event.name == "checkpoint" and isinstance(step, int):
            recording.checkpoints.append(step)
            if self._fires_recorded_checkpoints and self._has_started:
                self._recorded_checkpoint(event, step)
        elif event.name == "alert":
            if len(recording.alerts) < MOST_ALERTS:
                recording.alerts.append(alert_of(event.data, step))
        elif event.name == "stop":
            recording.stop_reason = str(event.data.get("reason"))
        elif event.name == FAILURE:
            self._end = RecordedError(f"{event.data.get('type')}: {event.data.get('message')}")
        elif event.name == INTERRUPT:
            self._end = KeyboardInterrupt(str(event.data.get("message") or ""))
        elif event.name == "resume":
            self._end = recording.stop_reason = None

    def _recorded_checkpoint(self, event: Event, step: int) -> None:
        size, kind = event.data.get("bytes"), event.data.get("kind")
        path = Path(str(event.data.get("path", "")))
        loop = self.loop
        row = ManifestRow(
            step=step,
            path=path,
            metrics=dict(loop.metrics),
            kind=str(kind or "step"),
            bytes=size if isinstance(size, int) else 0,
            time=event.time,
        )
        loop.checkpoints.append(row)
        loop.callbacks.on_checkpoint(loop, row)

    def _finish(self) -> None:
        """Fire the end of the training, as the recording has it; nothing where it has none."""
        loop, recording = self.loop, self.recording
        if self._early or recording.status != "running":
            self._start()
        recording.step = loop.step
        loop.stop_reason = None
        if recording.status in ("finished", "stopped") and self._end is None:
            if loop.in_step:
                self._step(loop.step + self._first_number, {})
            if self._epoch_is_open:
                self._leave_epoch()
            recording.step = loop.step
            loop.answer_requests()
            loop.stop_reason = recording.stop_reason
            for rule in checkpoint_rules(loop.callbacks):
                rule.save_at_end(loop)
            artifacts = LoopArtifacts(
                loop.step, dict(loop.metrics), tuple(loop.checkpoints), loop.output_dir, loop.stop_reason
            )
            loop.callbacks.on_train_end(loop, artifacts)
        elif self._end is not None or recording.status == "failed":
            loop.lifecycle.abandon()
            loop.callbacks.on_exception(loop, self._end or RecordedError(recording.error or "it failed"))
        loop._files_may_have_changed = True
        loop.answer_requests()


_HANDLE_RESULT = SubscriberList.handle_result.__code__
_REPLAY = Replayer.run.__code__


def _use_clock(loop: ReplayLoop) -> Iterator[tuple[Any, str, Any]]:
    """Let the clocks of subscribers and their schedules show the recorded time; yields what to restore."""

    def recorded_time() -> float:
        return loop.now

    for flat in loop.callbacks.flatten():
        owners = [flat.registration.subscriber, flat.registration.target]
        owners += [found for each in flat.chain for found in _timed_schedules(each.options.schedule)]
        for owner in {id(each): each for each in owners}.values():
            for name in ("clock", "_clock"):
                clock = getattr(owner, "__dict__", {}).get(name)
                if clock in _REAL_CLOCKS:
                    setattr(owner, name, recorded_time)
                    yield owner, name, clock


def _timed_schedules(schedule: Any) -> Iterator[Seconds]:
    """Yield the schedules of an option that have a clock, also inside of combined ones."""
    if isinstance(schedule, Seconds):
        yield schedule
    elif isinstance(schedule, Schedule):
        for part in vars(schedule).values():
            for each in part if isinstance(part, list | tuple) else [part]:
                yield from _timed_schedules(each)


def alert_of(facts: Mapping[str, Any], step: int | None, subscriber: str = "") -> ReplayedAlert:
    """Return an alert from the data of its event."""
    severity, message = str(facts.get("severity", "warning")), str(facts.get("message", ""))
    return ReplayedAlert(step, str(facts.get("metric", "")), facts.get("value"), message, severity, subscriber)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}

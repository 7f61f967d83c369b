"""`run()`: the driver for a loop that somebody else wrote.

    with hl.run("warmup", callbacks=[...]) as run:
        for batch in run.steps(loader):
            run.log(loss=train_step(batch))

The body of the ``for`` is one step. It is complete when the next batch is asked for, when the loop
ends, and also when the body breaks out of the loop; a step that raises is not. Stop requests,
SIGINT and SIGTERM end the iteration at the next step boundary.
"""

import atexit
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from hookline.core.errors import CheckpointError, OptionError
from hookline.core.metrics import MetricsRow, collect, copied
from hookline.core.state import LoopArtifacts, ManifestRow
from hookline.core.values import plain
from hookline.loops import checkpoint, run_record
from hookline.loops.loop import Loop
from hookline.loops.outlets import DRAIN_SECONDS, Delivery, Outlets
from hookline.loops.ranks import Agreement
from hookline.loops.signals import StopSignals
from hookline.loops.validation import Validation
from hookline.record.device import defer
from hookline.record.recorder import whole_step

if TYPE_CHECKING:
    from hookline.record.delivery import SinkState

logger = logging.getLogger("hookline")

B = TypeVar("B")


class Run(Loop):
    """Drives a loop of your own, as ``hl.run(...)``: a context that fires the moments of training around it.

    Args:
        name: What the run is called; ``resume="auto"`` finds it by this.
        project: The folder of ``root`` that its directory lies in.
        root: Where runs are recorded; None keeps everything in memory and writes nothing.
        callbacks: Anything a `CallbackCollection` takes, or a collection.
        sinks: Where the record is delivered to: names such as ``"csv"`` and ``"tensorboard"``, mappings
            ``{"wandb": {"project": "mine"}}``, sinks, or functions ``(report_data, step)``.
        config: Kept as ``run.config`` and ``run.ctx.run_config``.
        resume: Take up an earlier run: its id or directory, or ``"auto"`` for the latest of this name that
            neither finished nor is running, if there is one. The last checkpoint in its directory is loaded.
        save: Called with a checkpoint's directory to write the model and what else belongs to it.
        load: Called with a checkpoint's directory to read it back.
        strict: Let exceptions of observers propagate.
        summary: Print how the run ended and what each subscriber cost.
        delivery: ``"thread"`` delivers from this process, ``"process"`` from one that survives it.
        drain_seconds: How long the end of the run waits for its sinks; ``hookline runs sync`` delivers the rest.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        project: str = "default",
        root: str | Path | None = "runs",
        callbacks: Iterable[Any] = (),
        sinks: Iterable[Any] = (),
        config: Any = None,
        resume: str | Path | None = None,
        save: Callable[[Path], object] | None = None,
        load: Callable[[Path], object] | None = None,
        strict: bool = False,
        summary: bool = True,
        delivery: Delivery = "thread",
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        super().__init__(callbacks, strict=strict)
        if resume is not None and root is None:
            raise OptionError(f"resume={resume!r} with root=None: what was not recorded cannot be taken up.")
        self.outlets = Outlets(sinks, delivery=delivery, drain_seconds=drain_seconds)
        if self.outlets and root is None:
            raise OptionError("sinks= with root=None: sinks are fed from the record. Give a root.")
        self.name = name or "run"
        self.project, self.root = project, root
        self.resume_from = resume
        self.config = config
        self.state = "created"
        self.checkpoints: list[ManifestRow] = []
        self.seconds = 0.0
        self.ctx.run_key, self.ctx.run_config = self.name, config
        self._save, self._load = save, load
        self._prints_summary = summary
        self._signals = StopSignals(self.request_stop)
        self.agreement = Agreement()
        self._train_started = False
        self._loaded: ManifestRow | None = None
        self._resume: tuple[int, int] | None = None  # the epoch and its batches done, until somebody iterates
        self._to_skip = 0
        self._batches_done = 0
        self._early: list[tuple[int, dict[str, Any]]] = []
        self._step: tuple[Any, int] | None = None
        self._epoch_state = "closed"
        self._inside_epochs = False
        self._closed = self._ended = self._interrupted = self._agreed_to_stop = False
        self._began = 0.0
        self._process = 0

    @property
    def in_step(self) -> bool:
        """Whether the body of a step is under way."""
        return self._step is not None

    def __enter__(self) -> Self:
        if self.state != "created":
            raise OptionError(f"This run is {self.state}: a run is entered once. Make another with hl.run().")
        self._thread, self._process = threading.get_ident(), os.getpid()
        run_record.begin(self)
        self.state = "running"
        self._began = time.perf_counter()
        self._signals.install()
        atexit.register(self._end_with_the_program)
        return self

    def _end_with_the_program(self) -> None:
        """End a run that was entered and never left, as in an interactive session."""
        error = SystemExit("the program ended")
        self.__exit__(SystemExit, error, None)

    @property
    def dir(self) -> Path | None:
        """The run's directory, once it is entered; None where nothing is recorded."""
        return self.output_dir

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        if self._prints_summary and self.rank == 0 and (len(self.callbacks) or self.outlets):
            from hookline.loops.summary import print_summary

            print_summary(self)

    @overload
    def steps(self, batches: int, *, epochs: int = 1, total: int | None = None) -> Iterator[int]: ...
    @overload
    def steps(self, batches: Iterable[B], *, epochs: int = 1, total: int | None = None) -> Iterator[B]: ...
    def steps(self, batches: Iterable[Any] | int, *, epochs: int = 1, total: int | None = None) -> Iterator[Any]:
        """Yield batches, one step each, firing the moments around them.

        Args:
            batches: What to iterate over in each epoch; a number means ``range(number)``.
            epochs: How often; inside `epochs()` leave it at 1.
            total: How many steps the run is to have in all, where the length does not tell; no more are made.
        """
        self._require_running("steps")
        data: Any = range(batches) if isinstance(batches, int) else batches
        if not isinstance(data, Iterable):
            raise OptionError(f"steps({batches!r}): give something to iterate over, or a number of steps.")
        _require_count("epochs", epochs)
        if total is not None:
            _require_count("total", total)
        if epochs > 1 and iter(data) is data:
            raise OptionError(
                f"steps(epochs={epochs}): {data!r} is an iterator, which one epoch uses up. "
                "Give a list or a loader that can be iterated over again."
            )
        if epochs > 1 and self._inside_epochs:
            raise OptionError(f"steps(epochs={epochs}) inside run.epochs(): give the epochs in one place.")
        self._settle()
        self._plan(data, epochs, total)
        return self._steps(data, epochs, total)

    def epochs(self, n: int) -> Iterator[int]:
        """Yield the index of each epoch, firing its start and end around ``run.steps()`` inside."""
        self._require_running("epochs")
        _require_count("epochs", n)
        self._settle()
        self.num_epochs = n
        return self._epochs(n)

    def validate(self, name: str = "val") -> Validation:
        """A validation as a context: ``with run.validate() as val: val.log(loss=...)`` for each batch."""
        return Validation(self, name)

    def log(self, *args: Any, step: int | None = None, **values: Any) -> None:
        """Record metrics: ``log(name, value)``, ``log({...})`` or ``log(name=value)``."""
        if self._ended:
            logger.warning("%s has ended: what is logged now is not recorded.", self.name)
        elif self._train_started or self.state != "running":
            super().log(*args, step=step, **values)
        else:  # the first moment is on_train_start, and it waits until the plan is known
            at, metrics = self.step if step is None else whole_step(step), copied(collect(args, values, defer))
            self._write(at, metrics)
            self._early.append((at, metrics))

    def status(self, status: str, message: str = "", **data: Any) -> None:
        """Record where the run is, for monitors and sinks: ``run.status("tokenizing", shards=12)``."""
        if self.recorder is not None:
            self.recorder.status(status, message, step=self.step + self.in_step, **data)

    def sinks(self) -> list["SinkState"]:
        """How each sink stands: ``ok``, ``lagging`` or ``refused``, how much it was given, what is wrong."""
        return self.outlets.states()

    def save_checkpoint(self, path: str | Path | None = None) -> ManifestRow:
        """Save the loop's counters, the callbacks' states, and what ``save=`` writes, and return the row.

        Called in the body of a step, it counts that step as done. Rank zero writes; the others go on.
        """
        step = self.step + self.in_step
        place = self._checkpoint_path(path, step)
        if self.recorder is not None:
            self.recorder.flush()  # a resume goes on behind this checkpoint: the rows before it must be there
        if self.rank == 0:
            self.callbacks.drain()  # so that the states are those of all moments so far
            row = checkpoint.save(place, self._state(step), self._save, step=step)
        else:
            row = ManifestRow(step=step, path=place, metrics=dict(self.metrics))
        self.checkpoints.append(row)
        if self.recorder is not None:
            self.recorder.event("checkpoint", step=step, path=str(place), bytes=row.bytes)
        self.callbacks.on_checkpoint(self, row)
        return row

    def load_checkpoint(self, path: str | Path) -> ManifestRow:
        """Take up a checkpoint: counters, metrics, the callbacks' states, and what ``load=`` reads.

        The next `steps()` goes on behind the last batch that was done, given the same data again.
        """
        path = Path(path)
        state = checkpoint.load(path)
        if self._load is not None:
            self._load(path)
        self.step, self.epoch = state["step"], state["epoch"]
        self._resume = (state["epoch"], state["batches_done"])
        self.metrics.update(state["metrics"])
        self.callbacks.load_state_dict(state["callbacks"])
        row = ManifestRow(step=self.step, path=path, metrics=state["metrics"])
        if self._train_started:
            self.callbacks.on_checkpoint_load(self, row)
        else:
            self._loaded = row
        return row

    def _steps(self, batches: Iterable[B], epochs: int, total: int | None) -> Iterator[B]:
        self.start()
        for _ in range(1) if self._inside_epochs else self._epochs(epochs):
            for batch_idx, batch in self._fetch(batches, total):
                self._enter_epoch()
                self._begin_step(batch, batch_idx)
                yield batch
                self._end_step()
            if self._agreed_to_stop or (total is not None and self.step >= total):
                self._settle()
                return

    def _fetch(self, batches: Iterable[B], total: int | None) -> Iterator[tuple[int, B]]:
        """The batches of an epoch behind those done before a resume; none is drawn that would not be used."""
        source = iter(batches)
        for batch_idx in itertools.count():
            if self._must_stop() or (total is not None and self.step >= total):
                return
            try:
                batch = next(source)
            except StopIteration:
                return
            if self._to_skip:
                self._to_skip -= 1
            else:
                yield batch_idx, batch

    def _epochs(self, n: int) -> Iterator[int]:
        first, self._to_skip = self._place(n)
        self._resume = None
        self._inside_epochs = True
        try:
            for epoch in range(first, n):
                if self._must_stop():
                    break
                self.epoch, self._batches_done = epoch, 0
                self._epoch_state = "waiting"
                yield epoch
                self._settle()
        finally:
            self._inside_epochs = False

    def _place(self, n: int) -> tuple[int, int]:
        """The epoch to begin with, and how many of its batches are done: those of a resume, otherwise none."""
        return self._resume if self._resume is not None and self._resume[0] < n else (0, 0)

    def _plan(self, batches: Any, epochs: int, total: int | None) -> None:
        if not self._inside_epochs:
            self.num_epochs = epochs
        epoch, done = (self.epoch, self._to_skip) if self._inside_epochs else self._place(epochs)
        if total is not None:
            self.num_steps = total
        elif isinstance(batches, Sized):
            self.num_steps = self.step + len(batches) * ((self.num_epochs or 1) - epoch) - done

    def start(self) -> None:
        """Fire `on_train_start`, once, and then what had to wait for it."""
        if self._train_started:
            return
        self._train_started = True
        if self.recorder is not None:
            num_steps, num_epochs = self.num_steps, self.num_epochs
            self.recorder.status("running", step=self.step, num_steps=num_steps, num_epochs=num_epochs)
        self.callbacks.on_train_start(self)
        if self._loaded is not None:
            self.callbacks.on_checkpoint_load(self, self._loaded)
        early, self._early = self._early, []
        for step, metrics in early:
            self._tell(step, metrics)

    def _enter_epoch(self) -> None:
        if self._epoch_state == "waiting":
            self._epoch_state = "open"
            self.callbacks.on_train_epoch_start(self)

    def _begin_step(self, batch: Any, batch_idx: int) -> None:
        self._step = (batch, batch_idx)
        self._open_row = MetricsRow()
        self.callbacks.on_step_start(self, self.step)
        self.callbacks.on_train_batch_start(self, batch, batch_idx)

    def _end_step(self) -> None:
        if self._step is None or self._open_row is None:
            return
        (batch, batch_idx), row = self._step, self._open_row
        self.callbacks.on_train_batch_end(self, row, batch, batch_idx)
        self.step += 1
        self._step, self._batches_done = None, batch_idx + 1
        self.callbacks.on_step_end(self, self.step - 1, batch, row)
        self._open_row = None
        self.commit(self.step, row)
        self._commit_held_back()
        self.answer_requests()

    def answer_requests(self) -> None:
        """Save a checkpoint that was asked for, unless a step is under way."""
        if self.checkpoint_requested and not self.in_step:
            self.checkpoint_requested = False
            self.save_checkpoint()

    def _settle(self) -> None:
        """Complete a step and an epoch that a ``break`` left open."""
        self._end_step()
        if self._epoch_state == "open":
            self._epoch_state = "closed"
            self.callbacks.on_train_epoch_end(self)

    def _must_stop(self) -> bool:
        agreed = self.agreement.agree(self.stop_reason)
        if agreed is not None:  # never assigned otherwise: a signal may have set a reason meanwhile
            self.stop_reason = agreed
        self._agreed_to_stop = agreed is not None
        return self._agreed_to_stop

    def _end(self) -> None:
        try:
            self._settle()
            self.start()
            self._commit_held_back()
            self.answer_requests()
            self.state = "stopped" if self.stop_requested else "completed"
            self.callbacks.on_train_end(self, self._artifacts())
            self.answer_requests()
            self._close()
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        self.state = "failed"
        self._interrupted = isinstance(error, KeyboardInterrupt | SystemExit)
        row, self._open_row, self._step = self._open_row, None, None
        if row:  # what the step that failed had logged is what explains it
            self._write(self.step + 1, row)
        self.ctx.status, self.ctx.error = "failed", f"{type(error).__name__}: {error}"
        try:
            self.callbacks.on_exception(self, error)
        finally:
            self._close()

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
                self._commit_held_back()
                self._record_end()

    def _record_end(self) -> None:
        self._ended = True
        word = "stopped" if self._interrupted else {"completed": "finished"}.get(self.state, self.state)
        run_record.end(self, word)

    def _state(self, step: int) -> dict[str, Any]:
        return {
            "step": step,
            "epoch": self.epoch,
            "batches_done": self._batches_done if self._step is None else self._step[1] + 1,
            "metrics": self.metrics,
            "open_row": dict(self._open_row or {}) if self.in_step else {},
            "callbacks": {name: self._saveable(name, state) for name, state in self.callbacks.state_dict().items()},
        }

    def _saveable(self, name: str, state: Any) -> Any:
        """A subscriber's state; one that cannot be saved ends the training only if the subscriber is critical."""
        try:
            json.dumps(plain(state))
        except (TypeError, ValueError) as error:
            if self.callbacks.strict or self.callbacks[name].critical:
                raise CheckpointError(f"The state of {name!r} cannot be saved as JSON: {error}") from error
            logger.exception("The state of %r is not part of the checkpoint: it cannot be saved as JSON.", name)
            return {}
        return state

    def _require_running(self, what: str) -> None:
        if self.state != "running":
            raise OptionError(
                f"run.{what}() belongs into the body of: with hl.run(...) as run. This run is {self.state}."
            )

    def _artifacts(self) -> LoopArtifacts:
        return LoopArtifacts(self.step, dict(self.metrics), tuple(self.checkpoints), self.output_dir, self.stop_reason)

    def _checkpoint_path(self, path: str | Path | None, step: int) -> Path:
        if path is not None:
            return Path(path)
        if self.rank != 0 and self.output_dir is None:
            return Path("checkpoints") / f"step-{step:08d}"  # rank zero writes
        if self.output_dir is None:
            raise CheckpointError("Where to? This run has root=None: give save_checkpoint(path).")
        return self.output_dir / "checkpoints" / f"step-{step:08d}"


run = Run


def _require_count(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{what}={value!r}: give a whole number of at least 1.")

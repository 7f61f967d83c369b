"""`run()`: drives a training loop of the user's own.

    with hl.run("warmup", callbacks=[...]) as run:
        for batch in run.steps(loader):
            run.log(loss=train_step(batch))

The body of the ``for`` is one step. It is complete when the next batch is requested, when the loop ends, and also when
the body breaks out of the loop; a body that raises is not. Stop requests, SIGINT and SIGTERM end the iteration at the
next step boundary.

A resume continues where the checkpoint was saved: calls of `steps` and `epochs` that were complete yield nothing, and
the one in progress continues after its last batch. A call that was left with ``break`` is complete, unless a stop was
requested.

Where several batches make a step (`Updates`), the moments of a batch fire around each, and the step with its row lasts
until the update of the weights. Stops and checkpoints wait for it. A checkpoint that is saved before the update is one
of the last update, and a resume does the batches since then again, with the random states that they had.

A loop without `steps` is counted by what it logs (`LoggedSteps`), and may do without the ``with`` (`start`).
"""

import itertools
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, Unpack, overload

from hookline._engine.checks import require_integer
from hookline._engine.defaults import NAME
from hookline._engine.errors import OptionError, closest
from hookline._engine.metrics import collect
from hookline._engine.state import ManifestRow
from hookline._record.device import defer, defer_uniform
from hookline.loops import checkpoint
from hookline.loops.data_position import (
    DataOrder,
    DataPosition,
    DataProgress,
    ReplayedOrder,
    check_resumed_body,
    length_of,
)
from hookline.loops.options import LoopOptions, RunOptions
from hookline.loops.session import Session
from hookline.loops.step import LoggedSteps
from hookline.loops.updates import Updates
from hookline.loops.validation import Validation

logger = logging.getLogger("hookline")

B = TypeVar("B")


class StepStart(NamedTuple):
    """The position in the data and the random states where a step begins."""

    position: dict[str, Any]
    order: dict[str, Any]


class Run(Session):
    """Drives a loop of your own, as ``hl.run(...)``: a context that fires the moments of training around it.

    Args:
        name: The name of the run; ``resume="auto"`` finds it by this.
        callbacks: A `CallbackCollection`, or anything it accepts.
        resume: Resume an earlier run: its id or directory, a checkpoint's directory, ``"last"`` for the latest of this
            name that has a checkpoint, or ``"auto"`` for the latest of this name that neither finished nor is running,
            if there is one.
        save: Called with a checkpoint's directory to write the model and what else belongs to it.
        load: Called with a checkpoint's directory to read it back.
        options: ``project``, ``root``, ``sinks``, ``config``, ``tags``, ``notes``, ``strict``, ``summary``,
            ``delivery``, ``drain_seconds``, ``durability``, ``console``, ``code``, ``redact``, ``control`` and
            ``resume_commands``, as for every `Session`.
    """

    exchanges_rows = True
    restores_itself: ClassVar[bool] = False
    """Whether its checkpoints hold the model without ``save`` and ``load``, which then add to them."""

    def __init__(
        self,
        name: str | None = None,
        *,
        callbacks: Iterable[Any] = (),
        resume: str | Path | None = None,
        save: Callable[[Path], object] | None = None,
        load: Callable[[Path], object] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        if unknown := options.keys() - RunOptions.__annotations__.keys():
            # Here, because the error of Python would name an internal class, and no similar option.
            given, known = min(unknown), {*LoopOptions.__annotations__, "name"}
            raise TypeError(f"A run has no option {given!r}. {closest(given, known)}")
        super().__init__(name or NAME, callbacks=callbacks, resume=resume, **options)
        self._save, self._load = save, load
        self.start_from: Path | None = None
        """A checkpoint to start from, given by the previous stage of an experiment."""
        self.answers: Any = None
        """What answers benchmarks: a policy, or a function of a list of prompts. Set it while training."""
        self._order: DataOrder = DataOrder()
        self._data = DataProgress()
        self._updates = Updates()
        self._batch: tuple[Any, int] | None = None  # the one in progress, with its index
        self._in_body = False
        self._epoch_state = "closed"
        self._inside_epochs = False
        self._iterator: Callable[[], Any] = lambda: None  # that of the last call of `steps`, while it is used
        self._checks_body = False  # the first batch after a resume is still to come
        self._planned_length: int | None = None
        self._before_step = False  # a checkpoint is being saved that excludes the step in progress
        self._step_start: StepStart | None = None  # where such a checkpoint goes back to
        self._evaluates_first = False  # this loop evaluates before it updates, and a checkpoint rule monitors
        self._evaluated: list[str] = []  # the evaluations before the update of the step in progress
        self._repeated: set[str] = set()  # those of the step that was in progress in the resumed checkpoint
        self._validation_agreed = False  # by all processes, at the last step boundary
        self._logged_steps = LoggedSteps(self)

    @property
    def in_step(self) -> bool:
        """Whether a step is in progress that `step` does not count yet."""
        return not self._before_step and self.lifecycle.is_open

    @property
    def is_resumable(self) -> bool:
        """Whether its checkpoints hold more than counters."""
        return self.restores_itself or self._save is not None

    @property
    def resume_hint(self) -> str:
        """What to do so that there is a checkpoint to resume from."""
        if self.is_resumable:
            return super().resume_hint
        return "Give save= and load= (or call run.checkpoint_with), and the callback 'checkpoint'."

    def __enter__(self) -> Self:
        return self.open()

    def open(self) -> Self:
        """Begin the run without a ``with`` block, and return it; `finish` ends it."""
        if self.state != "created":
            raise OptionError(f"This run is {self.state}: a run is entered once. Make another with hl.run().")
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leaves = isinstance(error, SystemExit) and error.code in (None, 0)  # sys.exit() is an orderly end
        if leaves:
            # To the generator, sys.exit() in the body looks like a `break`. But the program ended, and a resume
            # continues the loop.
            self._data.withdraw_break()
        self.finish(None if leaves else error)

    @overload
    def steps(self, batches: int, *, epochs: int = 1, total: int | None = None) -> Iterator[int]: ...
    @overload
    def steps(self, batches: Iterable[B], *, epochs: int = 1, total: int | None = None) -> Iterator[B]: ...
    def steps(self, batches: Iterable[Any] | int, *, epochs: int = 1, total: int | None = None) -> Iterator[Any]:
        """Yield batches, one step each, firing the moments around them.

        Args:
            batches: What to iterate over in each epoch; a number means ``range(number)``.
            epochs: How often; inside `epochs()` leave it at 1.
            total: The total number of steps of the run, where the length does not say; no more are made.
        """
        self._require_running("steps")
        self._require_no_body("steps")
        data: Any = range(batches) if isinstance(batches, int) else batches
        if not isinstance(data, Iterable) or (isinstance(batches, int) and batches < 0):
            raise OptionError(f"steps({batches!r}): give something to iterate over, or a number of steps.")
        require_integer("epochs", epochs)
        require_integer("total", total, optional=True)
        if epochs > 1 and isinstance(data, Iterator):  # iter(loader) would draw from the random states
            raise OptionError(
                f"steps(epochs={epochs}): {data!r} is an iterator, which one epoch exhausts. "
                "Give a list or a loader that can be iterated over again."
            )
        if epochs > 1 and self._inside_epochs:
            raise OptionError(f"steps(epochs={epochs}) inside run.epochs(): give the epochs in one place.")
        self._leave_calls()
        if self._logged_steps is not None:
            self._logged_steps.give_up()
            self._logged_steps = None
        # Here and not in the generator: num_steps has to be known when on_train_start fires.
        if self._inside_epochs or not self._data.is_next_call_done:
            self._plan(data, epochs, total)
        steps = self._steps(data, epochs, total)
        # Weak: a reference would keep the generator alive after a `break`, and the GeneratorExit that reports it would
        # not come.
        self._iterator = weakref.ref(steps)
        return steps

    def epochs(self, n: int) -> Iterator[int]:
        """Yield the index of each epoch, firing its start and end around ``run.steps()`` inside."""
        self._require_running("epochs")
        self._require_no_body("epochs")
        require_integer("epochs", n)
        self._leave_calls()
        self.num_epochs = n
        return self._open_epochs(n)

    def step_end(self, batch: Any = None) -> None:
        """Complete a step of a loop that does not use `steps`: what was logged since the last one is its row.

        Args:
            batch: The batch for `on_step_end`.
        """
        self._require_running("step_end")
        if self._logged_steps is None:
            raise OptionError("step_end() in a loop with run.steps(): the end of its body completes the step.")
        self._logged_steps.step_end(batch)

    def checkpoint_with(self, save: Callable[[Path], object], load: Callable[[Path], object]) -> None:
        """Set the save and load functions inside the run, and load the checkpoint that it resumes or starts from.

        Args:
            save: Called with a checkpoint's directory to write the model and what else belongs to it.
            load: Called with a checkpoint's directory to read it back.
        """
        for name, given in (("save", save), ("load", load)):
            if not callable(given):
                raise OptionError(f"checkpoint_with({name}={given!r}): give a function of a directory.")
        self._save, self._load = save, load
        begins_with = self.start_from if self.resumed_from is None else self.resumed_from
        if begins_with is not None:
            with checkpoint.unpacked(begins_with) as directory:
                load(directory)

    def start(self) -> None:
        """Fire `on_train_start`, once; warn if a checkpoint was resumed whose model nothing reads."""
        is_unread = self.resumed_from is not None and self._load is None and not self.restores_itself
        if is_unread and not self.has_started and self.rank == 0:
            logger.warning(
                "%r continues at step %s from %s, but with the present model: no function loads the one in "
                "checkpoints. Give %s, or call run.checkpoint_with, unless a callback reads them.",
                *(self.name, self.step, self.resumed_from, "save= and load=" if self._save is None else "load="),
            )
        super().start()

    def close_steps(self) -> None:
        """Complete a step and an epoch that a ``break`` left open, as the end of the run does."""
        if self._logged_steps is not None:
            self._logged_steps.close()
        self._end_batch()
        if self._epoch_state == "open":
            # Before the moment: after a checkpoint saved in it, a resume must not fire it again.
            self._epoch_state, self._data.at.epoch_open = "closed", False
            self.callbacks.on_train_epoch_end(self)

    def validate(self, name: str = "val", *, before_update: bool | None = None) -> Validation:
        """Return a validation as a context: ``with run.validate() as val: val.log(loss=...)`` for each batch.

        An evaluation belongs to the weights that it measures. In the body of a step, it is recorded at the step in
        progress, or, before the weights are updated, at the number of steps completed so far. Runs over torch and
        Accelerate see the optimizer step. Others assume that the update is done.

        Args:
            name: The prefix of its metrics.
            before_update: Whether the update of the step in progress is still to come.
        """
        return Validation(self, name, before_update=before_update)

    def evaluated_step(self, *, before_update: bool | None = None) -> int:
        """Return the number of completed steps of the weights that an evaluation would measure now."""
        updates = self._updates
        before = updates.is_watching and not updates.count if before_update is None else before_update
        return super().evaluated_step(before_update=before)

    def is_repeated_evaluation(self, name: str) -> bool:
        """Whether the evaluation that begins now was already recorded before the checkpoint that was resumed."""
        is_repeated = self.in_step and name in self._repeated
        if is_repeated:
            # Once: a second evaluation of this name in the step is a new one. A checkpoint saved in this step lists it
            # again.
            self._repeated.discard(name)
            self._evaluated.append(name)
        return is_repeated

    def record_evaluation(self, name: str, metrics: dict[str, Any], *, step: int | None = None, **options: Any) -> None:
        """Record an evaluation; a checkpoint remembers those made before the update of the step in progress."""
        if self.in_step and step == self.step:
            self._evaluated.append(name)
        # Only a request that this evaluation causes is for these weights.
        requested_before = self.checkpoint_requested
        super().record_evaluation(name, metrics, step=step, **options)
        self._updates.forbidden = self.in_step and self.checkpoint_requested and not requested_before

    def save_checkpoint(self, path: str | Path | None = None, *, kind: str = "step") -> ManifestRow:
        """Save a checkpoint now and return its row; before the update of a step, it is one of the last update."""
        before = self._before_step
        is_incomplete = self._updates.batches_per_step > 1 and self.in_step and not self._updates.has_updated()
        self._before_step = before or is_incomplete
        try:
            return super().save_checkpoint(path, kind=kind)
        finally:
            self._before_step = before

    def save_evaluated(self) -> None:
        """Save the weights that were just evaluated in the body of a step, before its update.

        The checkpoint excludes the step in progress. A resume begins with it, and does not record those of its
        evaluations again that were recorded before. Several processes complete the checkpoint at the step boundary,
        when the weights have changed; so rank zero writes them now.

        Raises:
            OptionError: The weights cannot be written by one process alone.
        """
        # Noting the random states costs more than the rest of a step boundary, so that only begins with the first
        # evaluation before an update. For this one, they are the present states.
        if self.saves_together and not self._notes_step_starts:
            self._note_step_start()
        self._evaluates_first = self.saves_together
        is_pending = self.saves_together and self.world_size > 1
        if is_pending:
            self._require_whole_weights()
        self._before_step = True
        try:
            if is_pending:
                self.checkpointing.write_pending()
            else:
                self.save_checkpoint()
        finally:
            self._before_step = False

    def _require_whole_weights(self) -> None:
        """Refuse to save evaluated weights that rank zero alone does not have, or cannot write."""
        raise OptionError(
            f"CheckpointCallback(monitor=...): the evaluation at step {self.step} was made before the update of the "
            "step in progress. Several processes of this kind of run can save only after it, when the weights are no "
            "longer those that were evaluated. Evaluate after the update, or between two steps."
        )

    def answer_requests(self) -> None:
        """Save a requested checkpoint; processes that save together do so at the step boundary instead."""
        if self.world_size == 1 or not self.saves_together:
            super().answer_requests()

    # Iterating over data

    def _steps(self, batches: Iterable[B], epochs: int, total: int | None) -> Iterator[B]:
        data = self._data
        if not self._inside_epochs and data.skip_call():
            return
        self.start()
        for _ in range(1) if self._inside_epochs else self._epochs(epochs, batches):
            # A call after an agreed stop begins no pass: the position stays where the checkpoint of the stop has it.
            is_over = self._agreed_to_stop and self.stop_requested
            at = data.at if is_over else data.begin_pass()
            for batch_idx, batch in () if at.pass_left else self._fetch(batches, total):
                # With a batch in hand: an epoch that a stop prevents has no start that would need an end. From here to
                # the next batch, methods are called only where they have something to do: after the work of a step the
                # caches are cold, and what a call touches has to be fetched again.
                if self._epoch_state == "waiting":
                    self.enter_epoch()
                if self._checks_body:
                    self._checks_body = False
                    loop = sys._getframe().f_back
                    check_resumed_body(self._iterator(), loop, name=self.name, step=self.step, batch_idx=batch_idx)
                self._begin_batch(batch, batch_idx)
                self._in_body = True
                try:
                    yield batch
                # A `break`, an exception in the body and sys.exit() all arrive as this. It is noted as a `break`, and
                # withdrawn by the end of the run if it was another.
                except GeneratorExit:
                    at.leave_pass(stopped=self.stop_requested)
                    raise
                finally:  # also where a `break` leaves it
                    self._in_body = False
                self._end_batch()
            if at is data.at:
                data.to_skip = 0
            if data.at.epoch_open and not self._agreed_to_stop:
                self.enter_epoch()  # a resume with no batch left: the end of the epoch still has to fire
            if self._agreed_to_stop or (total is not None and self.step >= total):
                data.at.cut_short = True
                self.close_steps()
                return

    def _fetch(self, batches: Iterable[B], total: int | None) -> Iterator[tuple[int, B]]:
        """Yield the batches of an epoch after those done before a resume; none is drawn that would not be used."""
        done = self._data.to_skip
        source = self._order.epoch(batches, self.epoch, done)
        for batch_idx in itertools.count(done):
            # Before the next batch is drawn: an iterator that the program continues to use would have lost it. With
            # several processes this is a collective, which each of them enters once per step.
            if self._must_stop() or (total is not None and self.step >= total):
                return
            notes_start = (self._evaluates_first or self._updates.needs_step_starts) and not self._is_between_batches
            # Before the draw, which may use the random states for this very batch.
            if notes_start and batch_idx > 0:
                self._note_step_start()
            try:
                batch = next(source)
            except StopIteration:
                return
            if notes_start and batch_idx == 0:  # the epoch is open by now, and its order remembers where it began
                self._note_step_start(nothing_done=True)
            self._data.to_skip = 0
            yield batch_idx, batch

    def _open_epochs(self, n: int) -> Iterator[int]:
        if not self._data.skip_call():
            yield from self._epochs(n)

    def _epochs(self, n: int, batches: Any = None) -> Iterator[int]:
        data = self._data
        start = data.start_of_call(n, batches)
        if start.epoch == n and data.resume is not None:
            self._complete_call(data.resume)
        self._inside_epochs = True
        try:
            for epoch in range(start.epoch, n):
                if self._must_stop():
                    break
                data.begin_epoch(start if epoch == start.epoch else DataPosition(start.calls, epoch))
                self.epoch, self._epoch_state = epoch, "waiting"
                yield epoch
                if self._batch is not None:  # a pass was left, and its iterator is kept
                    data.at.leave_pass(stopped=self.stop_requested)
                data.at.epoch_complete = not data.at.cut_short
                self.close_steps()
        except GeneratorExit:
            if data.at.calls == start.calls:  # otherwise another call began before this one was closed
                data.at.call_left = not self.stop_requested and not data.at.cut_short
            raise
        finally:
            self._inside_epochs = False

    def _complete_call(self, position: DataPosition) -> None:
        """Complete the call that a resume is in, of which nothing is left but perhaps the end of its epoch."""
        self._data.complete_call(position)
        if not position.call_left:
            return
        if self.rank == 0:
            logger.warning(
                "%r: the loop that was left with a break at step %d is complete, and yields nothing. "
                "To leave a loop that a resume continues, call run.request_stop().",
                *(self.name, self.step),
            )
        if position.epoch_open:
            self.start()
            self._epoch_state = "waiting"
            self.enter_epoch()
            self.close_steps()

    def _leave_calls(self) -> None:
        """Complete what a ``break`` left open, before another call; an epoch around the call continues."""
        if self._inside_epochs:
            self._end_batch()
        else:
            self.close_steps()

    def _plan(self, batches: Any, epochs: int, total: int | None) -> None:
        if not self._inside_epochs:
            self.num_epochs = epochs
        epoch, done = (self.epoch, self._data.to_skip) if self._inside_epochs else self._data.planned_start(epochs)
        self._planned_length = None if total is not None else length_of(batches)
        self.num_steps = total  # None where the length is unknown: that of an earlier call is not this one's
        self._plan_steps(epoch, done)

    def _plan_steps(self, epoch: int, done: int) -> None:
        """Plan the steps from a position in an epoch on, where the length of the data is known."""
        if self._planned_length is not None:
            per_step = self._updates.batches_per_step
            steps = -(-self._planned_length // per_step)
            steps_done = -(-done // per_step)  # the last step of an epoch may have fewer batches
            self.num_steps = self.step + steps * ((self.num_epochs or 1) - epoch) - steps_done

    def enter_epoch(self) -> None:
        """Fire `on_train_epoch_start`, unless it was fired in this epoch or there is none."""
        if self._epoch_state == "waiting":
            # Before the moment: a checkpoint saved in it has an open epoch, whose end still has to fire.
            self._epoch_state, self._data.at.epoch_open = "open", True
            self.callbacks.on_train_epoch_start(self)

    # Batches, steps, and what happens between two steps

    @property
    def _is_between_batches(self) -> bool:
        """Whether some batches of a step are done and others, with its update, are not."""
        return self.lifecycle.is_open and self._batch is None and self._logged_steps is None

    def _begin_batch(self, batch: Any, batch_idx: int) -> None:
        continues_step = self.lifecycle.is_open and self._is_between_batches
        self._batch, self._data.resume = (batch, batch_idx), None
        if not continues_step:
            self._evaluated = []
            self.lifecycle.begin()
        self.callbacks.on_train_batch_start(self, batch, batch_idx)

    def _end_batch(self) -> None:
        if self._batch is None:
            return
        batch, batch_idx = self._batch
        completed = self._updates.completes_step()
        if completed:
            self._updates.forbidden = False
        # The batch is still in progress for a checkpoint saved here, which counts it as done by its index.
        self.callbacks.on_train_batch_end(self, self.lifecycle.row, batch, batch_idx)
        self._batch = None
        if completed:
            # Before on_step_end, for a checkpoint that is saved there.
            self._data.at.batches = batch_idx + 1
            self._repeated.clear()
            # The argument is evaluated first: all ranks exchange their numbers before on_step_end fires on any.
            self.lifecycle.end(batch, commit=None if self.world_size == 1 else self._share_step())
            self.after_step()
        if self._updates.batch_ended(completed=completed):
            self._plan_steps(self.epoch, self._data.at.batches)

    def after_step(self) -> None:
        """Record what other threads logged, and answer requests; several processes do that at the next boundary."""
        self._updates.count, self._updates.forbidden = 0, False
        if not self._held_back.empty():
            self.commit_held_back()
        if self.command_flag[0]:
            self.receive_alone()
        if self.checkpoint_requested and self.world_size == 1:
            self.answer_requests()

    def receive_alone(self) -> None:
        """Apply commands, where no other process has to apply them as well."""
        if self._is_between_batches:
            return
        if self.world_size == 1:
            self.control.receive()
        elif self._logged_steps is not None:
            self.control.receive(refusal="Several processes can only be controlled in a loop with run.steps().")

    def _must_stop(self) -> bool:
        """Whether to stop; several processes also agree here on checkpoints and validations that one requested.

        The checkpoint of a stop is saved here. What the program still does until the run ends (the rest of an epoch:
        a step of the scheduler, a validation) is done again by a resume, and must not be part of it.
        """
        # Gradients are partial here, so stops and checkpoints wait for the update.
        if self.lifecycle.is_open and self._is_between_batches:
            return False
        if self.stop_reason is None and self.world_size == 1:  # the usual case: nothing to agree on
            self._agreed_to_stop = False
            return False
        had_to_stop = self._agreed_to_stop
        if self.world_size == 1:
            self._agree()
        else:
            self._settle_requests()
        if self._agreed_to_stop and not had_to_stop:
            self.checkpointing.save_at_end()
        return self._agreed_to_stop

    def _settle_requests(self) -> None:
        fresh = self.validation_requested and not self._validation_agreed
        validated = self._validation_agreed and not self.validation_requested
        has_pending = self.checkpointing.pending is not None
        wishes = (self.checkpoint_requested, fresh, validated, has_pending, self.command_flag[0] != 0)
        save, validate, validated, evaluated, has_commands = self._agree(*wishes)
        if has_commands:
            self.control.receive()
            # Again, with what the commands request; it is the same on all ranks.
            fresh = self.validation_requested and not self._validation_agreed
            validate, save = validate or fresh, save or self.checkpoint_requested
            self._agree()
        # One rank may validate for all. Then the request is withdrawn on the others as well.
        self.validation_requested = self._validation_agreed = validate or (self._validation_agreed and not validated)
        # Agreed, so all ranks enter the collectives in here. Before the other checkpoint: the pending one is of the
        # step before.
        if evaluated:
            self.checkpointing.complete_pending()
        if save:
            self.checkpoint_requested = False
            self.checkpointing.share_requests(self.step)
            self.save_checkpoint()

    def _finish_open_work(self) -> None:
        self.close_steps()
        if self._is_between_batches:  # batches that no update came of: record what they logged
            self._write(*self.lifecycle.abandon())
        if self.saves_together and self.world_size > 1:
            self._must_stop()  # a loop that was left early has not learned yet what others requested

    def _abandon_step(self) -> None:
        self._batch = None
        self._data.withdraw_break()

    def _log_without_steps(
        self, args: tuple[Any, ...], values: dict[str, Any], step: int | None, reduce: Any, commit: bool
    ) -> bool:
        if self.state == "created":
            self._require_running("log")
        # Neither another thread nor a subscriber of on_log may complete a step of the loop.
        elsewhere = self._committing or threading.get_ident() != self._thread
        if self._logged_steps is None or self.state != "running" or elsewhere or reduce is not None:
            return False
        if step is not None:
            self._logged_steps.row_at(step)
        elif self.lifecycle.row is None or not self._logged_steps.counts:
            self._logged_steps.log(collect(args, values, defer, defer_uniform), commit=commit)
            return True
        return False

    # What a checkpoint holds

    @property
    def _notes_step_starts(self) -> bool:
        return self._evaluates_first or self._updates.needs_step_starts

    def _note_step_start(self, *, nothing_done: bool = False) -> None:
        position = {"epoch": self.epoch, **self._data.at.state()}
        self._step_start = StepStart(position, self._replayed().state(nothing_done=nothing_done))

    def _replayed(self) -> ReplayedOrder:
        assert isinstance(self._order, ReplayedOrder)
        return self._order

    def _checkpoint_state(self, step: int) -> dict[str, Any]:
        # In the body, the batch in progress counts as done, as its step does.
        done = self._data.at.batches if self._batch is None or self._before_step else self._batch[1] + 1
        state = super()._checkpoint_state(step) | {
            **self._data.at.state(),
            "batches_done": done,
            "open_row": dict(self.lifecycle.row or {}) if self.in_step else {},
            "evaluated": list(self._evaluated) if self._before_step else [],
            "rows_are_indexed": self._logged_steps is not None and self._logged_steps.counts,
            "has_files": self.is_resumable,
        }
        # Back to where the step began, whatever has been drawn since.
        if self._before_step and self._step_start is not None:
            state |= self._step_start.position
        return state

    def _restore_position(self, state: dict[str, Any]) -> None:
        super()._restore_position(state)
        self._data.restore(state)
        self._checks_body = self.rank == 0
        self.resumed_row = state.get("open_row", {})
        self._repeated = set(state.get("evaluated", ()))
        self.rows_are_indexed = state.get("rows_are_indexed", False)

    def _save_common_files(self, directory: Path) -> None:
        if self._save is not None:
            self._save(directory)

    def _save_rank_files(self, directory: Path, *, before_step: bool = False) -> None:
        if (before_step or self._before_step) and self._step_start is not None:
            states = self._step_start.order
        else:
            nothing_done = self._epoch_state == "open" and self._batch is None and self._data.at.batches == 0
            states = self._replayed().state(nothing_done=nothing_done)
        checkpoint.write_tensors(states, directory / checkpoint.random_file(self.rank))

    def _load_files(self, directory: Path) -> None:
        if self.saves_together:
            # Only noted. The states are set when the data is opened, so whatever `load` draws changes nothing.
            self._replayed().load_state(checkpoint.read_random_states(directory, self.rank))
        if self._load is not None:
            self._load(directory)

    def _require_running(self, what: str) -> None:
        if self.state != "running":
            how = "has not started" if self.state == "created" else f"is over: it {self.ending}"
            raise OptionError(f"run.{what}() must be called inside `with hl.run(...) as run:`. This run {how}.")

    def _require_no_body(self, what: str) -> None:
        if self._in_body and self._batch is not None:
            raise OptionError(
                f"run.{what}() in the body of run.steps(): the steps would be counted twice. Use one run.steps(), with "
                "run.epochs() around it if need be, or a run of its own for the inner loop. "
                "(A loop that was left and whose iterator is kept: close that first, with its close().)"
            )


run = Run


def start(name: str | None = None, **options: Unpack[LoopOptions]) -> Run:
    """Start a run for an unchanged loop, without a ``with`` block around it; end it with ``run.finish()``.

        run = hl.start("mine", callbacks=[...])
        for batch in loader:
            run.log(loss=train_step(batch))
        run.finish()

    Each `Run.log` completes a step, or each `Run.step_end`. A program that ends without ``run.finish()`` leaves the run
    stopped, one that ends with an error leaves it failed.

    Args:
        name: The name of the run.
        options: As for `hl.run`.
    """
    return Run(name, **options).open()

"""`run()`: the driver for a loop that somebody else wrote.

    with hl.run("warmup", callbacks=[...]) as run:
        for batch in run.steps(loader):
            run.log(loss=train_step(batch))

The body of the ``for`` is one step. It is complete when the next batch is asked for, when the loop
ends, and also when the body breaks out of the loop; a step that raises is not. Stop requests,
SIGINT and SIGTERM end the iteration at the next step boundary.

A resume goes on where the checkpoint was saved: calls of `steps` and `epochs` that were complete give nothing, and the
one under way goes on behind its last batch. A call that was left with ``break`` is complete, unless a stop was
requested.

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
from typing import Any, ClassVar, Self, TypeVar, Unpack, overload

from hookline._engine.errors import OptionError
from hookline._engine.metrics import collect, copied
from hookline._record.device import defer
from hookline.loops.checkpoint import unpacked
from hookline.loops.data_position import DataPosition, length_of
from hookline.loops.options import LoopOptions, RunOptions
from hookline.loops.session import Session
from hookline.loops.step import LoggedSteps, check_resumed_body
from hookline.loops.validation import Validation

logger = logging.getLogger("hookline")

B = TypeVar("B")


class Run(Session):
    """Drives a loop of your own, as ``hl.run(...)``: a context that fires the moments of training around it.

    Args:
        name: What the run is called; ``resume="auto"`` finds it by this.
        callbacks: Anything a `CallbackCollection` takes, or a collection.
        resume: Resume an earlier run: its id or directory, a checkpoint's directory, ``"last"`` for the latest of this
            name that has a checkpoint, or ``"auto"`` for the latest of this name that neither finished nor is running,
            if there is one.
        save: Called with a checkpoint's directory to write the model and what else belongs to it.
        load: Called with a checkpoint's directory to read it back.
        options: ``project``, ``root``, ``sinks``, ``config``, ``tags``, ``notes``, ``strict``, ``summary``,
            ``delivery``, ``drain_seconds`` and ``durability``, as for every `Session`.
    """

    exchanges_rows = True
    restores_itself: ClassVar[bool] = False
    """Whether it knows by itself what its checkpoints hold; ``save`` and ``load`` are then for more than that."""

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
        super().__init__(name or "run", callbacks=callbacks, resume=resume, **options)
        self._save, self._load = save, load
        self.start_from: Path | None = None
        """A checkpoint to begin with, given by the stage before in an experiment."""
        self.answers: Any = None
        """What answers benchmarks: a policy, or a function of a list of prompts. Set it while training."""
        self._at = DataPosition()
        self._resume: DataPosition | None = None  # where a checkpoint was saved, until somebody iterates there
        self._is_resumed = False  # and no batch was given since
        self._iterator: Callable[[], Any] = lambda: None  # that of the last call of `steps`, as long as it is used
        self._calls_begun = 0
        self._passes_begun = 0  # in this epoch
        self._to_skip = 0
        self._step: tuple[Any, int] | None = None
        self._epoch_state = "closed"
        self._inside_epochs = False
        self._in_body = False
        self._validation_agreed = False  # by all processes, at the last step boundary
        self._goes_back = False  # a checkpoint is being saved that the step under way is no part of
        self._evaluated: list[str] = []  # the evaluations before the update of the step under way
        self._repeated: set[str] = set()  # those of the step that was under way in the checkpoint of a resume
        self._logged_steps = LoggedSteps(self)
        self.rows_are_indexed = False
        """Whether the checkpoint of a resume is one of a loop whose rows are numbered from 0, by `LoggedSteps`."""

    @property
    def in_step(self) -> bool:
        """Whether a step is under way that `step` does not count yet."""
        return not self._goes_back and self.lifecycle.is_open

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
        leaves = isinstance(error, SystemExit) and error.code in (None, 0)  # sys.exit() says that all is well
        if leaves:
            self._was_not_left()
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
            total: How many steps the run is to have in all, where the length does not tell; no more are made.
        """
        self._require_running("steps")
        self._require_no_body("steps")
        data: Any = range(batches) if isinstance(batches, int) else batches
        if not isinstance(data, Iterable) or (isinstance(batches, int) and batches < 0):
            raise OptionError(f"steps({batches!r}): give something to iterate over, or a number of steps.")
        _require_count("epochs", epochs)
        if total is not None:
            _require_count("total", total)
        if epochs > 1 and isinstance(data, Iterator):  # iter(loader) would draw from the random states
            raise OptionError(
                f"steps(epochs={epochs}): {data!r} is an iterator, which one epoch uses up. "
                "Give a list or a loader that can be iterated over again."
            )
        if epochs > 1 and self._inside_epochs:
            raise OptionError(f"steps(epochs={epochs}) inside run.epochs(): give the epochs in one place.")
        self._leave_calls()
        if self._logged_steps is not None:
            self._logged_steps.give_up()
            self._logged_steps = None
        if self._inside_epochs or not self._is_next_call_done():
            self._plan(data, epochs, total)
        steps = self._steps(data, epochs, total)
        self._iterator = weakref.ref(steps)
        return steps

    def epochs(self, n: int) -> Iterator[int]:
        """Yield the index of each epoch, firing its start and end around ``run.steps()`` inside."""
        self._require_running("epochs")
        self._require_no_body("epochs")
        _require_count("epochs", n)
        self._leave_calls()
        self.num_epochs = n
        return self._open_epochs(n)

    def checkpoint_with(self, save: Callable[[Path], object], load: Callable[[Path], object]) -> None:
        """Say how checkpoints are written and read, inside the run; the one that it goes on or starts from is read now.

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
            with unpacked(begins_with) as directory:
                load(directory)

    def start(self) -> None:
        """Fire `on_train_start`, once, and say where a checkpoint was taken up whose model nobody reads."""
        if not self._train_started and self.resumed_from is not None and self.rank == 0:
            self._say_what_is_not_read(self.resumed_from)
        super().start()

    def close_steps(self) -> None:
        """Complete a step and an epoch that a ``break`` left open, as the end of the run does."""
        self._settle()

    @property
    def can_be_taken_up(self) -> bool:
        """Whether its checkpoints hold more than counters, or somebody said how they are written."""
        return self.restores_itself or self._save is not None

    @property
    def how_to_be_taken_up(self) -> str:
        """What to do so that there is a checkpoint when it is taken up."""
        if self.can_be_taken_up:
            return super().how_to_be_taken_up
        return "Give save= and load= (or call run.checkpoint_with), and the callback 'checkpoint'."

    def validate(self, name: str = "val", *, before_update: bool | None = None) -> Validation:
        """A validation as a context: ``with run.validate() as val: val.log(loss=...)`` for each batch.

        An evaluation belongs to the weights that it measures. In the body of a step, it is recorded at the step under
        way, or, before the weights are updated, at the number of steps completed so far. Runs over torch and Accelerate
        see the optimizer step. Others assume that the update is done.

        Args:
            name: What the names of its metrics begin with.
            before_update: Whether the update of the step under way is still to come.
        """
        return Validation(self, name, before_update=before_update)

    def save_evaluated(self) -> None:
        """Save the weights that were just evaluated in the body of a step, before its update.

        The step under way is no part of the checkpoint. A resume begins with it, and does not record those of its
        evaluations again that were recorded before.
        """
        self._goes_back = True
        try:
            self.save_checkpoint()
        finally:
            self._goes_back = False

    def record_evaluation(self, name: str, metrics: dict[str, Any], *, step: int | None = None, **options: Any) -> None:
        """Record an evaluation; a checkpoint remembers those that were made before the update of the step under way."""
        if self.in_step and step == self.step:
            self._evaluated.append(name)
        super().record_evaluation(name, metrics, step=step, **options)

    def is_repeated_evaluation(self, name: str) -> bool:
        """Whether the evaluation that begins now was recorded already, before the checkpoint of a resume."""
        is_repeated = self.in_step and name in self._repeated
        if is_repeated:
            self._repeated.discard(name)
            self._evaluated.append(name)
        return is_repeated

    def _save_files(self, directory: Path) -> None:
        if self._save is not None:
            self._save(directory)

    def _load_files(self, directory: Path) -> None:
        if self._load is not None:
            self._load(directory)

    def _say_what_is_not_read(self, path: Path) -> None:
        if self._load is None and not self.restores_itself:
            lacking = "load=" if self._save is not None else "save= and load="
            logger.warning(
                "%r goes on at step %s from %s, but with the model as it is now: nobody said how checkpoints are "
                "read. Give %s, or call run.checkpoint_with, unless a callback reads them.",
                *(self.name, self.step, path, lacking),
            )

    def _place_at(self, state: dict[str, Any]) -> None:
        super()._place_at(state)
        self._resume, self._at = DataPosition.of(state), DataPosition.of(state)
        self._is_resumed = self.rank == 0
        self.resumed_row = state.get("open_row", {})
        self._repeated = set(state.get("evaluated", ()))
        self.rows_are_indexed = state.get("rows_are_indexed", False)

    @property
    def _batches_done(self) -> int:
        """How many batches of the pass under way are done."""
        return self._at.batches

    def _steps(self, batches: Iterable[B], epochs: int, total: int | None) -> Iterator[B]:
        if not self._inside_epochs and self._skip_call():
            return
        self.start()
        for _ in range(1) if self._inside_epochs else self._epochs(epochs, batches):
            at = self._begin_pass()
            for batch_idx, batch in () if at.pass_left else self._fetch(batches, total):
                self.enter_epoch()
                if self._is_resumed:
                    self._is_resumed = False
                    loop = sys._getframe().f_back
                    check_resumed_body(self._iterator(), loop, name=self.name, step=self.step, batch_idx=batch_idx)
                self._begin_step(batch, batch_idx)
                self._in_body = True
                try:
                    yield batch
                except GeneratorExit:
                    at.leave_pass(stopped=self.stop_requested)
                    raise
                finally:  # also where a `break` leaves it
                    self._in_body = False
                self._end_step()
            if at is self._at:
                self._to_skip = 0
            if self._at.epoch_open and not self._agreed_to_stop:
                self.enter_epoch()  # no batch was left, but nobody was told yet that the epoch ends
            if self._agreed_to_stop or (total is not None and self.step >= total):
                self._at.cut_short = True
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

    def _open_epochs(self, n: int) -> Iterator[int]:
        if not self._skip_call():
            yield from self._epochs(n)

    def _epochs(self, n: int, batches: Any = None) -> Iterator[int]:
        place = self._beginning(n, batches)
        if place.epoch == n and self._resume is not None:
            self._complete_call(self._resume)
        self._inside_epochs = True
        try:
            for epoch in range(place.epoch, n):
                if self._must_stop():
                    break
                self._begin_epoch(place if epoch == place.epoch else DataPosition(place.calls, epoch))
                yield epoch
                self._finish_epoch()
        except GeneratorExit:
            if self._at.calls == place.calls:  # rather than another call, which came before this one was closed
                self._at.call_left = not self.stop_requested and not self._at.cut_short
            raise
        finally:
            self._inside_epochs = False

    def _is_next_call_done(self) -> bool:
        """Whether the next call was complete when the checkpoint was saved that is taken up."""
        return self._resume is not None and self._calls_begun < self._resume.calls

    def _skip_call(self) -> bool:
        done = self._is_next_call_done()
        self._calls_begun += done
        return done

    def _beginning(self, n: int, batches: Any) -> DataPosition:
        """Where a call begins: at the place of a resume, otherwise at its first batch."""
        place = DataPosition(self._calls_begun) if self._resume is None else self._resume.within(n)
        length = length_of(batches)
        if place.epoch_complete and (batches is None or (length is not None and length <= place.batches)):
            return DataPosition(place.calls, n)
        return place

    def _place(self, n: int) -> tuple[int, int]:
        """The epoch to begin with, and how many of its batches are done: those of a resume, otherwise none."""
        place = DataPosition() if self._resume is None else self._resume.within(n)
        return place.epoch, place.batches

    def _complete_call(self, place: DataPosition) -> None:
        """Nothing is left to do in the call that a resume is in, but perhaps to tell that its epoch ends."""
        self._calls_begun, self._resume = place.calls + 1, None
        if not place.call_left:
            return
        if self.rank == 0:
            logger.warning(
                "%r: the loop that was left with a break at step %d is complete, and gives nothing. "
                "To leave one that a resume goes on with, call run.request_stop().",
                *(self.name, self.step),
            )
        if place.epoch_open:
            self.start()
            self._epoch_state = "waiting"
            self.enter_epoch()
            self._settle()

    def _begin_epoch(self, place: DataPosition) -> None:
        self._calls_begun, self._resume = place.calls + 1, None
        self._at, self._passes_begun, self._to_skip = place, 0, place.batches
        self.epoch, self._epoch_state = place.epoch, "waiting"

    def _finish_epoch(self) -> None:
        if self._step is not None:  # the iterator of a pass that was left is kept
            self._at.leave_pass(stopped=self.stop_requested)
        self._at.epoch_complete = not self._at.cut_short
        self._settle()

    def _begin_pass(self) -> DataPosition:
        """The place at which a pass over data begins; it says that it was left where a resume finds it complete."""
        if self._agreed_to_stop and self.stop_requested:
            return self._at  # nothing is done any more
        number, self._passes_begun = self._passes_begun, self._passes_begun + 1
        if number < self._at.passes:
            return DataPosition(pass_left=True)
        if number > self._at.passes:
            self._at = self._at.next_pass(number)
        return self._at

    def _leave_calls(self) -> None:
        """Complete what a ``break`` left open, before another call; an epoch that the call is inside of goes on."""
        if self._inside_epochs:
            self._end_step()
        else:
            self._settle()

    def _was_not_left(self) -> None:
        """Take back that the loop was left: the program ends in it."""
        self._at.pass_left = self._at.call_left = False

    def _plan(self, batches: Any, epochs: int, total: int | None) -> None:
        if not self._inside_epochs:
            self.num_epochs = epochs
        epoch, done = (self.epoch, self._to_skip) if self._inside_epochs else self._place(epochs)
        if total is not None:
            self.num_steps = total
        elif (length := length_of(batches)) is not None:
            self.num_steps = self.step + length * ((self.num_epochs or 1) - epoch) - done
        else:
            self.num_steps = None  # that of an earlier call is not this one's

    def _log_without_steps(
        self, args: tuple[Any, ...], values: dict[str, Any], step: int | None, reduce: Any, commit: bool
    ) -> bool:
        if self.state == "created":
            self._require_running("log")
        elsewhere = self._committing or threading.get_ident() != self._thread
        if self._logged_steps is None or self.state != "running" or elsewhere or reduce is not None:
            return False
        if step is not None:
            self._logged_steps.row_at(step)
        elif self.lifecycle.row is None or not self._logged_steps.counts:
            self._logged_steps.log(copied(collect(args, values, defer)), commit=commit)
            return True
        return False

    def step_end(self, batch: Any = None) -> None:
        """Complete a step of a loop that does not use `steps`: what was logged since the last one is its row.

        Args:
            batch: What `on_step_end` is given as the batch.
        """
        self._require_running("step_end")
        if self._logged_steps is None:
            raise OptionError("step_end() in a loop with run.steps(): the end of its body completes the step.")
        self._logged_steps.step_end(batch)

    def enter_epoch(self) -> None:
        """Fire `on_train_epoch_start`, unless that was done in this epoch or there is none."""
        if self._epoch_state == "waiting":
            self._epoch_state, self._at.epoch_open = "open", True
            self.callbacks.on_train_epoch_start(self)

    def _begin_step(self, batch: Any, batch_idx: int) -> None:
        self._step, self._resume = (batch, batch_idx), None
        self._evaluated = []
        self.lifecycle.begin()
        self.callbacks.on_train_batch_start(self, batch, batch_idx)

    def _end_step(self) -> None:
        if self._step is None:
            return
        batch, batch_idx = self._step
        self.callbacks.on_train_batch_end(self, self.lifecycle.row, batch, batch_idx)
        self._step, self._at.batches = None, batch_idx + 1
        self._repeated.clear()
        self.lifecycle.end(batch, commit=self._share_step())
        self.after_step()

    def after_step(self) -> None:
        """Record what other threads logged, and answer requests; several processes do that at the next boundary."""
        self.commit_held_back()
        if self.world_size == 1:
            self.answer_requests()

    def _must_stop(self) -> bool:
        """Whether to stop; several processes also agree here on checkpoints and validations that one requested.

        The checkpoint of a stop is saved here. What the program still does until the run ends (the rest of an epoch:
        a step of the scheduler, a validation) is done again by a resume, and must not be part of it.
        """
        had_to_stop = self._agreed_to_stop
        self._settle_requests()
        if self._agreed_to_stop and not had_to_stop:
            self._save_last()
        return self._agreed_to_stop

    def _settle_requests(self) -> None:
        if self.world_size == 1:
            self._agree()
            return
        fresh = self.validation_requested and not self._validation_agreed
        validated = self._validation_agreed and not self.validation_requested
        save, validate, validated, evaluated = self._agree(
            self.checkpoint_requested, fresh, validated, self._has_evaluated_to_save
        )
        # One rank may validate for all. Then the others stop asking for it as well.
        self.validation_requested = self._validation_agreed = validate or (self._validation_agreed and not validated)
        if evaluated:
            self._save_prepared()
        if save:
            self.checkpoint_requested = False
            self._share_checkpoint_requests(self.step)
            self.save_checkpoint()

    @property
    def _has_evaluated_to_save(self) -> bool:
        """Whether weights were evaluated before the update of the last step that several processes have to save."""
        return False

    def _save_prepared(self) -> None:
        """Save them, together with the other processes."""

    def _settle(self) -> None:
        """Complete a step and an epoch that a ``break`` left open."""
        if self._logged_steps is not None:
            self._logged_steps.close()
        self._end_step()
        if self._epoch_state == "open":
            self._epoch_state, self._at.epoch_open = "closed", False
            self.callbacks.on_train_epoch_end(self)

    def _leave_step(self) -> None:
        self._step = None
        self._was_not_left()

    def _state(self, step: int) -> dict[str, Any]:
        return super()._state(step) | {
            **self._at.state(),
            "batches_done": self._batches_done if self._step is None or self._goes_back else self._step[1] + 1,
            "open_row": dict(self.lifecycle.row or {}) if self.in_step else {},
            "evaluated": list(self._evaluated) if self._goes_back else [],
            "rows_are_indexed": self._logged_steps is not None and self._logged_steps.counts,
            "has_files": self._save is not None,
        }

    def _require_running(self, what: str) -> None:
        if self.state != "running":
            how = "has not started" if self.state == "created" else f"is over: it {self.ending}"
            raise OptionError(f"run.{what}() must be called inside `with hl.run(...) as run:`. This run {how}.")

    def _require_no_body(self, what: str) -> None:
        if self._in_body and self._step is not None:
            raise OptionError(
                f"run.{what}() in the body of run.steps(): the steps would be counted twice. Use one run.steps(), with "
                "run.epochs() around it if need be, or a run of its own for the inner loop. "
                "(A loop that was left and whose iterator is kept: close that first, with its close().)"
            )


run = Run


def start(name: str | None = None, **options: Unpack[LoopOptions]) -> Run:
    """Start a run for a loop that stays as it is, without a ``with`` block around it; end it with ``run.finish()``.

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


def _require_count(what: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{what}={value!r}: give a whole number of at least 1.")

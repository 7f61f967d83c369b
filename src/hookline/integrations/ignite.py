"""Ignite: hookline's callbacks observe and control an `Engine` that trains, and the engines that evaluate.

    from hookline.integrations.ignite import attach

    attach(trainer, ["early_stopping"], model=model, optimizer=optimizer, evaluators=evaluator, name="warmup")
    trainer.run(loader, max_epochs=3)

How Ignite's events become moments:

- A batch is an iteration, and a step is one update. With ``accumulation=`` a step ends with the iteration in which the
  optimizer steps; without ``optimizer=`` each iteration is a step, and `on_before_optimizer_step` does not fire.
- A step's row has what the engine's output says: a number is the ``loss``, a mapping gives its numbers,
  ``output_transform=`` does for others. The engine's metrics, such as a `RunningAverage`, are added by their names.
- An engine in ``evaluators=`` is an evaluation by its name there, ``val`` where it is the only one: ``val/<metric>``. A
  metric called ``loss`` is ``val/loss``. Its outputs are those of validation batches.
- A stop terminates the trainer after the step. A requested validation calls ``validate=``. A checkpoint is a directory
  with ``ignite.pt``, the states of the trainer and of ``to_save=``, which a resume loads, and the callbacks' states.

`attach` wraps the trainer's ``run``: a handler of errors would keep Ignite from raising them.
"""

from hookline._engine.optional import require

require("torch", ">=2.4", extra="ignite", what=__name__)
require("ignite", ">=0.5", extra="ignite", what=__name__, distribution="pytorch-ignite")

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Unpack

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint

from hookline._engine.checks import require_integer
from hookline._engine.defaults import NAME
from hookline._engine.errors import OptionError
from hookline.integrations.host_callback import HostCallback, WrappedMethods
from hookline.loops.options import RunOptions
from hookline.loops.updates import OptimizerUpdates

__all__ = ["AttachedEngine", "attach"]

FILE = "ignite.pt"
TRAINER = "trainer"


def attach(
    trainer: Any,
    callbacks: Iterable[Any] = (),
    *,
    model: Any = None,
    optimizer: Any = None,
    evaluators: Any = None,
    validate: Callable[[], Any] | None = None,
    to_save: Mapping[str, Any] | None = None,
    output_transform: Callable[[Any], Any] | None = None,
    accumulation: int = 1,
    name: str = NAME,
    resume: str | Path | None = None,
    **options: Unpack[RunOptions],
) -> "AttachedEngine":
    """Have callbacks run in every ``trainer.run`` that follows, each of which is a run.

    Args:
        trainer: The engine that trains.
        callbacks, name, options: As for every run of hookline.
        model, optimizer: For callbacks: ``loop.model``, ``loop.optimizer``, and the moment before an update.
        evaluators: The engine that evaluates, or a mapping of evaluations' names to engines.
        validate: A function that runs an evaluator, for requested validations: ``lambda: evaluator.run(held_out)``.
        to_save: What belongs to checkpoints beside the trainer, by name, as for Ignite's `Checkpoint`; by default the
            model and the optimizer.
        output_transform: Makes the metrics of a step from the trainer's output: a number, the loss, or a mapping.
        accumulation: How many iterations make a step.
        resume: The directory of a checkpoint that a callback saved. Its states are loaded now; the next ``run``
            continues the training and its run.
    """
    if not isinstance(trainer, Engine):
        raise OptionError(f"attach({type(trainer).__name__}): give an ignite.engine.Engine.")
    named = {"val": evaluators} if isinstance(evaluators, Engine) else dict(evaluators or {})
    for each, engine in named.items():
        if not isinstance(engine, Engine):
            raise OptionError(f"evaluators[{each!r}]={engine!r:.200}: give an ignite.engine.Engine.")
    require_integer("accumulation", accumulation)
    if accumulation > 1 and optimizer is None:
        raise OptionError(f"accumulation={accumulation} without optimizer=: it is the optimizer that ends a step.")
    parts = {"model": model, "optimizer": optimizer} if to_save is None else to_save
    attached = AttachedEngine(callbacks, name=name, resume=resume, **options)
    attached.attach(
        trainer,
        named,
        validate=validate,
        to_save={each: part for each, part in parts.items() if part is not None},
        output_transform=output_transform,
        updates=None if optimizer is None else OptimizerUpdates(attached.loop, accumulation),
    )
    attached.loop.model, attached.loop.optimizer = model, optimizer
    return attached


class AttachedEngine(HostCallback):
    """What `attach` returns.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
    """

    host = "Ignite"
    reports_epochs = True

    def attach(
        self,
        trainer: Engine,
        evaluators: Mapping[str, Engine],
        *,
        validate: Callable[[], Any] | None,
        to_save: dict[str, Any],
        output_transform: Callable[[Any], Any] | None,
        updates: OptimizerUpdates | None,
    ) -> None:
        """Add the handlers to the engines, and load the checkpoint that is resumed; for `attach`."""
        self._trainer, self._run_validation, self._transform = trainer, validate, output_transform
        self._parts = {**to_save, TRAINER: trainer}
        self._updates = updates
        self._trains = self._epoch_is_open = self._is_validating = False
        self._iterations = 0  # of the last training, as far as they are recorded
        if self._resume is not None:
            saved = torch.load(self._resume / FILE, map_location="cpu", weights_only=True)
            Checkpoint.load_objects(self._parts, saved)
        self._methods = WrappedMethods(trainer)
        self._methods.wrap("run", self._run)
        self._handles = [
            trainer.add_event_handler(event, handler)
            for event, handler in (
                (Events.EPOCH_STARTED, self._epoch_started),
                (Events.ITERATION_STARTED, self._iteration_started),
                (Events.ITERATION_COMPLETED, self._iteration_completed),
            )
        ]
        for name, engine in evaluators.items():
            self._handles += [
                engine.add_event_handler(Events.STARTED, self._evaluation_started),
                engine.add_event_handler(Events.ITERATION_STARTED, self._evaluation_batch_started),
                engine.add_event_handler(Events.ITERATION_COMPLETED, self._evaluation_batch_completed),
                engine.add_event_handler(Events.COMPLETED, self._evaluation_completed, name),
            ]

    def detach(self) -> None:
        """Remove the handlers from the engines, and restore ``trainer.run``."""
        for handle in self._handles:
            handle.remove()
        self._methods.restore()

    def _run(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._fail_if_running(None)
        self._trains, self._epoch_is_open = True, False
        try:
            if self._updates is not None:
                self._updates.watch([self.loop.optimizer])
            state = run(*args, **kwargs)
            # Here and not at an event: until then, handlers of the user's run evaluators.
            if self._trainer.last_event_name == Events.EXCEPTION_RAISED:
                self._fail_if_running(RuntimeError("the training raised an error, which a handler of Ignite handled"))
            elif self.loop.is_running:
                self._close_epoch()
                self._end()
        except BaseException as error:
            self._fail_if_running(error)
            raise
        finally:
            self._trains = False
            if self._updates is not None:
                self._updates.unwatch()
        return state

    def _begin_training(self, epoch: int) -> None:
        """Begin the run with the first event of a training, whichever that is."""
        state = self._trainer.state
        per_step = 1 if self._updates is None else self._updates.batches_per_step
        total = state.max_iters or (state.epoch_length and state.max_epochs and state.epoch_length * state.max_epochs)
        self._begin(
            self.loop.model,
            native=self._trainer,
            step=state.iteration // per_step,
            num_steps=None if not total else total // per_step,
            epoch=epoch,
            num_epochs=state.max_epochs,
        )

    def _resumed(self) -> tuple[dict[str, Any] | None, Any]:
        if self._resume is None and 0 < self._trainer.state.iteration == self._iterations:
            return self.loop.state_dict(), None  # the same trainer continues, with more epochs or after interrupt()
        return super()._resumed()

    def _epoch_started(self, engine: Engine) -> None:
        state = engine.state
        if not self.loop.is_running:
            self._begin_training(state.epoch - 1)
        self._close_epoch()
        self._open_epoch(state)

    def _open_epoch(self, state: Any) -> None:
        done = 0 if not state.epoch_length else max(0, state.iteration - (state.epoch - 1) * state.epoch_length)
        self.loop.epoch_start(state.epoch - 1, batches_done=done)
        self._epoch_is_open = True

    def _close_epoch(self) -> None:
        if self._epoch_is_open:
            self._epoch_is_open = False
            self.loop.epoch_end()

    def _iteration_started(self, engine: Engine) -> None:
        if not self.loop.is_running:  # it continues in the middle of an epoch
            engine.state.iteration -= 1  # of which this is the first
            self._begin_training(engine.state.epoch - 1)
            self._open_epoch(engine.state)
            engine.state.iteration += 1
        if not self.loop.in_step:
            self.loop.step_start()
        if self._updates is not None:
            self._updates.count = 0
        self.loop.batch_start(engine.state.batch)

    def _iteration_completed(self, engine: Engine) -> None:
        state = engine.state
        self.loop.batch_end(state.output, state.batch)
        self._iterations = state.iteration
        if self._updates is not None and not self._updates.has_updated():
            return
        given = state.output if self._transform is None else self._transform(state.output)
        self.loop.step_end(state.batch, self.loop.recordable({**_metrics(given), **state.metrics}))
        if self._boundary() is not None:
            self._trainer.terminate()

    def _evaluation_started(self, engine: Engine) -> None:
        if self._trains and not self.loop.is_running:
            self._begin_training(self._trainer.state.epoch)
        elif not self.loop.is_running:  # an evaluation without a training, or after it
            self.loop.begin(trains=False)
            self.loop.start()
        self.loop.validation_start()

    def _evaluation_batch_started(self, engine: Engine) -> None:
        self.loop.validation_batch_start(engine.state.batch)

    def _evaluation_batch_completed(self, engine: Engine) -> None:
        self.loop.validation_batch_end(_outputs(engine.state.output), engine.state.batch)

    def _evaluation_completed(self, engine: Engine, name: str) -> None:
        loop = self.loop
        metrics = {f"{name}/{metric}": value for metric, value in engine.state.metrics.items()}
        # A handler that runs before hookline's evaluates inside of a step, whose update is made by then.
        step = loop.step + (loop.in_step and (self._updates is None or self._updates.has_updated()))
        loop.validation_end(name, loop.recordable(metrics), step=step)
        if not self._trains:
            loop.train_end()
        elif not loop.in_step and not self._is_validating and self._boundary() is not None:
            self._trainer.terminate()

    def _validate_now(self) -> None:
        self._is_validating = True
        try:
            if self._run_validation is not None:
                self._run_validation()
        finally:
            self._is_validating = False

    def _cannot(self, command: str) -> str | None:
        if command == "validate" and self._run_validation is None:
            return "attach() was given no validate=, the function that runs the evaluator."
        return None

    def _write_model(self, directory: Path) -> None:
        # Ignite loads a model without the wrappers of parallelism.
        parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
        parts = {name: part.module if isinstance(part, parallel) else part for name, part in self._parts.items()}
        torch.save({name: part.state_dict() for name, part in parts.items()}, directory / FILE)


def _metrics(output: Any) -> dict[str, Any]:
    """Return the metrics in the output of a trainer."""
    if isinstance(output, Mapping):
        return dict(output)
    is_number = isinstance(output, int | float) or (isinstance(output, torch.Tensor) and output.numel() == 1)
    return {"loss": output} if is_number else {}


def _outputs(output: Any) -> Any:
    """Return the output of an evaluator by name: Ignite's evaluators give predictions and targets."""
    if isinstance(output, tuple) and len(output) == 2:
        return {"predictions": output[0], "targets": output[1]}
    return output

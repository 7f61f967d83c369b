"""Keras: callbacks of hookline observe and steer ``model.fit``.

    from hookline.integrations.keras import HooklineCallback

    with HooklineCallback(["early_stopping", "progress_bar"], name="warmup") as hooks:
        model.fit(x, y, epochs=3, callbacks=[hooks])

It is the same whichever backend Keras runs on.

A model of Keras in a checkpoint's directory, or as a file.

`OptimizerView`: an optimizer of Keras with what callbacks ask an optimizer for.

`KerasLoop`: a `HostLoop` whose model is that of a callback of Keras, as it is now.

On JAX a model does not have its variables' values while an epoch runs. A callback of Keras that is asked for its model
puts them there first, and so does this loop.

A fit that an error ended leaves the loop running, as Keras does not tell. A signal that comes when no code of Keras is
under way is not for it: it goes to whoever had the signals before, and so does every later one.

`UpdateCount`: how many times an optimizer of Keras has moved the weights.

`HooklineCallback`: tells a `KerasLoop` what happens in ``model.fit``, and the model what was asked for.

- A step is one optimizer update: a batch or, with the optimizer's ``gradient_accumulation_steps``, several of them.
  Steps are counted across epochs. What is in a batch, and when the optimizer is about to move, Keras does not tell.
- The metrics of a step are Keras's logs, by its names and with its values: ``loss`` is the mean of the epoch so far.
  Those of a validation stand under ``val/...``, those of ``model.evaluate()`` under ``test/...``.
- All moments fire on the thread that trains, in order: Keras calls batch ends on other threads only where no callback
  overrides them.
- A stop is ``model.stop_training``, at the end of the step. A checkpoint is saved then as well, or at once where no
  step and no validation is under way: a directory with ``model.keras`` and the callbacks' states.
- Keras cannot validate in the middle of an epoch. A validation that is asked for is the one at its end, which is said.
- ``fit(initial_epoch=n)`` goes on in the run of a fit that ended with n epochs. ``model.predict()`` is no run.

Keras does not tell callbacks that ``fit`` raised. As a context, ``with HooklineCallback(...) as hooks:``, this one is
told at once. Otherwise the run ends as failed when the callback is next used, or when the program ends, with the
exception if it was that which ended the program. The signals are given back at once, or with the first one that comes.
"""

from hookline._engine.optional import require

require("keras", ">=3.5", extra="keras", what=__name__)

import atexit
import logging
import signal
import sys
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

import keras

from hookline._engine.errors import CheckpointError, MissingExtraError, OptionError
from hookline._engine.state import ManifestRow
from hookline.integrations.host_loop import HostLoop, SaveFunction
from hookline.loops import checkpoint
from hookline.loops.options import RunOptions

__all__ = ["HooklineCallback"]


MODEL = "model.keras"
WEIGHTS = "model.weights.h5"
_SUFFIXES = (".keras", ".h5")


def is_file(place: Path) -> bool:
    """Whether a path names a model's file rather than a directory."""
    return place.suffix in _SUFFIXES


def save_file(model: Any, file: Path) -> None:
    """Write a model; to a file called ``*.weights.h5`` only its weights."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.name.endswith(".weights.h5"):
        model.save_weights(file)
    else:
        model.save(file)


def save_into(model: Any, directory: Path, *, weights_only: bool) -> None:
    """Write a model, or its weights, into a directory."""
    save_file(model, directory / (WEIGHTS if weights_only else MODEL))


class OptimizerView:
    """The optimizer itself, and the ``param_groups`` by which callbacks know a learning rate; they cannot set it there.

    Args:
        optimizer: That of the model.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group, with the learning rate as it is now."""
        return [{"params": [], "lr": float(self._optimizer.learning_rate)}]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)


class KerasLoop(HostLoop):
    """The loop of a `HooklineCallback` of Keras.

    Args:
        callback: The callback, which knows the model.
        save, callbacks, options: As for `HostLoop`.
    """

    no_gradients = "Keras updates the weights inside of a batch, and shows no gradients"

    def __init__(
        self,
        name: str,
        *,
        callback: Any,
        save: SaveFunction | None = None,
        callbacks: Iterable[Any] = (),
        **options: Unpack[RunOptions],
    ) -> None:
        self._callback = callback
        super().__init__(name, native=None, save=save, callbacks=callbacks, **options)

    def _heard_signal(self, name: str) -> None:
        if _keras_runs():
            super()._heard_signal(name)
        else:
            self._signals.restore()
            signal.raise_signal(signal.Signals[name])

    @property
    def model(self) -> Any:
        """The model that is trained."""
        return self._callback.model

    @model.setter
    def model(self, model: Any) -> None:
        _refuse("model", model)

    @property
    def native(self) -> Any:
        """The model: in Keras it is what trains."""
        return self._callback.model

    @native.setter
    def native(self, model: Any) -> None:
        _refuse("native", model)

    @property
    def optimizer(self) -> Any:
        """The model's optimizer, if it has one."""
        optimizer = getattr(self.model, "optimizer", None)
        return None if optimizer is None else OptimizerView(optimizer)

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        _refuse("optimizer", optimizer)


def _keras_runs() -> bool:
    """Whether one of Keras's functions called this one, however far up."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__", "").partition(".")[0] == "keras":
            return True
    return False


def _refuse(name: str, value: Any) -> None:
    if value is not None:  # which every loop begins with
        raise AttributeError(f"{name} is that of model.fit(), and cannot be set to {value!r}.")


class UpdateCount:
    """Counts updates by batches: with ``gradient_accumulation_steps`` an update takes several of them.

    Args:
        optimizer: That of the model, as it is before the first batch to be counted.
    """

    def __init__(self, optimizer: Any) -> None:
        self._each = getattr(optimizer, "gradient_accumulation_steps", None) or 1
        # its public count is of updates, and does not tell how many batches wait for the next one
        updates = int(getattr(optimizer, "iterations", 0))
        self._batches = int(getattr(optimizer, "_iterations", updates * self._each))

    @property
    def updates(self) -> int:
        """All so far, also those of earlier trainings."""
        return self._batches // self._each

    def planned(self, batches: int) -> int:
        """How many updates so many more batches make."""
        return (self._batches + batches) // self._each - self.updates

    def add(self, batches: int) -> int:
        """Count batches that are done; returns how many updates they made."""
        made = self.planned(batches)
        self._batches += batches
        return made


logger = logging.getLogger("hookline")


class HooklineCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Fires the moments of hookline in ``fit`` and ``evaluate``.

    Args:
        callbacks, name, options: As for every run of hookline.
        resume: A checkpoint's directory, as a callback saved it: the first ``fit`` goes on in its run, with the
            callbacks' states. The model is yours to load, from ``model.keras`` in it.
        weights_only: Save the model's weights in checkpoints (``model.weights.h5``) instead of the whole model.

    Attributes:
        loop: What callbacks are given, and the run: ``loop.dir``, ``loop.history``.
    """

    def __init__(
        self,
        callbacks: Iterable[Any] = (),
        *,
        name: str = "run",
        resume: str | Path | None = None,
        weights_only: bool = False,
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__()
        self.loop = KerasLoop(name, callback=self, save=self._save, callbacks=callbacks, **options)
        self._resume = None if resume is None else Path(resume)
        self._weights_only = weights_only
        self._thread = 0
        self._updates = UpdateCount(None)
        self._first_batch = 0
        self._known: set[str] = set()  # what the logs of this epoch have told already
        self._owed: list[Path] = []
        self._epochs_done = 0
        self._trained: Any = None  # the model of the last fit
        self._has_begun = self._only_evaluates = self._said_when = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_what_was_left(error)

    def set_params(self, params: Any) -> None:
        """Begin a ``fit`` or ``evaluate``; one that is still under way has failed."""
        self._end_what_was_left(None)
        super().set_params(params)

    def on_train_begin(self, logs: Any = None) -> None:
        self._end_what_was_left(None)
        self._thread = threading.get_ident()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not self._has_begun:  # only now is it known which epoch is the first
            self._begin(epoch)
        self._known = set()
        self.loop.epoch_start(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._first_batch = batch
        if not self.loop.in_step:
            self.loop.step_start()
        self.loop.batch_start(None, batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._check_thread()
        self._known.update(logs or ())
        self.loop.batch_end(logs)
        made = self._updates.add(batch - self._first_batch + 1)  # several batches with steps_per_execution
        if made:
            self.loop.step_end(None, logs, step=self.loop.step + made)
            self._answer()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        rest = {name: value for name, value in (logs or {}).items() if name not in self._known}
        if rest:
            self.loop.host_log(rest, step=self.loop.step)  # what another callback put among the logs
        self._epochs_done = epoch + 1
        self.loop.epoch_end()
        self._answer()

    def on_train_end(self, logs: Any = None) -> None:
        if self._has_begun:
            self._end()

    def on_test_begin(self, logs: Any = None) -> None:
        self._thread = threading.get_ident()
        if not self.loop.is_running:
            self._only_evaluates = True
            self.loop.begin(trains=False)
            atexit.register(self._end_with_the_program)
            self.loop.start()
        self.loop.validation_start()

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.loop.validation_batch_start()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._check_thread()
        self.loop.validation_batch_end(logs)
        if self._only_evaluates and self.loop.stop_requested:
            self.model.stop_evaluating = True

    def on_test_end(self, logs: Any = None) -> None:
        name = "test" if self._only_evaluates else "val"
        self._known.update(f"val_{metric}" for metric in logs or ())
        self.loop.validation_end(name, {f"{name}/{metric}": value for metric, value in (logs or {}).items()})
        if self._only_evaluates:
            self._end()
        else:
            self._answer()

    def _begin(self, epoch: int) -> None:
        loop, row, self._resume, resume = self.loop, None, None, self._resume
        goes_on = self._trained is loop.model and 0 < epoch == self._epochs_done
        state = loop.state_dict() if goes_on else None if resume is None else checkpoint.load(resume)
        if resume is not None and state is not None:
            row = loop.checkpoint_row(resume, step=state["step"])
        self._updates = UpdateCount(loop.model.optimizer)
        self._trained, self._has_begun, self._said_when, self._owed = loop.model, True, False, []
        loop.begin(state=state, row=row)
        atexit.register(self._end_with_the_program)
        step = loop.step if state is not None else self._updates.updates if epoch > 0 else 0
        plan = self.params or {}
        epochs, batches = plan.get("epochs"), plan.get("steps")
        planned = None if not epochs or not batches else self._updates.planned(batches * (epochs - epoch))
        num_steps = None if planned is None else step + planned
        loop.train_start(step=step, epoch=epoch, num_steps=num_steps, num_epochs=epochs)

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise OptionError(
                "Keras calls callbacks on other threads where it is not given a list: write fit(callbacks=[hooks])."
            )

    def _answer(self) -> None:
        """Do what callbacks asked for."""
        asked = self.loop.requests()
        if asked.stop is not None:
            self.model.stop_training = True
        if asked.validation and not self._said_when:
            self._said_when = True
            logger.warning("A validation was asked for: Keras validates at the end of an epoch, and only then.")
        if asked.checkpoint and self.loop.in_step:
            self.loop.request_checkpoint()  # at the end of an epoch whose last batches have not made an update yet
        elif asked.checkpoint:
            places, self._owed = self._owed or [self._usual_place()], []
            for place in places:
                self._save_now(place)

    def _save(self, path: Path | None) -> ManifestRow:
        place = path or self._usual_place()
        if self.loop.in_step or self.loop.is_validating:
            self._owed.append(place)
            self.loop.request_checkpoint()
            return self.loop.checkpoint_row(place)
        return self._save_now(place)

    def _save_now(self, place: Path) -> ManifestRow:
        if self.loop.rank == 0 and is_file(place):
            save_file(self.model, place)
        elif self.loop.rank == 0:
            write = partial(save_into, self.model, weights_only=self._weights_only)
            checkpoint.save(place, self.loop.state_dict(), write, step=self.loop.step)
        return self.loop.checkpoint_saved(place)

    def _usual_place(self) -> Path:
        step, home = self.loop.step + self.loop.in_step, self.loop.output_dir
        if home is None:
            raise CheckpointError("Where to? Nothing is recorded (root=None): give save_checkpoint(path).")
        return home / "checkpoints" / f"step-{step:08d}"

    def _end(self) -> None:
        atexit.unregister(self._end_with_the_program)
        self._has_begun = self._only_evaluates = False
        self.loop.train_end()

    def _end_what_was_left(self, error: BaseException | None) -> None:
        atexit.unregister(self._end_with_the_program)
        self._has_begun = self._only_evaluates = False
        self.loop.failed(error or RuntimeError("fit or evaluate did not come to its end: an error ended it"))

    def _end_with_the_program(self) -> None:
        """End a run that an error left open, with that error where it is what ended the program."""
        self._end_what_was_left(getattr(sys, "last_value", None))


try:
    import keras
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"{__name__}: Keras cannot be imported without {error.name!r}. If that is its backend, install it, or choose "
        "one that is installed with the environment variable KERAS_BACKEND: 'torch', 'jax' or 'tensorflow'."
    ) from error

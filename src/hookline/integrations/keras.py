"""Keras: hookline's callbacks observe and control ``model.fit``, on every backend.

    from hookline.integrations.keras import HooklineCallback

    with HooklineCallback(["early_stopping", "progress_bar"], name="warmup") as hooks:
        model.fit(x, y, epochs=3, callbacks=[hooks])

How Keras's events become moments:

- A step is one optimizer update: a batch or, with the optimizer's ``gradient_accumulation_steps``, several batches.
  Steps are counted across epochs.
- A step's metrics are Keras's logs with its names and values: ``loss`` is the mean of the epoch so far. Those of a
  validation are recorded as ``val/...``, those of ``model.evaluate()`` as ``test/...``.
- All moments fire on the training thread, in order.
- A stop sets ``model.stop_training`` at the end of the step. A checkpoint is saved at the end of the step, or at once
  outside of steps and validations: a directory with ``model.keras`` and the callbacks' states.
- ``fit(initial_epoch=n)`` continues the run of a fit that ended after n epochs. ``model.predict()`` is not recorded.

What Keras does not report: the contents of batches, gradients, the moment before the optimizer updates, and errors.
It cannot validate in the middle of an epoch, so a requested validation is the one at the end of the epoch. As a context
manager, the callback learns at once that ``fit`` raised. Otherwise the run ends as failed when the callback is next
used or the program ends, with the exception if that ended the program.
"""

from hookline._engine.optional import require

require("keras", ">=3.5", extra="keras", what=__name__)

import atexit
import logging
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from hookline._engine.defaults import NAME
from hookline._engine.errors import CheckpointError, MissingExtraError, OptionError
from hookline._engine.state import ManifestRow
from hookline.integrations.host_loop import HostLoop, SaveFunction
from hookline.loops import checkpoint
from hookline.loops.options import RunOptions

try:
    import keras
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"{__name__}: Keras cannot be imported without {error.name!r}. If that is its backend, install it, or choose "
        "one that is installed with the environment variable KERAS_BACKEND: 'torch', 'jax' or 'tensorflow'."
    ) from error

__all__ = ["HooklineCallback"]

logger = logging.getLogger("hookline")

MODEL = "model.keras"
WEIGHTS = "model.weights.h5"


class HooklineCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Fires hookline's moments in ``fit`` and ``evaluate``.

    Args:
        callbacks, name, options: As for every run of hookline.
        resume: The directory of a checkpoint that a callback saved. The first ``fit`` continues its run with the
            callbacks' states. Load the model yourself, from ``model.keras`` in the directory.
        weights_only: Save only the weights in checkpoints (``model.weights.h5``) instead of the whole model.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
    """

    def __init__(
        self,
        callbacks: Iterable[Any] = (),
        *,
        name: str = NAME,
        resume: str | Path | None = None,
        weights_only: bool = False,
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__()
        self.loop = KerasLoop(name, callback=self, save=self._save, callbacks=callbacks, **options)
        self.loop.cannot = {"validate": "Keras validates only at the end of an epoch."}.get
        self._resume = None if resume is None else Path(resume)
        self._weights_only = weights_only
        self._thread = 0
        self._updates = UpdateCounter(None)
        self._first_batch = 0
        self._recorded: set[str] = set()  # names among the logs of this epoch that are recorded
        self._pending_checkpoints: list[Path] = []
        self._epochs_done = 0
        self._trained_model: Any = None  # the model of the last fit
        self._has_begun = self._only_evaluates = self._warned_of_validation = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._fail_if_running(error)

    def set_params(self, params: Any) -> None:
        self._fail_if_running(None)  # the first call of a fit or evaluate
        super().set_params(params)

    def on_train_begin(self, logs: Any = None) -> None:
        self._fail_if_running(None)
        self._thread = threading.get_ident()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not self._has_begun:  # on_train_begin does not know which epoch is the first
            self._begin(epoch)
        self._recorded = set()
        self.loop.epoch_start(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._first_batch = batch
        if not self.loop.in_step:
            self.loop.step_start()
        self.loop.batch_start(None, batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._check_thread()
        self._recorded.update(logs or ())
        self.loop.batch_end(logs)
        made = self._updates.add(batch - self._first_batch + 1)  # several batches with steps_per_execution
        if made:
            self.loop.step_end(None, logs, step=self.loop.step + made)
            self._apply_requests()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # Another callback may have added values to the logs.
        added = {name: value for name, value in (logs or {}).items() if name not in self._recorded}
        if added:
            self.loop.host_log(added, step=self.loop.step)
        self._epochs_done = epoch + 1
        self.loop.epoch_end()
        self._apply_requests()

    def on_train_end(self, logs: Any = None) -> None:
        if self._has_begun:
            self._end()

    def on_test_begin(self, logs: Any = None) -> None:
        self._thread = threading.get_ident()
        if not self.loop.is_running:
            self._only_evaluates = True
            self.loop.begin(trains=False)
            atexit.register(self._fail_at_exit)
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
        self._recorded.update(f"val_{metric}" for metric in logs or ())
        self.loop.validation_end(name, {f"{name}/{metric}": value for metric, value in (logs or {}).items()})
        if self._only_evaluates:
            self._end()
        else:
            self._apply_requests()

    def _begin(self, epoch: int) -> None:
        loop, row, resume, self._resume = self.loop, None, self._resume, None
        state = None if resume is None else checkpoint.load(resume)
        if self._trained_model is loop.model and 0 < epoch == self._epochs_done:
            state = loop.state_dict()  # this fit continues the previous one
        if resume is not None and state is not None:
            row = loop.checkpoint_row(resume, step=state["step"])
        self._updates = UpdateCounter(loop.model.optimizer)
        self._trained_model, self._has_begun = loop.model, True
        self._warned_of_validation, self._pending_checkpoints = False, []
        loop.begin(state=state, row=row)
        atexit.register(self._fail_at_exit)
        step = loop.step if state is not None else self._updates.updates if epoch > 0 else 0
        plan = self.params or {}
        epochs, batches = plan.get("epochs"), plan.get("steps")
        planned = None if not epochs or not batches else self._updates.planned(batches * (epochs - epoch))
        num_steps = None if planned is None else step + planned
        loop.train_start(step=step, epoch=epoch, num_steps=num_steps, num_epochs=epochs)

    def _check_thread(self) -> None:
        # Keras calls batch ends on other threads if it does not see that a callback overrides them.
        if threading.get_ident() != self._thread:
            raise OptionError(
                "Keras calls callbacks on other threads unless it is given a list: write fit(callbacks=[hooks])."
            )

    def _apply_requests(self) -> None:
        requests = self.loop.requests()
        if requests.stop is not None:
            self.model.stop_training = True
        if requests.validation and not self._warned_of_validation:
            self._warned_of_validation = True
            logger.warning("A validation was requested: Keras validates only at the end of an epoch.")
        if requests.checkpoint and self.loop.in_step:
            self.loop.request_checkpoint()  # the last batches of the epoch have not completed an update
        elif requests.checkpoint:
            paths, self._pending_checkpoints = self._pending_checkpoints or [self._default_path()], []
            for path in paths:
                self._save_now(path)

    def _save(self, path: Path | None) -> ManifestRow:
        target = path or self._default_path()
        if self.loop.in_step or self.loop.is_validating:
            self._pending_checkpoints.append(target)
            self.loop.request_checkpoint()
            return self.loop.checkpoint_row(target)
        return self._save_now(target)

    def _save_now(self, path: Path) -> ManifestRow:
        if self.loop.rank == 0 and path.suffix in (".keras", ".h5"):
            path.parent.mkdir(parents=True, exist_ok=True)
            save = self.model.save_weights if path.name.endswith(".weights.h5") else self.model.save
            save(path)
        elif self.loop.rank == 0:
            checkpoint.save(path, self.loop.state_dict(), self._save_model, step=self.loop.step)
        return self.loop.checkpoint_saved(path)

    def _save_model(self, directory: Path) -> None:
        if self._weights_only:
            self.model.save_weights(directory / WEIGHTS)
        else:
            self.model.save(directory / MODEL)

    def _default_path(self) -> Path:
        step, directory = self.loop.step + self.loop.in_step, self.loop.output_dir
        if directory is None:
            raise CheckpointError("Nothing is recorded (root=None): give save_checkpoint(path) a path.")
        return directory / "checkpoints" / f"step-{step:08d}"

    def _end(self) -> None:
        atexit.unregister(self._fail_at_exit)
        self._has_begun = self._only_evaluates = False
        self.loop.train_end()

    def _fail_if_running(self, error: BaseException | None) -> None:
        atexit.unregister(self._fail_at_exit)
        self._has_begun = self._only_evaluates = False
        self.loop.failed(error or RuntimeError("fit or evaluate did not finish: it raised an error"))

    def _fail_at_exit(self) -> None:
        self._fail_if_running(getattr(sys, "last_value", None))  # the exception that ended the program, if one did


class KerasLoop(HostLoop):
    """The loop of a `HooklineCallback`.

    Model and optimizer are read from the callback when they are needed: on the JAX backend a model has its variables'
    values during an epoch only after the callback was asked for it.

    Args:
        callback: The callback, which knows the model.
        save, callbacks, options: As for `HostLoop`.
    """

    package = "keras"
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

    @property
    def model(self) -> Any:
        """The model in training."""
        return self._callback.model

    @model.setter
    def model(self, model: Any) -> None:
        _refuse("model", model)

    @property
    def native(self) -> Any:
        """The model: Keras has no separate trainer."""
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


def _refuse(name: str, value: Any) -> None:
    if value is not None:  # every loop starts by setting None
        raise AttributeError(f"model.fit() determines {name}; it cannot be set to {value!r}.")


class OptimizerView:
    """A Keras optimizer with the read-only ``param_groups`` in which callbacks look up the learning rate."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group with the current learning rate."""
        return [{"params": [], "lr": float(self._optimizer.learning_rate)}]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)


class UpdateCounter:
    """Counts optimizer updates by batches: with ``gradient_accumulation_steps`` an update takes several.

    Args:
        optimizer: The model's optimizer, before the first batch to be counted.
    """

    def __init__(self, optimizer: Any) -> None:
        self._batches_per_update = getattr(optimizer, "gradient_accumulation_steps", None) or 1
        # The public counter counts updates. The private one also has the batches since the last update.
        updates = int(getattr(optimizer, "iterations", 0))
        self._batches = int(getattr(optimizer, "_iterations", updates * self._batches_per_update))

    @property
    def updates(self) -> int:
        """The number of updates so far, including those of earlier trainings."""
        return self._batches // self._batches_per_update

    def planned(self, batches: int) -> int:
        """Return how many updates this number of further batches makes."""
        return (self._batches + batches) // self._batches_per_update - self.updates

    def add(self, batches: int) -> int:
        """Count finished batches; returns how many updates they made."""
        made = self.planned(batches)
        self._batches += batches
        return made

"""ultralytics: hookline's callbacks observe and control ``YOLO.train``.

    from hookline.integrations.ultralytics import attach

    model = YOLO("yolo11n.pt")
    attach(model, ["early_stopping"], name="boxes")
    model.train(data="coco8.yaml", epochs=3)

How ultralytics' events become moments:

- A batch is a batch, and a step is one update: ultralytics accumulates to a nominal batch size, and warms up to it. A
  step's row has ``train/<loss>``, the means of its losses over the batches, and their sum as ``loss``.
- A validation is the evaluation ``val``: ``val/<metric>``, ``val/<loss>``, the sum of its losses as ``val/loss``, and
  the names of ultralytics (``metrics/mAP50(B)``). The one of ``best.pt`` at the end of the training is ``best``.
- A stop ends the training after the batch; ultralytics then validates and saves once more. A requested validation is
  made at once. A requested checkpoint is a directory with a copy of ``last.pt``.
- The callbacks' states are beside each ``last.pt``, also of those that ultralytics saves, in a folder ``hookline``:
  ``YOLO(last).train(resume=True)`` continues the run, with the epoch after the one that was saved.

ultralytics shows its callbacks no batches and no predictions. On several GPUs it trains in processes of its own, in
which a model's callbacks do not run. A bridge does not import ultralytics, which is licensed under the AGPL.
"""

from hookline._engine.optional import require

require("torch", ">=2.4", extra="torch", what=__name__)

import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Unpack

from hookline._engine.defaults import NAME
from hookline._engine.errors import OptionError
from hookline._engine.state import ManifestRow
from hookline.integrations import host_loop
from hookline.integrations.host_callback import HostCallback, StepMeans
from hookline.loops import checkpoint
from hookline.loops.options import RunOptions
from hookline.loops.updates import OptimizerUpdates

__all__ = ["AttachedModel", "attach"]

FILE = "last.pt"
METRICS = "metrics/"
LOSSES = "val/"


def attach(
    model: Any, callbacks: Iterable[Any] = (), *, name: str = NAME, **options: Unpack[RunOptions]
) -> "AttachedModel":
    """Have callbacks run in every ``model.train`` and ``model.val`` that follows, each of which is a run.

    Args:
        model: A `YOLO`, or another model or trainer of ultralytics with ``add_callback``.
        callbacks, name, options: As for every run of hookline.
    """
    if not callable(getattr(model, "add_callback", None)) or not hasattr(model, "callbacks"):
        raise OptionError(f"attach({type(model).__name__}): give a model of ultralytics, such as YOLO('yolo11n.pt').")
    attached = AttachedModel(callbacks, name=name, **options)
    attached.attach(model)
    return attached


class AttachedModel(HostCallback):
    """What `attach` returns.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
    """

    host = "ultralytics"
    package = "ultralytics"
    reports_epochs = True
    no_validation_batches = "ultralytics keeps the batches and predictions of validations to itself"

    def attach(self, model: Any) -> None:
        """Add a function for each event; for `attach`."""
        self._model = model
        self._trainer: Any = None
        self._updates = OptimizerUpdates(self.loop)
        self._means = StepMeans()
        self._epoch_is_open = self._is_final = self._only_validates = False
        self._handlers = {event: getattr(self, f"_{event}") for event in EVENTS}
        for event, handler in self._handlers.items():
            model.add_callback(event, handler)

    def detach(self) -> None:
        """Remove the functions from the model."""
        for event, handler in self._handlers.items():
            if handler in self._model.callbacks.get(event, ()):
                self._model.callbacks[event].remove(handler)

    def _on_train_start(self, trainer: Any) -> None:
        self._trainer, self._means = trainer, StepMeans()
        self._epoch_is_open = self._is_final = self._only_validates = False
        loop = self.loop
        loop.optimizer, loop.scheduler, loop.gradients_clipped = trainer.optimizer, trainer.scheduler, True
        self._updates = OptimizerUpdates(loop)
        # Only with one batch per update: otherwise ultralytics warms up to the number of batches.
        steps = trainer.epochs * len(trainer.train_loader) if trainer.accumulate == 1 else None
        self._begin(
            trainer.model, native=trainer, num_steps=steps, epoch=trainer.start_epoch, num_epochs=trainer.epochs
        )
        self._updates.watch([trainer.optimizer])

    def _resumed(self) -> tuple[dict[str, Any] | None, ManifestRow | None]:
        if not getattr(self._trainer, "resume", False):
            return None, None
        file = Path(self._trainer.args.resume)
        is_own = checkpoint.is_checkpoint(file.parent)
        state = checkpoint.load(file.parent) if is_own else host_loop.load(file.parent)
        return state, None if state is None else self.loop.checkpoint_row(file, step=state["step"])

    def _on_train_epoch_start(self, trainer: Any) -> None:
        self._close_epoch()  # one that ultralytics repeats, after NaN or too little memory
        self.loop.epoch_start(trainer.epoch)
        self._epoch_is_open = True

    def _on_train_batch_start(self, trainer: Any) -> None:
        if not self.loop.in_step:
            self.loop.step_start()
            self._updates.count = 0
        self.loop.batch_start()

    def _on_train_batch_end(self, trainer: Any) -> None:
        items = _named(trainer.loss_items, trainer.loss_names)
        self._means.add(items)
        self.loop.batch_end({"loss": trainer.loss, **items})
        if not self._updates.count:
            return
        means = self._means.take()
        self.loop.step_end(None, {"loss": sum(means.values()), **{f"train/{name}": v for name, v in means.items()}})
        self._apply(trainer)

    def _on_val_start(self, validator: Any) -> None:
        if self.loop.is_running and not validator.training:
            self._is_final = True  # of best.pt, reported when it is over
            return
        if not self.loop.is_running:  # model.val()
            self._only_validates = True
            self.loop.begin(trains=False)
            self.loop.start()
        self.loop.validation_start()

    def _on_val_end(self, validator: Any) -> None:
        if self._only_validates:
            self._only_validates = False
            self._end_validation(validator.metrics.results_dict)
            self.loop.train_end()

    def _on_model_save(self, trainer: Any) -> None:
        self._end_validation(trainer.metrics)
        host_loop.save(trainer.last.parent, self.loop)
        self.loop.checkpoint_saved(trainer.last)

    def _on_fit_epoch_end(self, trainer: Any) -> None:
        if self._is_final:
            self._is_final = False
            self.loop.validation_start()
            self._end_validation(trainer.metrics, "best")
            return
        self._end_validation(trainer.metrics)
        self._close_epoch()
        self._apply(trainer)

    def _on_train_end(self, trainer: Any) -> None:
        self._updates.unwatch()
        self._end()

    def _teardown(self, trainer: Any) -> None:
        # ultralytics calls it in a `finally` clause, so an error of the training is the one that is handled here.
        self._updates.unwatch()
        self._fail_if_running(sys.exception())

    def _apply(self, trainer: Any) -> None:
        if self._boundary() is not None:
            trainer.stop = True

    def _close_epoch(self) -> None:
        if self._epoch_is_open:
            self._epoch_is_open = False
            self.loop.epoch_end()

    def _end_validation(self, metrics: Mapping[str, Any] | None, name: str = "val") -> None:
        if not self.loop.is_validating:
            return  # ultralytics skipped it
        given = dict(metrics or {})
        losses = {each: value for each, value in given.items() if each.startswith(LOSSES)}
        named = {f"{name}/{each.removeprefix(METRICS).removeprefix(LOSSES)}": value for each, value in given.items()}
        total = {f"{name}/loss": sum(losses.values())} if losses else {}
        own = given if name == "val" else {}
        self.loop.validation_end(name, self.loop.recordable({**total, **named, **own}))

    def _validate_now(self) -> None:
        # Not trainer.validate(), which compares the result with the best one so far.
        metrics = self._trainer.validator(self._trainer)
        self._end_validation({name: value for name, value in metrics.items() if name != "fitness"})

    def _cannot(self, command: str) -> str | None:
        return None

    def _write_model(self, directory: Path) -> None:
        self._trainer.save_model()
        shutil.copyfile(self._trainer.last, directory / FILE)


EVENTS = (
    *("on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_train_batch_end", "on_fit_epoch_end"),
    *("on_val_start", "on_val_end", "on_model_save", "on_train_end", "teardown"),
)
"""The events that ultralytics calls functions for, each with a method here."""


def _named(items: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the losses of a batch by name, which older versions have in a tensor."""
    if isinstance(items, Mapping):
        return dict(items)
    return dict(zip(names, items, strict=False))

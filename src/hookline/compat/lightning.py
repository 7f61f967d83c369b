"""Runs callbacks of ``lightning`` and ``pytorch_lightning`` in hookline's loops.

- The order is Lightning's: the end of a batch that completes a step is reported after the step, when ``global_step``
  counts it; `on_validation_end` comes before `on_train_epoch_end`; there is no sanity check.
- ``trainer.callback_metrics`` holds the loop's metrics by their recorded names (``loss``, ``val/loss``), and as
  ``val_loss``. ``trainer.should_stop`` requests a stop. ``trainer.save_checkpoint(path)`` saves a hookline checkpoint,
  a directory. ``trainer.logger`` and ``pl_module.log`` record.
- Inside a step, only `on_before_optimizer_step` exists, and only in a `Trainer`. There are no events around the
  backward pass and none before the gradients are cleared.
- Callbacks that need more than a hookline loop has are refused when they are wrapped (`LightningAdapter.refused`).
- A callback's state, and what it adds in `on_save_checkpoint`, is saved in the loop's checkpoints and restored after
  `setup`, as in Lightning.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from hookline._engine.state import LoopArtifacts, ManifestRow
from hookline.compat.base import CallbackAdapter, not_offered
from hookline.compat.lightning_objects import LightningModule, LightningTrainer

_BACKWARD = "on_before_optimizer_step comes when the gradients are complete."


class LightningAdapter(CallbackAdapter):
    """Runs a Lightning callback."""

    framework = "Lightning"
    methods_by_moment: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "on_train_start": ("setup", "on_load_checkpoint", "on_fit_start", "on_train_start"),
        "on_checkpoint_load": ("on_load_checkpoint",),
        "on_train_epoch_start": ("on_train_epoch_start",),
        "on_train_batch_start": ("on_train_batch_start", "on_train_batch_end"),
        "on_train_batch_end": ("on_train_batch_end",),
        "on_before_optimizer_step": ("on_before_optimizer_step",),
        "on_step_end": ("on_train_batch_end",),
        "on_validation_start": ("on_validation_start",),
        "on_validation_epoch_start": ("on_validation_epoch_start",),
        "on_validation_batch_start": ("on_validation_batch_start",),
        "on_validation_batch_end": ("on_validation_batch_end",),
        "on_validation_epoch_end": ("on_validation_epoch_end",),
        "on_validation_end": ("on_validation_end",),
        "on_train_epoch_end": ("on_train_epoch_end",),
        "on_train_end": ("on_train_end", "on_fit_end", "teardown"),
        "on_exception": ("on_exception",),
    }
    checkpoint_methods = frozenset({"on_save_checkpoint"})
    setup_methods = frozenset({"setup", "on_load_checkpoint", "on_fit_start", "on_train_start"})
    refused: ClassVar[Mapping[str, str]] = {
        "BaseFinetuning": "it adds parameters to the optimizer during training. The optimizer of a hookline loop has "
        "all of them from the start, so it would set the learning rate of the whole model. Give the Trainer an "
        "optimizer with a parameter group for each part, and freeze parts and set rates in a callback of your own.",
        "WeightAveraging": "it averages a LightningModule, and puts the average into Lightning's checkpoints. "
        "hl.callbacks.EMA keeps an average of the weights, validates with it, and saves it.",
        "StochasticWeightAveraging": "it replaces the optimizer's schedule during training. hl.callbacks.EMA keeps an "
        "average of the weights.",
        "GradientAccumulationScheduler": "the number of batches in a step cannot change during training. "
        "TrainerConfig(accumulation=...) sets it.",
        "BatchSizeFinder": "it runs trial trainings with Lightning's Trainer. TrainerConfig(batch_size=...) sets the "
        "size.",
        "LearningRateFinder": "it runs trial trainings with Lightning's Trainer. TrainerConfig(learning_rate=...) sets "
        "the rate.",
        "ModelSummary": "it needs a LightningModule. print(model) shows the layers.",
        "ThroughputMonitor": "it needs Lightning's precision plugins. hl.callbacks.ThroughputMonitor does the same.",
    }
    required_moments = frozenset(
        {"on_train_start", "on_checkpoint_load", "on_train_batch_start", "on_validation_start", "on_validation_end"}
        | {"on_train_end", "on_exception"}
    )
    hints: ClassVar[Mapping[str, str]] = {"on_after_backward": _BACKWARD, "on_before_backward": _BACKWARD}

    def __init__(self, foreign: Any, base: type) -> None:
        super().__init__(foreign, base)
        self._root = base.__module__.removesuffix(".callbacks.callback")
        self._trainer: Any = None
        self._module: Any = None
        self._batch: tuple[Any, Any, int] | None = None
        self._to_restore: Mapping[str, Any] | None = None
        self.is_training = self.is_validating = False
        self.batch_idx = -1

    def _events(self, base: type) -> list[str]:
        return ["setup", "teardown", *super()._events(base)]

    def _attach(self, loop: Any) -> None:
        self._trainer = LightningTrainer(self, loop, self._root)
        self._module = LightningModule(self, loop, self._trainer)
        vars(self._trainer)["lightning_module"] = self._module
        self._batch, self.batch_idx = None, -1
        self.is_training = self.is_validating = False

    def _call(self, loop: Any, event: str, *args: Any, **kwargs: Any) -> None:
        self._ensure_attached(loop)
        self._invoke(event, self._trainer, self._module, *args, **kwargs)

    def _on_train_start(self, loop: Any) -> None:
        self._ensure_attached(loop)
        self.is_training = True
        self._call(loop, "setup", stage="fit")
        self._restore(loop)
        self._call(loop, "on_fit_start")
        self._call(loop, "on_train_start")

    def _on_checkpoint_load(self, loop: Any, row: ManifestRow) -> None:
        self._restore(loop)

    def _on_train_epoch_start(self, loop: Any) -> None:
        self._call(loop, "on_train_epoch_start")

    def _on_train_batch_start(self, loop: Any, batch: Any, batch_idx: int) -> None:
        self._end_batch(loop)  # the previous batch did not complete the step
        self.batch_idx = batch_idx
        self._call(loop, "on_train_batch_start", batch, batch_idx)

    def _on_train_batch_end(self, loop: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._batch = (outputs, batch, batch_idx)

    def _on_before_optimizer_step(self, loop: Any, optimizer: Any) -> None:
        self._call(loop, "on_before_optimizer_step", optimizer)

    def _on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: dict[str, Any]) -> None:
        self._end_batch(loop)

    def _on_validation_start(self, loop: Any) -> None:
        self._ensure_attached(loop)
        self.is_validating = True
        self._call(loop, "on_validation_start")

    def _on_validation_epoch_start(self, loop: Any) -> None:
        self._call(loop, "on_validation_epoch_start")

    def _on_validation_batch_start(self, loop: Any, batch: Any, batch_idx: int) -> None:
        self._call(loop, "on_validation_batch_start", batch, batch_idx)

    def _on_validation_batch_end(self, loop: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._call(loop, "on_validation_batch_end", outputs, batch, batch_idx)

    def _on_validation_epoch_end(self, loop: Any) -> None:
        self._call(loop, "on_validation_epoch_end")

    def _on_validation_end(self, loop: Any) -> None:
        try:
            self._call(loop, "on_validation_end")
        finally:
            self.is_validating = False

    def _on_train_epoch_end(self, loop: Any) -> None:
        self._call(loop, "on_train_epoch_end")

    def _on_train_end(self, loop: Any, artifacts: LoopArtifacts) -> None:
        self._call(loop, "on_train_end")
        self._call(loop, "on_fit_end")
        self._call(loop, "teardown", stage="fit")
        self.is_training = False

    def _on_exception(self, loop: Any, error: BaseException) -> None:
        self._batch = None
        self._call(loop, "on_exception", error)
        self.is_training = self.is_validating = False

    def _end_batch(self, loop: Any) -> None:
        if self._batch is not None:
            ended, self._batch = self._batch, None
            self._call(loop, "on_train_batch_end", *ended)

    def state_dict(self) -> dict[str, Any]:
        if self._to_restore is not None:
            return dict(self._to_restore)
        if not self._is_set_up:
            return {}
        added: dict[str, Any] = {}
        if self._loop is not None and "on_save_checkpoint" in self._methods:
            given = self._checkpoint(self._loop, {})
            self._call(self._loop, "on_save_checkpoint", given)
            added = {name: value for name, value in given.items() if name not in ("epoch", "global_step")}
        state = {"callback": self.foreign.state_dict(), "checkpoint": added}
        return {name: part for name, part in state.items() if part}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._to_restore = state

    def _restore(self, loop: Any) -> None:
        if self._to_restore is None:
            return
        state, self._to_restore = self._to_restore, None
        self._call(loop, "on_load_checkpoint", self._checkpoint(loop, state.get("checkpoint", {})))
        if "callback" in state:
            self.foreign.load_state_dict(dict(state["callback"]))

    def _checkpoint(self, loop: Any, added: Mapping[str, Any]) -> "_Checkpoint":
        return _Checkpoint(self, {"epoch": loop.epoch, "global_step": loop.step, **added})


class _Checkpoint(dict[str, Any]):
    """Lightning's checkpoint dict, without the entries that hookline saves elsewhere."""

    def __init__(self, adapter: LightningAdapter, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._adapter = adapter

    def __missing__(self, name: str) -> Any:
        has = f"It has {', '.join(self)}, and what the callback adds to it."
        raise not_offered(self._adapter, f"for checkpoint[{name!r}]", has)

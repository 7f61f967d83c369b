"""Lightning's callbacks: `Callback` with ``trainer`` and ``pl_module``, of ``lightning`` and of ``pytorch_lightning``.

- The order is Lightning's: the end of a batch that completes a step comes after the step, when ``global_step`` counts
  it; `on_validation_end` before `on_train_epoch_end`; there is no sanity check.
- ``trainer.callback_metrics`` holds the loop's metrics by their names in the record (``loss``, ``val/loss``), and
  ``val_loss`` too. ``trainer.should_stop`` asks the loop for a stop. ``trainer.save_checkpoint(path)`` saves a
  checkpoint of hookline's, a directory. ``trainer.logger`` and ``pl_module.log`` record.
- What happens inside a step is told as far as hookline's loops do: not before and after the backward pass, and not
  before the gradients are cleared. `on_before_optimizer_step` is a Trainer's; a bare loop does not tell it.
- Callbacks that need more than a hookline loop has are refused when they are wrapped (`LightningBridge.refused`).
- The state of a callback, and what it puts into the checkpoint in `on_save_checkpoint`, lie in the loop's checkpoints.
  They are given back after `setup`, as in Lightning.

What a Lightning callback is given as ``pl_module``: the torch model itself, and what Lightning adds to one.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hookline._engine.state import LoopArtifacts, ManifestRow
from hookline.compat.base import ForeignCallback, StandIn, not_offered
from hookline.compat.lightning_trainer import LightningTrainer

if TYPE_CHECKING:
    from hookline.compat.base import ForeignCallback


_PER_BATCH = ("on_train_batch_start", "on_train_batch_end", "on_before_optimizer_step", "on_validation_batch_end")


class LightningModule(StandIn):
    """The model in training, with what Lightning adds: ``log``, ``trainer``, ``current_epoch``, ...

    Everything else is the torch model's: ``parameters()``, ``state_dict()``, its layers, calling it, setting an
    attribute. ``torch_module`` is the model as it is.
    """

    hints: ClassVar[Mapping[str, str]] = {
        "torch_module": "Set run.model before the first step.",
        "copy": "Copy pl_module.torch_module, the model itself. hl.callbacks.EMA keeps an average of the weights.",
        "log": "log(name, value) records it at the step under way, in any hook.",
    }
    automatic_optimization = True

    def __init__(self, bridge: "ForeignCallback", loop: Any, trainer: Any) -> None:
        super().__init__(bridge, loop, "pl_module")
        vars(self)["trainer"] = trainer

    def __getattr__(self, name: str) -> Any:
        is_own = name.startswith("__") or hasattr(type(self), name)
        model = None if is_own else vars(self)["_loop"].model
        if model is not None and hasattr(model, name):
            return getattr(model, name)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._loop.model is None or hasattr(type(self), name) or name in vars(self):
            super().__setattr__(name, value)
        else:
            setattr(self._loop.model, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.torch_module(*args, **kwargs)

    @property
    def torch_module(self) -> Any:
        """The model as it is."""
        if self._loop.model is None:
            raise self._not_offered("for the model", "torch_module", why="this loop was not told of it")
        return self._loop.model

    @property
    def current_epoch(self) -> int:
        """The index of the epoch under way; after the last one, how many there were."""
        return int(self.trainer.current_epoch)

    @property
    def global_step(self) -> int:
        """The number of completed steps."""
        return int(self._loop.step)

    @property
    def global_rank(self) -> int:
        """This process's index."""
        return int(self._loop.rank)

    @property
    def logger(self) -> Any:
        """Records what it is given as metrics of the loop."""
        return self.trainer.logger

    @property
    def device(self) -> Any:
        """Where the model is trained."""
        return self.trainer.strategy.root_device

    def optimizers(self) -> Any:
        """The optimizer."""
        return self._loop.optimizer

    def lr_schedulers(self) -> Any:
        """The schedule."""
        return self._loop.scheduler

    def log(
        self, name: str, value: Any, *, on_epoch: bool | None = None, sync_dist: bool = False, **options: Any
    ) -> None:
        """Record a metric at the step under way; averaged over all processes with ``sync_dist``."""
        self.log_dict({name: value}, on_epoch=on_epoch, sync_dist=sync_dist, **options)

    def log_dict(
        self, dictionary: Mapping[str, Any], *, on_epoch: bool | None = None, sync_dist: bool = False, **options: Any
    ) -> None:
        """The same for several."""
        if on_epoch and self._bridge.event in _PER_BATCH:
            raise self._not_offered("for log(on_epoch=True), a mean over the epoch", "log")
        if "reduce_fx" in options:
            raise self._not_offered(f"for log(reduce_fx={options['reduce_fx']!r})", "log")
        if sync_dist and self._loop.world_size > 1:
            self._loop.log(dict(dictionary), reduce="mean")
        else:
            self._loop.log(dict(dictionary))

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print, on the first process."""
        self.trainer.print(*args, **kwargs)


_BACKWARD = "on_before_optimizer_step comes when the gradients are complete."


class LightningBridge(ForeignCallback):
    """Runs a Lightning callback; see the module."""

    framework = "Lightning"
    told: ClassVar[Mapping[str, tuple[str, ...]]] = {
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
    elsewhere = frozenset({"on_save_checkpoint"})
    prepares = frozenset({"setup", "on_load_checkpoint", "on_fit_start", "on_train_start"})
    refused: ClassVar[Mapping[str, str]] = {
        "BaseFinetuning": "it adds parameters to the optimizer while it trains. The optimizer of a hookline loop has "
        "all of them from the start, so it would set the learning rate of the whole model. Give the Trainer an "
        "optimizer with a parameter group for each part, and freeze parts and set rates in a callback of your own.",
        "WeightAveraging": "it averages a LightningModule, and puts the average into Lightning's checkpoints. "
        "hl.callbacks.EMA keeps an average of the weights, validates with it, and saves it.",
        "StochasticWeightAveraging": "it replaces the optimizer's schedule while it trains. hl.callbacks.EMA keeps an "
        "average of the weights.",
        "GradientAccumulationScheduler": "the number of batches that make a step cannot change while it trains. "
        "TrainerConfig(accumulation=...) sets it.",
        "BatchSizeFinder": "it trains on trial with Lightning's Trainer. TrainerConfig(batch_size=...) sets the size.",
        "LearningRateFinder": "it trains on trial with Lightning's Trainer. TrainerConfig(learning_rate=...) sets it.",
        "ModelSummary": "it needs a LightningModule. print(model) shows the layers.",
        "ThroughputMonitor": "it needs Lightning's precision plugins. hl.callbacks.ThroughputMonitor does the same.",
    }
    always = frozenset(
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
        self._attached(loop)
        self._tell(event, self._trainer, self._module, *args, **kwargs)

    def _on_train_start(self, loop: Any) -> None:
        self._attached(loop)
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
        self._end_batch(loop)  # one that did not complete the step
        self.batch_idx = batch_idx
        self._call(loop, "on_train_batch_start", batch, batch_idx)

    def _on_train_batch_end(self, loop: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._batch = (outputs, batch, batch_idx)

    def _on_before_optimizer_step(self, loop: Any, optimizer: Any) -> None:
        self._call(loop, "on_before_optimizer_step", optimizer)

    def _on_step_end(self, loop: Any, step_idx: int, batch: Any, metrics: dict[str, Any]) -> None:
        self._end_batch(loop)

    def _on_validation_start(self, loop: Any) -> None:
        self._attached(loop)
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
        if not self._is_prepared:
            return {}
        state = {"callback": self.foreign.state_dict(), "checkpoint": self._put_into_checkpoint()}
        return {name: part for name, part in state.items() if part}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._to_restore = state

    def _put_into_checkpoint(self) -> dict[str, Any]:
        """What the callback adds to Lightning's dict of a checkpoint."""
        if self._loop is None or "on_save_checkpoint" not in self._methods:
            return {}
        given = self._checkpoint(self._loop, {})
        self._call(self._loop, "on_save_checkpoint", given)
        return {name: value for name, value in given.items() if name not in ("epoch", "global_step")}

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
    """Lightning's dict of a checkpoint, without what hookline saves by itself."""

    def __init__(self, bridge: LightningBridge, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._bridge = bridge

    def __missing__(self, name: str) -> Any:
        has = f"It has {', '.join(self)}, and what the callback put into it."
        raise not_offered(self._bridge, f"for checkpoint[{name!r}]", has)

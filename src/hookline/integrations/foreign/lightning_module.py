"""What a Lightning callback is given as ``pl_module``: the torch model itself, and what Lightning adds to one."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hookline.integrations.foreign.stand_in import StandIn

if TYPE_CHECKING:
    from hookline.integrations.foreign.bridge import ForeignCallback

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

"""Lightning Fabric: `run` drives a loop over a model, an optimizer and data that a `Fabric` has set up.

    from hookline.integrations.fabric import run

    with run(fabric, model, optimizer, name="warmup", resume="auto", callbacks=["checkpoint"]) as loop:
        for inputs, targets in loop.steps(loader, epochs=3):
            loss = criterion(model(inputs), targets)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            loop.log(loss=loss)

A step is one update. Checkpoints hold what ``fabric.save`` writes, in a folder of hookline's, so they work with every
strategy: the model, the optimizer, the schedule and the state of the precision. All processes save together. A resume
(``fabric.load``) is exact, also in the middle of a shuffled epoch. `on_before_optimizer_step` fires whenever the
optimizer steps in the body of a step.

A sharded strategy may have no gradients that callbacks can see; `GradientMonitor` then logs nothing.
"""

from hookline._engine.optional import require

require("torch", ">=2.4", extra="lightning", what=__name__)
require("lightning", ">=2.4", extra="lightning", what=__name__, alternative="lightning_fabric")

from pathlib import Path
from typing import Any, Unpack

from hookline._engine.checks import require_integer
from hookline._engine.errors import OptionError
from hookline._engine.torch_models import unwrapped
from hookline.integrations.framework_run import FrameworkRun
from hookline.loops.batches import LoaderOrder
from hookline.loops.options import LoopOptions
from hookline.loops.updates import OptimizerUpdates

__all__ = ["FabricRun", "run"]

FILE = "state.ckpt"


class FabricRun(FrameworkRun):
    """Drives your own loop over objects that a `Fabric` has set up.

    Args:
        fabric: The `Fabric`; ``loop.native``.
        model, optimizer: As ``fabric.setup()`` returned them; ``loop.model`` is the model inside.
        scheduler: The learning-rate schedule, which the loop itself advances.
        name: The name of the run.
        accumulation: How many batches make a step. With more than one, the step ends with the body in which the
            optimizer steps, whichever that is.
        options: As for `hl.run`; the files of ``save`` and ``load`` come in addition.
    """

    framework = "Fabric"
    folder = "fabric"

    def __init__(
        self,
        fabric: Any,
        model: Any,
        optimizer: Any,
        scheduler: Any = None,
        *,
        name: str | None = None,
        accumulation: int = 1,
        **options: Unpack[LoopOptions],
    ) -> None:
        # By their attributes: the packages `lightning` and `lightning_fabric` hold the same classes twice.
        if not all(hasattr(fabric, name) for name in ("setup", "backward", "strategy")):
            raise OptionError(f"fabric={fabric!r:.200}: give a lightning.fabric.Fabric.")
        for what, given, wrapped in (("model", model, "_forward_module"), ("optimizer", optimizer, "optimizer")):
            if not hasattr(given, wrapped):
                raise OptionError(
                    f"{what}={type(given).__name__}: give what fabric.setup(model, optimizer) returned. "
                    "hookline.integrations.torch.run drives a loop without Fabric."
                )
        require_integer("accumulation", accumulation)
        super().__init__(name, **options)
        if fabric.world_size != self.world_size:
            raise OptionError(
                f"Fabric was set up for {fabric.world_size} processes, and torch.distributed connects "
                f"{self.world_size}: call fabric.launch() before run()."
            )
        self._fabric, self._parts = fabric, {"model": model, "optimizer": optimizer}
        if scheduler is not None:
            self._parts["scheduler"] = scheduler
        self.model, self.optimizer, self.scheduler = unwrapped(model), optimizer, scheduler
        self._order = LoaderOrder()
        self._updates: OptimizerUpdates = OptimizerUpdates(self, accumulation)

    @property
    def native(self) -> Any:
        """The `Fabric`."""
        return self._fabric

    def begin(self) -> None:
        """Begin to record, and watch the optimizer."""
        super().begin()
        self._updates.watch([self.optimizer.optimizer])

    def finish(self, error: BaseException | None = None) -> None:
        """Close everything, and remove the hooks from the optimizer."""
        self._updates.unwatch()
        super().finish(error)

    def _state(self) -> dict[str, Any]:
        return {**self._parts, "precision": self._fabric.strategy.precision}

    def _write_folder(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._fabric.save(folder / FILE, self._state())

    def _read_folder(self, folder: Path) -> None:
        self._fabric.load(folder / FILE, self._state(), weights_only=True)


run = FabricRun

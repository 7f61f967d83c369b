"""Loops written by hand in torch, in one process or in several with DDP or FSDP2.

    from hookline.integrations.torch import run

    with run(model, optimizer, scheduler, name="warmup", resume="auto", callbacks=["checkpoint"]) as loop:
        for inputs, targets in loop.steps(loader, epochs=3):
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loop.log(loss=loss)

It is `hl.run` that knows the model, the optimizer and the schedule: callbacks find them, `on_before_optimizer_step`
fires, and checkpoints hold all of them together with the random states and the position in the data. Checkpoints are
saved by all processes together: `save_checkpoint` is called on each of them, `request_checkpoint` on any.

A resume is exact: with the same data and the same number of processes, the losses are those of a run without an
interruption. A checkpoint is read and compared with the training before anything is changed.
"""

from hookline._engine.optional import require

require("torch", ">=2.4", extra="torch", what=__name__)

from pathlib import Path
from typing import Any, Unpack

import torch

from hookline._engine.checks import require_integer
from hookline._engine.errors import CheckpointError, OptionError
from hookline._engine.torch_models import unwrapped
from hookline.loops.batches import LoaderOrder
from hookline.loops.options import LoopOptions
from hookline.loops.run import Run
from hookline.loops.sharded import require_supported
from hookline.loops.training_state import TrainingState
from hookline.loops.updates import OptimizerUpdates

__all__ = ["TorchRun", "run"]


class TorchRun(Run):
    """Drives a loop of your own over a model and its optimizer.

    Args:
        model: The model; ``loop.model`` is the model without the wrappers of compilation, `DistributedDataParallel` and
            Fabric.
        optimizer: Fires `on_before_optimizer_step` whenever it steps in the body of a step.
        scheduler: The learning-rate schedule, which the loop itself advances.
        name: The name of the run.
        scaler: The `GradScaler`, whose scale becomes part of checkpoints.
        accumulation: How many batches make a step. With more than one, the step ends with the body in which the
            optimizer steps, whichever that is.
        options: As for `hl.run`; the files of ``save`` and ``load`` come in addition.
    """

    restores_itself = True
    saves_together = True

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any = None,
        *,
        name: str | None = None,
        scaler: Any = None,
        accumulation: int = 1,
        **options: Unpack[LoopOptions],
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise OptionError(f"model={model!r}: give a torch.nn.Module. hl.run() drives a loop without one.")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise OptionError(f"optimizer={optimizer!r}: give a torch.optim.Optimizer.")
        require_integer("accumulation", accumulation)
        require_supported(model, optimizer)
        for what, part in (("scheduler", scheduler), ("scaler", scaler)):
            if part is not None and not all(hasattr(part, each) for each in ("state_dict", "load_state_dict")):
                raise OptionError(f"{what}={part!r}: give one with state_dict() and load_state_dict(), or None.")
        super().__init__(name, **options)
        self.model, self.optimizer, self.scheduler = unwrapped(model), optimizer, scheduler
        self._order = LoaderOrder()
        self._updates: OptimizerUpdates = OptimizerUpdates(self, accumulation)
        self._training = _RunState(self, scaler)

    def begin(self) -> None:
        """Begin to record, and watch the optimizer."""
        super().begin()
        self._updates.watch([self.optimizer])

    def finish(self, error: BaseException | None = None) -> None:
        """Close everything, and remove the hooks from the optimizer."""
        self._updates.unwatch()
        super().finish(error)

    def _require_whole_weights(self) -> None:
        if self.checkpointing.is_sharded:  # with DDP every process has the whole model
            super()._require_whole_weights()

    def _save_common_files(self, directory: Path) -> None:
        # Equal weights on all processes (DDP): rank zero writes them once.
        if not self.checkpointing.is_sharded:
            self._training.save(directory)
        super()._save_common_files(directory)

    def _save_rank_files(self, directory: Path, *, before_step: bool = False) -> None:
        if self.checkpointing.is_sharded:  # every process has shards to write
            self._training.save(directory)
        super()._save_rank_files(directory, before_step=before_step)

    def _load_files(self, directory: Path) -> None:
        # First: a checkpoint of another training is refused before the order of the data changes.
        self._training.restore(self._training.read(directory))
        super()._load_files(directory)


run = TorchRun


class _RunState(TrainingState):
    """The state of a `TorchRun`."""

    def __init__(self, run: TorchRun, scaler: Any) -> None:
        super().__init__(lambda: run.model, run.processes, rank=run.rank)
        self._run, self._scaler = run, scaler

    def parts(self) -> dict[str, Any]:
        """Return the optimizer, and the schedule and the scaler where there are such."""
        parts = {"optimizer": self._run.optimizer, "scheduler": self._run.scheduler, "scaler": self._scaler}
        return {name: part for name, part in parts.items() if part is not None}

    def kinds(self) -> dict[str, str]:
        """Return the classes of the parts by name, without Fabric's wrapper."""
        parts = self.parts()
        parts["optimizer"] = getattr(self._run.optimizer, "optimizer", self._run.optimizer)
        return {name: type(part).__name__ for name, part in parts.items()}

    def require_fitting(self, directory: Path, states: dict[str, Any]) -> None:
        """Refuse a checkpoint of another kind of run, or of other parts."""
        saved, own = states["kinds"], self.kinds()
        if not isinstance(saved, dict):
            raise CheckpointError(
                f"The checkpoint {directory} was saved by a Trainer, not by a run of hookline.integrations.torch. "
                "Resume it with a Trainer. Nothing was changed."
            )
        if saved != own:
            there, here = (", ".join(f"{name} {kind}" for name, kind in each.items()) for each in (saved, own))
            raise CheckpointError(
                f"The checkpoint {directory} does not fit: it has {there}, and this run has {here}. "
                "Nothing was changed."
            )

"""Loops written by hand in torch, in one process or in several with DDP.

    from hookline.integrations.torch import run

    with run(model, optimizer, scheduler, name="warmup", resume="auto", callbacks=["checkpoint"]) as loop:
        for inputs, targets in loop.steps(loader, epochs=3):
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loop.log(loss=loss)

It is `hl.run` that knows the model, the optimizer and the schedule: callbacks find them, `on_before_optimizer_step` is
fired, and checkpoints hold all of them together with the random states and the place in the data.

`LoaderReplay`: data loaders of torch in the order that they had.

Besides the random states, an order comes from the generators that a loader and its samplers hold. Batches that are done
are skipped in the sampler, where that is all it takes. A loader that saves its own place is put back there.

`TorchRun`: `hl.run` for a loop written by hand in torch, in one process or in several with DDP.

A resume is exact: with the same data and the same number of processes, the losses are those that a run without an
interruption has. A checkpoint is read and found to fit before anything is changed.
"""

from hookline._engine.optional import require

require("torch", ">=2.4", extra="torch", what=__name__)

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Unpack

import torch
from torch.utils.data import DataLoader

from hookline._engine.errors import CheckpointError, OptionError
from hookline._engine.torch_models import unwrapped
from hookline.integrations.torch.joint_run import JointRun, check_accumulation
from hookline.loops.batches import Batches
from hookline.loops.checkpoint import read_tensors
from hookline.loops.data_position import Replay
from hookline.loops.options import LoopOptions
from hookline.loops.sharded import load_optimizer_state, load_weights_into, require_supported
from hookline.loops.training_state import (
    OPTIMIZER_FILE,
    read_shards,
    read_weights,
    require_weights,
    write_parts,
)

__all__ = ["TorchRun", "run"]


class FabricBatches(Batches):
    """The batches of a loader that Fabric has set up.

    It counts how often it was iterated over, and the count is the epoch that its sampler shuffles by.
    """

    def state(self) -> list[Any]:
        """The states of the generators, and the count."""
        return [*super().state(), self.data._num_iter_calls]

    def load_state(self, state: list[Any]) -> None:
        """Put them back to how they were when an epoch began."""
        if state and isinstance(state[-1], int):
            *state, self.data._num_iter_calls = state
        super().load_state(state)


def _is_of_fabric(data: Any) -> bool:
    return hasattr(data, "_num_iter_calls") and isinstance(getattr(data, "_dataloader", None), DataLoader)


class LoaderReplay(Replay):
    """Opens the epochs of data loaders, and of other data."""

    def __init__(self) -> None:
        super().__init__()
        self._batches: Batches | None = None

    def made_of(self, loader: Any) -> Batches:
        """The batches of a data loader."""
        kind = Batches if isinstance(loader, DataLoader) else FabricBatches
        return kind(loader, what="The data loader")

    def _look_at(self, data: Iterable[Any]) -> None:
        if not isinstance(data, DataLoader) and not _is_of_fabric(data):
            self._batches = None
        elif self._batches is None or self._batches.data is not data:
            self._batches = self.made_of(data)

    def _put_in_place(self) -> None:
        if self._batches is not None and self._now is not None:
            self._batches.load_place(self._now["place"])

    def _open(self, data: Iterable[Any], number: int, done: int) -> Iterator[Any]:
        if self._batches is None:
            return super()._open(data, number, done)
        return self._batches.epoch(number, done=done)

    def _states(self) -> dict[str, Any]:
        drawn, batches = super()._states(), self._batches  # before the place: to tell it, a loader may begin to draw
        order, place = ([], None) if batches is None else (batches.state(), copy.deepcopy(batches.place()))
        return {**drawn, "order": order, "place": place}

    def _restore(self, states: dict[str, Any]) -> None:
        super()._restore(states)
        if self._batches is not None:
            self._batches.load_state(states["order"])


class TorchRun(JointRun):
    """Drives a loop of your own over a model and its optimizer.

    Args:
        model: The model; one compiled, in `DistributedDataParallel` or set up by Fabric is ``loop.model`` without these
            wrappers.
        optimizer: Fires `on_before_optimizer_step` whenever it steps in the body of a step.
        scheduler: The learning-rate schedule, which the loop itself advances.
        name: What the run is called.
        scaler: The `GradScaler`, whose scale becomes part of checkpoints.
        accumulation: How many batches make a step. With more than one, the step ends with the body in which the
            optimizer steps, whichever that is.
        options: As for `hl.run`; what ``save`` writes and ``load`` reads comes in addition.
    """

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
        _check(model, optimizer, accumulation)
        _check_states(scheduler=scheduler, scaler=scaler)
        super().__init__(name, replay=LoaderReplay(), **options)
        self.model, self.optimizer, self.scheduler = unwrapped(model), optimizer, scheduler
        self._scaler, self._accumulation = scaler, accumulation

    @property
    def batches_per_step(self) -> int:
        """How many batches make a step, as far as that is planned."""
        return self._accumulation

    def _optimizers(self) -> list[Any]:
        return [self.optimizer]

    def _has_updated(self) -> bool:
        return self._accumulation == 1 or self._updates > 0

    def _require_whole_weights(self) -> None:
        if self._is_sharded():  # otherwise there is nothing to refuse: with DDP every process has the whole model
            super()._require_whole_weights()

    def _save_common_files(self, directory: Path) -> None:
        if not self._is_sharded():
            self._write_parts(directory)
        super()._save_common_files(directory)

    def _save_files(self, directory: Path) -> None:
        if self._is_sharded():  # every process has something to write
            self._write_parts(directory)
        super()._save_files(directory)

    def _write_parts(self, directory: Path) -> None:
        states = {name: part.state_dict() for name, part in self._parts().items()} | {"kinds": self._kinds()}
        write_parts(directory, self.model, states, self.processes, rank=self.rank)

    def _load_files(self, directory: Path) -> None:
        states = read_tensors(directory / OPTIMIZER_FILE)
        self._require_fitting(directory, states)
        weights = read_weights(directory, self.rank)
        require_weights(directory, weights, self.model)
        weights, states = read_shards(directory, weights, states, self.model, self.optimizer)
        load_weights_into(self.model, weights)
        load_optimizer_state(self.optimizer, states["optimizer"])
        for name, part in self._parts().items():
            if part is not self.optimizer:
                part.load_state_dict(states[name])
        super()._load_files(directory)

    def _parts(self) -> dict[str, Any]:
        """What has a state besides the model."""
        parts = {"optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": self._scaler}
        return {name: part for name, part in parts.items() if part is not None}

    def _kinds(self) -> dict[str, str]:
        parts = self._parts()
        parts["optimizer"] = getattr(self.optimizer, "optimizer", self.optimizer)  # without the wrapper of Fabric
        return {name: type(part).__name__ for name, part in parts.items()}

    def _require_fitting(self, directory: Path, states: dict[str, Any]) -> None:
        if not isinstance(states["kinds"], dict):
            raise CheckpointError(
                f"The checkpoint {directory} was saved by a Trainer, not by a run of hookline.integrations.torch. "
                "Take it up with a Trainer. Nothing was changed."
            )
        if states["kinds"] != self._kinds():
            raise CheckpointError(
                f"The checkpoint {directory} does not fit: it has {_named(states['kinds'])}, and here are "
                f"{_named(self._kinds())}. Nothing was changed."
            )
        there = [len(group["params"]) for group in states["optimizer"]["param_groups"]]
        here = [len(group["params"]) for group in self.optimizer.param_groups]
        if there != here:
            raise CheckpointError(
                f"The checkpoint {directory} is one of another optimizer: its groups have {there} parameters, those "
                f"of this one {here}. Nothing was changed."
            )


run = TorchRun


def _check(model: Any, optimizer: Any, accumulation: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise OptionError(f"model={model!r}: give a torch.nn.Module. hl.run() drives a loop without one.")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptionError(f"optimizer={optimizer!r}: give a torch.optim.Optimizer.")
    check_accumulation(accumulation)
    require_supported(model, optimizer)


def _check_states(**parts: Any) -> None:
    for name, part in parts.items():
        if part is not None and not all(hasattr(part, each) for each in ("state_dict", "load_state_dict")):
            raise OptionError(f"{name}={part!r}: give one with state_dict() and load_state_dict(), or None.")


def _named(kinds: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in kinds.items())

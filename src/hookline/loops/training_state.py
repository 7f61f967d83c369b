"""The model, the optimizer and the schedule of a training in a checkpoint's directory.

``model.pt`` holds the weights and ``optimizer.pt`` all other states, written by rank zero. Of a model with adapters
(PEFT) they are the weights that are trained: the frozen ones are those of the model that it was made from, and a resume
needs that model. Of a sharded model every
process writes its own shards (`hookline.loops.sharded`), and the two files hold the rest. A checkpoint is read whole
and compared with the training before anything is changed. The order of the data and the random states are not here but
in `hookline.loops.data_position`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hookline._engine.errors import CheckpointError
from hookline._engine.torch_models import plain_state, state_named_for, trained_state
from hookline.loops.backends import Backend
from hookline.loops.checkpoint import read_tensors, require_equal_shapes, write_tensors
from hookline.loops.distributed import ProcessGroup
from hookline.loops.sharded import (
    layouts_of,
    load_optimizer_state,
    load_weights_into,
    put_into,
    shape_of,
    taken_from,
    write_sharded,
)
from hookline.loops.trainer_setup import follow_schedule

MODEL_FILE = "model.pt"
OPTIMIZER_FILE = "optimizer.pt"
SHARDED_FOLDER = "sharded"
"""The folder with the shards of a sharded model and its optimizer."""


class TrainingState(ABC):
    """Saves and restores a model, and the parts of a training that have a state.

    Args:
        model: Returns the model, without wrappers.
        processes: The processes that save together.
    """

    def __init__(self, model: Callable[[], Any], processes: ProcessGroup, *, rank: int) -> None:
        self._model, self._processes, self._rank = model, processes, rank

    @abstractmethod
    def parts(self) -> dict[str, Any]:
        """Return the objects with a ``state_dict()``, by name; ``optimizer`` is torch's, without wrappers."""

    @abstractmethod
    def kinds(self) -> Any:
        """Return the names of their classes, as the checkpoint has them."""

    @abstractmethod
    def require_fitting(self, directory: Path, states: dict[str, Any]) -> None:
        """Refuse a checkpoint of another training.

        Raises:
            CheckpointError: It does not fit.
        """

    def save(self, directory: Path) -> None:
        """Write the model and the parts; all processes have to, where the model is sharded."""
        states = {name: None if part is None else part.state_dict() for name, part in self.parts().items()}
        states["kinds"] = self.kinds()
        shards: dict[str, Any] = {}
        weights = taken_from(trained_state(self._model()), "model", shards)
        states = {name: taken_from(state, name, shards) for name, state in states.items()}
        if shards:  # first, because all have to take part: a failure of one is raised on all
            write_sharded(shards, directory / SHARDED_FOLDER, self._processes.group())
        if self._rank == 0:
            write_tensors(weights, directory / MODEL_FILE)
            write_tensors(states, directory / OPTIMIZER_FILE)
        elif shards and (buffers := {name: v for name, v in weights.items() if isinstance(v, torch.Tensor)}):
            write_tensors(buffers, directory / _buffer_file(self._rank))  # nothing keeps those of all ranks equal

    def read(self, directory: Path) -> dict[str, Any]:
        """Read everything and check that it fits; returns what `restore` takes. Nothing is changed."""
        model, optimizer = self._model(), self.parts()["optimizer"]
        weights, states = read_weights(directory, self._rank), read_tensors(directory / OPTIMIZER_FILE)
        self.require_fitting(directory, states)
        require_weights(directory, weights, model)
        # Before the shards are read: they are found by the index of their parameter, which fits equal groups only.
        groups = [len(group["params"]) for group in states["optimizer"]["param_groups"]]
        own = [len(group["params"]) for group in optimizer.param_groups]
        if groups != own:
            raise CheckpointError(
                f"The checkpoint {directory} is from another optimizer: its groups have {groups} parameters, and "
                f"{own} here. Nothing was changed."
            )
        # Each process reads its own part of the shards where the model here is sharded too.
        layouts = layouts_of(model, optimizer)
        found: dict[str, Any] = put_into({"model": weights, "states": states}, directory / SHARDED_FOLDER, layouts)
        return found

    def restore(self, found: dict[str, Any]) -> None:
        """Set the model and the parts to what `read` returned."""
        load_weights_into(self._model(), found["model"])
        for name, part in self.parts().items():
            if name == "optimizer":
                load_optimizer_state(part, found["states"][name])
            elif part is not None and name in found["states"]:
                part.load_state_dict(found["states"][name])


class TrainerState(TrainingState):
    """The state of a `Trainer`, whose model and optimizer a backend holds."""

    def __init__(self, backend: Backend, scheduler: Any, processes: ProcessGroup, *, rank: int) -> None:
        super().__init__(lambda: backend.model, processes, rank=rank)
        self._backend, self._scheduler = backend, scheduler

    def parts(self) -> dict[str, Any]:
        """Return the optimizer, the backend's loss scale if there is one, and the schedule or None."""
        return {**self._backend.parts(), "scheduler": self._scheduler}

    def kinds(self) -> list[str]:
        """Return the classes of the optimizer and the schedule."""
        return [type(part).__name__ for part in (self._backend.parts()["optimizer"], self._scheduler)]

    def require_fitting(self, directory: Path, states: dict[str, Any]) -> None:
        """Refuse a checkpoint of another kind of run, optimizer or schedule."""
        if not isinstance(states["kinds"], list):
            raise CheckpointError(
                f"The checkpoint {directory} was saved by a run of hookline.integrations.torch, not by a Trainer. "
                "Resume it with such a run. Nothing was changed."
            )
        if (states["scheduler"] is None) != (self._scheduler is None):
            where = "the checkpoint" if self._scheduler is None else "this training"
            raise CheckpointError(
                f"The checkpoint {directory} does not fit: only {where} has a learning-rate schedule. "
                "Resume it with the settings it was saved with."
            )
        for what, there, here in zip(("optimizer", "scheduler"), states["kinds"], self.kinds(), strict=True):
            if there != here:
                raise CheckpointError(
                    f"The checkpoint {directory} is from another {what}: {there} there, {here} here. "
                    "Nothing was changed."
                )

    def restore(self, found: dict[str, Any]) -> None:
        """Set the model and the parts to what `read` returned."""
        super().restore(found)
        if self._scheduler is not None:
            follow_schedule(self._scheduler)


def load_weights(model: torch.nn.Module, directory: Path) -> None:
    """Set a model to the weights in a checkpoint of a `Trainer`, and restore nothing else of it.

    Raises:
        CheckpointError: They belong to another model, or cannot be read.
    """
    weights = read_weights(directory)
    require_weights(directory, weights, model)
    own = plain_state(model)
    load_weights_into(model, put_into(weights, directory / SHARDED_FOLDER, lambda key: own[key.removeprefix("model.")]))


def read_weights(directory: Path, rank: int = 0) -> dict[str, Any]:
    """Return the weights of a checkpoint, with marks in the places of sharded ones."""
    weights: dict[str, Any] = read_tensors(directory / MODEL_FILE)
    own = directory / _buffer_file(rank)
    if rank and own.exists():
        weights.update(read_tensors(own))
    return weights


def _buffer_file(rank: int) -> str:
    return f"buffers-rank{rank}.pt"


def require_weights(directory: Path, weights: dict[str, Any], model: torch.nn.Module) -> None:
    """Refuse weights of another model, before anything is changed.

    Raises:
        CheckpointError: Names or shapes differ.
    """
    own = trained_state(model)
    weights = state_named_for(own, weights)
    here = {name: shape for name, value in own.items() if (shape := shape_of(value)) is not None}
    there = {name: shape for name, value in weights.items() if (shape := shape_of(value)) is not None}
    require_equal_shapes(directory, "model", there, here)

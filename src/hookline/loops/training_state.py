"""What a training goes on from, besides counters: weights, optimizer, schedule, random states, order of the data.

A resume is exact. An epoch begins by noting the random states and drawing its first batch; to take it up again,
those states are put back, the batches that are done are skipped in the same order, and then the states are set
to those that held when the checkpoint was saved. One that is saved before the first of them is done goes on from
the beginning of the epoch: the order is drawn once more. Processes that train together begin an epoch with one and the
same state, so that they draw one order and share it out, and each goes on with one of its own.
"""

import copy
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from hookline._engine.errors import CheckpointError
from hookline._engine.torch_models import plain_state, state_named_for
from hookline.loops import rng
from hookline.loops.backends import Backend
from hookline.loops.batches import Batches
from hookline.loops.checkpoint import read_tensors
from hookline.loops.distributed import ProcessGroup
from hookline.loops.sharded import (
    layouts_of,
    load_weights_into,
    put_into,
    shape_of,
    taken_from,
    write_sharded,
    write_tensors,
)
from hookline.loops.trainer_setup import follow_schedule

MODEL_FILE = "model.pt"
OPTIMIZER_FILE = "optimizer.pt"
SHARDED_FOLDER = "sharded"
"""Where the shards of a sharded model and its optimizer lie; the files then hold the rest."""


class TrainingState:
    """Saves and restores a training in a checkpoint's directory, and opens its epochs.

    Args:
        backend: What computes, prepared.
        scheduler: The learning-rate schedule, or None.
        validation: The data of each validation set, which may be shuffled too.
        seed: What the order of the data is drawn from where several processes share it.
        processes: How the processes meet.
    """

    def __init__(
        self,
        backend: Backend,
        scheduler: Any,
        batches: Batches,
        validation: Sequence[Batches],
        *,
        rank: int,
        world_size: int,
        seed: int,
        processes: ProcessGroup,
    ) -> None:
        self._processes = processes
        self._backend, self._scheduler = backend, scheduler
        self._batches, self._validation = batches, validation
        self._rank, self._world_size, self._seed = rank, world_size, seed
        self._epoch_began: dict[str, Any] = {}
        self._place_before: Any = None  # where the data was by itself when the epoch began
        self._to_restore: dict[str, Any] | None = None

    def open_epoch(self, epoch: int, done: int) -> Iterator[Any]:
        """The batches of an epoch behind those that are done."""
        if done:
            return self._reopened(epoch, done)
        self.go_on()
        if self._world_size > 1:
            rng.seed(_mixed(self._seed, epoch))
        self._epoch_began = self._states()
        self._place_before = copy.deepcopy(self._batches.place())
        source = self._batches.epoch(epoch)
        first = list(itertools.islice(source, 1))  # the order is drawn here, before anybody draws something else
        if self._world_size > 1:
            rng.seed(_mixed(self._seed, epoch, self._rank + 1))
        return itertools.chain(first, source)

    def _reopened(self, epoch: int, done: int) -> Iterator[Any]:
        began = self._epoch_began
        if began:
            with rng.kept():
                rng.restore(began)
                self._batches.load_state(began["order"])
                return self._batches.epoch(epoch, done=done)
        return self._batches.epoch(epoch, done=done)

    def pause(self) -> None:
        """Note the random states to go on with: what is drawn from now on belongs to the end of a training."""
        if self._to_restore is None:
            self._to_restore = self._states()

    def go_on(self, *, for_good: bool = True) -> None:
        """Set the random states to those that training goes on with, if it was loaded or paused."""
        if self._to_restore is not None:
            rng.restore(self._to_restore)
            self._batches.load_state(self._to_restore["order"])
            self._to_restore = None if for_good else self._to_restore

    def _states(self) -> dict[str, Any]:
        return {**rng.capture(), "order": self._batches.state()}

    def save(self, directory: Path, *, epoch_begins: bool = False) -> None:
        """Write this process's part; all processes have to.

        Args:
            epoch_begins: Whether an epoch was opened none of whose batches is done.
        """
        schedule = None if self._scheduler is None else self._scheduler.state_dict()
        states = {**self._backend.optimizer_state(), "scheduler": schedule, "kinds": self._kinds()}
        write_parts(directory, self._backend.model, states, self._processes, rank=self._rank)
        order = [batches.state() for batches in self._validation]
        now, place = self._to_go_on_from(epoch_begins)
        states = {"now": now, "epoch_began": self._epoch_began, "validation_order": order, "place": place}
        write_tensors(states, directory / _rng_file(self._rank))

    def _to_go_on_from(self, epoch_begins: bool) -> tuple[dict[str, Any], Any]:
        """The random states and the place in the data; those from before the order was drawn if it will be again."""
        if epoch_begins:
            return self._epoch_began, self._place_before
        return self._states() if self._to_restore is None else self._to_restore, self._batches.place()

    def load(self, directory: Path) -> None:
        """Read everything, see whether it fits, and only then take it up."""
        model, optimizer = read_weights(directory, self._rank), read_tensors(directory / OPTIMIZER_FILE)
        own = directory / _rng_file(self._rank)
        states = read_tensors(own if own.exists() else directory / _rng_file(0))
        self._require_fitting(directory, model, optimizer)
        self._backend.load(*read_shards(directory, model, optimizer, self._backend.model, self._backend.optimizer))
        if self._scheduler is not None:
            self._scheduler.load_state_dict(optimizer["scheduler"])
            follow_schedule(self._scheduler)
        self._epoch_began, self._to_restore = states["epoch_began"], states["now"]
        self._batches.load_place(states["place"])
        for batches, order in zip(self._validation, states["validation_order"], strict=False):
            batches.load_state(order)

    def _require_fitting(self, directory: Path, model: dict[str, Any], optimizer: dict[str, Any]) -> None:
        if not isinstance(optimizer["kinds"], list):
            raise CheckpointError(
                f"The checkpoint {directory} was saved by a run of hookline.integrations.torch, not by a Trainer. "
                "Take it up with such a run. Nothing was changed."
            )
        require_weights(directory, model, self._backend.model)
        if (optimizer["scheduler"] is None) != (self._scheduler is None):
            here_or_there = "there" if self._scheduler is None else "here"
            raise CheckpointError(
                f"The checkpoint {directory} does not fit: only {here_or_there} is a learning-rate schedule. "
                "Take it up with the settings it was saved with."
            )
        self._require_fitting_optimizer(directory, optimizer)

    def _kinds(self) -> list[str]:
        optimizer = self._backend.optimizer
        return [type(part).__name__ for part in (getattr(optimizer, "optimizer", optimizer), self._scheduler)]

    def _require_fitting_optimizer(self, directory: Path, optimizer: dict[str, Any]) -> None:
        for what, there, here in zip(("optimizer", "scheduler"), optimizer["kinds"], self._kinds(), strict=True):
            if there != here:
                raise CheckpointError(
                    f"The checkpoint {directory} is one of another {what}: {there} there, {here} here. "
                    "Nothing was changed."
                )
        groups = [len(group["params"]) for group in optimizer["optimizer"]["param_groups"]]
        own = [len(group["params"]) for group in self._backend.optimizer.param_groups]
        if groups != own:
            raise CheckpointError(
                f"The checkpoint {directory} is one of another optimizer: its groups have {groups} parameters, "
                f"those of this one {own}. Nothing was changed."
            )


def load_weights(model: torch.nn.Module, directory: Path) -> None:
    """Set a model to the weights in a checkpoint of a `Trainer`, and take up nothing else of it.

    Raises:
        CheckpointError: They are those of another model, or cannot be read.
    """
    weights = read_weights(directory)
    require_weights(directory, weights, model)
    own = plain_state(model)
    load_weights_into(model, put_into(weights, directory / SHARDED_FOLDER, lambda key: own[key.removeprefix("model.")]))


def write_parts(
    directory: Path, model: torch.nn.Module, states: dict[str, Any], processes: ProcessGroup, *, rank: int
) -> None:
    """Write a model and the states that belong to it; rank zero writes, and every rank the shards that it has.

    Args:
        states: That of the optimizer under ``optimizer``, and others.
    """
    shards: dict[str, Any] = {}
    weights = taken_from(plain_state(model), "model", shards)
    states = {name: taken_from(state, name, shards) for name, state in states.items()}
    if shards:  # first, because all have to take part: a failure of one is raised on all
        write_sharded(shards, directory / SHARDED_FOLDER, processes.group())
    if rank == 0:
        write_tensors(weights, directory / MODEL_FILE)
        write_tensors(states, directory / OPTIMIZER_FILE)
    elif shards and (buffers := {name: value for name, value in weights.items() if _is_tensor(value)}):
        write_tensors(buffers, directory / _buffer_file(rank))  # nothing makes those of a sharded model equal


def read_weights(directory: Path, rank: int = 0) -> dict[str, Any]:
    """The weights of a checkpoint, with marks in the places of sharded ones."""
    weights: dict[str, Any] = read_tensors(directory / MODEL_FILE)
    own = directory / _buffer_file(rank)
    if rank and own.exists():
        weights.update(read_tensors(own))
    return weights


def read_shards(
    directory: Path, weights: dict[str, Any], states: dict[str, Any], model: torch.nn.Module, optimizer: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Weights and states with their sharded tensors, each process its own part where the model here is sharded too."""
    layouts = layouts_of(model, optimizer)
    found = put_into({"model": weights, "states": states}, directory / SHARDED_FOLDER, layouts)
    return found["model"], found["states"]


def _buffer_file(rank: int) -> str:
    return f"buffers-rank{rank}.pt"


def require_weights(directory: Path, weights: dict[str, Any], model: torch.nn.Module) -> None:
    """Refuse weights of another model, before anything is changed.

    Raises:
        CheckpointError: Names or shapes differ.
    """
    own = plain_state(model)
    weights = state_named_for(own, weights)
    here = {name: shape for name, value in own.items() if (shape := shape_of(value)) is not None}
    there = {name: shape for name, value in weights.items() if (shape := shape_of(value)) is not None}
    wrong = [f"{name} is not in this model" for name in there.keys() - here.keys()]
    wrong += [f"{name} is not in the checkpoint" for name in here.keys() - there.keys()]
    both = here.keys() & there.keys()
    wrong += [f"{name} is {there[name]} there and {here[name]} here" for name in both if here[name] != there[name]]
    if wrong:
        shown = "; ".join(sorted(wrong)[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        raise CheckpointError(f"The checkpoint {directory} is one of another model: {shown}. Nothing was changed.")


def _rng_file(rank: int) -> str:
    return f"random-rank{rank}.pt"


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _mixed(*numbers: int) -> int:
    """One seed of several numbers, which are not near each other for numbers that are."""
    mixed = 0
    for number in numbers:
        mixed = ((mixed ^ number) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) % 2**63
    return mixed

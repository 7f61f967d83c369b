"""The seam between the `Trainer` and what computes: one process on one device, or Accelerate.

A backend makes the model and optimizer ready, moves batches, does forward and backward, clips, and saves
and restores what only it knows. The moments, the data, the counters and the checkpoints are the Trainer's,
and the same under every backend.
"""

import os
from typing import Any, Literal, Protocol, TypeAlias

from hookline._engine.errors import OptionError
from hookline.loops.training_step import StepFunction

Precision: TypeAlias = Literal["fp32", "bf16", "fp16"]


class Backend(Protocol):
    """What computes."""

    device: Any
    optimizer: Any
    model: Any
    """The user's model, not wrapped."""

    def prepare(self, model: Any, optimizer: Any) -> None:
        """Take over the model and its optimizer."""

    def place(self, batch: Any) -> Any:
        """The batch on the device."""

    def learn(self, step: StepFunction, batch: Any, share: Any, *, last: bool) -> dict[str, Any]:
        """Forward and backward for a batch with its share in a step; after the last, the gradients are complete.

        The share is a number, or a tensor of one where it comes from other processes.
        """

    def evaluate(self, step: StepFunction, batch: Any) -> dict[str, Any]:
        """Forward only."""

    def predict(self, step: StepFunction, batch: Any) -> Any:
        """Forward only, whatever it gives."""

    def clip(self, max_norm: float) -> Any:
        """Scale the gradients down to a norm, and return what it was."""

    def update(self) -> None:
        """Move the weights and clear the gradients."""

    def release(self) -> None:
        """Give the model back as it was given, at the end of a training."""

    def optimizer_state(self) -> dict[str, Any]:
        """The optimizer's state and what else the backend has."""

    def load(self, model: dict[str, Any], optimizer: dict[str, Any]) -> None:
        """Restore the model and what `optimizer_state` returned."""


def is_sharding_asked_for() -> bool:
    """Whether ``accelerate launch`` was told to shard the model."""
    return is_launched_with("FSDP") or is_launched_with("DEEPSPEED")


def is_launched_with(way: str) -> bool:
    """Whether ``accelerate launch`` turned on a plugin, such as ``"FSDP"``."""
    return os.environ.get(f"ACCELERATE_USE_{way}", "").lower() in ("1", "true")


def other_parameters(model: Any, moved: list[Any]) -> list[Any]:
    """Those of the model that get gradients and are not moved: nobody else would clear them."""
    known = set(map(id, moved))
    return [p for p in model.parameters() if p.requires_grad and id(p) not in known]


def moved(batch: Any, device: Any) -> Any:
    """The tensors of a batch on a device; everything else as it is."""
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: moved(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(value, device) for value in batch))
    return type(batch)(moved(value, device) for value in batch) if isinstance(batch, list | tuple) else batch


def check_device(device: str) -> Any:
    """The device of a name.

    Raises:
        OptionError: torch does not know it, or it is not here.
    """
    import torch

    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise OptionError(f"device={device!r}: {str(error).partition(chr(10))[0]}") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"device={device!r}: torch finds no CUDA device here. Give 'cpu', or leave it out.")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise OptionError(f"device={device!r}: torch finds {torch.cuda.device_count()} CUDA devices here.")
    if found.type != "cuda":  # trying out a GPU would take up memory on the first one in every process
        try:
            torch.zeros(1, device=found).item()
        except Exception as error:
            said = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
            raise OptionError(f"device={device!r} cannot be used: {said}. Give 'cpu', or leave it out.") from None
    return found

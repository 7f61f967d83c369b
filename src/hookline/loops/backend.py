"""The seam between the `Trainer` and what computes: one process on one device, or Accelerate.

A backend makes the model and optimizer ready, moves batches, does forward and backward, clips, and saves
and restores what only it knows. The moments, the data, the counters and the checkpoints are the Trainer's,
and the same under every backend.
"""

import os
from typing import Any, Literal, Protocol, TypeAlias

from hookline.core.errors import OptionError
from hookline.core.model_names import is_sharded
from hookline.loops import ranks
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


def choose_backend(precision: Precision, device: str | None, model: Any) -> Backend:
    """Plain torch for one process in full precision, and for a model that is sharded already; otherwise Accelerate."""
    if is_sharded(model):
        from hookline.loops.plain_backend import PlainBackend

        return PlainBackend(_device_of_shards(model, precision, device))
    if ranks.world_size() == 1 and precision == "fp32" and not is_sharding_asked_for():
        from hookline.loops.plain_backend import PlainBackend

        return PlainBackend(device)
    _require_known_sharding()
    from hookline.loops.accelerate_backend import AccelerateBackend

    return AccelerateBackend(precision, device)


def _device_of_shards(model: Any, precision: Precision, device: str | None) -> str:
    """Where a sharded model computes."""
    kind = next(parameter.device_mesh.device_type for parameter in model.parameters() if hasattr(parameter, "to_local"))
    if not hasattr(model, "set_requires_gradient_sync"):
        raise OptionError(
            "The model's parameters are sharded, but not by fully_shard(model): the Trainer does not know how its "
            "processes share batches. Call torch.distributed.fsdp.fully_shard on the whole model, or write the loop "
            "with hookline.integrations.torch."
        )
    if precision != "fp32":
        raise OptionError(
            f"precision={precision!r} with a model that is sharded already: give fully_shard() a MixedPrecisionPolicy."
        )
    if device is not None and check_device(device).type != kind:
        raise OptionError(f"device={device!r}: the model is sharded over devices of the kind {kind!r}.")
    if kind == "cuda":
        import torch

        return f"cuda:{torch.cuda.current_device()}"
    return str(kind)


def is_sharding_asked_for() -> bool:
    """Whether ``accelerate launch`` was told to shard the model."""
    return _is_launched_with("FSDP") or _is_launched_with("DEEPSPEED")


def _is_launched_with(way: str) -> bool:
    return os.environ.get(f"ACCELERATE_USE_{way}", "").lower() in ("1", "true")


def _require_known_sharding() -> None:
    """Refuse what would train, and save a part of the weights as if it were all of them."""
    if _is_launched_with("DEEPSPEED"):
        raise OptionError("accelerate launch --use_deepspeed is not supported: give --use_fsdp --fsdp_version 2.")
    if _is_launched_with("FSDP") and os.environ.get("FSDP_VERSION", "1") != "2":
        raise OptionError("accelerate launch --use_fsdp without --fsdp_version 2: only version 2 is supported.")


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

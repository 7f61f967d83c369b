"""The seam between the `Trainer` and what computes: plain torch, or Accelerate.

A backend prepares the model and optimizer, moves batches, runs forward and backward, and clips. Moments, data, counters
and checkpoints are the Trainer's, and the same under every backend.

`PlainBackend` puts nothing between the training loop and the model: one process on one device, or several processes
whose model is sharded already (`fully_shard`) and communicates by itself. `AccelerateBackend` is for several processes,
sharding and mixed precision. How many processes there are is up to the launcher (``torchrun``, ``accelerate launch``).
"""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from hookline._engine.errors import MissingExtraError, OptionError
from hookline._engine.torch_models import is_sharded
from hookline.loops import distributed
from hookline.loops.sharded import moved_parameters
from hookline.loops.trainer_config import Precision
from hookline.loops.training_step import StepFunction, checked_outputs

if TYPE_CHECKING:
    from accelerate import Accelerator

logger = logging.getLogger("hookline")

PRECISIONS = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
"""Accelerate's names for them."""


class Backend(ABC):
    """Computes the steps of a Trainer.

    Attributes:
        device: Where it computes.
        model: The user's model, without wrappers.
        optimizer: The optimizer that updates it.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.model: Any = None
        self.optimizer: Any = None
        self._is_sharded = False
        self._moved: list[Any] = []
        self._others: list[Any] = []

    @abstractmethod
    def prepare(self, model: Any, optimizer: Any) -> None:
        """Take over the model and its optimizer."""

    def _find_parameters(self) -> None:
        self._moved = moved_parameters(self.optimizer)
        known = set(map(id, self._moved))
        # These get gradients and are in no optimizer: nothing else would clear them.
        self._others = [p for p in self.model.parameters() if p.requires_grad and id(p) not in known]

    def place(self, batch: Any) -> Any:
        """Move a batch to the device."""
        return moved(batch, self.device)

    @abstractmethod
    def learn(self, step: StepFunction, batch: Any, share: Any, *, last: bool) -> dict[str, Any]:
        """Run forward and backward for a batch with its share in a step; after the last, the gradients are complete.

        Processes exchange gradients with the last batch only. The share is a number, or a tensor of one where it comes
        from other processes.
        """

    def evaluate(self, step: StepFunction, batch: Any) -> dict[str, Any]:
        """Run forward only."""
        return checked_outputs(self.predict(step, batch), trains=False)

    @abstractmethod
    def predict(self, step: StepFunction, batch: Any) -> Any:
        """Run forward only, and return the result unchecked."""

    def clip(self, max_norm: float) -> Any:
        """Scale the gradients down to a norm, and return the norm before."""
        norm: Any = torch.nn.utils.clip_grad_norm_(self._moved, max_norm)
        # A collective, like the norm itself: clipping is a setting, so all ranks do it or none.
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def gradient_norm(self) -> Any:
        """Return the norm of all gradients, which stay as they are; a collective where the model is sharded."""
        gradients = [parameter.grad for parameter in self._moved if parameter.grad is not None]
        norm: Any = torch.nn.utils.get_total_norm(gradients)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device.type != "cpu":
            getattr(torch, self.device.type).synchronize()

    def update(self) -> None:
        """Update the weights and clear the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        for parameter in self._others:
            parameter.grad = None

    @abstractmethod
    def release(self) -> None:
        """Remove wrappers from the model, at the end of a training."""

    @abstractmethod
    def parts(self) -> dict[str, Any]:
        """Return torch's optimizer and, in mixed precision, the gradient scaler, for checkpoints."""


def is_sharding_requested() -> bool:
    """Whether ``accelerate launch`` is set to shard the model."""
    return is_launched_with("FSDP") or is_launched_with("DEEPSPEED")


def is_launched_with(plugin: str) -> bool:
    """Whether ``accelerate launch`` turned on a plugin, such as ``"FSDP"``."""
    return os.environ.get(f"ACCELERATE_USE_{plugin}", "").lower() in ("1", "true")


def moved(batch: Any, device: Any) -> Any:
    """Move the tensors of a batch to a device; other values stay."""
    if hasattr(batch, "to"):
        # From pinned memory the copy runs while the host continues.
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: moved(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(value, device) for value in batch))
    return type(batch)(moved(value, device) for value in batch) if isinstance(batch, list | tuple) else batch


def check_device(device: str) -> Any:
    """Return the device of a name.

    Raises:
        OptionError: torch does not know it, or it does not exist here.
    """
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise OptionError(f"device={device!r}: {str(error).partition(chr(10))[0]}") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"device={device!r}: torch finds no CUDA device here. Give 'cpu', or leave it out.")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise OptionError(f"device={device!r}: torch finds {torch.cuda.device_count()} CUDA devices here.")
    if found.type != "cuda":  # a try on a GPU would take memory of the first one in every process
        try:
            torch.zeros(1, device=found).item()
        except Exception as error:
            reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
            raise OptionError(f"device={device!r} cannot be used: {reason}. Give 'cpu', or leave it out.") from None
    return found


class PlainBackend(Backend):
    """Computes on one device, the first GPU where there is one."""

    def __init__(self, device: str | None) -> None:
        super().__init__(check_device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
        if self.device.type == "cpu":
            self.place = _unchanged  # type: ignore[method-assign]  # no walk through each batch

    def prepare(self, model: Any, optimizer: Any) -> None:
        """Take over the model and its optimizer."""
        self._is_sharded = is_sharded(model)
        # Shards lie on the devices of their mesh already.
        self.model, self.optimizer = model if self._is_sharded else model.to(self.device), optimizer
        self._find_parameters()

    def learn(self, step: StepFunction, batch: Any, share: Any, *, last: bool) -> dict[str, Any]:
        """Run forward and backward; gradients are exchanged between processes with the last part only."""
        if self._is_sharded:
            self.model.set_requires_gradient_sync(last)
        outputs = checked_outputs(step(self.model, batch))
        loss = outputs["loss"]
        is_all = isinstance(share, float) and share == 1  # a tensor is not compared, which would wait for its device
        (loss if is_all else loss * share).backward()
        return outputs

    def predict(self, step: StepFunction, batch: Any) -> Any:
        """Run forward only, and return the result unchecked."""
        return step(self.model, batch)

    def release(self) -> None:
        """Do nothing: the model has no wrappers."""

    def parts(self) -> dict[str, Any]:
        """Return the optimizer."""
        return {"optimizer": self.optimizer}


def _unchanged(batch: Any) -> Any:
    return batch


class AccelerateBackend(Backend):
    """Computes through an `accelerate.Accelerator`."""

    def __init__(self, precision: Precision, device: str | None) -> None:
        requested = check_device(device) if device else None
        on_cpu = (requested is not None and requested.type == "cpu") or not torch.cuda.is_available()
        self._accelerator = _accelerator(PRECISIONS[precision], on_cpu)
        super().__init__(self._accelerator.device)
        self._wrapped: Any = None
        given = self.device
        if requested is not None and (requested.type != given.type or requested.index not in (None, given.index or 0)):
            raise OptionError(
                f"device={device!r}: with several processes or in mixed precision Accelerate chooses the device, and "
                f"chose {str(given)!r}. Set CUDA_VISIBLE_DEVICES to choose among several."
            )

    def prepare(self, model: Any, optimizer: Any) -> None:
        """Take over the model and its optimizer."""
        if self._accelerator.distributed_type == "MULTI_CPU" and is_sharding_requested():
            logger.warning("Accelerate shards no model on CPUs: each process holds and trains all of it.")
        self._wrapped, self.optimizer = self._accelerator.prepare(model, optimizer)
        self.model = self._accelerator.unwrap_model(self._wrapped)
        self._is_sharded = is_sharded(self._wrapped)
        self._find_parameters()

    def learn(self, step: StepFunction, batch: Any, share: Any, *, last: bool) -> dict[str, Any]:
        """Run forward and backward; gradients are exchanged between processes with the last part only."""
        is_all = isinstance(share, float) and share == 1  # a tensor is not compared, which would wait for its device
        with nullcontext() if last else self._accelerator.no_sync(self._wrapped):
            # Forward only: the backward pass takes its types from it.
            with self._accelerator.autocast():
                outputs = checked_outputs(step(self._wrapped, batch))
            self._accelerator.backward(outputs["loss"] if is_all else outputs["loss"] * share)
        if last:
            # Now, because subscribers of on_before_optimizer_step and the clipping need the true gradients.
            self._accelerator.unscale_gradients()
        return outputs

    def predict(self, step: StepFunction, batch: Any) -> Any:
        """Run forward only; a model that is whole here is called without its wrapper, which would communicate."""
        model = self._wrapped if self._is_sharded else self.model
        with self._accelerator.autocast():
            return step(model, batch)

    def release(self) -> None:
        """Remove Accelerate's wrapper of the model's forward."""
        self._accelerator.unwrap_model(self._wrapped, keep_fp32_wrapper=False)

    def parts(self) -> dict[str, Any]:
        """Return the optimizer without Accelerate's wrapper, and the gradient scaler where there is one."""
        scaler = self._accelerator.scaler
        # A checkpoint names the class of the optimizer, which must not depend on the backend.
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        return {"optimizer": optimizer} | ({} if scaler is None else {"scaler": scaler})


def _accelerator(precision: str, on_cpu: bool) -> "Accelerator":
    try:
        from accelerate import Accelerator
        from accelerate.utils import GradientAccumulationPlugin
    except ImportError:
        raise MissingExtraError("Training on several processes or in mixed precision", "torch") from None
    try:
        with _launched():
            accelerator = Accelerator(
                mixed_precision=precision,
                cpu=on_cpu,
                # The schedule is the Trainer's: it advances once per update, for any number of processes.
                step_scheduler_with_optimizer=False,
                # Given, so that the environment is not used: backward() would divide by its number once more.
                gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
            )
    except ValueError as error:
        if "already been initialized" not in str(error):
            raise
        raise OptionError(
            f"Accelerate computes in one precision and on one kind of device in a process, and here it has another "
            f"already ({error}). Train in another process, or with the same precision."
        ) from None
    if accelerator.num_processes != distributed.world_size():
        raise OptionError(
            f"Accelerate was set up for {accelerator.num_processes} processes, but there are "
            f"{distributed.world_size()}: "
            "connect them, with torchrun or init_process_group(), before anything makes an Accelerator."
        )
    return accelerator


@contextmanager
def _launched() -> Iterator[None]:
    """Set the environment that a launcher would set: Accelerate ignores a process group that exists already."""
    rank, count = distributed.rank(), distributed.world_size()
    local = rank % max(1, torch.cuda.device_count()) if torch.cuda.is_available() else rank
    facts = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": count}
    missing = {name: str(value) for name, value in facts.items() if count > 1 and name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def choose_backend(precision: Precision, device: str | None, model: Any) -> Backend:
    """Return plain torch for one process in full precision or a model that is sharded already, else Accelerate."""
    if is_sharded(model):
        return PlainBackend(_device_of_shards(model, precision, device))
    if distributed.world_size() == 1 and precision == "fp32" and not is_sharding_requested():
        return PlainBackend(device)
    # Refused: these would save a part of the weights as if it were all of them.
    if is_launched_with("DEEPSPEED"):
        raise OptionError("accelerate launch --use_deepspeed is not supported: give --use_fsdp --fsdp_version 2.")
    if is_launched_with("FSDP") and os.environ.get("FSDP_VERSION", "1") != "2":
        raise OptionError("accelerate launch --use_fsdp without --fsdp_version 2: only version 2 is supported.")
    return AccelerateBackend(precision, device)


def _device_of_shards(model: Any, precision: Precision, device: str | None) -> str:
    """Return the device of a sharded model."""
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
    # The mesh knows the kind only. Which device is this process's was set before the model was sharded.
    return f"cuda:{torch.cuda.current_device()}" if kind == "cuda" else str(kind)

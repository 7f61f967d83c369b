"""Plain torch: nothing between the training loop and the model.

One process on one device; or several processes whose model is sharded already (`fully_shard`), and communicates by
itself.
"""

from typing import Any

import torch

from hookline.core.model_names import is_sharded
from hookline.loops.backend import check_device, moved, other_parameters
from hookline.loops.sharded import load_optimizer_state, load_weights_into, moved_parameters
from hookline.loops.training_step import StepFunction, checked_outputs


class PlainBackend:
    """Computes on one device, the first GPU where there is one."""

    def __init__(self, device: str | None) -> None:
        self.device = check_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model: Any = None
        self.optimizer: Any = None
        self._moved: list[Any] = []
        self._others: list[Any] = []
        self._is_sharded = False
        if self.device.type == "cpu":
            self.place = _as_it_is  # type: ignore[method-assign]  # a call less for each batch

    def prepare(self, model: Any, optimizer: Any) -> None:
        """Take over the model and its optimizer."""
        self._is_sharded = is_sharded(model)
        self.model, self.optimizer = model if self._is_sharded else model.to(self.device), optimizer
        self._moved = moved_parameters(optimizer)
        self._others = other_parameters(model, self._moved)

    def place(self, batch: Any) -> Any:
        """The batch on the device."""
        return moved(batch, self.device)

    def learn(self, step: StepFunction, batch: Any, share: Any, *, last: bool) -> dict[str, Any]:
        """Forward and backward; gradients travel between processes with the last part only."""
        if self._is_sharded:
            self.model.set_requires_gradient_sync(last)
        outputs = checked_outputs(step(self.model, batch))
        loss = outputs["loss"]
        (loss if share == 1 else loss * share).backward()
        return outputs

    def evaluate(self, step: StepFunction, batch: Any) -> dict[str, Any]:
        """Forward only."""
        return checked_outputs(self.predict(step, batch), trains=False)

    def predict(self, step: StepFunction, batch: Any) -> Any:
        """Forward only, whatever it gives."""
        return step(self.model, batch)

    def clip(self, max_norm: float) -> Any:
        """Scale the gradients down to a norm, and return what it was."""
        norm: Any = torch.nn.utils.clip_grad_norm_(self._moved, max_norm)
        return norm.full_tensor() if self._is_sharded else norm

    def update(self) -> None:
        """Move the weights and clear the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        for parameter in self._others:
            parameter.grad = None

    def release(self) -> None:
        """Nothing: the model is as it was given."""

    def optimizer_state(self) -> dict[str, Any]:
        """The optimizer's state."""
        return {"optimizer": self.optimizer.state_dict()}

    def load(self, model: dict[str, Any], optimizer: dict[str, Any]) -> None:
        """Restore both."""
        load_weights_into(self.model, model)
        load_optimizer_state(self.optimizer, optimizer["optimizer"])


def _as_it_is(batch: Any) -> Any:
    return batch

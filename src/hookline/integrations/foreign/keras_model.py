"""What a Keras callback finds as ``self.model``, and the optimizer in it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hookline.core.errors import OptionError
from hookline.integrations.foreign.stand_in import StandIn

if TYPE_CHECKING:
    from hookline.integrations.foreign.bridge import ForeignCallback

_SAVING = "hl.callbacks.CheckpointCallback saves the model with everything that training goes on from."


class KerasModel(StandIn):
    """The model in training, as Keras's `Model`: ``stop_training``, ``optimizer``, weights.

    ``torch_module`` is the model as it is.
    """

    hints: ClassVar[Mapping[str, str]] = {
        "torch_module": "Set run.model before the first step.",
        "save": _SAVING,
        "save_weights": _SAVING,
        "summary": "The model itself is model.torch_module.",
        "layers": "The model itself is model.torch_module.",
    }

    def __init__(self, bridge: "ForeignCallback", loop: Any) -> None:
        super().__init__(bridge, loop, "model")
        vars(self).update(_history=None, optimizer=KerasOptimizer(bridge, loop, "model.optimizer"))

    @property
    def name(self) -> str:
        """The class of the model."""
        return type(self.torch_module).__name__

    @property
    def torch_module(self) -> Any:
        """The model as it is."""
        if self._loop.model is None:
            raise self._not_offered("for the model", "torch_module", why="this loop was not told of it")
        return self._loop.model

    @property
    def stop_training(self) -> bool:
        """Whether somebody asked for a stop; setting it asks the loop for one."""
        return bool(self._loop.stop_requested)

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        if value and not self._loop.stop_requested:
            self._loop.request_stop(f"{self._bridge.name} set model.stop_training")
        elif not value and self._loop.stop_requested:
            self._loop.should_stop = False

    @property
    def history(self) -> Any:
        """What Keras's `History` puts here."""
        return self._history

    @history.setter
    def history(self, value: Any) -> None:
        vars(self)["_history"] = value

    def get_weights(self) -> list[Any]:
        """All tensors of the model's state, in its order, as arrays of their own."""
        return [_array(tensor) for tensor in self._tensors()]

    def set_weights(self, weights: list[Any]) -> None:
        """Put back what `get_weights` gave."""
        import torch

        tensors = self._tensors()
        shapes = [tuple(tensor.shape) for tensor in tensors]
        given = [tuple(array.shape) for array in weights]
        if shapes != given:
            raise OptionError(f"set_weights(): the shapes are {given}; the model has {shapes}.")
        with torch.no_grad():
            for tensor, array in zip(tensors, weights, strict=True):
                tensor.copy_(torch.as_tensor(array))

    def count_params(self) -> int:
        """How many numbers can be trained or are fixed."""
        return sum(parameter.numel() for parameter in self.torch_module.parameters())

    def _tensors(self) -> list[Any]:
        state = self.torch_module.state_dict()
        return [value for value in state.values() if hasattr(value, "copy_")]


def _array(tensor: Any) -> Any:
    """A copy as NumPy has it; it has no type for what takes two bytes, except one."""
    import torch

    return tensor.detach().to("cpu", torch.float32 if tensor.dtype == torch.bfloat16 else tensor.dtype).numpy().copy()


class KerasOptimizer(StandIn):
    """The torch optimizer, as Keras's: its learning rate can be read and set."""

    hints: ClassVar[Mapping[str, str]] = {
        "learning_rate": "Set run.optimizer before the first step.",
        "schedule": "Leave the schedule out, and the learning rate can be set.",
    }

    @property
    def name(self) -> str:
        """The class of the optimizer."""
        return type(self._loop.optimizer).__name__

    @property
    def iterations(self) -> int:
        """The number of completed steps."""
        return int(self._loop.step)

    @property
    def learning_rate(self) -> float:
        """That of the first group of parameters; setting it changes the others by the same factor."""
        return float(self._groups()[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        groups, new = self._groups(), float(value)
        if self._loop.scheduler is not None and hasattr(self._loop.scheduler, "get_lr"):
            kind = type(self._loop.scheduler).__name__
            why = f"that is what the schedule, a {kind}, does"
            raise self._not_offered("to set model.optimizer.learning_rate", "schedule", why=why)
        old = groups[0]["lr"]
        for group in groups:
            group["lr"] = new if not old else group["lr"] * (new / old)
        groups[0]["lr"] = new

    def _groups(self) -> list[dict[str, Any]]:
        if self._loop.optimizer is None:
            raise self._not_offered("for the optimizer", "learning_rate", why="this loop was not told of it")
        groups: list[dict[str, Any]] = self._loop.optimizer.param_groups
        return groups

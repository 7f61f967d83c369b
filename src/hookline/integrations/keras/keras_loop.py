"""`KerasLoop`: a `HostLoop` whose model is that of a callback of Keras, as it is now.

On JAX a model does not have its variables' values while an epoch runs. A callback of Keras that is asked for its model
puts them there first, and so does this loop.
"""

from typing import Any

from hookline.integrations.host_loop import HostLoop
from hookline.integrations.keras.optimizer_view import OptimizerView


class KerasLoop(HostLoop):
    """The loop of a `HooklineCallback` of Keras.

    Args:
        callback: The callback, which knows the model.
        options: Those of `HostLoop`.
    """

    def __init__(self, name: str, *, callback: Any, **options: Any) -> None:
        self._callback = callback
        super().__init__(name, native=None, **options)

    @property
    def model(self) -> Any:
        """The model that is trained."""
        return self._callback.model

    @model.setter
    def model(self, model: Any) -> None:
        _refuse("model", model)

    @property
    def native(self) -> Any:
        """The model: in Keras it is what trains."""
        return self._callback.model

    @native.setter
    def native(self, model: Any) -> None:
        _refuse("native", model)

    @property
    def optimizer(self) -> Any:
        """The model's optimizer, if it has one."""
        optimizer = getattr(self.model, "optimizer", None)
        return None if optimizer is None else OptimizerView(optimizer)

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        _refuse("optimizer", optimizer)


def _refuse(name: str, value: Any) -> None:
    if value is not None:  # which every loop begins with
        raise AttributeError(f"{name} is that of model.fit(), and cannot be set to {value!r}.")

"""`KerasLoop`: a `HostLoop` whose model is that of a callback of Keras, as it is now.

On JAX a model does not have its variables' values while an epoch runs. A callback of Keras that is asked for its model
puts them there first, and so does this loop.

A fit that an error ended leaves the loop running, as Keras does not tell. A signal that comes when no code of Keras is
under way is not for it: it goes to whoever had the signals before, and so does every later one.
"""

import signal
import sys
from collections.abc import Iterable
from typing import Any, Unpack

from hookline.integrations.host_loop import HostLoop, SaveFunction
from hookline.integrations.keras.optimizer_view import OptimizerView
from hookline.loops.options import RunOptions


class KerasLoop(HostLoop):
    """The loop of a `HooklineCallback` of Keras.

    Args:
        callback: The callback, which knows the model.
        save, callbacks, options: As for `HostLoop`.
    """

    no_gradients = "Keras updates the weights inside of a batch, and shows no gradients"

    def __init__(
        self,
        name: str,
        *,
        callback: Any,
        save: SaveFunction | None = None,
        callbacks: Iterable[Any] = (),
        **options: Unpack[RunOptions],
    ) -> None:
        self._callback = callback
        super().__init__(name, native=None, save=save, callbacks=callbacks, **options)

    def _heard_signal(self, name: str) -> None:
        if _keras_runs():
            super()._heard_signal(name)
        else:
            self._signals.restore()
            signal.raise_signal(signal.Signals[name])

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


def _keras_runs() -> bool:
    """Whether one of Keras's functions called this one, however far up."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__", "").partition(".")[0] == "keras":
            return True
    return False


def _refuse(name: str, value: Any) -> None:
    if value is not None:  # which every loop begins with
        raise AttributeError(f"{name} is that of model.fit(), and cannot be set to {value!r}.")

"""`OptimizerView`: an optimizer of Keras with what callbacks ask an optimizer for."""

from typing import Any


class OptimizerView:
    """The optimizer itself, and the ``param_groups`` by which callbacks know a learning rate; they cannot set it there.

    Args:
        optimizer: That of the model.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group, with the learning rate as it is now."""
        return [{"params": [], "lr": float(self._optimizer.learning_rate)}]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

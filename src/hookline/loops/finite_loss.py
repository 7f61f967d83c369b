"""Finds a loss that is not finite: before the weights are moved by it, where it is known by then.

A loss that is still on its way from a device is not waited for, but looked at when it has arrived, some steps
later; and always before a checkpoint is written, so that a model that is lost never takes a good one's place.
"""

import math
from collections import deque
from typing import Any

from hookline.core.errors import NonFiniteError
from hookline.core.values import Deferred


class FiniteLoss:
    """The losses that have not been looked at yet."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Deferred]] = deque()

    def check(self, step: int, loss: Any) -> None:
        """Look at a step's loss, and at earlier ones that have arrived meanwhile.

        Raises:
            NonFiniteError: One is NaN or infinite.
        """
        if type(loss) is float:
            if not math.isfinite(loss):
                raise _error(step, loss)
        elif isinstance(loss, Deferred):
            self._waiting.append((step, loss))
            while self._waiting and self._waiting[0][1].source.ready():
                self._look()

    def settle(self) -> None:
        """Wait for all of them and look."""
        while self._waiting:
            self._look()

    def _look(self) -> None:
        step, deferred = self._waiting.popleft()
        loss = deferred.get()
        if isinstance(loss, float) and not math.isfinite(loss):
            raise _error(step, loss)


def _error(step: int, loss: float) -> NonFiniteError:
    return NonFiniteError(
        f"The loss of step {step} is {loss}. Training on would spoil the model; checkpoints saved before are good. "
        "Look at the data and the learning rate, set gradient_clip_norm, or add the callback 'nan_guard' with "
        "action 'skip' to leave out such steps."
    )

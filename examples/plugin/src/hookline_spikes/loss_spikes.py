"""A callback that counts the spikes of a loss."""

import logging
import math
from collections.abc import Mapping
from typing import Any

import hookline as hl

__all__ = ["LossSpikes"]

logger = logging.getLogger(__name__)


class LossSpikes(hl.Callback):
    """Counts the steps with a loss far above its moving mean, and warns about each.

    Args:
        factor: A spike is a loss above the mean times this factor, or NaN.
        monitor: The metric's name.
        memory: The weight of the previous mean in each step, between 0 and 1.
    """

    name = "loss_spikes"

    def __init__(self, factor: float = 2.0, monitor: str = "loss", *, memory: float = 0.9) -> None:
        if not factor > 1:
            raise hl.OptionError(f"factor={factor!r}: give a number above 1.")
        if not 0 < memory < 1:
            raise hl.OptionError(f"memory={memory!r}: give a share between 0 and 1.")
        self.factor, self.monitor, self.memory = factor, monitor, memory
        self.mean: float | None = None
        self.spikes = 0

    def on_step_end(
        self, loop: hl.LoopState, step_idx: int, batch: Any, metrics: dict[str, Any]
    ) -> dict[str, int] | None:
        """Check the step's loss; the returned value is in the step's row as ``loss_spikes/count``."""
        value = metrics.get(self.monitor)
        if not isinstance(value, int | float):
            return None
        if self.mean is not None and not value <= self.mean * self.factor:  # in this form NaN is a spike, too
            self.spikes += 1
            logger.warning("step %d: %s is %g, the mean was %g", step_idx + 1, self.monitor, value, self.mean)
        elif math.isfinite(value):
            self.mean = value if self.mean is None else self.memory * self.mean + (1 - self.memory) * value
        return {"count": self.spikes}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, so that counting continues after a resume."""
        return {"mean": self.mean, "spikes": self.spikes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.mean, self.spikes = state["mean"], state["spikes"]

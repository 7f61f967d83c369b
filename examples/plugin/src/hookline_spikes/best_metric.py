"""A hook that keeps the best value of a metric."""

from collections.abc import Mapping
from typing import Any, Literal

import hookline as hl
from hookline import hooks

__all__ = ["BestMetric"]


class BestMetric(hooks.PeriodicHook):
    """Records the best value of a metric among the steps it checked.

    Args:
        monitor: The metric's name.
        mode: Whether smaller (``"min"``) or larger (``"max"``) is better.
        frequency: Check every N steps.
    """

    name = "best_metric"

    def __init__(self, monitor: str = "loss", mode: Literal["min", "max"] = "min", frequency: int = 10) -> None:
        super().__init__(frequency)
        if mode not in ("min", "max"):
            raise hl.OptionError(f"mode={mode!r}: give 'min' or 'max'.")
        self.monitor, self.mode = monitor, mode
        self.best: float | None = None

    def run(self, context: hooks.HookContext) -> dict[str, float] | None:
        """Check the metric; the returned value is recorded under this hook's name."""
        value = context.metadata.get(self.monitor)
        if isinstance(value, int | float) and value == value and self._is_better(value):
            self.best = value
        return None if self.best is None else {self.monitor: self.best}

    def _is_better(self, value: float) -> bool:
        return self.best is None or (value < self.best if self.mode == "min" else value > self.best)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.best = state["best"]

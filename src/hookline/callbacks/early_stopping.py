"""Stops training when a metric no longer improves.

The metric is looked at whenever a row with it is written, so ``patience`` counts validations for a
validation metric, epochs for one logged per epoch, and steps for a training metric.
"""

import logging
import math
from collections.abc import Mapping
from typing import Any, Literal

from hookline.core.callback import Callback
from hookline.core.errors import OptionError
from hookline.core.registry import register
from hookline.core.state import LoopArtifacts, LoopState
from hookline.core.values import find_metric

logger = logging.getLogger("hookline")


@register("early_stopping")
class EarlyStoppingCallback(Callback):
    """Asks for a stop after ``patience`` looks without an improvement of more than ``min_delta``.

    Args:
        monitor: The metric; ``val_loss`` and ``val/loss`` are the same.
        mode: Whether smaller ("min") or larger ("max") is better.
        check_finite: Stop at once when the metric is NaN or infinite; otherwise that is no improvement.
        stopping_threshold: Stop at once when the metric is at least this good.
    """

    def __init__(
        self,
        monitor: str = "val/loss",
        mode: Literal["min", "max"] = "min",
        patience: int = 5,
        min_delta: float = 0.0,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
    ) -> None:
        if mode not in ("min", "max"):
            raise OptionError(f"mode={mode!r}: give 'min' or 'max'.")
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise OptionError(f"patience={patience!r}: give a whole number of at least 1.")
        if min_delta < 0:
            raise OptionError(f"min_delta={min_delta!r}: give a number of at least 0.")
        self.monitor = monitor
        self.mode = mode
        self.patience = patience
        self.min_delta = min_delta
        self.check_finite = check_finite
        self.stopping_threshold = stopping_threshold
        self.best: float | None = None
        self.waited = 0

    def on_log(self, loop: LoopState, step: int, metrics: dict[str, Any], /) -> None:
        value = find_metric(metrics, self.monitor)
        if value is not None:
            self._look(loop, float(value))

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        if self.best is None and find_metric(loop.metrics, self.monitor) is None:
            seen = ", ".join(sorted(loop.metrics)) or "none"
            logger.warning("early_stopping never saw %r. Metrics seen: %s.", self.monitor, seen)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]

    def _look(self, loop: LoopState, value: float) -> None:
        if self.check_finite and not math.isfinite(value):
            loop.request_stop(f"early stopping: {self.monitor} is {value}")
        elif self.stopping_threshold is not None and self._better(value, self.stopping_threshold, 0.0, or_equal=True):
            loop.request_stop(f"early stopping: {self.monitor} reached {value:g}")
        if math.isfinite(value) and (self.best is None or self._better(value, self.best, self.min_delta)):
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            best = "nothing finite" if self.best is None else f"{self.best:g}"
            loop.request_stop(f"early stopping: {self.monitor} has not improved on {best} for {self.waited} looks")

    def _better(self, value: float, than: float, margin: float, *, or_equal: bool = False) -> bool:
        gain = than - value if self.mode == "min" else value - than
        return gain > margin or (or_equal and gain == margin)

"""Stops training when a metric no longer improves.

The metric is checked for each logged row that has it, so ``patience`` counts validations for a validation metric,
epochs for one logged per epoch, and steps for a training metric. A metric of every step does not make training wait for
the device: its values are checked as they arrive. A less frequent one is read at once, so no further step runs.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

from hookline._engine.checks import require_integer, require_number
from hookline._engine.metrics import plain
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState
from hookline.callbacks.monitoring import (
    MonitorCheck,
    PendingValues,
    StatefulCallback,
    direction,
    monitored_number,
    pending_metric,
    require_metric_name,
)


@register("early_stopping")
class EarlyStoppingCallback(StatefulCallback):
    """Requests a stop after ``patience`` checks without an improvement of more than ``min_delta``.

    Args:
        monitor: The metric; ``val_loss`` and ``val/loss`` are the same.
        mode: Whether smaller ("min") or larger ("max") is better; by default guessed from the metric's name.
        patience: How many checks in a row may show no improvement; NaN is no improvement.
        min_delta: How much better a value must be to count as an improvement.
        check_finite: Stop at once when the metric is NaN or infinite; otherwise that counts as no improvement.
        stopping_threshold: Stop at once when the metric is at least this good.
    """

    def __init__(
        self,
        monitor: str = "val/loss",
        mode: Literal["min", "max"] | None = None,
        patience: int = 5,
        min_delta: float = 0.0,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
    ) -> None:
        require_metric_name("monitor", monitor)
        self.monitor = monitor
        self.mode = direction(monitor, mode)
        self.patience = require_integer("patience", patience)
        self.min_delta = require_number("min_delta", min_delta, minimum=0)
        self.check_finite = check_finite
        self.stopping_threshold = require_number("stopping_threshold", stopping_threshold, optional=True)
        self._check = MonitorCheck(monitor)
        self._reset()

    def _reset(self) -> None:
        self.best: float | None = None
        self.waited = 0
        self._pending: PendingValues[None] = PendingValues()
        self._seen_at: int | None = None
        self._reason: str | None = None
        self._check.reset()

    def on_eval(self, loop: LoopState, step_idx: int, eval_name: str, metrics: dict[str, Any], /) -> None:
        self._check.evaluated(step_idx + 1)

    def on_log(self, loop: LoopState, step: int, metrics: dict[str, Any], /) -> None:
        value = pending_metric(metrics, self.monitor)
        wait = False
        if value is not None:
            wait = self._seen_at is None or step > self._seen_at + 1  # it is not logged at every step
            self._seen_at = step
            self._pending.append(value, None)
        self._check.after_row(loop, step, who=self.name)
        self._read_pending(wait=wait)
        if self._reason is not None:
            loop.request_stop(f"early stopping: {self.monitor} {self._reason}")
            self._reason = None

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        super().on_train_end(loop, artifacts)
        self._check.at_end(loop, who=self.name)

    def state_dict(self) -> dict[str, Any]:
        self._read_pending(wait=True)
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.best, self.waited = state["best"], state["waited"]

    def _read_pending(self, *, wait: bool) -> None:
        for pending, _ in self._pending.ready(wait=wait):
            value = plain(pending)
            if value is not None:  # None: it could not be fetched
                reason = self._reason_to_stop(monitored_number(self.monitor, value))
                self._reason = self._reason or reason

    def _reason_to_stop(self, value: float) -> str | None:
        if math.isfinite(value) and (self.best is None or self._better(value, self.best, self.min_delta)):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        if self.check_finite and not math.isfinite(value):
            return f"is {value}"
        if self.stopping_threshold is not None and self._better(value, self.stopping_threshold, 0.0, or_equal=True):
            return f"reached {value:g}"
        if self.waited >= self.patience:
            best = "nothing finite" if self.best is None else f"{self.best:g}"
            by = f" by more than {self.min_delta:g}" if self.min_delta else ""
            checks = "check" if self.waited == 1 else "checks"
            return f"has not improved on {best}{by} for {self.waited} {checks}"
        return None

    def _better(self, value: float, than: float, margin: float, *, or_equal: bool = False) -> bool:
        gain = than - value if self.mode == "min" else value - than
        return gain > margin or (or_equal and gain == margin)

"""Stops training when a metric no longer improves.

The metric is looked at whenever a row with it is written, so ``patience`` counts validations for a
validation metric, epochs for one logged per epoch, and steps for a training metric. The device is not waited
for by a metric of every step: its values are looked at as they arrive. One that comes more rarely is looked
at on the spot, so that no further step is made.
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, TypeGuard

from hookline._engine.errors import OptionError
from hookline._engine.metrics import Deferred, find_metric, plain
from hookline._engine.registry import register
from hookline._engine.state import LoopArtifacts, LoopState
from hookline.callbacks.monitoring import FreshStart, MonitorCheck, direction

MOST_WAITING = 256
"""How many values may wait for a device before the oldest, by then long computed, is read."""


@register("early_stopping")
class EarlyStoppingCallback(FreshStart):
    """Asks for a stop after ``patience`` checks without an improvement of more than ``min_delta``.

    Args:
        monitor: The metric; ``val_loss`` and ``val/loss`` are the same.
        mode: Whether smaller ("min") or larger ("max") is better; by default as the metric's name suggests.
        patience: How many checks in a row may bring no improvement; one that finds NaN brings none.
        min_delta: How much better a value must be to count as an improvement.
        check_finite: Stop at once when the metric is NaN or infinite; otherwise that is no improvement.
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
        _require(monitor, patience)
        _require_numbers(min_delta, stopping_threshold)
        self.monitor = monitor
        self.mode = direction(monitor, mode)
        self.patience = patience
        self.min_delta = min_delta
        self.check_finite = check_finite
        self.stopping_threshold = stopping_threshold
        self._check = MonitorCheck(monitor)
        self._forget()

    def _forget(self) -> None:
        self.best: float | None = None
        self.waited = 0
        self._waiting: deque[Any] = deque()
        self._seen_at: int | None = None
        self._reason: str | None = None
        self._check.forget()

    def on_eval(self, loop: LoopState, step_idx: int, eval_name: str, metrics: dict[str, Any], /) -> None:
        self._check.evaluated(step_idx + 1)

    def on_log(self, loop: LoopState, step: int, metrics: dict[str, Any], /) -> None:
        value = find_metric(dict(dict.items(metrics)), self.monitor)  # as it is, on a device or not
        wait = False
        if value is not None:
            wait = self._seen_at is None or step > self._seen_at + 1
            self._seen_at = step
            self._waiting.append(value)
        self._check.after_row(loop, step, who=self.name)
        self._look(wait=wait)
        if self._reason is not None:
            loop.request_stop(f"early stopping: {self.monitor} {self._reason}")
            self._reason = None

    def on_train_end(self, loop: LoopState, artifacts: LoopArtifacts, /) -> None:
        super().on_train_end(loop, artifacts)
        self._check.at_end(loop, who=self.name)

    def state_dict(self) -> dict[str, Any]:
        self._look(wait=True)
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.best, self.waited = state["best"], state["waited"]

    def _look(self, *, wait: bool) -> None:
        """Look at the values in their order: at all of them, or up to the first that has not arrived."""
        while self._waiting and (wait or len(self._waiting) > MOST_WAITING or _has_arrived(self._waiting[0])):
            value = plain(self._waiting.popleft())
            if value is not None:  # which it is if it could not be fetched
                reason = self._reason_to_stop(_number(self.monitor, value))
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


def _has_arrived(value: Any) -> bool:
    return not isinstance(value, Deferred) or value.source.ready()


def _number(monitor: str, value: Any) -> float:
    if isinstance(value, int | float):
        return float(value)
    raise OptionError(f"monitor={monitor!r} is {value!r}: give the name of a metric that is a number.")


def _require(monitor: object, patience: object) -> None:
    if not isinstance(monitor, str) or not monitor:
        raise OptionError(f"monitor={monitor!r}: give the name of a metric, such as 'val/loss'.")
    if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
        raise OptionError(f"patience={patience!r}: give a whole number of at least 1.")


def _require_numbers(min_delta: object, stopping_threshold: object) -> None:
    if not _is_number(min_delta) or not 0 <= min_delta < math.inf:
        raise OptionError(f"min_delta={min_delta!r}: give a number of at least 0.")
    if stopping_threshold is not None and (not _is_number(stopping_threshold) or math.isnan(stopping_threshold)):
        raise OptionError(f"stopping_threshold={stopping_threshold!r}: give a number, or None for no threshold.")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)

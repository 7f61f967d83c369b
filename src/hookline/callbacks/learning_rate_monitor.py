"""Logs the learning rate of each of the optimizer's parameter groups.

The logged value is the one that the step used: the value at `on_before_optimizer_step` if the loop fires it, otherwise
the value before the step if the loop has a scheduler (which advances inside the step), and after the step if not.
"""

import logging
from collections.abc import Iterable
from typing import Any, Literal

from hookline._engine.errors import OptionError
from hookline._engine.metrics import is_on_device, plain
from hookline._engine.moments import Callback
from hookline._engine.registry import register
from hookline._engine.state import LoopState

logger = logging.getLogger("hookline")

INTERVALS = ("step", "epoch", None)


@register("learning_rate_monitor")
class LearningRateMonitor(Callback):
    """Logs ``lr`` for one parameter group of ``loop.optimizer``, ``lr/<name or index>`` for several.

    Args:
        logging_interval: "step" logs at every step, "epoch" when an epoch starts, None at steps where a value changed.
        log_momentum: Also log ``momentum``: the group's momentum, or the first of its betas.
    """

    def __init__(self, logging_interval: Literal["step", "epoch"] | None = "step", log_momentum: bool = False) -> None:
        if logging_interval not in INTERVALS:
            raise OptionError(f"logging_interval={logging_interval!r}: give 'step', 'epoch' or None.")
        self.logging_interval = logging_interval
        self.log_momentum = log_momentum
        self._of_step: dict[str, Any] | None = None
        self._logged: dict[str, Any] | None = None

    def on_train_start(self, loop: LoopState, /) -> None:
        self._of_step = self._logged = None
        if not hasattr(loop.optimizer, "param_groups"):
            given = "no optimizer" if loop.optimizer is None else f"a {type(loop.optimizer).__name__} as optimizer"
            logger.warning(
                "learning_rate_monitor logs nothing: the loop has %s. Set one with param_groups "
                "before the first step: run.optimizer = optimizer.",
                given,
            )

    def on_train_epoch_start(self, loop: LoopState, /) -> None:
        if self.logging_interval == "epoch" and (values := self._read(loop.optimizer)):
            loop.log(values)

    def on_step_start(self, loop: LoopState, step_idx: int, /) -> None:
        if self.logging_interval != "epoch":
            self._of_step = None if loop.scheduler is None else self._read(loop.optimizer)

    def on_before_optimizer_step(self, loop: LoopState, optimizer: Any, /) -> None:
        if self.logging_interval != "epoch":
            self._of_step = self._read(loop.optimizer)

    def on_step_end(self, loop: LoopState, step_idx: int, batch: Any, metrics: dict[str, Any], /) -> None:
        if self.logging_interval == "epoch":
            return
        values = self._read(loop.optimizer) if self._of_step is None else self._of_step
        self._of_step = None
        # Values on a device count as changed: comparing them would wait for it.
        if self.logging_interval == "step" or any(map(is_on_device, values.values())) or values != self._logged:
            loop.log(values)
        self._logged = values

    def _read(self, optimizer: Any) -> dict[str, Any]:
        groups = getattr(optimizer, "param_groups", ())
        values = {f"lr{suffix}": _copied(group["lr"]) for suffix, group in _with_suffixes(groups) if "lr" in group}
        if self.log_momentum:
            for suffix, group in _with_suffixes(groups):
                betas = group.get("betas") or (None,)
                values[f"momentum{suffix}"] = _copied(group.get("momentum", betas[0]))
        return {name: value for name, value in values.items() if value is not None}


def _with_suffixes(groups: Iterable[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Each group with its suffix for metric names: empty for a single group, its name or index for several."""
    listed = list(groups)
    if len(listed) == 1:
        return [("", listed[0])]
    names = [str(group.get("name", index)) for index, group in enumerate(listed)]
    distinct = len(set(names)) == len(names)
    return [(f"/{names[index] if distinct else index}", group) for index, group in enumerate(listed)]


def _copied(value: Any) -> Any:
    """A copy, because schedulers change tensors in place."""
    return value.clone() if is_on_device(value) and hasattr(value, "clone") else plain(value)

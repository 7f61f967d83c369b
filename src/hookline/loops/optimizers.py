"""The optimizer and the learning-rate schedule of a `Trainer`: given, made by a function, or made from its settings."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from hookline.core.errors import OptionError
from hookline.loops.trainer_config import LEARNING_RATE, TrainerConfig

KINDS: dict[str, type[Optimizer]] = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}


def make_optimizer(given: Any, model: torch.nn.Module, config: TrainerConfig) -> Optimizer:
    """What was given, or one of the settings' making, over the parameters that can be trained.

    Raises:
        OptionError: There is nothing to train, or settings for an optimizer that is there already.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise OptionError(f"{type(model).__name__} has no parameter to train: all are frozen, or there are none.")
    if given is None:
        kind = KINDS[config.optimizer or "adamw"]
        rate = LEARNING_RATE if config.learning_rate is None else config.learning_rate
        return kind(parameters, lr=rate, weight_decay=config.weight_decay or 0.0)
    for name in ("optimizer", "learning_rate", "weight_decay"):
        if getattr(config, name) is not None:
            raise OptionError(f"{name}={getattr(config, name)!r} is for an optimizer that is made here; one was given.")
    optimizer = given if isinstance(given, Optimizer) else given(parameters) if callable(given) else given
    if not isinstance(optimizer, Optimizer):
        raise OptionError(f"optimizer={given!r}: give a torch optimizer, or a function of the parameters.")
    _require_shared(optimizer, model)
    return optimizer


def _require_shared(optimizer: Optimizer, model: torch.nn.Module) -> None:
    known = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in known for group in optimizer.param_groups for parameter in group["params"]):
        raise OptionError(f"The optimizer holds no parameter of this {type(model).__name__}: was it made for another?")


def make_scheduler(given: Any, optimizer: Optimizer, config: TrainerConfig, steps: int | None) -> Any:
    """What was given, or one of the settings' making; None where the learning rate stays as it is."""
    if given is not None:
        if config.warmup_steps or config.schedule != "constant":
            raise OptionError("warmup_steps and schedule are for a scheduler that is made here; one was given.")
        scheduler = given if isinstance(given, LRScheduler) or not callable(given) else given(optimizer)
        if not isinstance(scheduler, LRScheduler):
            raise OptionError(f"scheduler={given!r}: give a torch scheduler, or a function of the optimizer.")
        if scheduler.optimizer is not optimizer:
            raise OptionError(
                "The scheduler is one of another optimizer: give the optimizer too, or a function of the optimizer."
            )
        return scheduler
    if not config.warmup_steps and config.schedule == "constant":
        return None
    if config.schedule != "constant" and steps is None:
        raise OptionError(
            f"schedule={config.schedule!r} needs to know the number of steps: give max_steps, or data with a length."
        )
    return LambdaLR(optimizer, _factor(config.schedule, config.warmup_steps, steps))


def _factor(schedule: str, warmup: int, steps: int | None) -> Callable[[int], float]:
    """The share of the learning rate at each step."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if schedule == "constant" or steps is None:
            return 1.0
        left = max(0.0, 1 - (step - warmup) / max(1, steps - warmup))
        return left if schedule == "linear" else (1 - math.cos(math.pi * left)) / 2

    return factor


def follow_schedule(scheduler: Any) -> None:
    """Set the learning rate to what a schedule of ours has for its step: it may be longer than before."""
    if isinstance(scheduler, LambdaLR):
        rates = zip(scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        for group, base, factor in rates:
            group["lr"] = base * factor(scheduler.last_epoch)


def is_plateau(scheduler: Any) -> bool:
    """Whether it wants to be told a validation's loss rather than each step."""
    return isinstance(scheduler, ReduceLROnPlateau)

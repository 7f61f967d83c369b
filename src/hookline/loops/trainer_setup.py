"""What a `Trainer` is given, checked and put together before it trains: settings, subscribers, optimizer, schedule."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import OptionError
from hookline._engine.moments import Callback
from hookline.callbacks.checkpoint import CheckpointCallback
from hookline.config.loading import load_callbacks
from hookline.loops.batches import is_data_set
from hookline.loops.checkpointing import checkpoint_rules
from hookline.loops.trainer_config import BATCH_SIZE, LEARNING_RATE, CheckpointRules, TrainerConfig
from hookline.loops.training_step import StepFunction, step_of_model, step_with

logger = logging.getLogger("hookline")

OPTIMIZERS: dict[str, type[Optimizer]] = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}


def checked_config(config: Any, *, has_val_data: bool) -> TrainerConfig:
    """Return the settings, once they are consistent and say how long to train."""
    if not isinstance(config, TrainerConfig):
        raise OptionError(f"config={config!r}: give a TrainerConfig, e.g. hl.TrainerConfig(epochs=3).")
    if config.epochs is None and config.max_steps is None:
        raise OptionError("The training has no end: give TrainerConfig(epochs=...) or TrainerConfig(max_steps=...).")
    given = [name for name in ("validate_every_steps", "validate_every_epochs") if getattr(config, name) is not None]
    given += ["validate_at_start"] if config.validate_at_start else []
    if given and not has_val_data:
        raise OptionError(
            f"{given[0]}={getattr(config, given[0])!r} without val_data: there is nothing to validate on."
        )
    for name in ("checkpoint", "resume", "sinks") if config.output_dir is None else ():
        if getattr(config, name):
            raise OptionError(
                f"{name}={getattr(config, name)!r} with output_dir=None, which saves nothing: give a directory."
            )
    return config


def batch_size_for(data: Any, config: TrainerConfig) -> int:
    """Return the batch size for data sets; warn where the data comes in batches already."""
    if config.batch_size is not None and not is_data_set(data) and not isinstance(data, DataLoader):
        logger.warning(
            "batch_size=%d only applies to data sets: each item of a %s counts as a batch. Give a torch Dataset or a "
            "DataLoader to batch samples.",
            config.batch_size,
            type(data).__name__,
        )
    return BATCH_SIZE if config.batch_size is None else config.batch_size


def checked_model(model: Any) -> torch.nn.Module:
    """Return the model, if it is a torch module."""
    if not isinstance(model, torch.nn.Module):
        raise OptionError(f"model={model!r}: give a torch.nn.Module.")
    return model


def step_function(loss: Any, training_step: Any) -> StepFunction:
    """Return the function that computes a step."""
    if loss is not None and training_step is not None:
        raise OptionError("loss= and training_step= were both given: give one of them.")
    for name, given in (("loss", loss), ("training_step", training_step)):
        if given is not None and not callable(given):
            raise OptionError(f"{name}={given!r}: give a function.")
    return training_step or (step_of_model if loss is None else step_with(loss))


def subscribers(config: TrainerConfig, callbacks: Any, logger_fns: Any, hook_fns: Any) -> CallbackCollection:
    """Return all subscribers in one collection: the user's own where there is nothing to add to it."""
    given = [_collected(some) for some in (config.callbacks, callbacks) if some is not None and some != ()]
    more = [*_checked_logger_fns(logger_fns), *_checked_hook_fns(hook_fns)]
    rules = config.checkpoint
    if config.resume == "auto" and rules is None and not any(map(checkpoint_rules, given)):
        # Without a checkpoint there would be nothing to resume: after each epoch, or each tenth of the steps.
        by_epochs = config.epochs is not None or config.max_steps is None
        rules = (
            CheckpointRules(every_n_epochs=1)
            if by_epochs
            else CheckpointRules(every_n_steps=max(1, (config.max_steps or 0) // 10))
        )
    if rules is not None:
        more.append(CheckpointCallback(**{name: getattr(rules, name) for name in rules.__struct_fields__}))
    if len(given) == 1 and not more:
        return given[0]
    gathered = CallbackCollection(given[0] if given else (), strict=any(each.strict for each in given))
    for collection in given[1:]:
        gathered.extend(collection)
    gathered.extend(more)
    return gathered


def _collected(callbacks: Any) -> CallbackCollection:
    if isinstance(callbacks, CallbackCollection):
        return callbacks
    if isinstance(callbacks, str | Path | Mapping):
        return load_callbacks(callbacks)
    return CallbackCollection(callbacks)


def _checked_logger_fns(given: Any) -> list[Any]:
    if given is None:
        return []
    if callable(given) or isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise OptionError(f"custom_logger_fns={given!r}: give a list of functions (report_data, step).")
    functions = list(given)
    for function in functions:
        if not callable(function) and not isinstance(function, Callback):
            raise OptionError(f"custom_logger_fns: {function!r} is not a function. Give functions (report_data, step).")
    return functions


def _checked_hook_fns(given: Any) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise OptionError(
            f"hook_fns={given!r}: give a dict of functions (worker, report_data) by the name of a hook, e.g. "
            "{'post_training_step_hook': fn}. Two dicts are merged with {**a, **b}."
        )
    return [given] if given else []


def make_optimizer(given: Any, model: torch.nn.Module, config: TrainerConfig) -> Optimizer:
    """Return the given optimizer, or one made from the settings over the trainable parameters.

    Raises:
        OptionError: Nothing can be trained, or there are settings for an optimizer that was given.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise OptionError(f"{type(model).__name__} has no parameter to train: all are frozen, or there are none.")
    if given is None:
        kind = OPTIMIZERS[config.optimizer or "adamw"]
        rate = LEARNING_RATE if config.learning_rate is None else config.learning_rate
        return kind(parameters, lr=rate, weight_decay=config.weight_decay or 0.0)
    for name in ("optimizer", "learning_rate", "weight_decay"):
        if getattr(config, name) is not None:
            raise OptionError(
                f"{name}={getattr(config, name)!r} is for an optimizer that the Trainer makes; one was given."
            )
    optimizer = given if isinstance(given, Optimizer) else given(parameters) if callable(given) else given
    if not isinstance(optimizer, Optimizer):
        raise OptionError(f"optimizer={given!r}: give a torch optimizer, or a function of the parameters.")
    known = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in known for group in optimizer.param_groups for parameter in group["params"]):
        raise OptionError(f"The optimizer holds no parameter of this {type(model).__name__}: was it made for another?")
    return optimizer


def make_scheduler(given: Any, optimizer: Optimizer, config: TrainerConfig, steps: int | None) -> Any:
    """Return the given schedule, or one made from the settings; None for a constant learning rate."""
    if given is not None:
        if config.warmup_steps or config.schedule != "constant":
            raise OptionError("warmup_steps and schedule are for a scheduler that the Trainer makes; one was given.")
        scheduler = given if isinstance(given, LRScheduler) or not callable(given) else given(optimizer)
        if not isinstance(scheduler, LRScheduler):
            raise OptionError(f"scheduler={given!r}: give a torch scheduler, or a function of the optimizer.")
        if scheduler.optimizer is not optimizer:
            raise OptionError(
                "The scheduler belongs to another optimizer: give the optimizer too, or a function of the optimizer."
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

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if schedule == "constant" or steps is None:
            return 1.0
        left = max(0.0, 1 - (step - warmup) / max(1, steps - warmup))
        return left if schedule == "linear" else (1 - math.cos(math.pi * left)) / 2

    return factor


def follow_schedule(scheduler: Any) -> None:
    """Set the learning rate to the one that our own schedule has for its step: its length may have changed."""
    if isinstance(scheduler, LambdaLR):
        rates = zip(scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        for group, base, factor in rates:
            group["lr"] = base * factor(scheduler.last_epoch)


def is_plateau(scheduler: Any) -> bool:
    """Whether it steps with the loss of validations rather than at each step."""
    return isinstance(scheduler, ReduceLROnPlateau)

"""What a `Trainer` is given, checked and put together before it trains.

Logger functions and hook functions as a `Trainer` is given them, checked before anything is made of them.

`ProcessShares`: what the batches of a step weigh where several processes make the step together.

The mean over processes that gradients travel with gives each process the same weight. Where batches bring the number of
tokens that they are trained on, a process weighs by that instead, as a batch does among those of one process. It takes
one all-reduce of two numbers a step, on the device, which nobody waits for. Data without such a number costs a question
at the first step.

The optimizer and the learning-rate schedule of a `Trainer`: given, made by a function, or made from its settings.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import distributed
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader

from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import OptionError
from hookline._engine.moments import Callback
from hookline.callbacks.checkpoint import CheckpointCallback
from hookline.config.subscribers import load_callbacks
from hookline.loops.batches import is_data_set
from hookline.loops.checkpointing import checkpoint_rules
from hookline.loops.distributed import ProcessGroup
from hookline.loops.trainer_config import BATCH_SIZE, LEARNING_RATE, CheckpointRules, TrainerConfig
from hookline.loops.training_step import StepFunction, step_of_model, step_with, tokens_of


def checked_logger_fns(given: Any) -> list[Any]:
    """The functions of ``custom_logger_fns``; what is no function there is named."""
    if given is None:
        return []
    if callable(given) or isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise OptionError(f"custom_logger_fns={given!r}: give a list of functions (report_data, step).")
    functions = list(given)
    for function in functions:
        if not callable(function) and not isinstance(function, Callback):
            raise OptionError(f"custom_logger_fns: {function!r} is not a function. Give functions (report_data, step).")
    return functions


def checked_hook_fns(given: Any) -> list[Any]:
    """The dict of ``hook_fns``, in a list; an empty list if there is none."""
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise OptionError(
            f"hook_fns={given!r}: give a dict of functions (worker, report_data) by the name of a hook, e.g. "
            "{'post_training_step_hook': fn}. Two dicts are merged with {**a, **b}."
        )
    return [given] if given else []


logger = logging.getLogger("hookline")


def checked_config(config: Any, *, has_val_data: bool) -> TrainerConfig:
    """The settings, if they say how long to train, and nothing that cannot be."""
    if not isinstance(config, TrainerConfig):
        raise OptionError(f"config={config!r}: give a TrainerConfig, e.g. hl.TrainerConfig(epochs=3).")
    if config.epochs is None and config.max_steps is None:
        raise OptionError("How long to train? Give the TrainerConfig epochs= or max_steps=, or both.")
    asked = [name for name in ("validate_every_steps", "validate_every_epochs") if getattr(config, name) is not None]
    asked += ["validate_at_start"] if config.validate_at_start else []
    if asked and not has_val_data:
        raise OptionError(
            f"{asked[0]}={getattr(config, asked[0])!r} without val_data: there is nothing to validate on."
        )
    for name in ("checkpoint", "resume", "sinks") if config.output_dir is None else ():
        if getattr(config, name):
            raise OptionError(
                f"{name}={getattr(config, name)!r} with output_dir=None, which saves nothing: give a directory."
            )
    return config


def batch_size_for(data: Any, config: TrainerConfig) -> int:
    """How many samples make a batch, where samples are put together; said where the data comes in batches already."""
    if config.batch_size is not None and not is_data_set(data) and not isinstance(data, DataLoader):
        logger.warning(
            "batch_size=%d is for data sets: each item of a %s is taken as a batch. Give a torch Dataset or a "
            "DataLoader to have samples put together.",
            config.batch_size,
            type(data).__name__,
        )
    return BATCH_SIZE if config.batch_size is None else config.batch_size


def checked_model(model: Any) -> torch.nn.Module:
    """The model, if it is one."""
    if not isinstance(model, torch.nn.Module):
        raise OptionError(f"model={model!r}: give a torch.nn.Module.")
    return model


def step_function(loss: Any, training_step: Any) -> StepFunction:
    """What a step computes."""
    if loss is not None and training_step is not None:
        raise OptionError("loss= and training_step= were given: one of them says what is trained on.")
    for name, given in (("loss", loss), ("training_step", training_step)):
        if given is not None and not callable(given):
            raise OptionError(f"{name}={given!r}: give a function.")
    return training_step or (step_of_model if loss is None else step_with(loss))


def subscribers(config: TrainerConfig, callbacks: Any, logger_fns: Any, hook_fns: Any) -> CallbackCollection:
    """All subscribers in one collection: the user's own where there is nothing to add to it."""
    more = [*checked_logger_fns(logger_fns), *checked_hook_fns(hook_fns)]
    given = [_collected(some) for some in (config.callbacks, callbacks) if some is not None and some != ()]
    if config.resume == "auto" and config.checkpoint is None and not any(map(checkpoint_rules, given)):
        config = msgspec.structs.replace(config, checkpoint=_often_enough(config))
    if config.checkpoint is not None:
        rules = config.checkpoint
        more.append(CheckpointCallback(**{name: getattr(rules, name) for name in rules.__struct_fields__}))
    if len(given) == 1 and not more:
        return given[0]
    gathered = CallbackCollection(given[0] if given else (), strict=any(each.strict for each in given))
    for collection in given[1:]:
        gathered.extend(collection)
    gathered.extend(more)
    return gathered


def _often_enough(config: TrainerConfig) -> CheckpointRules:
    """After each epoch; a training by steps, which may have none, ten times."""
    if config.epochs is not None or config.max_steps is None:
        return CheckpointRules(every_n_epochs=1)
    return CheckpointRules(every_n_steps=max(1, config.max_steps // 10))


def _collected(callbacks: Any) -> CallbackCollection:
    if isinstance(callbacks, CallbackCollection):
        return callbacks
    if isinstance(callbacks, str | Path | Mapping):
        return load_callbacks(callbacks)
    return CallbackCollection(callbacks)


class ProcessShares:
    """Weighs the batches of this process in the steps of all.

    Args:
        processes: How the processes settle whether there is something to weigh by.
        device: Where the model is trained.
    """

    def __init__(self, processes: ProcessGroup, device: Any) -> None:
        self._processes, self._device = processes, device
        self._counts: bool | None = None

    def weighed(self, shares: list[float], batches: list[Any]) -> list[Any]:
        """The shares of batches among this process's, made those among the batches of all; called on every rank."""
        counts = tokens_of(batches)
        if self._counts is None:  # settled once: whoever left out an all-reduce would keep the others waiting
            self._counts = any(self._processes.gather(counts is not None))
        if not self._counts:
            return list(shares)
        factor = self._factor(counts)
        return [factor * share for share in shares]

    def _factor(self, counts: list[int] | None) -> torch.Tensor:
        own = sum(counts or ())
        total = torch.tensor([own, counts is None]).to(self._device, non_blocking=True)
        distributed.all_reduce(total)
        tokens, unknown = total
        weighs = (unknown == 0) & (tokens > 0)
        return torch.where(weighs, distributed.get_world_size() * own / tokens, 1.0)


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

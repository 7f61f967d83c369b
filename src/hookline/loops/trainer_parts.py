"""What a `Trainer` is given, checked and put together before it trains."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.utils.data import DataLoader

from hookline.callbacks.checkpoint import CheckpointCallback
from hookline.core.collection import CallbackCollection, load_callbacks
from hookline.core.errors import OptionError
from hookline.loops.batches import is_data_set
from hookline.loops.flat_callbacks import flat
from hookline.loops.given_functions import checked_hook_fns, checked_logger_fns
from hookline.loops.trainer_config import BATCH_SIZE, CheckpointRules, TrainerConfig
from hookline.loops.training_step import StepFunction, step_of_model, step_with

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
    if config.resume == "auto" and config.checkpoint is None and not _saves(given):
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


def _saves(collections: list[CallbackCollection]) -> bool:
    """Whether a callback that saves is among them."""
    return any(isinstance(callback, CheckpointCallback) for collection in collections for callback in flat(collection))


def _collected(callbacks: Any) -> CallbackCollection:
    if isinstance(callbacks, CallbackCollection):
        return callbacks
    if isinstance(callbacks, str | Path | Mapping):
        return load_callbacks(callbacks)
    return CallbackCollection(callbacks)

"""A stand-in for Unsloth 2026.10: what it changes of TRL's `SFTTrainer` that a bridge could notice.

It replaces ``train`` of the instance and ``training_step`` of the class, and changes the mode of the model around a
training. Its kernels are for GPUs, and Unsloth itself imports on none but those.
"""

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

from trl import SFTTrainer


def prepare_for_training_mode(train: Callable[..., Any]) -> Callable[..., Any]:
    """Set the mode of the model around ``train``."""

    @functools.wraps(train)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        was_training = self.model.training
        self.model.train()
        output = train(self, *args, **kwargs)
        self.model.train(was_training)
        self._unsloth_training_completed = True
        return output

    return wrapper


class UnslothTrainer(SFTTrainer):
    """Unsloth's trainer."""

    train: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.train = MethodType(prepare_for_training_mode(self.__class__.train), self)

    def _unsloth_training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss)
        return loss.detach()

    training_step = _unsloth_training_step

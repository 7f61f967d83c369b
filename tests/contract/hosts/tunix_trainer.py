"""``PeftTrainer.train`` of Tunix."""

import warnings
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what others deprecate
    import orbax.checkpoint as ocp
    from tunix.sft.peft_trainer import PeftTrainer, TrainingConfig

import jax.numpy as jnp
import optax
from flax import nnx

from hookline.integrations.tunix import attach
from hosts.base import STEPS, Host
from hosts.regression import HELD_OUT, LEARNING_RATE, START, TRAIN


class Tunix(Host):
    """`tunix.PeftTrainer`."""

    name = "tunix"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        trainer = trainer_of(self.directory / "out")
        self.loop = attach(trainer, callbacks, name=self.name, **self.options).loop
        train(trainer)


def trainer_of(root: Path | None, optimizer: Any = None, model: Any = None, **settings: Any) -> Any:
    """A trainer of the regression, which continues from the last checkpoint below the root."""
    config = TrainingConfig(
        eval_every_n_steps=1,
        max_steps=STEPS,
        checkpoint_root_directory=None if root is None else str(root),
        checkpointing_options=ocp.CheckpointManagerOptions(should_save_fn=lambda step, latest: False),
        pbar_description=None,
    )
    for name, value in settings.items():
        setattr(config, name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rate = optax.inject_hyperparams(optax.sgd)(learning_rate=LEARNING_RATE)
        trainer = PeftTrainer(line() if model is None else model, rate if optimizer is None else optimizer, config)
    return trainer.with_loss_fn(loss_of)


def train(trainer: Any, *, batches: Any = None, evaluates: bool = True) -> None:
    """Train on the eight rows, one at a time, and evaluate on the held-out ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train(rows(TRAIN) if batches is None else batches, rows(HELD_OUT) if evaluates else None)


def line() -> Any:
    """The model as it is before a training."""
    model: Any = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    model.kernel[...], model.bias[...] = jnp.array(START).T, jnp.zeros(1)
    return model


def rows(data: Any) -> list[dict[str, Any]]:
    """The numbers as Tunix takes them."""
    inputs, targets = (numbers.numpy() for numbers in data)
    return [{"inputs": inputs[i : i + 1], "targets": targets[i : i + 1]} for i in range(len(inputs))]


def loss_of(model: Any, inputs: Any, targets: Any) -> Any:
    """The mean square error."""
    return jnp.mean((model(inputs) - targets) ** 2)

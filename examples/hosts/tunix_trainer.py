"""A trainer of Tunix; the lines for hookline are marked with "hookline"."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from one_callback import GoodEnough  # hookline
from tunix.sft.peft_trainer import PeftTrainer, TrainingConfig

from hookline.integrations.tunix import attach  # hookline


def loss_of(model: Any, inputs: Any, targets: Any) -> Any:
    """Return the mean square error."""
    return jnp.mean((model(inputs) - targets) ** 2)


def main() -> None:
    """Fit a line until it is good enough."""
    numbers = np.random.default_rng(0).normal(size=(100, 8, 2)).astype("float32")
    batches = [{"inputs": inputs, "targets": inputs.sum(axis=1, keepdims=True)} for inputs in numbers]
    config = TrainingConfig(eval_every_n_steps=1000, max_steps=100, pbar_description=None)
    trainer = PeftTrainer(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), optax.sgd(0.1), config).with_loss_fn(loss_of)
    attach(trainer, [GoodEnough(loss=0.01)], name="line")  # hookline
    trainer.train(batches)


if __name__ == "__main__":
    main()

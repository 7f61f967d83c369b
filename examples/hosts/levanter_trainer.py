"""A trainer of Levanter; the lines for hookline are marked with "hookline"."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from levanter.trainer import Trainer, TrainerConfig
from one_callback import GoodEnough  # hookline

from hookline.integrations.levanter import attach  # hookline


def loss_of(model: Any, inputs: Any, key: Any = None) -> Any:
    """Return the mean square error."""
    return jnp.mean((inputs @ model["weight"] - inputs.sum(axis=1, keepdims=True)) ** 2)


def main() -> None:
    """Fit a line until it is good enough."""
    batches = np.random.default_rng(0).normal(size=(100, 8, 2)).astype("float32")
    trainer = Trainer(TrainerConfig(num_train_steps=100), optax.sgd(0.1), loss_of)
    attach(trainer, [GoodEnough(loss=0.01)], name="line")  # hookline
    with trainer:
        state = trainer.initial_state(jax.random.key(0), model={"weight": jnp.zeros((2, 1))})
        trainer.train(state, batches)


if __name__ == "__main__":
    main()

"""A loop in JAX over a training state."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from hookline.integrations.jax import run
from hosts.base import BATCHES, EPOCHS, Host
from hosts.regression import HELD_OUT, LEARNING_RATE, START, TRAIN


class JaxLoop(Host):
    """`hookline.integrations.jax.run`."""

    name = "jax"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        state = {"weight": jnp.array(START).T, "bias": jnp.zeros(1)}
        self.loop = run(state, self.name, callbacks=callbacks, resume=resume, **self.options)
        with self.loop as loop:
            for _ in loop.epochs(EPOCHS):
                for batch in loop.steps(batches(TRAIN)):
                    loss, slope = jax.value_and_grad(loss_of)(loop.train_state, batch)
                    if loop.before_update(slope):
                        loop.train_state = jax.tree.map(
                            lambda old, by: old - LEARNING_RATE * by, loop.train_state, slope
                        )
                    loop.log(loss=loss)
                if loop.stop_requested:
                    break
                with loop.validate() as validation:
                    for batch in validation.batches(batches(HELD_OUT)):
                        validation.log(loss=loss_of(loop.train_state, batch))
                        validation.outputs(predictions=predict(loop.train_state, batch[0]))


def batches(data: Any) -> list[Any]:
    """The numbers as arrays of JAX, in batches of two."""
    arrays = [jnp.asarray(numbers.numpy()) for numbers in data]
    return list(zip(*(array.reshape(-1, 2, array.shape[1]) for array in arrays), strict=True))[:BATCHES]


def loss_of(state: Any, batch: Any) -> Any:
    """The mean square error."""
    inputs, targets = batch
    return jnp.mean((predict(state, inputs) - targets) ** 2)


def predict(state: Any, inputs: Any) -> Any:
    """The line."""
    return inputs @ state["weight"] + state["bias"]

"""A loop with Flax and Optax; the lines for hookline are marked with "hookline".

Without it, the two lines before the body are ``for epoch in range(10):`` and ``for inputs in data:``.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from one_callback import GoodEnough  # hookline

from hookline.integrations.jax import run  # hookline


@nnx.jit  # type: ignore[untyped-decorator]
def train_step(model: nnx.Module, optimizer: nnx.Optimizer, inputs: Any) -> Any:
    """Update the model, and return the loss."""

    def loss_of(model: Any) -> Any:
        return jnp.mean((model(inputs) - inputs.sum(axis=1, keepdims=True)) ** 2)

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def main() -> None:
    """Fit a line until it is good enough."""
    data = np.random.default_rng(0).normal(size=(8, 8, 2)).astype("float32")
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    with run(nnx.state((model, optimizer)), "line", callbacks=[GoodEnough(loss=0.01)]) as loop:  # hookline
        for inputs in loop.steps(data, epochs=10):  # hookline
            loss = train_step(model, optimizer, inputs)
            loop.log(loss=loss)  # hookline


if __name__ == "__main__":
    main()

"""A loop over a model of Flax (`nnx`) and an optimizer of Optax."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import optax
from flax import nnx

from hookline.integrations.jax import run
from hosts.base import EPOCHS, Host
from hosts.jax_loop import batches
from hosts.regression import HELD_OUT, LEARNING_RATE, START, TRAIN


class FlaxLoop(Host):
    """`hookline.integrations.jax.run`, with `flax.nnx` and `optax`."""

    name = "flax"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        model: Any = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        model.kernel[...], model.bias[...] = jnp.array(START).T, jnp.zeros(1)
        graph, params = nnx.split(model)
        optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=LEARNING_RATE)
        state = {"params": params, "optimizer": optimizer.init(params)}

        def loss_of(params: Any, batch: Any) -> Any:
            return jnp.mean((nnx.merge(graph, params)(batch[0]) - batch[1]) ** 2)

        @nnx.jit
        def update(state: Any, gradients: Any) -> Any:
            updates, optimizer_state = optimizer.update(gradients, state["optimizer"], state["params"])
            return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer_state}

        options = {"callbacks": callbacks, "resume": resume, **self.options}
        self.loop = run(state, self.name, model=lambda state: state["params"], **options)
        with self.loop as loop:
            for _ in loop.epochs(EPOCHS):
                for batch in loop.steps(batches(TRAIN)):
                    loss, gradients = nnx.value_and_grad(loss_of)(loop.model, batch)
                    if loop.before_update(gradients):
                        loop.train_state = update(loop.train_state, gradients)
                    loop.log(loss=loss)
                if loop.stop_requested:
                    break
                with loop.validate() as validation:
                    for batch in validation.batches(batches(HELD_OUT)):
                        validation.log(loss=loss_of(loop.model, batch))
                        validation.outputs(predictions=nnx.merge(graph, loop.model)(batch[0]))

"""Loops in JAX: `hl.run` that keeps the training state, a pytree, and saves and restores it.

    from hookline.integrations.jax import run

    with run({"params": params, "opt": opt_state}, "warmup", key=jax.random.key(0), resume="auto") as loop:
        for batch in loop.steps(batches, epochs=3):
            loop.train_state, loss = train_step(loop.train_state, batch, loop.next_key())
            loop.log(loss=loss)

`log` never waits for a device: an array is fetched by JAX's own asynchronous copy, and recorded when it is there.
"""

# ruff: noqa: E402 - what is needed is checked before it is imported

from hookline.integrations.requirement import require

require("jax", ">=0.4.30", extra="jax", what=__name__)
require("jaxlib", None, extra="jax", what=__name__)

from hookline.integrations.jax.jax_run import JaxRun, run

__all__ = ["JaxRun", "run"]

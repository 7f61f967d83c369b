"""A loop over Flax and Optax."""

import json

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from tensorboardX import SummaryWriter

model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(0.05), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, x, y):
    loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, gradients)
    return loss


x = jax.random.normal(jax.random.key(1), (32, 4))
y = x.sum(1, keepdims=True)
writer = SummaryWriter("logs")
losses = []
for step in range(5):
    losses.append(float(train_step(model, optimizer, x, y)))
    writer.add_scalar("loss", losses[-1], step)
writer.close()
print("RESULT", json.dumps(losses))

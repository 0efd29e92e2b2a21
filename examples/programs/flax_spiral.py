"""A classifier of flax.nnx learns two spirals, its layers split over devices; stopped or killed, it goes on.

shardwise run --hosts 2 --devices 2 -- python examples/programs/flax_spiral.py
"""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

import shardwise

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
run = shardwise.init(steps=steps, save_every_seconds=5)
mesh = run.mesh(data=None, tensor=2)
optimizer = optax.adamw(1e-2)


class Classifier(nnx.Module):
    """Two layers, from a point to the logit of the second spiral."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(2, 128, rngs=rngs)
        self.out = nnx.Linear(128, 1, rngs=rngs)

    def __call__(self, points: jax.Array) -> jax.Array:
        """Return float32[batch] from float32[batch, 2]."""
        return self.out(nnx.tanh(self.hidden(points)))[:, 0]


@partial(jax.jit, out_shardings=NamedSharding(mesh, PartitionSpec("data")))
def batch_of(step: int) -> tuple[jax.Array, jax.Array]:
    """Return points, float32[256, 2], and their spirals, float32[256]; a function of the step alone."""
    turn = jax.random.uniform(jax.random.key(step), (256,), minval=1, maxval=7)
    spiral = jnp.arange(256) % 2
    angle = turn + jnp.pi * spiral
    points = turn[:, None] / 7 * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
    return points, spiral.astype(jnp.float32)


@jax.jit
def train(
    weights: nnx.State, moments: optax.OptState, batch: tuple[jax.Array, jax.Array]
) -> tuple[nnx.State, optax.OptState, jax.Array]:
    """Return the weights and the moments after one step, and its loss."""

    def loss_of(weights: nnx.State) -> jax.Array:
        points, spirals = batch
        return optax.sigmoid_binary_cross_entropy(nnx.merge(graph, weights)(points), spirals).mean()

    loss, gradients = jax.value_and_grad(loss_of)(weights)
    updates, moments = optimizer.update(gradients, moments, weights)
    return optax.apply_updates(weights, updates), moments, loss


def split(array: jax.Array) -> jax.Array:
    """Return the array on all devices: what has 128 of something is split over `tensor`."""
    axes = ["tensor" if size == 128 else None for size in array.shape]
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*axes)))


graph, weights = nnx.split(Classifier(nnx.Rngs(0)))
state = jax.tree.map(split, (weights, optimizer.init(weights)))
(weights, moments), first = shardwise.checkpoint.restore(like=state)
for step in range(first + 1, steps + 1):
    weights, moments, loss = train(weights, moments, batch_of(step))
    shardwise.report(step=step, loss=loss)
    if shardwise.should_save() or step == steps:
        shardwise.checkpoint.save((weights, moments), step)
    if shardwise.should_stop():
        break

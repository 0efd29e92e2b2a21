"""A small network of equinox learns a sine on any number of hosts; stopped or killed at any time, it goes on.

shardwise run --hosts 2 --devices 2 -- python examples/programs/equinox_sine.py
"""

import sys
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

import shardwise

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
run = shardwise.init(steps=steps, save_every_seconds=5)
mesh = run.mesh(data=None)
whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
optimizer = optax.adam(3e-3)


@partial(jax.jit, out_shardings=split)
def batch_of(step: int) -> jax.Array:
    """Return float32[256, 1]; a function of the step alone, so that every start reads the same."""
    return jax.random.uniform(jax.random.key(step), (256, 1), minval=-1, maxval=1)


def loss_of(model: eqx.nn.MLP, batch: jax.Array) -> jax.Array:
    """Return the mean square error, a scalar."""
    return jnp.mean((jax.vmap(model)(batch) - jnp.sin(3 * batch)) ** 2)


@eqx.filter_jit(donate="all")
def train(model: eqx.nn.MLP, moments: optax.OptState, batch: jax.Array) -> tuple[eqx.nn.MLP, optax.OptState, jax.Array]:
    """Return the model and the moments after one step, and its loss."""
    loss, gradients = eqx.filter_value_and_grad(loss_of)(model, batch)
    updates, moments = optimizer.update(gradients, moments)
    return eqx.apply_updates(model, updates), moments, loss


model = eqx.nn.MLP(1, 1, width_size=64, depth=2, key=jax.random.key(0))
state = eqx.filter_shard((model, optimizer.init(eqx.filter(model, eqx.is_array))), whole)
(model, moments), first = shardwise.checkpoint.restore(like=state)
for step in range(first + 1, steps + 1):
    model, moments, loss = train(model, moments, batch_of(step))
    shardwise.report(step=step, loss=loss)
    if shardwise.should_save() or step == steps:
        shardwise.checkpoint.save((model, moments), step)
    if shardwise.should_stop():
        break

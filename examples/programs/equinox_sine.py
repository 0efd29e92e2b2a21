"""A small network of equinox learns a sine, on any number of hosts: saved, stopped, killed and resumed.

shardwise run --hosts 2 --devices 2 -- python examples/programs/equinox_sine.py
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

import shardwise

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--steps", type=int, default=200)
steps = arguments.parse_args().steps

run = shardwise.init(steps=steps, save_every_seconds=5)
mesh = run.mesh(data=None)
whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
optimizer = optax.adam(3e-3)


@eqx.filter_jit(donate="all")
def train(model, moments, batch):
    def loss_of(model):
        return jnp.mean((jax.vmap(model)(batch) - jnp.sin(3 * batch)) ** 2)

    loss, gradients = eqx.filter_value_and_grad(loss_of)(model)
    updates, moments = optimizer.update(gradients, moments, model)
    return eqx.apply_updates(model, updates), moments, loss


def batch_of(step):  # a function of the step alone, so that every start reads the same
    numbers = jax.random.uniform(jax.random.key(step), (256, 1), minval=-1, maxval=1)
    return jax.device_put(numbers, split)


model = eqx.nn.MLP(1, 1, width_size=64, depth=2, key=jax.random.key(0))
state = eqx.filter_shard((model, optimizer.init(eqx.filter(model, eqx.is_array))), whole)
(model, moments), step = shardwise.checkpoint.restore(like=state)
for step in range(step + 1, steps + 1):
    model, moments, loss = train(model, moments, batch_of(step))
    shardwise.report(step=step, loss=loss)
    if shardwise.should_save() or step == steps:
        shardwise.checkpoint.save((model, moments), step)
    if shardwise.should_stop():
        break

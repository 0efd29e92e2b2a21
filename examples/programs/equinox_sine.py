"""`shardwise run --hosts 2 --devices 2 -- python examples/programs/equinox_sine.py`: a net of equinox learns a sine."""

import sys

import equinox as eqx
import jax
import optax

import shardwise

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
mesh = shardwise.init(steps=steps, save_every_seconds=5).mesh(data=None)
whole, split = jax.NamedSharding(mesh, jax.P()), jax.NamedSharding(mesh, jax.P("data"))
optimizer = optax.adam(3e-3)


def loss_of(model: eqx.nn.MLP, batch: jax.Array) -> jax.Array:
    """Return the mean square error, a scalar."""
    return ((jax.vmap(model)(batch) - jax.numpy.sin(3 * batch)) ** 2).mean()


@eqx.filter_jit(donate="all-except-first")
def train(key: jax.Array, model: eqx.nn.MLP, moments: optax.OptState) -> tuple[eqx.nn.MLP, optax.OptState, jax.Array]:
    """Return the model and the moments after one step on numbers from the key, and its loss."""
    batch = eqx.filter_shard(jax.random.uniform(key, (256, 1), minval=-1, maxval=1), split)
    loss, gradients = eqx.filter_value_and_grad(loss_of)(model, batch)
    updates, moments = optimizer.update(gradients, moments)
    return eqx.apply_updates(model, updates), moments, loss


model = eqx.nn.MLP(1, 1, width_size=64, depth=2, key=jax.random.key(0))
state = eqx.filter_shard((model, optimizer.init(eqx.filter(model, eqx.is_array))), whole)
(model, moments), first = shardwise.checkpoint.restore(like=state)
for step in range(first + 1, steps + 1):
    model, moments, loss = train(jax.random.key(step), model, moments)
    shardwise.report(step=step, loss=loss)
    if shardwise.should_save() or step == steps:
        shardwise.checkpoint.save((model, moments), step)
    if shardwise.should_stop():
        break

"""shardwise.train.mlp: activations have the bits of float32, rounded once, in whatever format the layer computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.train.conftest import IN_FULL

from shardwise.train.mlp import ACTIVATIONS

# Every number of bfloat16 from 0.001 to 6, and its negative.
_FROM, _TO = (int(jnp.bfloat16(x).view(jnp.uint16)) for x in (0.001, 6.0))
POSITIVE = jnp.arange(_FROM, _TO, dtype=jnp.uint16).view(jnp.bfloat16)
EVERY = jnp.concatenate([POSITIVE, -POSITIVE])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_bfloat16_rounds_what_float32_makes(name: str) -> None:
    """Value and gradient are the nearest number: gelu of -3 would be 61 % off by constants that are rounded."""
    activate = ACTIVATIONS[name]

    def value_and_slope(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, back = jax.vjp(activate, x)
        return value, back(jnp.ones_like(x))[0]

    # Compiled in full, as for a user: two programs then compute a tanh, and what cancels out of it, by the same steps.
    compiled = jax.jit(value_and_slope, compiler_options=IN_FULL)
    found, expected = compiled(EVERY), compiled(EVERY.astype(jnp.float32))

    for one, other in zip(found, expected, strict=True):
        assert one.dtype == jnp.bfloat16
        np.testing.assert_array_equal(one, other.astype(jnp.bfloat16))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_backward_pass_keeps_the_input_alone(name: str) -> None:
    """In bfloat16, and none of the float32 numbers that were made of it, which would be twice as large."""
    kept = jax.eval_shape(lambda x: jax.vjp(ACTIVATIONS[name], x)[1], EVERY)

    arrays = [leaf for leaf in jax.tree.leaves(kept) if leaf.size == EVERY.size]
    assert [leaf.dtype for leaf in arrays] == [jnp.bfloat16]

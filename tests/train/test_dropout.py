"""Dropout's masks: those of whole sequences, drawn part by part where sequences are split."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.train.buffers import largest_buffer_bytes
from tests.train.grids import layout_over

from shardwise.train.dropout import Dropout, entry_numbers
from shardwise.train.zigzag import zigzag

BATCH, LENGTH, EMBED = 3, 64, 24


def dropout(rate: float, context: int) -> Dropout:
    """One step's, of a few rows."""
    rows = jnp.arange(BATCH)
    return Dropout.of(seed=1, step=jnp.int32(5), rows=rows, embed=rate, residual=rate, context=context)


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("context", [2, 3, 4])
def test_a_mask_is_that_of_the_whole_sequence(rate: float, context: int) -> None:
    """To the last entry, in the order of the devices' chunks; a sequence has its own."""
    x = jnp.ones((BATCH, 4 * 6 * context, EMBED))
    whole = dropout(rate, 1).drop(x, jnp.int32(2), "mlp")
    split = dropout(rate, context).drop(x, jnp.int32(2), "mlp")

    np.testing.assert_array_equal(split, zigzag(np.asarray(whole), context, axis=1))
    assert abs(float((whole == 0).mean()) - rate) < 0.02
    assert not np.array_equal(whole[0], whole[1])


def test_the_mean_stays_in_bfloat16() -> None:
    """A rate is not rounded to the dtype of what is dropped: a bias that is in every layer does not average out."""
    x = jnp.linspace(1, 2, 1 << 16, dtype=jnp.float32).reshape(1, 256, 256).astype(jnp.bfloat16)
    dropout = Dropout.of(seed=0, step=jnp.int32(0), rows=jnp.arange(1), embed=0.1, residual=0.1)
    out = np.asarray(dropout.drop(x, jnp.int32(0), "mlp"), np.float64)
    kept = out != 0

    assert out[kept].sum() / np.asarray(x, np.float64)[kept].sum() == pytest.approx(1 / 0.9, rel=3e-4)


def test_a_device_draws_its_own_part() -> None:
    """No value of the program is larger than a device's part of the activations."""
    layout = layout_over(context=4)
    parts = jax.NamedSharding(layout.mesh, P(None, "context"))
    x = jax.ShapeDtypeStruct((BATCH, LENGTH, EMBED), jnp.float32, sharding=parts)
    drop = jax.jit(lambda x: dropout(0.5, 4).drop(x, jnp.int32(0), "mlp"), out_shardings=parts)

    assert largest_buffer_bytes(drop.lower(x).compile()) == BATCH * LENGTH // 4 * EMBED * 4


def test_numbers_of_entries_go_on_above_32_bits() -> None:
    """The two words of an entry's number are right where the low one has run over, also within a position."""
    width = 5000
    positions = np.array([0, 1, 2**32 // width, 2**32 // width + 1, 3 * 2**32 // width], np.uint64)
    high, low = (np.asarray(word).astype(object) for word in entry_numbers(positions, width))

    expected = positions.astype(object)[:, None] * width + np.arange(width).astype(object)
    np.testing.assert_array_equal(high * 2**32 + low, expected)

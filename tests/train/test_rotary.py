"""Rotary positions: relative, length-keeping, interleaved, partial."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from shardwise.train.rotary import rotate


@pytest.fixture
def vectors() -> NDArray[np.float32]:
    """A query and a key, [2, 1, 1, head_size]."""
    return np.random.default_rng(0).normal(size=(2, 1, 1, 16)).astype(np.float32)


def score(vectors: NDArray[np.float32], query_at: int, key_at: int, rotary_dim: int) -> float:
    """The product of a query and a key at these positions."""
    query = rotate(jnp.asarray(vectors[:1]), rotary_dim, query_at)
    key = rotate(jnp.asarray(vectors[1:]), rotary_dim, key_at)
    return float(jnp.sum(query * key))


@pytest.mark.parametrize("rotary_dim", [2, 8, 16])
def test_scores_depend_on_the_distance_alone(vectors: NDArray[np.float32], rotary_dim: int) -> None:
    """Moving query and key together changes no score; moving one of them does."""
    near = score(vectors, 5, 3, rotary_dim)
    assert np.isclose(near, score(vectors, 105, 103, rotary_dim), rtol=1e-4)
    assert not np.isclose(near, score(vectors, 6, 3, rotary_dim), rtol=1e-4)


def test_position_zero_and_the_rest_of_a_head_are_untouched() -> None:
    """Position 0 turns nothing; features beyond the rotary ones never turn; lengths stay."""
    x = np.random.default_rng(1).normal(size=(2, 3, 7, 12)).astype(np.float32)
    turned = np.asarray(rotate(jnp.asarray(x), 8))
    assert np.array_equal(turned[:, :, 0], x[:, :, 0])
    assert np.array_equal(turned[..., 8:], x[..., 8:])
    assert not np.isclose(turned[:, :, 1:, :2], x[:, :, 1:, :2]).any()
    assert np.allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)


def test_neighbours_are_the_pairs() -> None:
    """The pair (0, 1) turns by one radian a position and (2, 3) by 1 / 100 of that: GPT-J's order, not GPT-NeoX's."""
    x = np.zeros((1, 1, 3, 4), np.float32)
    x[..., 0] = x[..., 2] = 1
    turned = np.asarray(rotate(jnp.asarray(x), 4))[0, 0]
    angles = np.arange(3)
    expected = [np.cos(angles), np.sin(angles), np.cos(angles / 100), np.sin(angles / 100)]
    assert np.allclose(turned, np.stack(expected, -1), atol=1e-6)


def test_later_rows_start_where_they_are_told() -> None:
    """Rows from `start` on equal the same rows of a whole sequence, in the input's dtype."""
    x = jnp.asarray(np.random.default_rng(2).normal(size=(1, 2, 6, 8)), jnp.bfloat16)
    part = rotate(x[:, :, 4:], 8, jnp.int32(4))
    assert part.dtype == jnp.bfloat16
    assert np.array_equal(np.asarray(part), np.asarray(rotate(x, 8)[:, :, 4:]))

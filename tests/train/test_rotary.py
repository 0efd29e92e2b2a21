"""Rotary positions: relative, length-keeping, interleaved, partial."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from shardwise.job.spec import RopeScaling
from shardwise.train.rotary import Rope, rotate


@pytest.fixture
def vectors() -> NDArray[np.float32]:
    """A query and a key, [2, 1, 1, head_size]."""
    return np.random.default_rng(0).normal(size=(2, 1, 1, 16)).astype(np.float32)


def score(vectors: NDArray[np.float32], query_at: int, key_at: int, rotary_dim: int) -> float:
    """The product of a query and a key at these positions."""
    query = rotate(jnp.asarray(vectors[:1]), Rope(dim=rotary_dim), query_at)
    key = rotate(jnp.asarray(vectors[1:]), Rope(dim=rotary_dim), key_at)
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
    turned = np.asarray(rotate(jnp.asarray(x), Rope(dim=8)))
    assert np.array_equal(turned[:, :, 0], x[:, :, 0])
    assert np.array_equal(turned[..., 8:], x[..., 8:])
    assert not np.isclose(turned[:, :, 1:, :2], x[:, :, 1:, :2]).any()
    assert np.allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)


def test_a_block_without_positions_turns_nothing() -> None:
    """To the last bit, whatever scaling the others have; a block that has positions turns as if nobody had asked."""
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 7, 12)), jnp.bfloat16)
    scaling = RopeScaling(kind="yarn", factor=4.0, original_seq_len=16, attention_factor=1.5)
    for rope in (Rope(dim=8), Rope(dim=12, pairs="half", scaling=scaling)):
        assert np.array_equal(np.asarray(rotate(x, rope, is_turned=jnp.array(False))), np.asarray(x))
        assert np.array_equal(np.asarray(rotate(x, rope, is_turned=jnp.array(True))), np.asarray(rotate(x, rope)))


def test_neighbours_are_the_pairs() -> None:
    """The pair (0, 1) turns by one radian a position and (2, 3) by 1 / 100 of that: GPT-J's order, not GPT-NeoX's."""
    x = np.zeros((1, 1, 3, 4), np.float32)
    x[..., 0] = x[..., 2] = 1
    turned = np.asarray(rotate(jnp.asarray(x), Rope(dim=4)))[0, 0]
    angles = np.arange(3)
    expected = [np.cos(angles), np.sin(angles), np.cos(angles / 100), np.sin(angles / 100)]
    assert np.allclose(turned, np.stack(expected, -1), atol=1e-6)


def test_later_rows_start_where_they_are_told() -> None:
    """Rows from `start` on equal the same rows of a whole sequence, in the input's dtype."""
    x = jnp.asarray(np.random.default_rng(2).normal(size=(1, 2, 6, 8)), jnp.bfloat16)
    part = rotate(x[:, :, 4:], Rope(dim=8), jnp.int32(4))
    assert part.dtype == jnp.bfloat16
    assert np.array_equal(np.asarray(part), np.asarray(rotate(x, Rope(dim=8))[:, :, 4:]))


def angles(rope: Rope, *, is_local: bool | None = None) -> NDArray[np.float64]:
    """The angle of each pair at position 1."""
    half = rope.dim // 2
    x = np.zeros((1, 1, 2, rope.dim), np.float32)
    x[..., :half] = 1
    local = None if is_local is None else jnp.bool_(is_local)
    turned = np.asarray(rotate(jnp.asarray(x), rope, 0, local), np.float64)[0, 0, 1]
    found: NDArray[np.float64] = np.arctan2(turned[half:], turned[:half])
    return found


def test_halves_are_the_pairs_where_asked() -> None:
    """With pairs: half, GPT-NeoX's order, feature i turns with i + dim / 2, by the same angles."""
    expected = 1 / 10_000.0 ** (np.arange(4) / 4)
    assert np.allclose(angles(Rope(dim=8, pairs="half")), expected, rtol=1e-5)
    assert np.allclose(angles(Rope(dim=8, pairs="half", theta=100.0)), 1 / 100 ** (np.arange(4) / 4), rtol=1e-5)


def test_a_linear_scaling_turns_everything_slower() -> None:
    """Every angle is divided by the factor."""
    plain = Rope(dim=8, pairs="half")
    scaled = Rope(dim=8, pairs="half", scaling=RopeScaling(kind="linear", factor=4.0))
    assert np.allclose(angles(scaled), angles(plain) / 4, rtol=1e-5)


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_the_other_scalings_spare_the_fast_pairs(kind: str) -> None:
    """The fastest pair turns as before, the slowest by the factor less, and those between lie between."""
    scaling = RopeScaling(kind=kind, factor=8.0, original_seq_len=8192, attention_factor=1.0)  # type: ignore[arg-type]
    plain = angles(Rope(dim=64, pairs="half"))
    ratio = plain / angles(Rope(dim=64, pairs="half", scaling=scaling))
    assert np.isclose(ratio[0], 1, rtol=1e-5)
    assert np.isclose(ratio[-1], 8, rtol=1e-5)
    assert (np.diff(ratio) > -1e-4).all()


@pytest.mark.parametrize(
    ("dim", "theta", "yarn"),
    [
        (64, 150_000.0, {"factor": 32.0, "original_seq_len": 4096}),
        (16, 100.0, {"factor": 3.0, "original_seq_len": 8}),
        # All pairs make fewer turns: without whole pairs the ramp ends before it begins, and nothing is stretched.
        (4, 100.0, {"factor": 4.4, "original_seq_len": 7, "beta_fast": 4.0, "beta_slow": 1.9}),
    ],
)
@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_stretches_from_pair_to_pair(dim: int, theta: float, yarn: dict[str, float], *, truncate: bool) -> None:
    """By the authors' formula, whose ramp begins and ends at whole pairs if it is truncated and else between them."""
    scaling = RopeScaling(kind="yarn", attention_factor=1.0, truncate=truncate, **yarn)  # type: ignore[arg-type]
    found = angles(Rope(dim=dim, pairs="half", theta=theta, scaling=scaling))
    plain = theta ** -(np.arange(0, dim, 2) / dim)
    turns = np.array([scaling.beta_fast, scaling.beta_slow])
    bounds = dim * np.log((scaling.original_seq_len or 0) / (turns * 2 * np.pi)) / (2 * np.log(theta))
    if truncate:
        bounds = np.array([np.floor(bounds[0]), np.ceil(bounds[1])])
    low, high = max(bounds[0], 0), min(bounds[1], dim - 1)
    slow = np.clip((np.arange(dim // 2) - low) / (high - low if high != low else 0.001), 0, 1)
    assert np.allclose(found, plain * (1 - slow) + plain / scaling.factor * slow, rtol=1e-5)


def test_yarn_multiplies_what_is_turned() -> None:
    """Lengths grow by the attention factor."""
    scaling = RopeScaling(kind="yarn", factor=8.0, original_seq_len=64, attention_factor=1.2)
    x = np.random.default_rng(1).normal(size=(1, 1, 3, 8)).astype(np.float32)
    turned = np.asarray(rotate(jnp.asarray(x), Rope(dim=8, pairs="half", scaling=scaling)))
    assert np.allclose(np.linalg.norm(turned, axis=-1), 1.2 * np.linalg.norm(x, axis=-1), rtol=1e-5)


LONG = RopeScaling(
    kind="longrope",
    factor=8.0,
    original_seq_len=64,
    attention_factor=1.2,
    short_factors=(1.0, 1.5, 2.0, 3.0),
    long_factors=(1.0, 4.0, 9.0, 20.0),
)


@pytest.mark.parametrize(("seq_len", "factors"), [(64, LONG.short_factors), (65, LONG.long_factors)])
def test_longrope_stretches_each_pair_by_its_factor(seq_len: int, factors: tuple[float, ...]) -> None:
    """By those of short sequences up to the first training's positions; lengths grow by the attention factor."""
    rope = Rope(dim=8, pairs="half", scaling=LONG, seq_len=seq_len)
    assert np.allclose(angles(rope), angles(Rope(dim=8, pairs="half")) / np.array(factors), rtol=1e-5)
    x = np.random.default_rng(1).normal(size=(1, 1, 3, 8)).astype(np.float32)
    turned = np.asarray(rotate(jnp.asarray(x), rope))
    assert np.allclose(np.linalg.norm(turned, axis=-1), 1.2 * np.linalg.norm(x, axis=-1), rtol=1e-5)


def test_local_blocks_turn_by_their_own_base_unscaled() -> None:
    """Where the block has a window the local base counts, and no scaling."""
    rope = Rope(dim=8, pairs="half", theta=1e6, local_theta=100.0, scaling=RopeScaling(kind="linear", factor=4.0))
    assert np.allclose(angles(rope, is_local=True), angles(Rope(dim=8, pairs="half", theta=100.0)), rtol=1e-5)
    assert np.allclose(angles(rope, is_local=False), angles(Rope(dim=8, pairs="half", theta=1e6)) / 4, rtol=1e-5)

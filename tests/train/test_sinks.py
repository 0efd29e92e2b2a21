"""Attention sinks: one more logit in every softmax, whichever kernel computes it and however sequences are split."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.long import all_but
from tests.train.grids import layout_over
from tests.train.test_attention import BATCH, HEADS, assert_close, inputs
from tests.train.test_context import over_context

from shardwise.job.kernels import Kernel
from shardwise.job.spec.training import ContextStrategy
from shardwise.train import context, splash_tiles
from shardwise.train.attention import blockwise, plain, splash
from shardwise.train.scores import Scores
from shardwise.train.splash import splash_kernel
from shardwise.train.splash_tiles import tile_kernel

Array = jax.Array
WINDOWS = [Scores(), Scores(40, softcap=5.0), Scores(40, jnp.array(True)), Scores(40, jnp.array(False))]
ids = ["all", "window", "this layer's window", "another layer's window"]


def heads_for_two(length: int, size: int) -> tuple[Array, Array, Array, Array | None]:
    """Inputs of packed documents whose heads of keys are for two of queries."""
    q, k, v, segments = inputs(length, size, documents=True)
    return jnp.concatenate([q, 2 * q], axis=1), k, v, segments


def with_gradients(
    kernel: Callable[..., Array], q: Array, k: Array, v: Array, segments: Array | None
) -> tuple[Array, ...]:
    """A kernel's output with sinks, some above all scores, and the gradients of queries, keys, values and sinks."""
    weights = jnp.cos(jnp.arange(q.size)).reshape(q.shape)
    sinks = jnp.linspace(-3.0, 6.0, q.shape[1])

    def total(q: Array, k: Array, v: Array, sinks: Array) -> tuple[Array, Array]:
        out = kernel(q, k, v, segments, sinks=sinks)
        return (out * weights).sum(), out

    grads, out = jax.jit(jax.grad(total, argnums=(0, 1, 2, 3), has_aux=True))(q, k, v, sinks)
    return out, *grads


def test_plain_is_its_definition() -> None:
    """Each head's sink is in the sum that its powers are divided by, and adds nothing to the values."""
    q, k, v, segments = inputs(12, 4, documents=True)
    assert segments is not None
    sinks = jnp.array([0.7, -2.0])
    out = plain(q, k, v, segments, sinks=sinks)
    for batch, head, at in np.ndindex(BATCH, HEADS, 12):
        seen = np.flatnonzero((np.arange(12) <= at) & (np.asarray(segments[batch]) == segments[batch, at]))
        powers = np.exp(np.asarray(k[batch, head])[seen] @ np.asarray(q[batch, head, at]))
        mean = powers @ np.asarray(v[batch, head])[seen] / (powers.sum() + np.exp(sinks[head]))
        assert np.allclose(out[batch, head, at], mean, atol=1e-5)


@pytest.mark.parametrize("scores", WINDOWS, ids=ids)
def test_blockwise_equals_plain(scores: Scores) -> None:
    """Output and gradients, in blocks that lie across documents."""
    q, k, v, segments = heads_for_two(128, 8)
    found = with_gradients(partial(blockwise, block=32, scores=scores), q, k, v, segments)
    assert_close(found, with_gradients(partial(plain, scores=scores), q, k, v, segments), 1e-5)


@pytest.mark.parametrize("scores", WINDOWS[1:3], ids=ids[1:3])
def test_splash_equals_plain(scores: Scores) -> None:
    """The TPU kernel, interpreted on two devices over batch and heads: output and gradients."""
    q, k, v, segments = heads_for_two(256, 128)
    expected = with_gradients(partial(plain, scores=scores), q, k, v, segments)
    with jax.set_mesh(layout_over(outer=2, tensor=2).mesh):
        found = with_gradients(partial(splash, scores=scores, interpret=True), q, k, v, segments)
    assert_close(jax.device_get(found), expected, 1e-5)


def test_the_gradient_of_sinks_is_in_float32_beside_bfloat16() -> None:
    """By each kernel, also the one for TPUs, whose own is in the format of the values: sums over sequences would be."""
    q, k, v, segments = heads_for_two(128, 128)
    low_q, low_k, low_v = (x.astype(jnp.bfloat16) for x in (q, k, v))
    expected = with_gradients(plain, q, k, v, segments)[-1]
    with jax.set_mesh(layout_over(outer=1).mesh):
        for kernel in (plain, blockwise, partial(splash, interpret=True)):
            found = with_gradients(kernel, low_q, low_k, low_v, segments)[-1]
            assert found.dtype == jnp.float32
            np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("strategy", ["gather", "ring"])
@pytest.mark.parametrize("kernel", ["plain", "blockwise"])
@pytest.mark.parametrize("scores", WINDOWS, ids=ids)
def test_split_sequences_have_the_numbers_of_one_device(
    kernel: Kernel, strategy: ContextStrategy, scores: Scores
) -> None:
    """Gathered or around a ring, beside devices of other sequences and heads: output and gradients."""
    q, k, v, segments = heads_for_two(128, 8)
    expected = with_gradients(partial(plain, scores=scores), q, k, v, segments)
    layout = layout_over(outer=2, context=2, tensor=2)
    with jax.set_mesh(layout.mesh):
        found = with_gradients(partial(over_context, layout, kernel, scores, strategy=strategy), q, k, v, segments)
    assert_close(jax.device_get(found), expected, 1e-5)


@pytest.mark.parametrize("strategy", all_but(["ring"], ["gather", "ring"]))
def test_splash_of_split_sequences_has_the_numbers_of_one_device(
    monkeypatch: pytest.MonkeyPatch, strategy: ContextStrategy
) -> None:
    """The TPU kernel, interpreted: output and gradients."""
    monkeypatch.setattr(context, "splash_kernel", partial(splash_kernel, interpret=True))
    monkeypatch.setattr(splash_tiles, "tile_kernel", partial(tile_kernel, interpret=True))
    q, k, v, segments = heads_for_two(512, 128)
    scores = Scores(200, jnp.array(True))
    expected = with_gradients(partial(plain, scores=scores), q, k, v, segments)
    layout = layout_over(context=2, tensor=2)
    with jax.set_mesh(layout.mesh):
        found = with_gradients(partial(over_context, layout, "splash", scores, strategy=strategy), q, k, v, segments)
    assert_close(jax.device_get(found), expected, 1e-5)

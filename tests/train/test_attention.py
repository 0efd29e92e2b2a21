"""Attention kernels: all equal to the plain one, and the plain one equal to its definition."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.train.grids import layout_over

from shardwise.plan.flops import traced_flops
from shardwise.train.attention import attend, blockwise, cudnn, plain, splash
from shardwise.train.scores import Scores

Array = jax.Array
Kernel = Callable[..., Array]
BATCH, HEADS = 2, 2


def inputs(length: int, size: int, *, documents: bool) -> tuple[Array, Array, Array, Array | None]:
    """Random q (scaled), k, v, and segments that change within blocks and at their edges."""
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(BATCH, HEADS, length, size)), jnp.float32) for _ in range(3))
    starts = np.zeros((BATCH, length), np.int32)
    starts[0, [length // 4, length // 2, length - 1]] = 1
    starts[1, [3, length // 4 + 1]] = 1
    return q / np.sqrt(size), k, v, jnp.asarray(np.cumsum(starts, 1, dtype=np.int32)) if documents else None


def with_gradients(kernel: Kernel, q: Array, k: Array, v: Array, segments: Array | None) -> tuple[Array, ...]:
    """A kernel's output and the gradients of a sum that weighs every entry differently."""
    weights = jnp.cos(jnp.arange(q.size)).reshape(q.shape)

    def total(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
        out = kernel(q, k, v, segments)
        return (out * weights).sum(), out

    grads, out = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    return out, *grads


def assert_close(one: tuple[Array, ...], other: tuple[Array, ...], tolerance: float) -> None:
    """Equal but for rounding, against the largest entry of each array."""
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype
        assert float(jnp.abs(a - b).max()) < tolerance * float(jnp.abs(b).max())


def test_plain_is_its_definition() -> None:
    """Every row is the softmax-weighted mean of the values at its own document's earlier positions, and its own."""
    q, k, v, segments = inputs(12, 4, documents=True)
    assert segments is not None
    out = plain(q, k, v, segments)
    for batch, head, at in np.ndindex(BATCH, HEADS, 12):
        seen = np.flatnonzero((np.arange(12) <= at) & (np.asarray(segments[batch]) == segments[batch, at]))
        powers = np.exp(np.asarray(k[batch, head])[seen] @ np.asarray(q[batch, head, at]))
        mean = powers @ np.asarray(v[batch, head])[seen] / powers.sum()
        assert np.allclose(out[batch, head, at], mean, atol=1e-5)


@pytest.mark.parametrize("documents", [False, True])
def test_blockwise_equals_plain(*, documents: bool) -> None:
    """Four blocks give the plain output and gradients, with and without documents."""
    arrays = inputs(64, 8, documents=documents)
    blocks = with_gradients(partial(blockwise, block=16), *arrays)
    assert_close(blocks, with_gradients(plain, *arrays), 1e-5)


def test_shared_heads_are_repeated_heads() -> None:
    """Keys and values with a head for every three of queries give what three copies of each would, gradients too."""
    q, k, v, segments = inputs(64, 8, documents=True)
    q = jnp.concatenate([q, 2 * q, 3 * q], axis=1)

    def repeated(q: Array, k: Array, v: Array, segments: Array | None) -> Array:
        return plain(q, jnp.repeat(k, 3, axis=1), jnp.repeat(v, 3, axis=1), segments)

    expected = with_gradients(repeated, q, k, v, segments)
    for kernel in (plain, partial(blockwise, block=16)):
        assert_close(with_gradients(kernel, q, k, v, segments), expected, 1e-5)


@pytest.mark.parametrize("window", [2, 5, 16, 40, 64])
def test_a_window_hides_what_lies_before_it(window: int) -> None:
    """A query sees itself and the window's other keys: those before may be anything. Blocks make no difference."""
    q, k, v, _ = inputs(64, 8, documents=False)
    scores = Scores(window=window)
    out = plain(q, k, v, None, scores=scores)
    for at in (0, 13, 63):
        first = max(0, at - window + 1)
        powers = jnp.exp(jnp.einsum("bhd,bhkd->bhk", q[:, :, at], k[:, :, first : at + 1]))
        mean = jnp.einsum("bhk,bhkd->bhd", powers, v[:, :, first : at + 1]) / powers.sum(-1, keepdims=True)
        assert np.allclose(out[:, :, at], mean, atol=1e-5)
    by_blocks = with_gradients(partial(blockwise, block=16, scores=scores), q, k, v, None)
    assert_close(by_blocks, with_gradients(partial(plain, scores=scores), q, k, v, None), 1e-5)


def test_a_cap_bends_the_scores() -> None:
    """Scores become cap tanh(score / cap): a wide cap changes nothing, and blocks make no difference."""
    q, k, v, segments = inputs(64, 8, documents=True)
    q = 5 * q
    narrow, wide = Scores(softcap=2.0), Scores(softcap=1e4)
    assert np.allclose(plain(q, k, v, segments, scores=wide), plain(q, k, v, segments), atol=1e-4)
    bent = plain(q, k, v, segments, scores=narrow)
    assert not np.allclose(bent, plain(q, k, v, segments), atol=1e-2)
    scores = 2 * jnp.tanh(jnp.einsum("bhd,bhkd->bhk", q[:, :, 2], k[:, :, :3]) / 2)
    mean = jnp.einsum("bhk,bhkd->bhd", jax.nn.softmax(scores), v[:, :, :3])
    assert np.allclose(plain(q, k, v, None, scores=narrow)[:, :, 2], mean, atol=1e-5)
    by_blocks = with_gradients(partial(blockwise, block=16, scores=narrow), q, k, v, segments)
    assert_close(by_blocks, with_gradients(partial(plain, scores=narrow), q, k, v, segments), 1e-5)


@pytest.mark.parametrize("length", [15, 20, 33, 40, 63])
@pytest.mark.parametrize("window", [None, 7, 20])
def test_blockwise_takes_any_length(length: int, window: int | None) -> None:
    """A length that blocks do not divide gives the plain output and gradients too."""
    arrays, scores = inputs(length, 8, documents=True), Scores(window=window)
    blocks = with_gradients(partial(blockwise, block=16, scores=scores), *arrays)
    assert_close(blocks, with_gradients(partial(plain, scores=scores), *arrays), 1e-5)


@pytest.mark.parametrize("extra", [0, 24])
def test_memory_of_blockwise_grows_with_the_positions(extra: int) -> None:
    """Four times the positions take about four times the memory, gradients included, at any length."""

    def held(length: int) -> int:
        q, k, v, segments = inputs(length, 32, documents=True)
        loss = lambda q, k, v: blockwise(q, k, v, segments, block=32).sum()  # noqa: E731
        memory = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(q, k, v).compile().memory_analysis()
        assert memory is not None
        return int(memory.temp_size_in_bytes)

    assert held(1024 + extra) < 5 * held(256 + extra)


def test_blocks_before_a_window_are_not_computed() -> None:
    """With a window in every layer the products grow with the positions, not with their square."""

    def products(length: int) -> int:
        q, k, v, _ = inputs(length, 8, documents=False)
        attended = partial(blockwise, block=16, scores=Scores(window=20))
        return traced_flops(jax.make_jaxpr(lambda q, k, v: attended(q, k, v, None))(q, k, v).jaxpr, {})

    assert products(1024) < 4.5 * products(256)


def test_blockwise_holds_no_square_of_scores() -> None:
    """The compiled forward and backward pass have no buffer of queries x keys."""
    q, k, v, _ = inputs(128, 8, documents=False)
    loss = lambda q, k, v: blockwise(q, k, v, None, block=32).sum()  # noqa: E731
    text = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(q, k, v).compile().as_text()
    assert text is not None
    assert "128,128]" not in text
    assert "32,32]" in text


@pytest.mark.parametrize("documents", [False, True])
def test_splash_equals_plain(*, documents: bool) -> None:
    """The TPU kernel, interpreted on two devices over batch and heads, gives the plain output."""
    q, k, v, segments = inputs(128, 128, documents=documents)
    with jax.set_mesh(layout_over(tensor=2).mesh):
        out = jax.jit(partial(splash, interpret=True))(q, k, v, segments)
    assert_close((out,), (plain(q, k, v, segments),), 1e-5)


@pytest.mark.parametrize("in_window", [None, False, True])
def test_splash_bends_and_hides_scores_as_plain_does(*, in_window: bool | None) -> None:
    """A window in every layer or in this one, a cap, heads of keys for two of queries: output and gradients."""
    q, k, v, segments = inputs(256, 128, documents=True)
    q = jnp.concatenate([q, 2 * q], axis=1)
    scores = Scores(window=100, in_window=None if in_window is None else jnp.array(in_window), softcap=5.0)
    with jax.set_mesh(layout_over(tensor=2).mesh):
        found = with_gradients(partial(splash, scores=scores, interpret=True), q, k, v, segments)
    assert_close(found, with_gradients(partial(plain, scores=scores), q, k, v, segments), 1e-5)


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="cuDNN's attention needs a GPU")
@pytest.mark.parametrize("documents", [False, True])
def test_cudnn_equals_plain(*, documents: bool) -> None:
    """The GPU kernel gives the plain output on 16-bit inputs, within their rounding."""
    q, k, v, segments = inputs(256, 64, documents=documents)
    q, k, v = (x.astype(jnp.bfloat16) for x in (q, k, v))
    out = cudnn(q, k, v, segments).astype(jnp.float32)
    assert_close((out,), (plain(q, k, v, segments).astype(jnp.float32),), 2e-2)


@pytest.mark.parametrize("kernel", [plain, partial(blockwise, block=16)], ids=["plain", "blockwise"])
def test_scores_are_float32_up_to_the_softmax(kernel: Kernel) -> None:
    """With 16-bit inputs and large scores the output is off by its own rounding, not by that of 16-bit scores.

    Scores of a deviation of 8 differ by whole units where they matter; rounded to 8 bits their error is a tenth.
    """
    q, k, v, _ = inputs(64, 64, documents=False)
    q, k, v = (x.astype(jnp.bfloat16) for x in (8 * q, k, v))
    exact = plain(q.astype(jnp.float32), k.astype(jnp.float32), v.astype(jnp.float32), None)
    error = jnp.sqrt(jnp.mean((kernel(q, k, v, None).astype(jnp.float32) - exact) ** 2) / jnp.mean(exact**2))
    assert float(error) < 0.004


def test_attend_takes_the_kernel_that_is_named() -> None:
    """`attend` is the named kernel, in the inputs' dtype."""
    q, k, v, segments = inputs(32, 8, documents=True)
    q, k, v = (x.astype(jnp.bfloat16) for x in (q, k, v))
    for kernel, function in (("plain", plain), ("blockwise", blockwise)):
        out = attend(q, k, v, segments, kernel=kernel)  # type: ignore[arg-type]
        assert out.dtype == jnp.bfloat16
        assert np.array_equal(np.asarray(out), np.asarray(function(q, k, v, segments)))

"""The loss by blocks equals the plain one, with its gradients, and never makes the whole logits."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.train.buffers import largest_buffer_bytes
from tests.train.grids import layout_over

from shardwise.train.factors import Bend
from shardwise.train.loss import Head, HeadLoss, LossSums, Tokens, head_loss
from shardwise.train.table import Table, copies

Loss = Callable[..., LossSums]
BATCH, POSITION, EMBED, VOCAB, REAL_VOCAB = 8, 24, 32, 256, 200
Z_LOSS = 1e-2


FLOAT32 = jnp.dtype(jnp.float32)


def _settings(
    *, block_tokens: int = 16, vocab: int = REAL_VOCAB, z_loss: float = Z_LOSS, by_position: bool = False
) -> HeadLoss:
    return HeadLoss(vocab, block_tokens, z_loss, by_position, compute=FLOAT32, wire=FLOAT32, logits=FLOAT32)


def _inputs() -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((BATCH, POSITION, EMBED)).astype(np.float32)
    head = rng.standard_normal((EMBED, VOCAB)).astype(np.float32)
    bias = rng.standard_normal(VOCAB).astype(np.float32)
    targets = rng.integers(0, REAL_VOCAB, (BATCH, POSITION)).astype(np.int32)
    weights = (rng.random((BATCH, POSITION)) < 0.8).astype(np.float32)
    return tuple(jnp.asarray(x) for x in (hidden, head, bias, targets, weights))


def _plain(hidden: jax.Array, head: jax.Array, bias: jax.Array, targets: jax.Array, weights: jax.Array) -> LossSums:
    """All logits at once, from the definition; the vocabulary's padding is cut off."""
    logits = (jnp.einsum("bse,ev->bsv", hidden, head) + bias)[..., :REAL_VOCAB]
    log_z = jax.nn.logsumexp(logits, axis=-1)
    entropy = (log_z - jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]) * weights
    z_squared = log_z**2 * weights
    correct = (logits.argmax(-1) == targets) * weights
    return LossSums((entropy + Z_LOSS * z_squared).sum(), entropy.sum(), z_squared.sum(), correct.sum(), weights.sum())


def _ours(settings: HeadLoss, *, fsdp: bool = True) -> Loss:
    def loss(hidden: jax.Array, table: jax.Array, bias: jax.Array, targets: jax.Array, weights: jax.Array) -> LossSums:
        whole = copies(Table(fsdp, FLOAT32, FLOAT32), table)
        return head_loss(settings, Head(whole, bias), Tokens(hidden, targets, weights))

    return loss


def _with_gradients(loss: Loss, inputs: Sequence[jax.Array]) -> tuple[LossSums, tuple[jax.Array, ...]]:
    """The sums, and the derivatives of the total in hidden, table and bias."""

    def total(*args: jax.Array) -> tuple[jax.Array, LossSums]:
        sums = loss(*args)
        return sums.total, sums

    (_, sums), gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))(*inputs)
    return sums, gradients


@pytest.mark.parametrize(
    ("mesh", "fsdp", "block_tokens"),
    [
        ({}, True, 7),
        ({"outer": 4, "tensor": 2}, True, 16),
        ({"outer": 2, "inner": 2, "tensor": 2}, True, 7),
        ({"outer": 2, "tensor": 4}, False, 16),
        ({"tensor": 8}, True, 10_000),
    ],
    ids=str,
)
def test_sums_and_gradients_equal_the_plain_loss(
    mesh: dict[str, int],
    fsdp: bool,  # noqa: FBT001 - a column of the table
    block_tokens: int,
) -> None:
    """Cross entropy, z-loss, accuracy and all gradients, whatever the mesh and the block's size."""
    inputs = _inputs()
    expected, gradients = _with_gradients(_plain, inputs)
    settings = _settings(block_tokens=block_tokens, by_position=mesh.get("tensor", 1) > 1)
    with jax.set_mesh(layout_over(**mesh, fsdp=fsdp).mesh):
        actual, ours = _with_gradients(_ours(settings, fsdp=fsdp), inputs)

    np.testing.assert_allclose(jax.tree.leaves(actual), jax.tree.leaves(expected), rtol=2e-6)
    for mine, plain in zip(ours, gradients, strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("divisor", "cap"), [(1.0, 3.0), (2.5, 3.0), (2.5, None)])
def test_bent_logits_have_the_gradients_of_their_definition(divisor: float, cap: float | None) -> None:
    """With a softcap of c the loss is that of c tanh(logits / c), and so are all gradients, split or not.

    Of logits that are divided by a number it is that of those, which the softcap bends.
    """
    inputs = _inputs()

    def bent(hidden: jax.Array, head: jax.Array, bias: jax.Array, targets: jax.Array, weights: jax.Array) -> LossSums:
        logits = (jnp.einsum("bse,ev->bsv", hidden, head) + bias) / divisor
        logits = logits if cap is None else cap * jnp.tanh(logits / cap)
        # `_plain` with these logits as the only hidden states, times the identity.
        return _plain(logits, jnp.eye(VOCAB), jnp.zeros(VOCAB), targets, weights)

    expected, gradients = _with_gradients(bent, inputs)
    for mesh in ({}, {"outer": 2, "tensor": 4}):
        settings = _settings(by_position="tensor" in mesh)._replace(bend=Bend(divisor, cap))
        with jax.set_mesh(layout_over(**mesh, fsdp=True).mesh):
            actual, ours = _with_gradients(_ours(settings), inputs)
        np.testing.assert_allclose(jax.tree.leaves(actual), jax.tree.leaves(expected), rtol=2e-6)
        for mine, plain in zip(ours, gradients, strict=True):
            np.testing.assert_allclose(mine, plain, rtol=1e-4, atol=1e-5)


def test_the_paddings_entries_stay_what_they_are() -> None:
    """The head's entries beyond the real vocabulary get no gradient, and evaluation gives the sums of training."""
    inputs = _inputs()
    with jax.set_mesh(layout_over(outer=4, tensor=2).mesh):
        trained, (_, table, bias) = _with_gradients(_ours(_settings()), inputs)
        evaluated = jax.jit(_ours(_settings()))(*inputs)

    assert not np.asarray(table)[:, REAL_VOCAB:].any()
    assert not np.asarray(bias)[REAL_VOCAB:].any()
    assert np.asarray(table)[:, :REAL_VOCAB].any()
    np.testing.assert_allclose(jax.tree.leaves(evaluated), jax.tree.leaves(trained), rtol=1e-6)


@pytest.mark.parametrize(("data", "tensor"), [(4, 2), (2, 4)])
def test_no_buffer_is_larger_than_block_tokens_times_local_vocabulary(data: int, tensor: int) -> None:
    """With a vocabulary that dwarfs all else, the compiled loss and its gradients hold one block's logits at most."""
    batch, position, embed, vocab, block_tokens = 16, 64, 8, 8192, 32
    layout = layout_over(outer=data, tensor=tensor)
    settings = _settings(vocab=vocab, block_tokens=block_tokens, z_loss=0.0)
    rows, table = layout.batch, layout.stored(("embed", "vocab"))
    shapes = (
        jax.ShapeDtypeStruct((batch, position, embed), jnp.float32, sharding=rows),
        jax.ShapeDtypeStruct((embed, vocab), jnp.float32, sharding=table),
        jax.ShapeDtypeStruct((batch, position), jnp.int32, sharding=rows),
        jax.ShapeDtypeStruct((batch, position), jnp.float32, sharding=rows),
    )

    def total(hidden: jax.Array, weight: jax.Array, targets: jax.Array, weights: jax.Array) -> jax.Array:
        whole = copies(Table(fsdp=True, compute=FLOAT32, wire=FLOAT32), weight)
        return head_loss(settings, Head(whole, None), Tokens(hidden, targets, weights)).total

    with jax.set_mesh(layout.mesh):
        gradients = jax.jit(jax.grad(total, argnums=(0, 1)), out_shardings=(rows, table))
        compiled = gradients.lower(*shapes).compile()

    block_bytes = block_tokens * vocab // tensor * 4
    assert largest_buffer_bytes(compiled) <= block_bytes
    assert batch * position // data * vocab // tensor * 4 > 4 * block_bytes  # the whole local logits would stand out


def test_the_z_loss_is_on_the_true_log_denominator() -> None:
    """Logits that are all shifted by c shift log Z by c: subtracting the maximum before squaring would hide it."""
    hidden, table, _, targets, weights = _inputs()
    with jax.set_mesh(layout_over().mesh):
        z_of = jax.jit(lambda bias: _ours(_settings())(hidden, table, bias, targets, weights).z_squared)
        low, high = (float(z_of(jnp.full(VOCAB, shift))) for shift in (0.0, 50.0))

    assert high > low + 1000

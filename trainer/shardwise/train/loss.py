"""Cross entropy of the head by blocks of tokens, its gradients made in the same pass; the whole logits never exist.

Called by the model's loss. One shard_map over data and tensor: the head is gathered over data once and its gradient
reduce-scattered once; the vocabulary stays split over tensor, so the largest buffer is block tokens x local vocabulary.
Vocabulary padding is masked out of the loss, the z-loss and the accuracy.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

Array = jax.Array
MANUAL = {"data", "context", "pipeline", "tensor"}


class LossSums(NamedTuple):
    """Sums over tokens, float32 scalars; divide by `weight` once, after all microbatches and replicas."""

    total: Array
    """Cross entropy plus z-loss: what is minimised."""
    cross_entropy: Array
    """Nats."""
    z_squared: Array
    """Squared log of the softmax's denominator."""
    correct: Array
    """Weight of the tokens whose target has the largest logit."""
    weight: Array


class HeadLoss(NamedTuple):
    """The loss's settings."""

    vocab_size: int
    """Real entries of the vocabulary; the head's further rows are padding."""
    block_tokens: int
    """Tokens of one block on one device."""
    z_loss: float
    """Factor of the squared log denominator."""
    fsdp: bool
    """Whether the head's columns are split over data."""
    reduce_float32: bool
    """Sum the head's gradient over devices in float32 instead of the compute dtype."""
    logits: jnp.dtype
    """What logits are rounded to; all that follows them is float32."""


class Blocks(NamedTuple):
    """What a scan over blocks of tokens takes: [blocks, tokens, ...]."""

    hidden: Array
    targets: Array
    weights: Array


def head_loss(hidden: Array, head: Array, bias: Array, targets: Array, weights: Array, settings: HeadLoss) -> LossSums:
    """Sums of the token losses of softmax(hidden head^T + bias).

    Args:
        hidden: [batch, position, embed], batch over data.
        head: [vocab, embed], vocab over tensor and, with fsdp, embed over data.
        bias: [vocab] over tensor; zeros where the model has none.
        targets: int32 [batch, position]; weights: float32 [batch, position], 0 leaves a token out.
        settings: see `HeadLoss`.

    Returns:
        The sums over all tokens of this replica; only `total` is differentiated, in hidden, head and bias.

    """
    return _sums(settings, hidden, head, bias, targets, weights)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sums(settings: HeadLoss, hidden: Array, head: Array, bias: Array, targets: Array, weights: Array) -> LossSums:
    return _mapped(settings, with_gradients=False)(hidden, head, bias, targets, weights)[0]


def _forward(settings: HeadLoss, *args: Array) -> tuple[LossSums, tuple[Array, Array, Array]]:
    sums, *gradients = _mapped(settings, with_gradients=True)(*args)
    return sums, tuple(gradients)


def _backward(_: HeadLoss, gradients: tuple[Array, Array, Array], cotangent: LossSums) -> tuple[Array | None, ...]:
    hidden, head, bias = ((cotangent.total * g).astype(g.dtype) for g in gradients)
    return hidden, head, bias, None, None


_sums.defvjp(_forward, _backward)


def _mapped(settings: HeadLoss, *, with_gradients: bool):  # type: ignore[no-untyped-def]  # noqa: ANN202
    rows, table, row = P("data"), P("tensor", "data" if settings.fsdp else None), P("tensor")
    sums = LossSums(P(), P(), P(), P(), P())
    out = (sums, rows, table, row) if with_gradients else (sums,)
    local = partial(_local, settings, with_gradients)
    return jax.shard_map(local, in_specs=(rows, table, row, rows, rows), out_specs=out, axis_names=MANUAL, check_vma=False)


def _local(
    settings: HeadLoss, with_gradients: bool, hidden: Array, head: Array, bias: Array, targets: Array, weights: Array
) -> tuple[LossSums] | tuple[LossSums, Array, Array, Array]:
    """One device's tokens against its part of the vocabulary."""
    if settings.fsdp:
        head = jax.lax.all_gather(head, "data", axis=1, tiled=True)
    blocks = _cut(hidden, targets, weights, settings.block_tokens)
    block = partial(_block, settings, with_gradients, head, bias.astype(jnp.float32))
    zeros = jnp.zeros(head.shape, jnp.float32), jnp.zeros(bias.shape, jnp.float32)
    (head_grad, bias_grad), (sums, hidden_grad) = jax.lax.scan(block, zeros if with_gradients else (None, None), blocks)
    sums = LossSums(*(jax.lax.psum(s.sum(), "data") for s in sums))
    if not with_gradients:
        return (sums,)
    hidden_grad = hidden_grad.reshape(-1, hidden.shape[-1])[: targets.size].reshape(hidden.shape)
    hidden_grad = jax.lax.psum(hidden_grad, "tensor")
    reduce_dtype = jnp.float32 if settings.reduce_float32 else head.dtype
    head_grad = head_grad.astype(reduce_dtype)
    if settings.fsdp:
        head_grad = jax.lax.psum_scatter(head_grad, "data", scatter_dimension=1, tiled=True)
    else:
        head_grad = jax.lax.psum(head_grad, "data")
    bias_grad = jax.lax.psum(bias_grad.astype(reduce_dtype), "data")
    return sums, hidden_grad, head_grad.astype(head.dtype), bias_grad.astype(bias.dtype)


def _cut(hidden: Array, targets: Array, weights: Array, block_tokens: int) -> Blocks:
    """[batch, position] as [blocks, tokens]; the last block is filled up with tokens of weight 0."""
    num_tokens = targets.size
    size = min(block_tokens, num_tokens)
    fill = -num_tokens % size

    def cut(x: Array, *rest: int) -> Array:
        flat = x.reshape(num_tokens, *rest)
        return jnp.pad(flat, ((0, fill), *((0, 0) for _ in rest))).reshape(-1, size, *rest)

    return Blocks(cut(hidden, hidden.shape[-1]), cut(targets), cut(weights))


def _block(
    settings: HeadLoss, with_gradients: bool, head: Array, bias: Array, carry: tuple[Array | None, Array | None], block: Blocks
) -> tuple[tuple[Array | None, Array | None], tuple[LossSums, Array | None]]:
    first = jax.lax.axis_index("tensor") * head.shape[0]
    entries = first + jnp.arange(head.shape[0])
    logits = jnp.einsum("ce,ve->cv", block.hidden, head, preferred_element_type=settings.logits).astype(jnp.float32) + bias
    logits = jnp.where(entries < settings.vocab_size, logits, -jnp.inf)
    hot = block.targets[:, None] == entries
    top = jax.lax.pmax(logits.max(-1), "tensor")
    powers = jnp.exp(logits - top[:, None])
    denominator, target = jax.lax.psum(jnp.stack([powers.sum(-1), jnp.where(hot, logits, 0).sum(-1)]), "tensor")
    log_z = jnp.log(denominator) + top
    entropy = (log_z - target) * block.weights
    z_squared = log_z * log_z * block.weights
    sums = LossSums(
        total=(entropy + settings.z_loss * z_squared).sum(),
        cross_entropy=entropy.sum(),
        z_squared=z_squared.sum(),
        correct=((target >= top) * block.weights).sum(),
        weight=block.weights.sum(),
    )
    if not with_gradients:
        return carry, (sums, None)
    head_grad, bias_grad = carry
    # d total / d logits: the softmax, larger by the z-loss's 2 z, less the target.
    slope = powers * ((1 + 2 * settings.z_loss * log_z) / denominator)[:, None] - hot
    slope = (slope * block.weights[:, None]).astype(block.hidden.dtype)
    hidden_grad = jnp.einsum("cv,ve->ce", slope, head)
    head_grad = head_grad + jnp.einsum("cv,ce->ve", slope, block.hidden, preferred_element_type=jnp.float32)
    bias_grad = bias_grad + slope.astype(jnp.float32).sum(0)
    return (head_grad, bias_grad), (sums, hidden_grad)

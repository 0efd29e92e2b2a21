"""Cross entropy of the head by blocks of tokens, its gradients made in the same pass; the whole logits never exist.

Called by the model's loss. One shard_map over data and tensor: the head is gathered over data once and its gradient
reduce-scattered once; the vocabulary stays split over tensor, so the largest buffer is block tokens x local vocabulary.
Vocabulary padding is masked out of the loss, the z-loss and the accuracy.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from shardwise.train.collectives import gather_columns, max_over, sum_over, sum_over_data
from shardwise.train.products import contract

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
    wire: jnp.dtype
    """The dtype in which gradients are summed over devices."""
    logits: jnp.dtype
    """What logits are rounded to; all that follows them is float32."""


class Head(NamedTuple):
    """The output layer."""

    table: Array
    """[vocab, embed]: vocab over tensor and, with fsdp, embed over data."""
    bias: Array | None
    """[vocab] over tensor."""


class Tokens(NamedTuple):
    """What the head is asked for: [batch, position, ...], batch over data; or, in a scan, [blocks, tokens, ...]."""

    hidden: Array
    """[batch, position, embed]."""
    targets: Array
    """int32."""
    weights: Array
    """float32; 0 leaves a token out."""


class _Slope(NamedTuple):
    """Derivatives of a block's total, or of all blocks' together."""

    hidden: Array
    head: Head


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def head_loss(settings: HeadLoss, head: Head, tokens: Tokens) -> LossSums:
    """Sums of the token losses of softmax(hidden table^T + bias) over all tokens of this replica.

    Only `total` is differentiated: in the head and in the tokens' hidden.
    """
    mapped = jax.shard_map(
        partial(_evaluate, settings),
        in_specs=_specs(settings, head),
        out_specs=P(),
        axis_names=MANUAL,
        check_vma=False,
    )
    sums: LossSums = mapped(head, tokens)
    return sums


def _forward(settings: HeadLoss, head: Head, tokens: Tokens) -> tuple[LossSums, _Slope]:
    specs = _specs(settings, head)
    mapped = jax.shard_map(
        partial(_differentiate, settings),
        in_specs=specs,
        out_specs=(P(), (P("data"), specs[0])),
        axis_names=MANUAL,
        check_vma=False,
    )
    sums, (hidden, slope) = mapped(head, tokens)
    return sums, _Slope(hidden, slope)


def _backward(_: HeadLoss, slope: _Slope, cotangent: LossSums) -> tuple[Head, Tokens]:
    scaled: _Slope = jax.tree.map(lambda g: (cotangent.total * g).astype(g.dtype), slope)
    none: Any = None  # a zero cotangent, in custom_vjp's words
    return scaled.head, Tokens(scaled.hidden, none, none)


head_loss.defvjp(_forward, _backward)


def _specs(settings: HeadLoss, head: Head) -> tuple[Any, P]:
    specs: Any = (P("tensor", "data" if settings.fsdp else None), None if head.bias is None else P("tensor"))
    return Head(*specs), P("data")


def _evaluate(settings: HeadLoss, head: Head, tokens: Tokens) -> LossSums:
    """One device's tokens against its part of the vocabulary."""
    whole = _gathered(settings, head)

    def block(_: None, block: Tokens) -> tuple[None, LossSums]:
        return None, _block(settings, whole, block)[0]

    return _summed(jax.lax.scan(block, None, _cut(tokens, settings.block_tokens))[1])


def _differentiate(settings: HeadLoss, head: Head, tokens: Tokens) -> tuple[LossSums, tuple[Array, Head]]:
    """The same with the derivatives: hidden's summed over tensor, the head's over data, each once."""
    whole = _gathered(settings, head)
    # The table's derivative is summed as [embed, vocab]: what FSDP splits comes first, and only its part is turned.

    def block(head_slope: Head, block: Tokens) -> tuple[Head, tuple[LossSums, Array]]:
        sums, slope = _block(settings, whole, block)
        hidden = jnp.einsum("cv,ve->ce", slope, whole.table)
        table = head_slope.table + contract(block.hidden, slope, (0,), (0,), dtype=jnp.float32)
        bias = None if head_slope.bias is None else head_slope.bias + slope.astype(jnp.float32).sum(0)
        return Head(table, bias), (sums, hidden)

    zeros: Head = jax.tree.map(lambda x: jnp.zeros(x.T.shape, jnp.float32), whole)
    head_slope, (sums, hidden) = jax.lax.scan(block, zeros, _cut(tokens, settings.block_tokens))
    hidden = hidden.reshape(-1, hidden.shape[-1])[: tokens.targets.size].reshape(tokens.hidden.shape)
    hidden = sum_over("tensor", hidden, settings.wire).astype(tokens.hidden.dtype)
    return _summed(sums), (hidden, _scattered(settings, head_slope, whole.table.dtype))


def _gathered(settings: HeadLoss, head: Head) -> Head:
    return head._replace(table=gather_columns(head.table, fsdp=settings.fsdp))


def _scattered(settings: HeadLoss, slope: Head, dtype: jnp.dtype) -> Head:
    """The head's derivative, its table as [embed, vocab], summed over data and turned."""
    table = sum_over_data(slope.table, settings.wire, split=0 if settings.fsdp else None).astype(dtype).T
    bias = None if slope.bias is None else sum_over("data", slope.bias, settings.wire).astype(dtype)
    return Head(table, bias)


def _summed(blocks: LossSums) -> LossSums:
    return LossSums(*(sum_over("data", one.sum(), one.dtype) for one in blocks))


def _cut(tokens: Tokens, block_tokens: int) -> Tokens:
    """[batch, position] as [blocks, tokens]; the last block is filled up with tokens of weight 0."""
    num_tokens = tokens.targets.size
    size = min(block_tokens, num_tokens)
    fill = -num_tokens % size

    def cut(x: Array) -> Array:
        flat = x.reshape(num_tokens, *x.shape[2:])
        return jnp.pad(flat, ((0, fill), *((0, 0) for _ in x.shape[2:]))).reshape(-1, size, *x.shape[2:])

    return Tokens(*(cut(x) for x in tokens))


def _block(settings: HeadLoss, head: Head, block: Tokens) -> tuple[LossSums, Array]:
    """The sums of one block, and d total / d logits: [tokens, vocab] in the compute dtype."""
    entries = jax.lax.axis_index("tensor") * head.table.shape[0] + jnp.arange(head.table.shape[0])
    logits = jnp.einsum("ce,ve->cv", block.hidden, head.table, preferred_element_type=settings.logits)
    logits = logits.astype(jnp.float32)
    if head.bias is not None:
        logits = logits + head.bias
    if settings.vocab_size < head.table.shape[0] * jax.lax.axis_size("tensor"):  # else XLA makes one more array of them
        logits = jnp.where(entries < settings.vocab_size, logits, -jnp.inf)
    hot = block.targets[:, None] == entries
    top = max_over("tensor", logits.max(-1))
    powers = jnp.exp(logits - top[:, None])
    parts = jnp.stack([powers.sum(-1), jnp.where(hot, logits, 0).sum(-1)])
    denominator, target = sum_over("tensor", parts, parts.dtype)
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
    # The softmax, larger by the z-loss's 2 z, less the target.
    slope = powers * ((1 + 2 * settings.z_loss * log_z) / denominator)[:, None] - hot
    return sums, (slope * block.weights[:, None]).astype(block.hidden.dtype)

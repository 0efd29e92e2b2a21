"""Cross entropy of the head by blocks of tokens, its gradients made in the same pass; the whole logits never exist.

It is one shard_map over data, context and tensor. Each device has a copy of its part of the vocabulary, so the largest
buffer is block tokens x local vocabulary; `train/table.py` sums the head's gradient. Hidden states and their gradient
are split by position over context and, if it divides the positions, over tensor. Vocabulary padding is masked out of
the loss, the z-loss and the accuracy.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from shardwise.train.collectives import gather_over, max_over, scatter_over, sum_over, sum_over_data
from shardwise.train.factors import Bend
from shardwise.train.mesh import on_each_device, tokens_spec
from shardwise.train.products import contract
from shardwise.train.table import copies_spec

Array = jax.Array
T = TypeVar("T")


class LossSums(NamedTuple):
    """Sums over tokens, float32 scalars; divide by `weight` once, after all microbatches and replicas."""

    total: Array
    """Cross entropy plus z-loss, which is minimised."""
    cross_entropy: Array
    """Nats."""
    z_squared: Array
    """Squared log of the softmax's denominator."""
    correct: Array
    """Weight of the tokens whose target has the largest logit, ties included."""
    weight: Array
    clipped: Array | None = None
    """Of completions: the tokens whose likelihood has changed so much already that they are left as they are."""


class HeadLoss(NamedTuple):
    """The loss's settings."""

    vocab_size: int
    """Real entries of the vocabulary; the head's other rows are padding."""
    block_tokens: int
    """Tokens of one block on one device."""
    z_loss: float
    """Factor of the squared log denominator."""
    by_position: bool
    """Whether hidden states, and so their gradient, are split by position over tensor."""
    compute: jnp.dtype
    """The dtype of the products."""
    wire: jnp.dtype
    """The dtype in which gradients are summed over devices."""
    logits: jnp.dtype
    """The dtype that logits are rounded to; everything after them is float32."""
    bend: Bend = Bend()
    """What becomes of them then."""


class Head(NamedTuple):
    """The output layer."""

    table: Array
    """[data_outer, data_inner x context, embed, vocab], the wire's dtype (`table.copies`); in a shard_map one."""
    bias: Array | None
    """float32 [vocab] over tensor."""


class Tokens(NamedTuple):
    """The head's input: [batch, position, ...], batch over data; or, in a scan, [blocks, tokens, ...]."""

    hidden: Array
    """[batch, position, embed], split by position if `HeadLoss.by_position`."""
    targets: Array
    """int32."""
    weights: Array
    """float32; 0 leaves a token out."""


OfHead = Callable[[Head, Tokens], T]
"""A loss with its settings, such as `partial(head_loss, settings)`."""


class _Gradients(NamedTuple):
    """Derivatives of a block's total, or of all blocks' together."""

    hidden: Array
    head: Head


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def head_loss(settings: HeadLoss, head: Head, tokens: Tokens) -> LossSums:
    """Sum the token losses of softmax(hidden table + bias) over all tokens of this replica.

    Only `total` is differentiated, with respect to the head and the tokens' hidden states.
    """
    return on_each_device(partial(_evaluate, settings), _specs(settings, head), P())(head, tokens)


def _forward(settings: HeadLoss, head: Head, tokens: Tokens) -> tuple[LossSums, _Gradients]:
    # The gradient is computed here, while a block's logits exist; the backward pass only scales it.
    specs = _specs(settings, head)
    outs = P(), (specs[1].hidden, specs[0])
    sums, (hidden, slope) = on_each_device(partial(_differentiate, settings), specs, outs)(head, tokens)
    return sums, _Gradients(hidden, slope)


def _backward(_: HeadLoss, slope: _Gradients, cotangent: LossSums) -> tuple[Head, Tokens]:
    scaled: _Gradients = jax.tree.map(lambda g: (cotangent.total * g).astype(g.dtype), slope)
    none: Any = None  # how custom_vjp spells a zero cotangent
    return scaled.head, Tokens(scaled.hidden, none, none)


head_loss.defvjp(_forward, _backward)


def token_losses(settings: HeadLoss, head: Head, tokens: Tokens) -> Array:
    """Return each token's cross entropy times its weight, float32 [batch, position]; it is not differentiated."""
    specs = _specs(settings, head)
    losses = on_each_device(partial(_each, settings), specs, specs[1].targets)(*jax.lax.stop_gradient((head, tokens)))
    return jax.lax.stop_gradient(losses)


def _each(settings: HeadLoss, head: Head, tokens: Tokens) -> Array:
    head, tokens = _gathered(settings, head, tokens)

    def block(_: None, block: Tokens) -> tuple[None, Array]:
        return None, _block(settings, head, block)[2]

    losses: Array = jax.lax.scan(block, None, _cut(tokens, settings.block_tokens))[1]
    return losses.reshape(-1)[: tokens.targets.size].reshape(tokens.targets.shape)


def _specs(settings: HeadLoss, head: Head) -> tuple[Any, Any]:
    table: Any = copies_spec()
    bias: Any = None if head.bias is None else P("tensor")
    hidden: Any = tokens_spec(by_tensor=settings.by_position)
    rows: Any = tokens_spec()
    return Head(table, bias), Tokens(hidden, rows, rows)


def _evaluate(settings: HeadLoss, head: Head, tokens: Tokens) -> LossSums:
    """Compute one device's tokens against its part of the vocabulary."""
    head, tokens = _gathered(settings, head, tokens)

    def block(_: None, block: Tokens) -> tuple[None, LossSums]:
        return None, _block(settings, head, block)[0]

    return _summed(jax.lax.scan(block, None, _cut(tokens, settings.block_tokens))[1])


def _differentiate(settings: HeadLoss, head: Head, tokens: Tokens) -> tuple[LossSums, tuple[Array, Head]]:
    """Do what `_evaluate` does, with derivatives.

    Those of the hidden states are summed over tensor, those of the head are of this device's tokens only.
    """
    head, tokens = _gathered(settings, head, tokens)

    def block(head_slope: Head, block: Tokens) -> tuple[Head, tuple[LossSums, Array]]:
        sums, slope, _ = _block(settings, head, block)
        hidden = jnp.einsum("cv,ev->ce", slope, head.table)
        table = head_slope.table + contract(block.hidden, slope, (0,), (0,), dtype=jnp.float32)
        bias = None if head_slope.bias is None else head_slope.bias + slope.astype(jnp.float32).sum(0)
        return Head(table, bias), (sums, hidden)

    # Float32 whatever the compute dtype: many blocks are added up.
    zeros: Head = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), head)
    head_slope, (sums, hidden) = jax.lax.scan(block, zeros, _cut(tokens, settings.block_tokens))
    hidden = hidden.reshape(-1, hidden.shape[-1])[: tokens.targets.size].reshape(tokens.hidden.shape)
    return _summed(sums), (_slope_of_hidden(settings, hidden), _slope_of_head(settings, head_slope))


def _gathered(settings: HeadLoss, head: Head, tokens: Tokens) -> tuple[Head, Tokens]:
    head = head._replace(table=head.table[0, 0].astype(settings.compute))
    if not settings.by_position:
        return head, tokens
    return head, tokens._replace(hidden=gather_over("tensor", tokens.hidden, dimension=1))


def _slope_of_head(settings: HeadLoss, slope: Head) -> Head:
    """Return the head's derivative: the table's laid out as its copies, the bias's summed over data."""
    table = slope.table.astype(settings.wire)[None, None]
    bias = None if slope.bias is None else sum_over_data(slope.bias, settings.wire).astype(jnp.float32)
    return Head(table, bias)


def _slope_of_hidden(settings: HeadLoss, slope: Array) -> Array:
    """Return the hidden states' derivative [batch, position, embed], summed over tensor."""
    if settings.by_position:
        return scatter_over("tensor", slope, settings.wire, dimension=1).astype(slope.dtype)
    return sum_over("tensor", slope, settings.wire).astype(slope.dtype)


def _summed(blocks: LossSums) -> LossSums:
    summed: LossSums = jax.tree.map(lambda one: sum_over_data(one.sum(), one.dtype), blocks)
    return summed


def _cut(tokens: Tokens, block_tokens: int) -> Tokens:
    """Cut [batch, position] into [blocks, tokens]; fill the last block up with tokens of weight 0."""
    num_tokens = tokens.targets.size
    size = min(block_tokens, num_tokens)
    fill = -num_tokens % size

    def cut(x: Array) -> Array:
        flat = x.reshape(num_tokens, *x.shape[2:])
        return jnp.pad(flat, ((0, fill), *((0, 0) for _ in x.shape[2:]))).reshape(-1, size, *x.shape[2:])

    return Tokens(*(cut(x) for x in tokens))


def _block(settings: HeadLoss, head: Head, block: Tokens) -> tuple[LossSums, Array, Array]:
    """Return the sums of one block, d total / d logits [tokens, vocab] in the compute dtype, and losses [tokens]."""
    num_entries = head.table.shape[1]
    entries = jax.lax.axis_index("tensor") * num_entries + jnp.arange(num_entries)
    logits = jnp.einsum("ce,ev->cv", block.hidden, head.table, preferred_element_type=settings.logits)
    logits = logits.astype(jnp.float32)
    if head.bias is not None:
        logits = logits + head.bias
    logits, bent = settings.bend.apply(logits)
    if settings.vocab_size < num_entries * jax.lax.axis_size(
        "tensor"
    ):  # XLA would copy them even if no entry is masked
        logits = jnp.where(entries < settings.vocab_size, logits, -jnp.inf)
    hot = block.targets[:, None] == entries
    top = max_over("tensor", logits.max(-1))  # of the whole vocabulary: the devices' sums of powers are added
    powers = jnp.exp(logits - top[:, None])
    # Stacked, so that one sum over tensor carries both.
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
    # d total / d logits: the softmax times (1 + 2 z_loss log_z), less one at the target.
    slope = powers * ((1 + 2 * settings.z_loss * log_z) / denominator)[:, None] - hot
    slope = settings.bend.slope(slope, bent)
    return sums, (slope * block.weights[:, None]).astype(block.hidden.dtype), entropy

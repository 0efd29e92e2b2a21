"""The GPT: GPT-2 with the Mistral tweaks, and GPT-J's parallel block. The file reads as the diagram, bottom to top.

    tokens -> embedding (+ positions) -> block x layers -> norm -> head -> loss or logits
    sequential block:  x + attention(norm(x)),  then  x + mlp(norm(x))
    parallel block:    x + attention(norm(x)) + mlp(norm(x))           (one norm)

Called by the step, evaluation, generation and the weight converters. Capitals are axes, and the config owns them; the
model names no mesh axis: `Layout` does. Sources: Radford et al., "Language Models are Unsupervised Multitask Learners"
(2019); Karamcheti et al., "Mistral" (2021) for the two attention tweaks; Wang and Komatsuzaki, "GPT-J-6B" (2021); Su et
al., "RoFormer" (2021) for rotary positions.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Self

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import Axis, AxisSpec, NamedArray

from shardwise.train.attention import attend, plain
from shardwise.train.config import GptConfig
from shardwise.train.dropout import Dropout, Place
from shardwise.train.embedding import Table, lookup
from shardwise.train.layout import Layout
from shardwise.train.loss import Head, HeadLoss, LossSums, Tokens, head_loss
from shardwise.train.products import DotGeneral
from shardwise.train.rotary import rotate

Array = jax.Array
CACHE_AXES = ("layers", "batch", "heads", "position", "head_size")


class Cache(NamedTuple):
    """What generation keeps of the positions before: every layer's keys and values, in the compute dtype.

    Both are [layers, batch, heads, position, head_size] over all positions of the config, or one layer of that.
    """

    keys: Array
    values: Array


class _Products(hax.ScanCheckpointPolicy):  # type: ignore[misc]  # haliax ships no types
    """Keep a layer's matrix products for the backward pass and compute the rest again."""

    def checkpoint(self, _carry_name: str, _input_name: str, callable: Callable[..., Any]) -> Callable[..., Any]:  # noqa: A002
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        return eqx.filter_checkpoint(callable, policy=policy, prevent_cse=False)


# What the backward pass keeps of a layer: its input only, its products too, or everything. The checkpoint must be
# around all of the scan's body: inside it, the weights' slices would be kept as well, a second copy of the model.
_REMAT = {"full": True, "dots": _Products(), "none": False}


class Attention(eqx.Module):
    """Causal self-attention with one projection for query, key and value."""

    config: GptConfig = eqx.field(static=True)
    qkv: hnn.Linear
    out: hnn.Linear

    @classmethod
    def init(cls, config: GptConfig, *, key: Array) -> Self:
        """Normal weights; `out`, which writes to the residual stream, smaller by 1 / sqrt(2 layers)."""
        in_key, out_key = jax.random.split(key)
        std, bias = config.init_std, config.attention_bias
        heads = (config.Heads, config.HeadSize)
        return cls(
            config,
            _linear(config.Embed, (config.Qkv, *heads), std, bias=bias, key=in_key),
            _linear(heads, config.Embed, std / math.sqrt(2 * config.num_layers), bias=bias, key=out_key),
        )

    def __call__(self, x: NamedArray, segments: NamedArray | None, layer: Array, layout: Layout) -> NamedArray:
        """{batch, position, embed} -> the same; `layer` counts from 0."""
        config = self.config
        q, k, v = self._project(x, 0, layer, layout)
        rows = None if segments is None else segments.array
        mixed = attend(q, k, v, rows, kernel=config.attention, upcast=config.upcast_attention)
        return self.out(hax.named(mixed, self._inside(x)))

    def cached(
        self, x: NamedArray, cache: Cache, start: Array, layer: Array, layout: Layout
    ) -> tuple[NamedArray, Cache]:
        """The same for positions from `start` on, which see this layer's cache before them and are added to it."""
        q, k, v = self._project(x, start, layer, layout)
        new = zip(cache, (k, v), strict=True)
        cache = Cache(*(jax.lax.dynamic_update_slice_in_dim(old, part, start, 2) for old, part in new))
        mixed = plain(q, cache.keys, cache.values, None, upcast=self.config.upcast_attention, start=start)
        return self.out(hax.named(mixed, self._inside(x))), cache

    def _project(self, x: NamedArray, start: Array | int, layer: Array, layout: Layout) -> tuple[Array, Array, Array]:
        """Scaled queries, keys and values, each [batch, heads, position, head_size], of positions from `start` on."""
        config, inside = self.config, self._inside(x)
        # Rearranged before the split: split first, its gradient would be put together by three copies.
        q, k, v = self._qkv()(x).rearrange((config.Qkv, *inside)).unbind(config.Qkv)
        if config.position == "rotary":
            q, k = (hax.named(rotate(part.array, config.rotary_dim, start), inside) for part in (q, k))
        scale = 1 / math.sqrt(config.HeadSize.size)
        q = q * (scale / (layer + 1) if config.scale_by_inverse_layer else scale)
        q, k, v = (layout.put(part.astype(x.dtype)).array for part in (q, k, v))
        return q, k, v

    def _qkv(self) -> hnn.Linear:
        """The projection, with no gradient for the key's bias where that is exactly zero.

        It adds the same to all scores of a query, which softmax does not see. What rounding leaves of the gradient is
        noise, and an optimizer that looks at signs makes full steps of it, other ones on every mesh. Rotary positions
        turn the bias from key to key, so there it counts.
        """
        bias = self.qkv.bias
        if bias is None or self.config.position == "rotary":
            return self.qkv
        is_key = hax.arange(self.config.Qkv) == 1
        return replace(self.qkv, bias=hax.where(is_key, jax.lax.stop_gradient(bias), bias))

    def _inside(self, x: NamedArray) -> tuple[Axis, ...]:
        return (x.resolve_axis("batch"), self.config.Heads, x.resolve_axis("position"), self.config.HeadSize)


class Mlp(eqx.Module):
    """Two products with a tanh GELU between."""

    up: hnn.Linear
    down: hnn.Linear

    @classmethod
    def init(cls, config: GptConfig, *, key: Array) -> Self:
        """Normal weights; `down`, which writes to the residual stream, smaller by 1 / sqrt(2 layers)."""
        up_key, down_key = jax.random.split(key)
        std = config.init_std
        return cls(
            _linear(config.Embed, config.Mlp, std, bias=True, key=up_key),
            _linear(config.Mlp, config.Embed, std / math.sqrt(2 * config.num_layers), bias=True, key=down_key),
        )

    def __call__(self, x: NamedArray, layout: Layout) -> NamedArray:
        """{batch, position, embed} -> the same."""
        return self.down(hnn.gelu(layout.put(self.up(x)), approximate=True))


class Block(eqx.Module):
    """One layer: attention and MLP around the residual stream."""

    norm: hnn.LayerNorm
    attention: Attention
    mlp_norm: hnn.LayerNorm | None
    mlp: Mlp

    @classmethod
    def init(cls, config: GptConfig, *, key: Array) -> Self:
        """The second norm exists in the sequential block only."""
        attention_key, mlp_key = jax.random.split(key)
        return cls(
            _norm(config),
            Attention.init(config, key=attention_key),
            _norm(config) if config.block == "sequential" else None,
            Mlp.init(config, key=mlp_key),
        )

    def __call__(
        self, x: NamedArray, layer: Array, segments: NamedArray | None, dropout: Dropout, layout: Layout
    ) -> NamedArray:
        """{batch, position, embed} -> the same."""
        whole = layout.whole(self)
        normed = _normed(whole.norm, x)
        attended = whole.attention(normed, segments, layer, layout)
        return whole._join(x, normed, attended, layer, dropout, layout)  # noqa: SLF001

    def cached(
        self, x: NamedArray, layer: Array, cache: Cache, start: Array, layout: Layout
    ) -> tuple[NamedArray, Cache]:
        """The same for positions from `start` on, after this layer's cache; without dropout."""
        whole = layout.whole(self)
        normed = _normed(whole.norm, x)
        attended, cache = whole.attention.cached(normed, cache, start, layer, layout)
        return whole._join(x, normed, attended, layer, Dropout.none(), layout), cache  # noqa: SLF001

    def _join(
        self, x: NamedArray, normed: NamedArray, attended: NamedArray, layer: Array, dropout: Dropout, layout: Layout
    ) -> NamedArray:
        """The residual stream after attention and MLP, one after the other or side by side."""
        attended = _dropped(dropout, layout.put(attended), layer, "attention")
        if self.mlp_norm is None:
            return x + attended + _dropped(dropout, layout.put(self.mlp(normed, layout)), layer, "mlp")
        x = x + attended
        return x + _dropped(dropout, layout.put(self.mlp(_normed(self.mlp_norm, x), layout)), layer, "mlp")


class Gpt(eqx.Module):
    """The whole model."""

    config: GptConfig = eqx.field(static=True)
    token_embedding: NamedArray
    position_embedding: NamedArray | None
    blocks: hnn.Stacked[Block]
    norm: hnn.LayerNorm
    head: NamedArray | None
    head_bias: NamedArray | None

    @classmethod
    def init(cls, config: GptConfig, *, key: Array) -> Self:
        """Float32 weights from one key, the same bits however they are sharded."""
        token_key, position_key, block_key, head_key = jax.random.split(key, 4)
        std = config.init_std
        table, positions = (config.Vocab, config.Embed), (config.Position, config.Embed)
        blocks = hnn.Stacked.init(config.Layers, Block, gradient_checkpointing=_REMAT[config.remat])
        return cls(
            config,
            hax.random.normal(token_key, table) * std,
            hax.random.normal(position_key, positions) * std if config.position == "learned" else None,
            blocks(config, key=jax.random.split(block_key, config.num_layers)),
            _norm(config),
            None if config.tied_head else hax.random.normal(head_key, table) * std,
            hax.zeros(config.Vocab) if config.head_bias else None,
        )

    def hidden(self, tokens: Array, segments: Array | None, dropout: Dropout, layout: Layout) -> NamedArray:
        """The residual stream after the last norm.

        Args:
            tokens: int32 [batch, position], at most the config's positions.
            segments: int32 [batch, position] or None: what attends to what.
            dropout: none, or its rates and keys.
            layout: where arrays live.

        Returns:
            {batch, position, embed} in the parameters' dtype.

        """
        config = self.config
        x = self._embed(tokens, slice(tokens.shape[1]), layout)
        x = _dropped(dropout, x, jnp.int32(config.num_layers), "embedding")
        named = None if segments is None else hax.named(segments, ("batch", "position"))

        def layer(block: Block, x: NamedArray, index: NamedArray) -> NamedArray:
            return block(x, index.array, named, dropout, layout)

        x = self.blocks.fold_via(layer)(x, hax.arange(config.Layers))
        return _normed(layout.whole(self.norm), x)

    def next_logits(
        self, tokens: Array, start: Array, last: Array, cache: Cache, layout: Layout
    ) -> tuple[Array, Cache]:
        """One more stretch of a sequence: the logits that follow it, and the cache with it. Inference only.

        Args:
            tokens: int32 [batch, position].
            start: int32 scalar, the position of the first token in the sequence.
            last: int32 scalar, the index in `tokens` of the last real one; what comes after it is filling, whose
                entries in the cache are never seen because the next stretch starts over them.
            cache: all layers', laid out as computed with.
            layout: where arrays live.

        Returns:
            float32 [batch, vocab], -inf at the vocabulary's padding, and the cache.

        """
        x = self._embed(tokens, hax.dslice(start, tokens.shape[1]), layout)

        def layer(block: Block, x: NamedArray, index: NamedArray, cache: Cache) -> tuple[NamedArray, Cache]:
            return block.cached(x, index.array, cache, start, layout)

        x, cache = self.blocks.scan_via(layer)(x, hax.arange(self.config.Layers), cache)
        cache = Cache(*(layout.put(hax.named(part, CACHE_AXES)).array for part in cache))
        x = _normed(layout.whole(self.norm), x["position", last])
        return self.logits(x, layout).rearrange(("batch", "vocab")).array, cache

    def _embed(self, tokens: Array, positions: Any, layout: Layout) -> NamedArray:
        """{batch, position, embed} of tokens at these positions (a slice) of their sequences."""
        config = self.config
        Batch, Position = Axis("batch", tokens.shape[0]), Axis("position", tokens.shape[1])
        table = Table(config.Vocab.size, layout.fsdp, layout.wire(self.token_embedding.dtype))
        x = hax.named(lookup(table, self.token_embedding.array, tokens), (Batch, Position, config.Embed))
        if self.position_embedding is not None:
            x = x + layout.whole(self.position_embedding)["position", positions]
        return layout.put(x)

    def loss(
        self,
        tokens: Array,
        segments: Array | None,
        targets: Array,
        weights: Array,
        dropout: Dropout,
        layout: Layout,
        settings: HeadLoss,
    ) -> LossSums:
        """The loss sums over these tokens; arrays are [batch, position], `weights` float32."""
        hidden = self.hidden(tokens, segments, dropout, layout)
        table = self.token_embedding if self.head is None else self.head
        head = Head(table.array, None if self.head_bias is None else self.head_bias.array)
        hidden = hidden.rearrange(("batch", "position", "embed"))
        return head_loss(settings, head, Tokens(hidden.array, targets, weights))

    def logits(self, hidden: NamedArray, layout: Layout) -> NamedArray:
        """The logits of {..., embed}: {..., vocab} float32, -inf at the vocabulary's padding. Inference only."""
        head = layout.whole(self.token_embedding if self.head is None else self.head)
        logits = hax.dot(hidden, head, axis="embed", preferred_element_type=jnp.float32)
        if self.head_bias is not None:
            logits = logits + self.head_bias
        return hax.where(hax.arange(self.config.Vocab) < self.config.vocab_size, logits, -jnp.inf)


def _linear(In: AxisSpec, Out: AxisSpec, std: float, *, bias: bool, key: Array) -> hnn.Linear:
    axes = (*hax.axis.ensure_tuple(In), *hax.axis.ensure_tuple(Out))
    weight = hax.random.normal(key, axes) * std
    return hnn.Linear(weight, hax.zeros(Out) if bias else None, In, Out, dot_general=DotGeneral())


def _norm(config: GptConfig) -> hnn.LayerNorm:
    return hnn.LayerNorm.init(config.Embed, eps=config.norm_epsilon)


def _dropped(dropout: Dropout, x: NamedArray, layer: Array, place: Place) -> NamedArray:
    x = x.rearrange(("batch", "position", "embed"))
    return hax.named(dropout.drop(x.array, layer, place), x.axes)


def _normed(norm: hnn.LayerNorm, x: NamedArray) -> NamedArray:
    """Layer norm in float32 whatever the compute dtype: a mean over thousands of bfloat16 values is not a mean."""
    return norm(x.astype(jnp.float32)).astype(x.dtype)

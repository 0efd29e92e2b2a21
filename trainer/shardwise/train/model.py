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
from shardwise.train.embedding import Lookup, lookup
from shardwise.train.layout import Layout
from shardwise.train.loss import Head, HeadLoss, LossSums, Tokens, head_loss
from shardwise.train.products import GATHERED, Weighting, weighted
from shardwise.train.rotary import rotate
from shardwise.train.table import Table, copies

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


class _Activations(hax.ScanCheckpointPolicy):  # type: ignore[misc]  # haliax ships no types
    """Keep all of a layer for the backward pass but its gathered weights, which would be the whole model."""

    def checkpoint(self, _carry_name: str, _input_name: str, callable: Callable[..., Any]) -> Callable[..., Any]:  # noqa: A002
        policy = jax.checkpoint_policies.save_anything_except_these_names(GATHERED)
        return eqx.filter_checkpoint(callable, policy=policy, prevent_cse=False)


# What the backward pass keeps of a layer: its input only, its products too, or all but the weights. The checkpoint must
# be around all of the scan's body: inside it, the weights' slices would be kept as well, a second copy of the model.
_REMAT = {"full": True, "dots": _Products(), "none": _Activations()}


class Linear(eqx.Module):
    """A product with a weight that has `embed` first, whichever way it maps, and a bias.

    The weight is gathered inside of the product (`products.weighted`); the bias is added in float32.
    """

    In: AxisSpec = eqx.field(static=True)
    Out: AxisSpec = eqx.field(static=True)
    weight: NamedArray
    bias: NamedArray | None

    @classmethod
    def init(cls, In: AxisSpec, Out: AxisSpec, std: float, *, bias: bool, key: Array) -> Self:
        """Normal weights, and zeros for the bias if there is one."""
        axes = (*hax.axis.ensure_tuple(In), *hax.axis.ensure_tuple(Out))
        weight = hax.random.normal(key, sorted(axes, key=lambda axis: axis.name != "embed")) * std
        return cls(In, Out, weight, hax.zeros(Out) if bias else None)

    def __call__(self, x: NamedArray, layout: Layout, place: Callable[[NamedArray], NamedArray]) -> NamedArray:
        """{..., In} -> {..., Out}; `place` lays out the product before the bias is added to it."""
        ins = [axis.name for axis in hax.axis.ensure_tuple(self.In)]
        names = [axis.name for axis in self.weight.axes]
        of_x = tuple(i for i, axis in enumerate(x.axes) if axis.name in ins)
        of_weight = tuple(names.index(x.axes[i].name) for i in of_x)
        left = [axis for axis in (*x.axes, *self.weight.axes) if axis.name not in ins]
        how = Weighting(
            dims=((of_x, of_weight), ((), ())),
            place=layout.placement(names, layout.dtype),
            ins=layout.spec([axis.name for axis in x.axes], layout.compute),
            outs=layout.spec([axis.name for axis in left], layout.compute),
        )
        out = place(hax.named(weighted(x.array, self.weight.array, how), left))
        return out if self.bias is None else (out + self.bias).astype(out.dtype)


class Attention(eqx.Module):
    """Causal self-attention with one projection for query, key and value."""

    config: GptConfig = eqx.field(static=True)
    qkv: Linear
    out: Linear

    @classmethod
    def init(cls, config: GptConfig, *, key: Array) -> Self:
        """Normal weights; `out`, which writes to the residual stream, smaller by 1 / sqrt(2 layers)."""
        in_key, out_key = jax.random.split(key)
        std, bias = config.init_std, config.attention_bias
        heads = (config.Heads, config.HeadSize)
        return cls(
            config,
            Linear.init(config.Embed, (config.Qkv, *heads), std, bias=bias, key=in_key),
            Linear.init(heads, config.Embed, std / math.sqrt(2 * config.num_layers), bias=bias, key=out_key),
        )

    def __call__(self, x: NamedArray, segments: NamedArray | None, layer: Array, layout: Layout) -> NamedArray:
        """{batch, position, embed} -> the same; `layer` counts from 0."""
        config = self.config
        q, k, v = self._project(x, 0, layer, layout)
        rows = None if segments is None else segments.array
        mixed = attend(q, k, v, rows, kernel=config.attention)
        return self.out(hax.named(mixed, self._inside(x)), layout, layout.leave)

    def cached(
        self, x: NamedArray, cache: Cache, start: Array, layer: Array, layout: Layout
    ) -> tuple[NamedArray, Cache]:
        """The same for positions from `start` on, which see this layer's cache before them and are added to it."""
        q, k, v = self._project(x, start, layer, layout)
        new = zip(cache, (k, v), strict=True)
        cache = Cache(*(jax.lax.dynamic_update_slice_in_dim(old, part, start, 2) for old, part in new))
        mixed = plain(q, cache.keys, cache.values, None, start=start)
        return self.out(hax.named(mixed, self._inside(x)), layout, layout.leave), cache

    def _project(self, x: NamedArray, start: Array | int, layer: Array, layout: Layout) -> tuple[Array, Array, Array]:
        """Scaled queries, keys and values, each [batch, heads, position, head_size], of positions from `start` on."""
        config, inside = self.config, self._inside(x)
        # Rearranged before the split: split first, its gradient would be put together by three copies.
        q, k, v = self._qkv()(x, layout, layout.put).rearrange((config.Qkv, *inside)).unbind(config.Qkv)
        if config.position == "rotary":
            q, k = (hax.named(rotate(part.array, config.rotary_dim, start), inside) for part in (q, k))
        scale = 1 / math.sqrt(config.HeadSize.size)
        q = q * (scale / (layer + 1) if config.scale_by_inverse_layer else scale)
        q, k, v = (layout.put(part.astype(x.dtype)).array for part in (q, k, v))
        return q, k, v

    def _qkv(self) -> Linear:
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

    up: Linear
    down: Linear

    @classmethod
    def init(cls, config: GptConfig, *, key: Array) -> Self:
        """Normal weights; `down`, which writes to the residual stream, smaller by 1 / sqrt(2 layers)."""
        up_key, down_key = jax.random.split(key)
        std = config.init_std
        return cls(
            Linear.init(config.Embed, config.Mlp, std, bias=True, key=up_key),
            Linear.init(config.Mlp, config.Embed, std / math.sqrt(2 * config.num_layers), bias=True, key=down_key),
        )

    def __call__(self, x: NamedArray, layout: Layout) -> NamedArray:
        """{batch, position, embed} -> the same."""
        return self.down(hnn.gelu(self.up(x, layout, layout.put), approximate=True), layout, layout.leave)


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
        """{batch, position, embed}, split by position over tensor, -> the same."""
        normed = layout.enter(_normed(self.norm, x, layout))
        attended = self.attention(normed, segments, layer, layout)
        return self._join(x, normed, attended, layer, dropout, layout)

    def cached(
        self, x: NamedArray, layer: Array, cache: Cache, start: Array, layout: Layout
    ) -> tuple[NamedArray, Cache]:
        """The same for positions from `start` on, after this layer's cache; without dropout."""
        normed = layout.enter(_normed(self.norm, x, layout))
        attended, cache = self.attention.cached(normed, cache, start, layer, layout)
        return self._join(x, normed, attended, layer, Dropout.none(), layout), cache

    def _join(
        self, x: NamedArray, normed: NamedArray, attended: NamedArray, layer: Array, dropout: Dropout, layout: Layout
    ) -> NamedArray:
        """The residual stream after attention and MLP, one after the other or side by side."""
        attended = _dropped(dropout, attended, layer, "attention")
        if self.mlp_norm is None:
            return x + attended + _dropped(dropout, self.mlp(normed, layout), layer, "mlp")
        x = x + attended
        normed = layout.enter(_normed(self.mlp_norm, x, layout))
        return x + _dropped(dropout, self.mlp(normed, layout), layer, "mlp")


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
        table, positions = (config.Embed, config.Vocab), (config.Embed, config.Position)
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

    def hidden(
        self, table: Array, tokens: Array, segments: Array | None, dropout: Dropout, layout: Layout
    ) -> NamedArray:
        """The residual stream after the last norm.

        Args:
            table: `whole_table` of the token embedding.
            tokens: int32 [batch, position], at most the config's positions.
            segments: int32 [batch, position] or None: what attends to what.
            dropout: none, or its rates and keys.
            layout: where arrays live.

        Returns:
            {batch, position, embed} in the compute dtype, split by position over tensor.

        """
        config = self.config
        x = self._embed(table, tokens, slice(tokens.shape[1]), layout)
        x = _dropped(dropout, x, jnp.int32(config.num_layers), "embedding")
        named = None if segments is None else hax.named(segments, ("batch", "position"))

        def layer(block: Block, x: NamedArray, index: NamedArray) -> NamedArray:
            return block(x, index.array, named, dropout, layout)

        x = self.blocks.fold_via(layer)(x, hax.arange(config.Layers))
        return _normed(self.norm, x, layout)

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
        table = whole_table(self.token_embedding, layout)
        x = self._embed(table, tokens, hax.dslice(start, tokens.shape[1]), layout)

        def layer(block: Block, x: NamedArray, index: NamedArray, cache: Cache) -> tuple[NamedArray, Cache]:
            return block.cached(x, index.array, cache, start, layout)

        x, cache = self.blocks.scan_via(layer)(x, hax.arange(self.config.Layers), cache)
        cache = Cache(*(layout.put(hax.named(part, CACHE_AXES)).array for part in cache))
        x = _normed(self.norm, x["position", last], layout)
        return self.logits(x, layout).rearrange(("batch", "vocab")).array, cache

    def _embed(self, table: Array, tokens: Array, positions: Any, layout: Layout) -> NamedArray:
        """{batch, position, embed} of tokens at these positions (a slice) of their sequences."""
        config = self.config
        Batch, Position = Axis("batch", tokens.shape[0]), Axis("position", tokens.shape[1])
        how = Lookup(
            num_tokens=config.Vocab.size,
            by_position=layout.splits_positions(Position.size),
            compute=layout.dtype,
            wire=layout.wire,
        )
        x = hax.named(lookup(how, table, tokens), (Batch, Position, config.Embed))
        if self.position_embedding is not None:
            x = (x + layout.whole(self.position_embedding)["position", positions]).astype(x.dtype)
        return x

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
        table = whole_table(self.token_embedding, layout)
        hidden = self.hidden(table, tokens, segments, dropout, layout)
        out = table if self.head is None else whole_table(self.head, layout)
        head = Head(out, None if self.head_bias is None else self.head_bias.array)
        hidden = hidden.rearrange(("batch", "position", "embed"))
        return head_loss(settings, head, Tokens(hidden.array, targets, weights))

    def logits(self, hidden: NamedArray, layout: Layout) -> NamedArray:
        """The logits of {..., embed}: {..., vocab} float32, -inf at the vocabulary's padding. Inference only."""
        head = layout.whole(self.token_embedding if self.head is None else self.head, layout.dtype)
        logits = hax.dot(hidden, head, axis="embed", preferred_element_type=jnp.float32)
        if self.head_bias is not None:
            logits = logits + self.head_bias
        return hax.where(hax.arange(self.config.Vocab) < self.config.vocab_size, logits, -jnp.inf)


def whole_table(table: NamedArray, layout: Layout) -> Array:
    """A token table on every device of `data`: see `table.copies`."""
    return copies(Table(layout.fsdp, layout.dtype, layout.wire), table.array)


def _norm(config: GptConfig) -> hnn.LayerNorm:
    return hnn.LayerNorm.init(config.Embed, eps=config.norm_epsilon)


def _dropped(dropout: Dropout, x: NamedArray, layer: Array, place: Place) -> NamedArray:
    x = x.rearrange(("batch", "position", "embed"))
    return hax.named(dropout.drop(x.array, layer, place), x.axes)


def _normed(norm: hnn.LayerNorm, x: NamedArray, layout: Layout) -> NamedArray:
    """Layer norm in float32 whatever the compute dtype: a mean over thousands of bfloat16 values is not a mean."""
    normed: NamedArray = layout.whole(norm)(x.astype(jnp.float32)).astype(x.dtype)
    return normed

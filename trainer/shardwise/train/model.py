"""The model: GPT-2, GPT-J, Llama and their kind, as the config says. The file reads as the diagram, bottom to top.

    tokens -> embedding (+ positions) -> block x layers -> norm -> head -> loss or logits

The blocks are in `shardwise.train.block`. Capitals are axes, and the config owns them; the model names no mesh axis:
`Layout` does.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self, TypeVar

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from shardwise.train.block import Block, dropped
from shardwise.train.block_stacks import folded, one_by_one, stacks
from shardwise.train.caches import Cache, Ring
from shardwise.train.config import GptConfig
from shardwise.train.dropout import Dropout
from shardwise.train.embedding import Lookup, lookup
from shardwise.train.factors import Bend, of_embedding
from shardwise.train.layout import Layout
from shardwise.train.linear import Linear
from shardwise.train.loss import Head, OfHead, Tokens
from shardwise.train.norm import Norm, normed
from shardwise.train.table import Table, copies
from shardwise.train.zigzag import zigzag

Array = jax.Array
T = TypeVar("T")


class Gpt(eqx.Module):
    """The whole model, over the stacked blocks."""

    config: GptConfig = eqx.field(static=True)
    token_embedding: NamedArray
    position_embedding: NamedArray | None
    blocks: hnn.Stacked[Block]
    """A step gathers one at a time. After `for_generation` it is a tuple of all."""
    dense_blocks: hnn.Stacked[Block] | None
    """Those before them that have one MLP, where these are mixtures."""
    norm: Norm
    head: NamedArray | None
    head_bias: NamedArray | None

    @classmethod
    def init(cls, config: GptConfig, *, key: Array) -> Self:
        """Return float32 weights from one key, the same bits however they are sharded."""
        token_key, position_key, block_key, head_key = jax.random.split(key, 4)
        std = config.init_std
        table, positions = (config.Embed, config.Vocab), (config.Embed, config.Position)
        return cls(
            config,
            hax.random.normal(token_key, table) * std,
            hax.random.normal(position_key, positions) * std if config.position == "learned" else None,
            *stacks(config, key=block_key),
            Norm.init(config, config.Embed),
            None if config.tied_head else hax.random.normal(head_key, table) * std,
            hax.zeros(config.Vocab) if config.head_bias else None,
        )

    def hidden(
        self, table: Array, tokens: Array, segments: Array | None, dropout: Dropout, layout: Layout
    ) -> NamedArray:
        """Return the residual stream after the last norm.

        Args:
            table: `whole_table` of the token embedding.
            tokens: int32 [batch, position], at most the config's positions, in the order of `zigzag` over context.
            segments: int32 [batch, position] or None; a token sees only tokens of its own segment.
            dropout: its rates and keys, or `Dropout.none()`.
            layout: where arrays live.

        Returns:
            {batch, position, embed} in the compute dtype, split by position over tensor.

        """
        x = self._entering(table, tokens, segments, dropout, layout)
        numbers = hax.arange(self.config.Layers, start=self.config.num_dense_blocks)
        x = folded(self.blocks, x, numbers, segments, dropout, layout)
        return normed(self.norm, x, layout)

    def entering(self, tokens: Array, segments: Array | None, dropout: Dropout, layout: Layout) -> Array:
        """Return what the first of `blocks` gets of these tokens, [batch, position, embed]; see `hidden`."""
        x = self._entering(whole_table(self.token_embedding, layout), tokens, segments, dropout, layout)
        return _in_stream(x, layout)

    def through(self, x: Array, layers: Array, segments: Array | None, dropout: Dropout, layout: Layout) -> Array:
        """Map what the first of these blocks gets to what the last returns; `layers` are their numbers in the model."""
        stream = hax.named(x, ("batch", "position", "embed"))
        stream = folded(self.blocks, stream, hax.named(layers, ("layers",)), segments, dropout, layout)
        return _in_stream(stream, layout)

    def loss_of(self, x: Array, targets: Array, weights: Array, layout: Layout, loss: OfHead[T]) -> T:
        """Return the loss of what the last layer returned; see `loss`."""
        hidden = normed(self.norm, hax.named(x, ("batch", "position", "embed")), layout)
        table = self.token_embedding if self.head is None else self.head
        return self._loss(hidden, whole_table(table, layout), targets, weights, loss)

    def _entering(
        self, table: Array, tokens: Array, segments: Array | None, dropout: Dropout, layout: Layout
    ) -> NamedArray:
        x = dropped(dropout, self._embed(table, tokens, layout), jnp.int32(self.config.num_layers), "embedding")
        if self.dense_blocks is None:
            return x
        return folded(self.dense_blocks, x, hax.arange(self.config.DenseLayers), segments, dropout, layout)

    def for_generation(self, dtype: jnp.dtype) -> Self:
        """Return the model for `first_logits` and `next_logits`: blocks one by one, and what is multiplied in `dtype`.

        A slice of stacked blocks would be a copy of their weights for every token. Biases, gains and positions stay as
        they are, since they are added in float32, and routers, which choose in it.
        """

        def cast(x: Any, routes: Axis = self.config.Routes) -> Any:
            return replace(x, weight=x.weight.astype(dtype)) if isinstance(x, Linear) and x.Out != routes else x

        is_linear = lambda x: isinstance(x, Linear)  # noqa: E731
        apart = tuple(block.for_generation() for block in one_by_one(self.blocks, self.dense_blocks))
        blocks = jax.tree.map(cast, apart, is_leaf=is_linear)
        head = None if self.head is None else self.head.astype(dtype)
        return replace(
            self, blocks=blocks, dense_blocks=None, token_embedding=self.token_embedding.astype(dtype), head=head
        )

    def first_logits(self, tokens: Array, start: Array, size: int, layout: Layout) -> tuple[Array, tuple[Cache, ...]]:
        """Return the logits that follow the last of these tokens, and the cache of every block.

        Args:
            tokens: int32 [batch, position]; rows end together.
            start: int32 [batch], the position of a row's first token; those before position 0 are padding.
            size: of the caches, at least as many positions as there are tokens.
            layout: where arrays live.

        Returns:
            float32 [batch, vocab], -inf at the vocabulary's padding, and the cache of `size` positions: a ring whose
            newest slot is that of the last token.

        """
        fill = [(0, 0), (0, 0), (0, size - tokens.shape[1]), (0, 0)]
        filled = lambda cache: _laid_out(jax.tree.map(lambda part: jnp.pad(part, fill), cache), layout)  # noqa: E731
        x, caches = self.first(tokens, start, layout, filled)
        return self._last_logits(x, layout), tuple(caches)

    def first(self, tokens: Array, start: Array, layout: Layout, keep: Callable[..., Any]) -> tuple[NamedArray, Any]:
        """Return {batch, position, embed} before the last norm, and what is kept of the cache of every block."""
        positions = start[:, None] + jnp.arange(tokens.shape[1])
        x, segments = self._embed_at(tokens, positions, layout), (positions >= 0).astype(jnp.int32)
        caches = []
        for i, block in enumerate(self.blocks):
            x, cache = block.first(x, jnp.int32(i), start, segments, layout)
            caches.append(keep(cache))
        return x, caches

    def next_logits(
        self, tokens: Array, at: Ring, caches: tuple[Cache, ...], recent: tuple[Cache, ...], layout: Layout
    ) -> tuple[Array, tuple[Cache, ...]]:
        """Do the same for one more token of each row, int32 [batch], which are added to the recent ones at `at`."""
        x, longer = self._embed_at(tokens[:, None], at.position[:, None], layout), []
        for i, (block, cache, part) in enumerate(zip(self.blocks, caches, recent, strict=True)):
            x, new = block.following(x, jnp.int32(i), at, cache, part, layout)
            longer.append(_laid_out(new, layout))
        return self._last_logits(x, layout), tuple(longer)

    def _last_logits(self, x: NamedArray, layout: Layout) -> Array:
        x = normed(self.norm, x["position", -1], layout)
        logits: Array = self.logits(x, layout).rearrange(("batch", "vocab")).array
        return logits

    def _embed_at(self, tokens: Array, positions: Array, layout: Layout) -> NamedArray:
        """Return {batch, position, embed} of tokens at these positions, both [batch, position]; none is before 0."""
        x = self._embed_tokens(whole_table(self.token_embedding, layout), tokens, layout)
        if self.position_embedding is not None:
            table = layout.whole(self.position_embedding).rearrange(("embed", "position")).array
            x = (x + hax.named(table.T[jnp.maximum(positions, 0)], x.axes)).astype(x.dtype)
        return x

    def _embed(self, table: Array, tokens: Array, layout: Layout) -> NamedArray:
        """Return {batch, position, embed} of tokens at the first positions."""
        x = self._embed_tokens(table, tokens, layout)
        if self.position_embedding is not None:
            learned = layout.whole(self.position_embedding)["position", slice(tokens.shape[1])]
            at = [axis.name for axis in learned.axes].index("position")
            learned = hax.named(zigzag(learned.array, layout.context, axis=at), learned.axes)
            x = (x + learned).astype(x.dtype)
        return x

    def _embed_tokens(self, table: Array, tokens: Array, layout: Layout) -> NamedArray:
        """Return {batch, position, embed} without positions."""
        config = self.config
        Batch, Position = Axis("batch", tokens.shape[0]), Axis("position", tokens.shape[1])
        how = Lookup(
            num_tokens=config.Vocab.size,
            by_position=layout.splits_positions(Position.size),
            compute=layout.dtype,
            wire=layout.wire,
        )
        x = of_embedding(lookup(how, table, tokens), config)
        return hax.named(x, (Batch, Position, config.Embed))

    def loss(
        self,
        tokens: Array,
        segments: Array | None,
        targets: Array,
        weights: Array,
        dropout: Dropout,
        layout: Layout,
        loss: OfHead[T],
    ) -> T:
        """Return the loss of the head over these tokens; arrays are [batch, position], `weights` float32."""
        table = whole_table(self.token_embedding, layout)
        hidden = self.hidden(table, tokens, segments, dropout, layout)
        out = table if self.head is None else whole_table(self.head, layout)
        return self._loss(hidden, out, targets, weights, loss)

    def _loss(self, hidden: NamedArray, table: Array, targets: Array, weights: Array, loss: OfHead[T]) -> T:
        head = Head(table, None if self.head_bias is None else self.head_bias.array)
        return loss(head, Tokens(hidden.rearrange(("batch", "position", "embed")).array, targets, weights))

    def logits(self, hidden: NamedArray, layout: Layout) -> NamedArray:
        """Map {..., embed} to logits {..., vocab}, float32, -inf at the vocabulary's padding. Inference only."""
        head = layout.whole(self.token_embedding if self.head is None else self.head, layout.dtype)
        logits = hax.dot(hidden, head, axis="embed", preferred_element_type=jnp.float32)
        if self.head_bias is not None:
            logits = logits + self.head_bias
        logits = hax.named(Bend.of(self.config).apply(logits.array)[0], logits.axes)
        return hax.where(hax.arange(self.config.Vocab) < self.config.vocab_size, logits, -jnp.inf)


def _laid_out(cache: Cache, layout: Layout) -> Cache:
    placed: Cache = jax.tree.map(lambda part: layout.put(hax.named(part, cache.axes)).array, cache)
    return placed


def _in_stream(x: NamedArray, layout: Layout) -> Array:
    """Return [batch, position, embed], laid out as between layers."""
    stream: Array = layout.stay(x.rearrange(("batch", "position", "embed"))).array
    return stream


def whole_table(table: NamedArray, layout: Layout) -> Array:
    """Gather a token table on every device of `data` (`table.copies`)."""
    return copies(Table(layout.fsdp, layout.dtype, layout.wire), table.array.astype(jnp.float32))

"""The block that joins attention with the MLP around the residual stream.

    sequential:          x + attention(norm(x)),  then  x + mlp(norm(x))
    parallel:            x + attention(norm(x)) + mlp(norm(x))           (one norm)
    parallel-two-norms:  x + attention(norm(x)) + mlp(norm(x))           (each its own)

With `post_norm` what attention and MLP add is normed too, and without `pre_norm` that alone. `shardwise.train.model`
stacks the blocks. Capitals are axes, and the config owns them; no mesh axis is named here: `Layout` lays activations
out. Sources: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019); Wang and Komatsuzaki,
"GPT-J-6B" (2021); Gemma Team, "Gemma 2" (2024) for norms after; OLMo Team, "2 OLMo 2 Furious" (2025) for those alone;
IBM, "Granite 3.0 Language Models" (2024) for the factor of what is added.
"""

from dataclasses import replace
from typing import Self

import equinox as eqx
import haliax as hax
import jax
from haliax import NamedArray

from shardwise.train.caches import Cache, Ring
from shardwise.train.config import GptConfig
from shardwise.train.dropout import Dropout, Place
from shardwise.train.experts import FeedForward, feed_forward
from shardwise.train.factors import times
from shardwise.train.latent_attention import LatentAttention, attention_of
from shardwise.train.layout import Layout
from shardwise.train.norm import Norm, normed
from shardwise.train.self_attention import Attention

Array = jax.Array


class Block(eqx.Module):
    """One layer: attention and MLP around the residual stream."""

    kind: str = eqx.field(static=True)
    residual_factor: float = eqx.field(static=True)
    norm: Norm | None
    attention: Attention | LatentAttention
    attention_post_norm: Norm | None
    mlp_norm: Norm | None
    mlp: FeedForward
    mlp_post_norm: Norm | None

    @classmethod
    def init(cls, config: GptConfig, *, key: Array) -> Self:
        """Return a block; the parallel one has a single norm before."""
        attention_key, mlp_key = jax.random.split(key)
        has_two = config.pre_norm and config.block != "parallel"
        return cls(
            config.block,
            config.residual_factor,
            Norm.init(config, config.Embed) if config.pre_norm else None,
            attention_of(config, key=attention_key),
            Norm.init(config, config.Embed) if config.post_norm else None,
            Norm.init(config, config.Embed) if has_two else None,
            feed_forward(config, key=mlp_key),
            Norm.init(config, config.Embed) if config.post_norm else None,
        )

    def __call__(
        self, x: NamedArray, layer: Array, segments: NamedArray | None, dropout: Dropout, layout: Layout
    ) -> NamedArray:
        """Map {batch, position, embed}, split by position over tensor, to the same."""
        x_normed = self._entering(self.norm, x, layout)
        attended = self.attention(x_normed, segments, layer, layout)
        return self._join(x, x_normed, attended, layer, dropout, layout)

    def for_generation(self) -> Self:
        """Return the block for `first` and `following`."""
        attention = self.attention
        return replace(self, attention=attention.for_generation()) if isinstance(attention, LatentAttention) else self

    def first(
        self, x: NamedArray, layer: Array, start: Array, segments: Array, layout: Layout
    ) -> tuple[NamedArray, Cache]:
        """Do the same for rows from positions `start` ([batch]) on, and return this layer's cache; without dropout."""
        x_normed = self._entering(self.norm, x, layout)
        attended, cache = self.attention.first(x_normed, start, segments, layer, layout)
        return self._join(x, x_normed, attended, layer, Dropout.none(), layout), cache

    def following(
        self, x: NamedArray, layer: Array, at: Ring, cache: Cache, recent: Cache, layout: Layout
    ) -> tuple[NamedArray, Cache]:
        """Do the same for one position of each row, which is added to this layer's recent ones; without dropout."""
        x_normed = self._entering(self.norm, x, layout)
        attended, recent = self.attention.following(x_normed, at, cache, recent, layer, layout)
        return self._join(x, x_normed, attended, layer, Dropout.none(), layout), recent

    def _join(
        self, x: NamedArray, x_normed: NamedArray, attended: NamedArray, layer: Array, dropout: Dropout, layout: Layout
    ) -> NamedArray:
        """Return the residual stream after attention and MLP, sequential or parallel."""
        if self.attention_post_norm is not None:
            attended = normed(self.attention_post_norm, attended, layout)
        attended = self._weighed(dropped(dropout, attended, layer, "attention"))
        joined = x + attended
        if self.kind != "parallel":
            x_normed = self._entering(self.mlp_norm, joined if self.kind == "sequential" else x, layout)
        return joined + self._mlp(x_normed, layer, dropout, layout)

    def _entering(self, norm: Norm | None, x: NamedArray, layout: Layout) -> NamedArray:
        """Return what attention or the MLP gets of the stream."""
        return layout.enter(x if norm is None else normed(norm, x, layout))

    def _mlp(self, x_normed: NamedArray, layer: Array, dropout: Dropout, layout: Layout) -> NamedArray:
        """Return what the MLP adds to the stream."""
        out = self.mlp(x_normed, layout)
        if self.mlp_post_norm is not None:
            out = normed(self.mlp_post_norm, out, layout)
        return self._weighed(dropped(dropout, out, layer, "mlp"))

    def _weighed(self, added: NamedArray) -> NamedArray:
        """Return what is added to the stream, times the model's factor."""
        return hax.named(times(added.array, self.residual_factor), added.axes)


def dropped(dropout: Dropout, x: NamedArray, layer: Array, place: Place) -> NamedArray:
    """Apply dropout to {batch, position, embed}."""
    x = x.rearrange(("batch", "position", "embed"))
    return hax.named(dropout.drop(x.array, layer, place), x.axes)

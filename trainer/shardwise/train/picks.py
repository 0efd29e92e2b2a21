"""The experts that tokens picked, as rows: one for each pick, and those of one expert after each other."""

from collections.abc import Iterator
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.train import grouped
from shardwise.train.products import contract

Array = jax.Array


class Rows(NamedTuple):
    """The picks of some tokens, sorted by expert, or a window of these; inside a shard_map a device's own."""

    order: Array
    """int32 [rows]: which pick each is, counted one token after the other."""
    back: Array
    """int32 [picks]: where each token's picks went, one token after the other."""
    sizes: Array
    """int32 [experts]: how many rows each has; behind them may be rows of experts that are not here."""
    start: Array | None = None
    """int32 scalar: of a window, its first row."""

    @classmethod
    def of(cls, picks: Array, num_experts: int) -> Self:
        """Sort the experts of all tokens, [batch, position, k]; those of one expert stay in the tokens' order.

        Those that are not here, below 0 or from `num_experts` on, come last.
        """
        experts = picks.reshape(-1)
        experts = jnp.where((experts >= 0) & (experts < num_experts), experts, num_experts)
        order = jnp.argsort(experts, stable=True)
        return cls(order, jnp.argsort(order), jnp.bincount(experts, length=num_experts + 1)[:num_experts])

    def window(self, start: Array, size: int) -> "Rows":
        """Return so many of the rows, from this one on."""
        ends = jnp.cumsum(self.sizes)
        first, last = (jnp.clip(at, start, start + size) for at in (ends - self.sizes, ends))
        order = lax.dynamic_slice_in_dim(jnp.pad(self.order, (0, size)), start, size)
        return Rows(order, self.back, last - first, start)

    def dealt(self, x: Array) -> Array:
        """Return [rows, ...] of [batch, position, ...]: each token's once for each pick."""
        per_token = self.back.size // (x.shape[0] * x.shape[1])
        return x.reshape(-1, *x.shape[2:])[self.order // per_token]

    def sorted(self, x: Array) -> Array:
        """Return [rows] of [batch, position, k]."""
        return x.reshape(-1)[self.order]

    def back_to_picks(self, rows: Array, like: Array) -> Array:
        """Return [batch, position, k] of [rows], with zeros for picks that are not among these."""
        return self._at(rows, self.back).reshape(like.shape)

    def collected(self, rows: Array, like: Array) -> Array:
        """Return [batch, position, embed]: the sum of each token's rows, in float32."""
        of_token = self.back.reshape(like.shape[0] * like.shape[1], -1)
        collected: Array = rows[of_token].sum(1, dtype=jnp.float32).reshape(like.shape)
        return collected

    def added_to(self, sums: Array, rows: Array) -> Array:
        """Return [batch, position, embed], float32, with a window's rows added to their tokens.

        One pick of all tokens after the other: most of them are elsewhere, and all at once would take their memory.
        """
        flat = sums.reshape(-1, sums.shape[-1])
        of_token = self.back.reshape(len(flat), -1)
        add = lambda pick, sums: sums + self._at(rows, of_token[:, pick])  # noqa: E731
        added: Array = lax.fori_loop(0, of_token.shape[1], add, flat).reshape(sums.shape)
        return added

    def into(self, rows: Array, weight: Array) -> Array:
        """Return [rows, mlp] of [rows, embed] and [embed, experts, mlp]."""
        return self._own(grouped.into(rows, weight, self.sizes))

    def out_of(self, rows: Array, weight: Array) -> Array:
        """Return [rows, embed] of [rows, mlp] and [embed, experts, mlp]."""
        return self._own(grouped.out_of(rows, weight, self.sizes))

    def of_weight(self, of_embed: Array, of_mlp: Array, dtype: jax.typing.DTypeLike) -> Array:
        """Return [experts, embed, mlp]: of each expert the sum over its rows of [rows, embed] x [rows, mlp]."""
        return grouped.of_weight(of_embed, of_mlp, self.sizes, dtype)

    def spread(self, *biases: Array) -> Iterator[Array]:
        """Return [rows, mlp] of each [experts, mlp]: to a row its expert's."""
        experts = self._experts()
        return (bias[experts] for bias in biases)

    def of_biases(self, *rows: Array) -> list[Array]:
        """Return [experts, mlp] of each [rows, mlp], float32: the sum of an expert's rows."""
        # As a product: a TPU adds rows up one after the other.
        of_expert = jax.nn.one_hot(self._experts(), len(self.sizes), dtype=rows[0].dtype)
        return [contract(of_expert, each, (0,), (0,), dtype=jnp.float32) for each in rows]

    def _experts(self) -> Array:
        """Return the expert of each row; the rows of none, which are zero on their way back, count for the last."""
        numbers = jnp.arange(len(self.sizes), dtype=jnp.int32)
        return jnp.repeat(numbers, self.sizes, total_repeat_length=len(self.order))

    def _at(self, rows: Array, places: Array) -> Array:
        """Return the rows at these places; in a window zeros for those that are not in it."""
        if self.start is None:
            return rows[places]
        places = places - self.start
        is_here = ((places >= 0) & (places < self.sizes.sum())).reshape(-1, *(1,) * (rows.ndim - 1))
        return jnp.where(is_here, rows[jnp.clip(places, 0, len(rows) - 1)], 0)

    def _own(self, rows: Array) -> Array:
        """Return the rows, with zeros in the place of those that belong to no expert here."""
        return rows if self.start is None else jnp.where(jnp.arange(len(rows))[:, None] < self.sizes.sum(), rows, 0)


class AllRows(NamedTuple):
    """The same of an MLP that every token goes through, whose weights have no experts: a row is a token."""

    def dealt(self, x: Array) -> Array:
        """Return [rows, ...] of [batch, position, ...]."""
        return x.reshape(-1, *x.shape[2:])

    def sorted(self, x: Array) -> Array:
        """Return [rows] of [batch, position, 1]."""
        return x.reshape(-1)

    def back_to_picks(self, rows: Array, like: Array) -> Array:
        """Return [batch, position, 1] of [rows]."""
        return rows.reshape(like.shape)

    def collected(self, rows: Array, like: Array) -> Array:
        """Return [batch, position, embed], in float32."""
        return rows.astype(jnp.float32).reshape(like.shape)

    def into(self, rows: Array, weight: Array) -> Array:
        """Return [rows, mlp] of [rows, embed] and [embed, mlp]."""
        return rows @ weight

    def out_of(self, rows: Array, weight: Array) -> Array:
        """Return [rows, embed] of [rows, mlp] and [embed, mlp]."""
        return rows @ weight.T

    def of_weight(self, of_embed: Array, of_mlp: Array, dtype: jax.typing.DTypeLike) -> Array:
        """Return [embed, mlp]."""
        return contract(of_embed, of_mlp, (0,), (0,), dtype=jnp.dtype(dtype))

    def spread(self, *biases: Array) -> Iterator[Array]:
        """Return [1, mlp] of each [mlp]: every row's."""
        return (bias[None] for bias in biases)

    def of_biases(self, *rows: Array) -> list[Array]:
        """Return [mlp] of each [rows, mlp], float32."""
        return [each.sum(0, dtype=jnp.float32) for each in rows]

"""The weights of a mixture's experts, or of the MLP beside them, and of their adapters: the three matrices alike.

A matrix is stored as [embed, experts, mlp], whichever way it maps, so what an adapter adds to any of the three is the
product of a factor [embed, experts, rank] and one [rank, experts, mlp]: each expert has its own. Rows are taken through
both as they are through the matrix, and never is the product of the factors made, which a weight of 16 bits would round
away. A matrix with an adapter stays as it is, and has no gradient.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from shardwise.train.collectives import sum_over
from shardwise.train.expert_biases import Biases
from shardwise.train.fsdp import Placement, gather, scatter
from shardwise.train.picks import AllRows, Rows
from shardwise.train.products import GATHERED

Array = jax.Array
Pair = tuple[Array, Array]
"""[rows, embed] and [rows, mlp], of whose products the gradient of a matrix is the sum."""
Pairs = tuple[Pair, ...]
"""Those of gate, up and down."""


class Matrix(NamedTuple):
    """[embed, experts, mlp], as stored or gathered; of the MLP beside experts [embed, shared]."""

    weight: Array | None
    """None where this is a gradient: of a matrix that stays."""
    factors: tuple[Array, ...] = ()
    """[embed, experts, rank], with the adapter's scale in it, and [rank, experts, mlp]; none without an adapter."""

    def into(self, rows: Rows | AllRows, x: Array) -> Array:
        """Return [rows, mlp] of [rows, embed]."""
        assert self.weight is not None, "it is no gradient"
        out = rows.into(x, self.weight)
        if not self.factors:
            return out
        of_embed, of_mlp = self.factors
        return out + rows.into(rows.into(x, of_embed), of_mlp)

    def out_of(self, rows: Rows | AllRows, x: Array) -> Array:
        """Return [rows, embed] of [rows, mlp]."""
        assert self.weight is not None, "it is no gradient"
        out = rows.out_of(x, self.weight)
        if not self.factors:
            return out
        of_embed, of_mlp = self.factors
        return out + rows.out_of(rows.out_of(x, of_mlp), of_embed)

    def gradient(self, rows: Rows | AllRows, pair: Pair, dtype: jax.typing.DTypeLike) -> "Matrix":
        """Return this device's part of the gradient of what is trained, with experts first."""
        by_embed, by_mlp = pair
        if not self.factors:
            return Matrix(rows.of_weight(by_embed, by_mlp, dtype))
        of_embed, of_mlp = self.factors
        return Matrix(
            None,
            (
                rows.of_weight(by_embed, rows.out_of(by_mlp, of_mlp), dtype),
                rows.of_weight(rows.into(by_embed, of_embed), by_mlp, dtype),
            ),
        )


class Weights(NamedTuple):
    """The matrices of gated MLPs."""

    gate: Matrix
    up: Matrix
    down: Matrix
    biases: Biases | None = None
    """Of gate and up, float32 and whole over data."""

    @property
    def experts(self) -> int:
        """Return how many experts there are on this device."""
        assert self.up.weight is not None, "it is no gradient"
        return self.up.weight.shape[1]

    def gradients(self, rows: Rows | AllRows, pairs: Pairs, dtype: jax.typing.DTypeLike) -> Iterator[Matrix]:
        """Yield this device's part of the gradients of the three, with experts first."""
        for matrix, pair in zip(self[:3], pairs, strict=True):
            yield matrix.gradient(rows, pair, dtype)

    def gradients_of_biases(self, rows: Rows | AllRows, pairs: Pairs) -> Biases | None:
        """Return this device's part of them."""
        return None if self.biases is None else self.biases.gradients(rows, pairs)


class Places(NamedTuple):
    """Where these weights are stored, and where they are computed with."""

    weight: Placement
    """Of each of the three."""
    factors: tuple[Placement, ...]
    """Of each one's factors, if they have adapters."""
    has_biases: bool

    @property
    def wire(self) -> jnp.dtype:
        """Return the dtype in which gradients are summed over devices."""
        return self.weight.wire

    @property
    def whole(self) -> Any:
        """Return the partitions of gathered weights."""
        return self._alike(self.weight.whole, *(place.whole for place in self.factors))

    @property
    def stored(self) -> Any:
        """Return the partitions of gradients as weights are stored."""
        of_weight = None if self.factors else self.weight.stored
        return self._alike(of_weight, *(place.stored for place in self.factors))

    def gathered(self, weights: Weights) -> Weights:
        """Gather weights."""
        gate, up, down = (self._gathered(matrix) for matrix in weights[:3])
        return Weights(gate, up, down, weights.biases)

    def scattered(self, gradients: Weights) -> Weights:
        """Inside a shard_map: sum gradients over data, and lay them out as they are stored."""
        biases = self.summed(gradients.biases)
        gate, up, down = (self.scattered_matrix(matrix) for matrix in gradients[:3])
        return Weights(gate, up, down, biases)

    def summed(self, biases: Biases | None) -> Biases | None:
        """Return the sums of gradients of biases, which are whole."""
        return None if biases is None else biases.summed(self.weight)

    def scattered_matrix(self, matrix: Matrix) -> Matrix:
        """Return the gradient of one of the three, summed and laid out likewise."""
        if matrix.weight is not None:
            return Matrix(scatter(self.weight, _as_stored(matrix.weight)))
        of_embed, of_mlp = (
            scatter(place, _as_stored(factor)) for place, factor in zip(self.factors, matrix.factors, strict=True)
        )
        # Each device of tensor has what its hidden features make of it.
        return Matrix(None, (sum_over("tensor", of_embed, self.wire).astype(of_embed.dtype), of_mlp))

    def _alike(self, of_weight: Any, *of_factors: Any) -> Any:
        """Return the partitions of all three, and of biases."""
        matrix = Matrix(of_weight, of_factors)
        return Weights(matrix, matrix, matrix, Biases.partition(self.weight.whole) if self.has_biases else None)

    def _gathered(self, matrix: Matrix) -> Matrix:
        assert matrix.weight is not None, "it is no gradient"
        weight, *factors = (
            checkpoint_name(gather(place, x), GATHERED)
            for place, x in zip((self.weight, *self.factors), (matrix.weight, *matrix.factors), strict=True)
        )
        return Matrix(weight, tuple(factors))


def no_gradients(weights: Weights) -> Weights:
    """Return zeros like such gradients of experts, float32."""

    def zeros(x: Array | None) -> Array:
        assert x is not None, "it is no gradient"
        size, experts, width = x.shape
        return jnp.zeros((experts, size, width), jnp.float32)

    factors = weights.up.factors
    matrix = Matrix(None, tuple(map(zeros, factors))) if factors else Matrix(zeros(weights.up.weight))
    return Weights(matrix, matrix, matrix, jax.tree.map(jnp.zeros_like, weights.biases))


def _as_stored(gradient: Array) -> Array:
    """Return [embed, experts, mlp] of [experts, embed, mlp]; a gradient without experts as it is."""
    return gradient.transpose(1, 0, 2) if gradient.ndim == 3 else gradient

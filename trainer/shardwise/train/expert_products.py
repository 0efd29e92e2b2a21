"""What MLPs make of rows on one device: the experts of a mixture of those that picked them, a shared one of all tokens.

The backward pass is written out, since a derived one would compute the last product again.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from shardwise.train.expert_biases import Biases
from shardwise.train.fsdp import Placement, gather
from shardwise.train.mlp import gated
from shardwise.train.picks import AllRows, Rows
from shardwise.train.products import GATHERED

Array = jax.Array


class Weights(NamedTuple):
    """[embed, experts, mlp] each, as stored or gathered; of a shared MLP [embed, shared]."""

    gate: Array
    up: Array
    down: Array
    biases: Biases | None = None
    """Of gate and up, float32 and whole over data."""


def whole_of(place: Placement, weights: Weights) -> Weights:
    """Gather weights, which are placed alike."""
    gate, up, down = (checkpoint_name(gather(place, weight), GATHERED) for weight in weights[:3])
    return Weights(gate, up, down, weights.biases)


# ---- of some rows

Activated = tuple[Array, Callable[[Array], tuple[Array, Array]]]
"""[rows, mlp] before the last product, and how its gradient becomes those of gate and up."""


def computed(
    activation: str, rows: Rows | AllRows, x: Array, shares: Array, weights: Weights
) -> tuple[Array, Array, Array]:
    """Return what the rows add to their tokens, [rows, embed], and their gate and up, [rows, mlp]."""
    dealt = rows.dealt(x)
    gate, up = gate_and_up(rows, dealt, weights)
    hidden = gated(activation, gate, up) * rows.sorted(shares)[:, None].astype(x.dtype)
    return rows.out_of(hidden, weights.down), gate, up


def gate_and_up(rows: Rows | AllRows, dealt: Array, weights: Weights) -> tuple[Array, Array]:
    """Return [rows, mlp] of each, of [rows, embed]."""
    gate, up = rows.into(dealt, weights.gate), rows.into(dealt, weights.up)
    return (gate, up) if weights.biases is None else weights.biases.added(rows, gate, up)


def activated(activation: str, gate: Array, up: Array) -> Activated:
    """Return what gate and up make together."""
    hidden, of_hidden = jax.vjp(partial(gated, activation), gate, up)
    return hidden, of_hidden


def gradients(
    made: Activated, rows: Rows | AllRows, x: Array, shares: Array, weights: Weights, grad: Array
) -> tuple[Array, Array, tuple[tuple[Array, Array], ...]]:
    """Return the gradients of the rows, [rows, embed], and of shares, and what each weight's is a product of."""
    dealt, dealt_grad, share = rows.dealt(x), rows.dealt(grad), rows.sorted(shares)[:, None]
    hidden, of_hidden = made
    slope = rows.into(dealt_grad, weights.down)
    of_shares = rows.back_to_picks((hidden.astype(jnp.float32) * slope).sum(-1), shares)
    of_gate, of_up = of_hidden((slope * share).astype(hidden.dtype))
    of_rows = rows.out_of(of_gate, weights.gate) + rows.out_of(of_up, weights.up)
    pairs = ((dealt, of_gate), (dealt, of_up), (dealt_grad, hidden * share.astype(hidden.dtype)))
    return of_rows, of_shares, pairs

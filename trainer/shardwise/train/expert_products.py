"""What MLPs make of rows on one device: the experts of a mixture of those that picked them, a shared one of all tokens.

The backward pass is written out, since a derived one would compute the last product again.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from shardwise.train.expert_weights import Pairs, Weights
from shardwise.train.mlp import gated
from shardwise.train.picks import AllRows, Rows

Array = jax.Array

Activated = tuple[Array, Callable[[Array], tuple[Array, Array]]]
"""[rows, mlp] before the last product, and how its gradient becomes those of gate and up."""


def computed(
    activation: str, rows: Rows | AllRows, x: Array, shares: Array, weights: Weights
) -> tuple[Array, Array, Array]:
    """Return what the rows add to their tokens, [rows, embed], and their gate and up, [rows, mlp]."""
    dealt = rows.dealt(x)
    gate, up = gate_and_up(rows, dealt, weights)
    hidden = gated(activation, gate, up) * rows.sorted(shares)[:, None].astype(x.dtype)
    return weights.down.out_of(rows, hidden), gate, up


def gate_and_up(rows: Rows | AllRows, dealt: Array, weights: Weights) -> tuple[Array, Array]:
    """Return [rows, mlp] of each, of [rows, embed]."""
    gate, up = weights.gate.into(rows, dealt), weights.up.into(rows, dealt)
    return (gate, up) if weights.biases is None else weights.biases.added(rows, gate, up)


def activated(activation: str, gate: Array, up: Array) -> Activated:
    """Return what gate and up make together."""
    hidden, of_hidden = jax.vjp(partial(gated, activation), gate, up)
    return hidden, of_hidden


def gradients(
    made: Activated, rows: Rows | AllRows, x: Array, shares: Array, weights: Weights, grad: Array
) -> tuple[Array, Array, Pairs]:
    """Return the gradients of the rows, [rows, embed], and of shares, and what each weight's is a product of."""
    dealt, dealt_grad, share = rows.dealt(x), rows.dealt(grad), rows.sorted(shares)[:, None]
    hidden, of_hidden = made
    slope = weights.down.into(rows, dealt_grad)
    of_shares = rows.back_to_picks((hidden.astype(jnp.float32) * slope).sum(-1), shares)
    of_gate, of_up = of_hidden((slope * share).astype(hidden.dtype))
    of_rows = weights.gate.out_of(rows, of_gate) + weights.up.out_of(rows, of_up)
    pairs = ((dealt, of_gate), (dealt, of_up), (dealt_grad, hidden * share.astype(hidden.dtype)))
    return of_rows, of_shares, pairs

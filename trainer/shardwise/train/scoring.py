"""How likely a model finds the tokens of whole sequences, and what it finds likeliest in their places.

The program reads the weights of generation (`shardwise.train.decoder`), and goes over a sequence once.
"""

from typing import Any, NamedTuple

import haliax as hax
import jax
import jax.numpy as jnp

from shardwise.train.decoding import OF_ROWS, lower_with_weights
from shardwise.train.decoding_arrays import BLOCK, BY_ROW
from shardwise.train.layout import Layout
from shardwise.train.model import Gpt
from shardwise.train.norm import normed
from shardwise.train.state import Abstract, Program

Array = jax.Array
MOST_LIKELY = 5
"""How many tokens are named in the place of each."""
_AXES = ("batch", "position", "embed")


class Scores(NamedTuple):
    """Of each token that is looked at: natural logarithms of probabilities, given all tokens before it."""

    own: Any
    """float32 [rows, length]: of the token itself."""
    top: Any
    """float32 [rows, length, some]: of the likeliest tokens in its place, the likeliest first."""
    top_tokens: Any
    """int32 [rows, length, some]: which they are."""


def lower_scores(program: Program, layout: Layout, num_rows: int, length: int) -> jax.stages.Lowered:
    """Lower (weights, tokens, what follows each, start) -> Scores of what follows.

    Tokens are int32 [rows, length], a row's own the last of them; the start is int32 [rows], the position of its first
    entry, of which those before position 0 are padding. `length` is a multiple of `BLOCK`.
    """

    def scores(weights: Gpt, tokens: Array, following: Array, start: Array) -> Scores:
        x, _ = weights.first(tokens, start, layout, lambda _: None)
        hidden = normed(weights.norm, x, layout).rearrange(_AXES).array

        def of_block(number: Array) -> Scores:
            x, own = (jax.lax.dynamic_slice_in_dim(each, number * BLOCK, BLOCK, 1) for each in (hidden, following))
            logits = weights.logits(hax.named(x, _AXES), layout).rearrange(("batch", "position", "vocab")).array
            logs = jax.nn.log_softmax(jax.lax.with_sharding_constraint(logits, BY_ROW))
            top, tokens = jax.lax.top_k(logs, min(MOST_LIKELY, program.config.vocab_size))
            return Scores(jnp.take_along_axis(logs, own[..., None], -1)[..., 0], top, tokens)

        # A block at a time: the logits of all positions at once would be larger than the model.
        blocks = jax.lax.map(of_block, jnp.arange(length // BLOCK))
        found: Scores = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], length, *x.shape[3:]), blocks)
        return found

    tokens, start = Abstract((num_rows, length), jnp.int32), Abstract((num_rows,), jnp.int32)
    return lower_with_weights(
        scores,
        program,
        layout,
        (tokens, tokens, start),
        (OF_ROWS,) * 3,
        outs=OF_ROWS,
        places=Scores(*(layout.replicated,) * 3),
    )

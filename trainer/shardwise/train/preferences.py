"""The loss of pairs of answers: a model learns to prefer the chosen one, and stays close to what it was.

    DPO: loss of a pair = -(1 - s) log sigmoid(margin) - s log sigmoid(-margin), with label smoothing s
         margin = beta * ((log p - log p0)(chosen) - (log p - log p0)(rejected))
    IPO: loss of a pair = (margin - 1 / (2 beta))^2
         margin = (log p - log p0)(chosen) / its tokens - (log p - log p0)(rejected) / its tokens

and either + chosen weight * mean over the chosen answer's tokens of -log p. p is of the model, p0 of the model as it
was: without its adapters, or with the weights that it began with. The margins
are computed first, from each token's cross entropy in both. By them d loss / d log p of a token is known, and with that
as its weight the cross entropy of the head has the gradient of the pairs' loss: so there is no other backward pass than
that of `train/loss.py`. Sources: Rafailov et al., "Direct Preference Optimization: Your Language Model is Secretly a
Reward Model" (2023); Azar et al., "A General Theoretical Paradigm to Understand Learning from Human Preferences"
(2023), per token as TRL has it; the chosen answer's term: Pang et al., "Iterative Reasoning Preference Optimization"
(2024).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from shardwise.job.spec.training import Loss
from shardwise.train.loss import Head, HeadLoss, LossSums, OfHead, Tokens, head_loss, token_losses
from shardwise.train.mesh import DATA

Array = jax.Array


class Pairs(NamedTuple):
    """What the loss of pairs needs beside tokens; arrays are [batch, position]."""

    settings: Loss
    segments: Array
    """int32: even ones are chosen answers, and each odd one is what was rejected for the one before it."""
    reference: Array
    """float32: the tokens' cross entropy in the model as it was."""


def loss_of_head(settings: HeadLoss, loss: Loss, segments: Array | None, reference: Array | None) -> OfHead[LossSums]:
    """Return the loss of the head: of tokens, or of pairs if there is a reference for them."""
    if reference is None:
        return partial(head_loss, settings)
    assert segments is not None, "the job is resolved"
    return partial(pairs_loss, settings, Pairs(loss, segments, reference))


def pairs_loss(settings: HeadLoss, pairs: Pairs, head: Head, tokens: Tokens) -> LossSums:
    """Return the sums over pairs; `cross_entropy` is their loss, `correct` counts those whose margin is above 0.

    `total` has the gradient of the loss, and another value. Weights say which tokens are answers.
    """
    chosen_weight = pairs.settings.chosen_weight
    losses = token_losses(settings, head, tokens)
    gains = pairs.reference - losses  # log p - log p0
    counted, gains, segments = (_whole_rows(x) for x in (tokens.weights, gains, pairs.segments))
    signs = jnp.where(segments % 2 == 0, 1.0, -1.0)
    is_same = (segments // 2)[:, :, None] == (segments // 2)[:, None, :]  # [batch, token, token] of one pair
    scale = pairs.settings.beta
    if pairs.settings.preferences == "ipo":
        is_of_answer = segments[:, :, None] == segments[:, None, :]
        signs, scale = signs / jnp.maximum(_summed(is_of_answer, counted), 1.0), 1.0
    margins = scale * _summed(is_same, signs * gains)
    weights = counted * signs * scale * _push(pairs.settings, margins)
    shares = None
    if chosen_weight:
        chosen = counted * (signs > 0)
        shares = chosen_weight * chosen / jnp.maximum(_summed(is_same, chosen), 1.0)
        weights += shares
    sums = head_loss(settings, head, tokens._replace(weights=jax.lax.stop_gradient(weights)))
    # One token stands for its pair: the first that counts.
    at = jnp.arange(counted.shape[1])
    first = jnp.where(is_same & (counted > 0)[:, None, :], at, at.size).min(-1)
    stands = (first == at).astype(jnp.float32)
    costs = stands * _cost(pairs.settings, margins)
    if shares is not None:
        costs += shares * _whole_rows(losses)
    return LossSums(
        total=sums.total,
        cross_entropy=costs.sum(),
        z_squared=jnp.zeros(()),
        correct=(stands * (margins > 0)).sum(),
        weight=stands.sum(),
    )


def _cost(settings: Loss, margins: Array) -> Array:
    """Return what a pair with this margin costs."""
    if settings.preferences == "ipo":
        return jnp.square(margins - 0.5 / settings.beta)
    cost: Array = jax.nn.softplus(-margins)
    return cost + settings.label_smoothing * margins if settings.label_smoothing else cost


def _push(settings: Loss, margins: Array) -> Array:
    """Return by how much a pair costs less where its margin grows: the negative slope of `_cost`."""
    if settings.preferences == "ipo":
        return 1.0 / settings.beta - 2.0 * margins
    push: Array = jax.nn.sigmoid(-margins)
    return push - settings.label_smoothing if settings.label_smoothing else push


def _summed(is_same: Array, x: Array) -> Array:
    """Return for each token the sum over those of its pair or answer, in an order that is always the same."""
    return jnp.where(is_same, x[:, None, :], 0.0).sum(-1)


def _whole_rows(x: Array) -> Array:
    """Gather the positions of a row on each device that has some of them."""
    whole: Array = jax.lax.with_sharding_constraint(x, P(DATA))
    return whole

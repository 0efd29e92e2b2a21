"""The loss of pairs of answers: a model learns to prefer the chosen one.

With s(answer) = sum over its tokens of log p - log p0, and m(answer) = mean over its tokens of log p:

    DPO:   loss of a pair = -(1 - e) log sigmoid(margin) - e log sigmoid(-margin), with label smoothing e
           margin = beta * (s(chosen) - s(rejected))
    IPO:   loss of a pair = (margin - 1 / (2 beta))^2
           margin = s(chosen) / its tokens - s(rejected) / its tokens
    SimPO: loss of a pair = -log sigmoid(margin - target), with the job's margin as target
           margin = beta * (m(chosen) - m(rejected))
    ORPO:  loss of a pair = -beta * log sigmoid(margin)
           margin = logit(m(chosen)) - logit(m(rejected)), with logit(m) = m - log(1 - e^m), the logarithm of the odds

and each + chosen weight * mean over the chosen answer's tokens of -log p. p is of the model, p0 of the model as it
was: without its adapters, or with the weights that it began with. SimPO and ORPO compare with no p0. The margins
are computed first, from each token's cross entropy. By them d loss / d log p of a token is known, and with that
as its weight the cross entropy of the head has the gradient of the pairs' loss: so there is no other backward pass than
that of `train/loss.py`. Sources: Rafailov et al., "Direct Preference Optimization: Your Language Model is Secretly a
Reward Model" (2023); Azar et al., "A General Theoretical Paradigm to Understand Learning from Human Preferences"
(2023), per token as TRL has it; Meng et al., "SimPO: Simple Preference Optimization with a Reference-Free Reward"
(2024); Hong et al., "ORPO: Monolithic Preference Optimization without Reference Model" (2024); the chosen answer's
term: Pang et al., "Iterative Reasoning Preference Optimization" (2024).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from shardwise.job.spec.loss import Loss
from shardwise.job.spec.training import Training
from shardwise.train.loss import Head, HeadLoss, LossSums, OfHead, Tokens, head_loss, token_losses
from shardwise.train.mesh import DATA

Array = jax.Array

_SUREST = -1e-6
"""The largest mean of log p for which odds are computed; at 0 they would have no end."""


class Pairs(NamedTuple):
    """What the loss of pairs needs beside tokens; arrays are [batch, position]."""

    settings: Loss
    segments: Array
    """int32: even ones are chosen answers, and each odd one is what was rejected for the one before it."""
    reference: Array | None
    """float32: the tokens' cross entropy in the model as it was; None of a loss that does not compare with it."""


def loss_of_head(
    settings: HeadLoss, training: Training, segments: Array | None, reference: Array | None
) -> OfHead[LossSums]:
    """Return the loss of the head: of tokens, or of pairs if the job learns preferences."""
    if not training.learns_preferences:
        return partial(head_loss, settings)
    assert segments is not None, "the job is resolved"
    return partial(pairs_loss, settings, Pairs(training.loss, segments, reference))


def pairs_loss(settings: HeadLoss, pairs: Pairs, head: Head, tokens: Tokens) -> LossSums:
    """Return the sums over pairs; `cross_entropy` is their loss, `correct` counts those whose margin is above 0.

    `total` has the gradient of the loss, and another value. Weights say which tokens are answers.
    """
    loss = pairs.settings
    losses = token_losses(settings, head, tokens)
    gains = -losses if pairs.reference is None else pairs.reference - losses  # log p, or log p - log p0
    counted, gains, segments = (_whole_rows(x) for x in (tokens.weights, gains, pairs.segments))
    is_same = (segments // 2)[:, :, None] == (segments // 2)[:, None, :]  # [batch, token, token] of one pair
    margins, slopes = _margins(loss, segments, is_same, counted, gains)
    weights = counted * slopes * _push(loss, margins)
    shares = None
    if loss.chosen_weight:
        chosen = counted * (segments % 2 == 0)
        shares = loss.chosen_weight * chosen / jnp.maximum(_summed(is_same, chosen), 1.0)
        weights += shares
    sums = head_loss(settings, head, tokens._replace(weights=jax.lax.stop_gradient(weights)))
    # One token stands for its pair: the first that counts.
    at = jnp.arange(counted.shape[1])
    first = jnp.where(is_same & (counted > 0)[:, None, :], at, at.size).min(-1)
    stands = (first == at).astype(jnp.float32)
    costs = stands * _cost(loss, margins)
    if shares is not None:
        costs += shares * _whole_rows(losses)
    return LossSums(
        total=sums.total,
        cross_entropy=costs.sum(),
        z_squared=jnp.zeros(()),
        correct=(stands * (margins > 0)).sum(),
        weight=stands.sum(),
    )


def _margins(loss: Loss, segments: Array, is_same: Array, counted: Array, gains: Array) -> tuple[Array, Array]:
    """Return the margin of each token's pair, and by how much it grows with that token's log p; [batch, position]."""
    signs = jnp.where(segments % 2 == 0, 1.0, -1.0)
    if loss.preferences == "dpo":
        return loss.beta * _summed(is_same, signs * gains), loss.beta * signs
    is_of_answer = segments[:, :, None] == segments[:, None, :]
    count = jnp.maximum(_summed(is_of_answer, counted), 1.0)
    signs = signs / count
    if loss.preferences == "orpo":
        mean = jnp.minimum(_summed(is_of_answer, gains) / count, _SUREST)
        against = -jnp.expm1(mean)
        return _summed(is_same, signs * counted * (mean - jnp.log(against))), signs / against
    scale = loss.beta if loss.preferences == "simpo" else 1.0
    return scale * _summed(is_same, signs * gains), scale * signs


def _cost(loss: Loss, margins: Array) -> Array:
    """Return what a pair with this margin costs."""
    if loss.preferences == "ipo":
        return jnp.square(margins - 0.5 / loss.beta)
    cost: Array = jax.nn.softplus(loss.margin - margins if loss.margin else -margins)
    if loss.preferences == "orpo":
        return loss.beta * cost
    return cost + loss.label_smoothing * margins if loss.label_smoothing else cost


def _push(loss: Loss, margins: Array) -> Array:
    """Return by how much a pair costs less where its margin grows: the negative slope of `_cost`."""
    if loss.preferences == "ipo":
        return 1.0 / loss.beta - 2.0 * margins
    push: Array = jax.nn.sigmoid(loss.margin - margins if loss.margin else -margins)
    if loss.preferences == "orpo":
        return loss.beta * push
    return push - loss.label_smoothing if loss.label_smoothing else push


def _summed(is_same: Array, x: Array) -> Array:
    """Return for each token the sum over those of its pair or answer, in an order that is always the same."""
    return jnp.where(is_same, x[:, None, :], 0.0).sum(-1)


def _whole_rows(x: Array) -> Array:
    """Gather the positions of a row on each device that has some of them."""
    whole: Array = jax.lax.with_sharding_constraint(x, P(DATA))
    return whole

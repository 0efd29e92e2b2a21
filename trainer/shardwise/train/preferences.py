"""The loss of answers that are good or bad: a model learns to prefer the chosen one of a pair, or each by itself.

With s(answer) = sum over its tokens of log p - log p0, and m(answer) = mean over its tokens of log p:

    DPO:   loss of a pair = -(1 - e) log sigmoid(margin) - e log sigmoid(-margin), with label smoothing e
           margin = beta * (s(chosen) - s(rejected))
    IPO:   loss of a pair = (margin - 1 / (2 beta))^2
           margin = s(chosen) / its tokens - s(rejected) / its tokens
    SimPO: loss of a pair = -log sigmoid(margin - target), with the job's margin as target
           margin = beta * (m(chosen) - m(rejected))
    ORPO:  loss of a pair = -beta * log sigmoid(margin)
           margin = logit(m(chosen)) - logit(m(rejected)), with logit(m) = m - log(1 - e^m), the logarithm of the odds

    KTO:   loss of an answer = its weight * sigmoid(-margin)
           margin = beta * (s(answer) - z) of a good one, beta * (z - s(answer)) of a bad one
           z = max(0, mean of s over prompts with answers to others), as `apart` estimates it

and each of pairs + chosen weight * mean over the chosen answer's tokens of -log p. p is of the model, p0 of the model
as it was: without its adapters, or with the weights that it began with. SimPO and ORPO compare with no p0. The margins
are computed first, from each token's cross entropy. By them d loss / d log p of a token is known, and with that
as its weight the cross entropy of the head has the gradient of the pairs' loss: so there is no other backward pass than
that of `train/loss.py`. Sources: Rafailov et al., "Direct Preference Optimization: Your Language Model is Secretly a
Reward Model" (2023); Azar et al., "A General Theoretical Paradigm to Understand Learning from Human Preferences"
(2023), per token as TRL has it; Meng et al., "SimPO: Simple Preference Optimization with a Reference-Free Reward"
(2024); Hong et al., "ORPO: Monolithic Preference Optimization without Reference Model" (2024); Ethayarajh et al.,
"KTO: Model Alignment as Prospect Theoretic Optimization" (2024); the chosen answer's term: Pang et al., "Iterative
Reasoning Preference Optimization" (2024).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from shardwise.job.spec.loss import Loss
from shardwise.job.spec.training import Training
from shardwise.train.loss import Head, HeadLoss, LossSums, OfHead, Tokens, head_loss, token_losses
from shardwise.train.mesh import DATA
from shardwise.train.microbatches import Batch, Compared

Array = jax.Array

_SUREST = -1e-6
"""The largest mean of log p for which odds are computed; at 0 they would have no end."""


class Pairs(NamedTuple):
    """What the loss of answers needs beside tokens; arrays are [batch, position]."""

    settings: Loss
    segments: Array
    """int32: even ones are good answers; of pairs each odd one is what was rejected for the one before it."""
    reference: Array | None
    """float32: the tokens' cross entropy in the model as it was; None of a loss that does not compare with it."""
    moved: Array | None = None
    """float32 scalar: the z of KTO."""


def loss_of_head(
    settings: HeadLoss,
    training: Training,
    segments: Array | None,
    reference: Array | None,
    moved: Array | None = None,
) -> OfHead[LossSums]:
    """Return the loss of the head: of tokens, or of answers if the job learns preferences."""
    if not training.learns_preferences:
        return partial(head_loss, settings)
    assert segments is not None, "the job is resolved"
    return partial(pairs_loss, settings, Pairs(training.loss, segments, reference, moved))


def pairs_loss(settings: HeadLoss, pairs: Pairs, head: Head, tokens: Tokens) -> LossSums:
    """Return the sums over pairs, or with KTO over answers.

    `cross_entropy` is their loss, `correct` counts those whose margin is above 0.

    `total` has the gradient of the loss, and another value. Weights say which tokens are answers.
    """
    loss = pairs.settings
    losses = token_losses(settings, head, tokens)
    gains = -losses if pairs.reference is None else pairs.reference - losses  # log p, or log p - log p0
    counted, gains, segments = (_whole_rows(x) for x in (tokens.weights, gains, pairs.segments))
    in_unit = 1 if loss.preferences == "kto" else 2
    is_same = (segments // in_unit)[:, :, None] == (segments // in_unit)[:, None, :]  # [batch, token, token] of one
    if pairs.moved is not None:  # summed, it is there once of each answer
        gains -= _stands(is_same, counted) * pairs.moved
    margins, slopes = _margins(loss, segments, is_same, counted, gains)
    weights = counted * slopes * _push(loss, margins)
    worth = None
    if loss.preferences == "kto":
        worth = jnp.where(segments % 2 == 0, loss.good_weight, loss.bad_weight)
        weights *= worth
    shares = None
    if loss.chosen_weight:
        chosen = counted * (segments % 2 == 0)
        shares = loss.chosen_weight * chosen / jnp.maximum(_summed(is_same, chosen), 1.0)
        weights += shares
    sums = head_loss(settings, head, tokens._replace(weights=jax.lax.stop_gradient(weights)))
    stands = _stands(is_same, counted)
    costs = stands * _cost(loss, margins)
    if worth is not None:
        costs *= worth
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
    if loss.preferences in ("dpo", "kto"):
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
    if loss.preferences == "kto":
        return jax.nn.sigmoid(-margins)
    cost: Array = jax.nn.softplus(loss.margin - margins if loss.margin else -margins)
    if loss.preferences == "orpo":
        return loss.beta * cost
    return cost + loss.label_smoothing * margins if loss.label_smoothing else cost


def _push(loss: Loss, margins: Array) -> Array:
    """Return by how much a pair costs less where its margin grows: the negative slope of `_cost`."""
    if loss.preferences == "ipo":
        return 1.0 / loss.beta - 2.0 * margins
    if loss.preferences == "kto":
        return jax.nn.sigmoid(margins) * jax.nn.sigmoid(-margins)
    push: Array = jax.nn.sigmoid(loss.margin - margins if loss.margin else -margins)
    if loss.preferences == "orpo":
        return loss.beta * push
    return push - loss.label_smoothing if loss.label_smoothing else push


def apart(batch: Batch | Compared, losses: Callable[..., Array]) -> tuple[Batch, Array | None]:
    """Return a batch's own answers, and how far those to others show that the model has moved, if it has them.

    That is an estimate of the divergence from what it was, nats an answer, 0 at least, without a gradient: the mean of
    what answers to other prompts have gained, over the whole batch however it is cut. `losses` are of each token of a
    batch (`each_loss`).
    """
    if not isinstance(batch, Compared):
        return batch, None
    others = batch.unmatched
    gained = (losses(others, as_it_was=True) - losses(others)).sum()
    segments, counted = _whole_rows(others.segments), _whole_rows(others.weights)
    number = _stands(segments[:, :, None] == segments[:, None, :], counted).sum()
    return batch.own, jax.lax.stop_gradient(jnp.maximum(gained / jnp.maximum(number, 1.0), 0.0))


def _stands(is_same: Array, counted: Array) -> Array:
    """Return 1 of the token that stands for its pair or answer, the first that counts, and 0 of others."""
    at = jnp.arange(counted.shape[1])
    first = jnp.where(is_same & (counted > 0)[:, None, :], at, at.size).min(-1)
    return (first == at).astype(jnp.float32)


def _summed(is_same: Array, x: Array) -> Array:
    """Return for each token the sum over those of its pair or answer, in an order that is always the same."""
    return jnp.where(is_same, x[:, None, :], 0.0).sum(-1)


def _whole_rows(x: Array) -> Array:
    """Gather the positions of a row on each device that has some of them."""
    whole: Array = jax.lax.with_sharding_constraint(x, P(DATA))
    return whole

"""A step's batch: what it has, how it is cut into microbatches, and where the sums over them are kept."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shardwise.train.state import Program

Array = jax.Array


class Batch(NamedTuple):
    """One global batch: every field is [batch, position], laid out as `Layout.batch`, in the order of `zigzag`."""

    tokens: Array
    """int32."""
    targets: Array
    """int32: the token that follows."""
    weights: Array
    """float32: 0 leaves a target out of the loss."""
    segments: Array
    """int32: which document of its sequence a token belongs to."""
    advantages: Array | None = None
    """float32, of completions alone: by how much what a token is part of was better than the others of its prompt."""
    before: Array | None = None
    """float32, of completions that more than one step learns from: a token's cross entropy when they were made."""


class Compared(NamedTuple):
    """A batch of answers, and one of their prompts with answers to others (`train/data/unmatched.py`)."""

    own: Batch
    unmatched: Batch

    @property
    def tokens(self) -> Array:
        """Those that are trained on."""
        return self.own.tokens


class Point(NamedTuple):
    """What the loss of a batch depends on beside it and the parameters."""

    step: Array
    """int32."""
    moved: Array | None = None
    """float32 scalar: how far the model has moved from what it was, of a loss that asks for it."""


def split(program: Program, x: Array) -> Array:
    """Split [batch, ...] into [microbatch, row, ...].

    Of n microbatches one takes every n-th row, so each device keeps its own rows and nothing moves.
    """
    parts = jnp.swapaxes(x.reshape(-1, program.training.batch.microbatches, *x.shape[1:]), 0, 1)
    spec = program.layout.spec(("microbatch", "batch", "position")[: parts.ndim], program.layout.compute)
    placed: Array = jax.lax.with_sharding_constraint(parts, spec)
    return placed


def stored(program: Program, params: dict[str, Array]) -> dict[str, Array]:
    """Lay gradients out as the parameters are stored; of a pipeline, inside of its stage."""
    layout = program.layout.in_stage()
    specs = {path: layout.spec(program.names[path], layout.parameters) for path in params}
    return {path: jax.lax.with_sharding_constraint(x, specs[path]) for path, x in params.items()}

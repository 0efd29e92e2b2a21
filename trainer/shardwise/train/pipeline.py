"""A pipeline: each device of the mesh axis `pipeline` has some layers, a stage, and hands activations to the next one.

In one tick each stage works on one item, a visit of a microbatch, and passes it on in a ring. With several rounds a
stage has layers from several places of the model, and a microbatch comes round as often (Narayanan et al., "Efficient
Large-Scale Language Model Training", 2021): S microbatches go round together, S being the stages. An idle stage
computes too, on whatever has arrived; nobody looks at it, and its gradient is zero.

Microbatch m is embedded, and its loss computed, by the devices of stage m % S. A second ring, the other way round,
takes what is embedded to stage 0, one in a tick, and what is finished back in the same slots.

This runs inside a shard_map that is manual over `pipeline`. It knows nothing of the model, and the backward pass is
what autodiff derives from the forward one: the stages in reverse.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.job.spec import Training

Array = jax.Array
AXIS = "pipeline"


@dataclass(frozen=True)
class Schedule:
    """Who works on what, and when."""

    stages: int
    rounds: int
    microbatches: int
    """A multiple of `stages`."""

    @classmethod
    def of(cls, training: Training) -> Self:
        """Return the schedule of a resolved job."""
        mesh = training.mesh
        return cls(stages=mesh.pipeline, rounds=mesh.pipeline_rounds, microbatches=training.batch.microbatches)

    @property
    def ticks(self) -> int:
        """Return how long a pass takes: every stage has its items, and the last one waits for its first."""
        return self.microbatches * self.rounds + self.stages - 1

    @property
    def idle_share(self) -> float:
        """Return the share of all stages' ticks without an item: the bubble."""
        return (self.stages - 1) / self.ticks

    def item(self, stage: Array, tick: Array) -> tuple[Array, Array, Array]:
        """Return the round and the microbatch of a stage's item at a tick, and whether it has one; if not, any."""
        number = tick - stage
        group, place = jnp.divmod(number, self.stages * self.rounds)
        microbatch = group * self.stages + place % self.stages
        busy = (number >= 0) & (number < self.microbatches * self.rounds)
        return place // self.stages, jnp.clip(microbatch, 0, self.microbatches - 1), busy


def own_microbatches(schedule: Schedule, parts: Array) -> Array:
    """Return those of [microbatch, ...] that this stage's devices embed and compute the loss of."""
    by_group = parts.reshape(-1, schedule.stages, *parts.shape[1:])
    own: Array = jax.lax.dynamic_index_in_dim(by_group, jax.lax.axis_index(AXIS), axis=1, keepdims=False)
    return own


def of_all_stages(own: Array) -> Array:
    """Return [microbatch, ...] from what each stage has of its own: the inverse of `own_microbatches`."""
    gathered = jax.lax.all_gather(own, AXIS, axis=1)
    every: Array = gathered.reshape(-1, *gathered.shape[2:])
    return every


def run(schedule: Schedule, visit: Callable[[Array, Array, Array], Array], inputs: Array) -> Array:
    """Send microbatches through all layers.

    Args:
        schedule: see `Schedule`.
        visit: (activations, round, microbatch) -> activations, of this stage.
        inputs: [own microbatch, ...], each stage's own.

    Returns:
        The same shape: the results of the same microbatches.

    """
    stage, together = jax.lax.axis_index(AXIS), schedule.stages * schedule.rounds
    last = inputs.shape[0] - 1

    def swapped(tick: Array, arrived: Array, stream: Array) -> tuple[Array, Array]:
        """Have stage 0 take a new microbatch from the stream, and put the finished one that has arrived there."""
        takes = (stage == 0) & (tick % together < schedule.stages)
        return jnp.where(takes, stream, arrived), jnp.where(takes, arrived, stream)

    def step(carry: tuple[Array, Array, Array], tick: Array) -> tuple[tuple[Array, Array, Array], None]:
        arrived, stream, outputs = carry
        group, begins = tick // together, tick % together == 0
        # A group's slots are filled while the one after it goes round, and are read as that one's successor begins.
        slot = jnp.clip(group - 2, 0, last)
        done = jnp.where(begins, stream, jax.lax.dynamic_index_in_dim(outputs, slot, keepdims=False))
        outputs = jax.lax.dynamic_update_index_in_dim(outputs, done, slot, 0)
        new = jax.lax.dynamic_index_in_dim(inputs, jnp.clip(group, 0, last), keepdims=False)
        x, stream = swapped(tick, arrived, jnp.where(begins, new, stream))
        turn, microbatch, _ = schedule.item(stage, tick)
        return (_to_next(visit(x, turn, microbatch)), _to_previous(stream), outputs), None

    nothing = jnp.zeros_like(inputs[0])
    begin = (nothing, nothing, jnp.zeros_like(inputs))
    (arrived, stream, outputs), _ = jax.lax.scan(step, begin, jnp.arange(schedule.ticks, dtype=jnp.int32))
    _, stream = swapped(jnp.int32(schedule.ticks), arrived, stream)
    finished: Array = jax.lax.dynamic_update_index_in_dim(outputs, _to_previous(stream), last, 0)
    return finished


def dealt(schedule: Schedule, layers: Array) -> Array:
    """Move layers from where they are stored, one run of layers on each stage, to the stages that compute with them.

    Args:
        schedule: see `Schedule`.
        layers: [layer, ...], this stage's part of the model's order.

    Returns:
        The same shape: the layers that this stage visits, round by round.

    """
    stages, rounds = schedule.stages, schedule.rounds
    stacks = layers.reshape(rounds, -1, *layers.shape[1:])
    stage = jax.lax.axis_index(AXIS)
    result = jnp.zeros_like(stacks)
    for sends, moves, keeps in _deals(stages, rounds):
        sent = jax.lax.dynamic_index_in_dim(stacks, jnp.asarray(sends)[stage], keepdims=False)
        came = jax.lax.ppermute(sent, AXIS, moves)
        result = jax.lax.dynamic_update_index_in_dim(result, came, jnp.asarray(keeps)[stage], 0)
    return result.reshape(layers.shape)


def _deals(stages: int, rounds: int) -> list[tuple[np.ndarray, list[tuple[int, int]], np.ndarray]]:
    """Return permutations that together take each stack of layers to its stage, each stack once.

    Of each: which of its stacks a stage sends, who sends to whom, and which round the one that came belongs to. Stack b
    of all is stored by stage b // rounds and used by stage b % stages in round b // stages.
    """
    common = gcd(stages, rounds)
    deals = []
    for number in range(rounds):
        sends = [(number - stage * common // stages) % rounds for stage in range(stages)]
        stacks = [stage * rounds + sent for stage, sent in enumerate(sends)]
        keeps = np.zeros(stages, np.int32)
        for stack in stacks:
            keeps[stack % stages] = stack // stages
        deals.append((np.array(sends, np.int32), [(s, b % stages) for s, b in enumerate(stacks)], keeps))
    return deals


def _to_next(x: Array) -> Array:
    ways = jax.lax.axis_size(AXIS)
    sent: Array = jax.lax.ppermute(x, AXIS, [(stage, (stage + 1) % ways) for stage in range(ways)])
    return sent


def _to_previous(x: Array) -> Array:
    ways = jax.lax.axis_size(AXIS)
    sent: Array = jax.lax.ppermute(x, AXIS, [(stage, (stage - 1) % ways) for stage in range(ways)])
    return sent

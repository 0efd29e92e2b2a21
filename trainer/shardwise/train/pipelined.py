"""The loss and its gradient of a step whose layers are a pipeline: where what is not a layer runs, and what is kept.

The embedding and the head run on all stages, each with the microbatches that are its own, before the pipeline and after
it; and with the embedding the first blocks of a mixture that are of another kind than all others, which are few. Their
gradients are made one microbatch at a time and summed over the stages once. `train/pipeline.py` is the schedule. This
runs inside a shard_map that is manual over `pipeline`, with one replica's rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shardwise.train.balance import zero_loads
from shardwise.train.dropout import Dropout
from shardwise.train.loss import HeadLoss, LossSums, token_losses
from shardwise.train.microbatches import stored
from shardwise.train.model import Gpt
from shardwise.train.pipeline import AXIS, Schedule, dealt, of_all_stages, own_microbatches, run
from shardwise.train.preferences import loss_of_head
from shardwise.train.remat import OF_A_VISIT
from shardwise.train.state import Program

Array = jax.Array
Params = dict[str, Array]


class Microbatches(NamedTuple):
    """A replica's batch, cut: every field is [microbatch, row, position], but `rows`."""

    tokens: Array
    targets: Array
    weights: Array
    segments: Array | None
    rows: Array
    """int32 [microbatch, row]: the row of the global batch."""
    reference: Array | None = None
    """Of pairs of answers: what each token that counts costs the model as it was."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage's part of a step."""

    program: Program
    settings: HeadLoss
    params: Params
    """As they are stored: of the layers, this stage's."""
    parts: Microbatches
    """All stages'."""
    dropout: Callable[[Array], Dropout]
    """Of rows of the global batch."""
    is_reference: bool = False
    """Whether it is of the model as it was, which preferences are compared with."""
    moved: Array | None = None
    """What the loss of answers asks for, beside them."""

    def loss(self) -> LossSums:
        """Return the sums of the loss over all microbatches."""
        outputs = self._outputs(self._layers, self._inputs())
        return _summed(jax.lax.map(lambda own: self._loss(self._others, *own), (outputs, self._own_with_reference())))

    def token_losses(self) -> Array:
        """Return the cross entropy of each token that counts, of this stage's own microbatches."""
        model, loss = self._model(self.params), partial(token_losses, self.settings)

        def of_one(own: tuple[Array, Microbatches]) -> Array:
            output, part = own
            return model.loss_of(output, part.targets, part.weights, self.program.layout, loss)

        losses: Array = jax.lax.map(of_one, (self._outputs(self._layers, self._inputs()), self._own))
        return losses

    def gradients(self) -> tuple[LossSums, Params, Params]:
        """Return the same, and the sums of its gradient, float32: by what is trained, and by `zero_loads` of a row."""
        others, layers = (_float32(self.program.split(params)[1]) for params in (self._others, self._layers))
        loads = zero_loads(self.program.config, self.program.layout, self.parts.tokens.shape[1])
        outputs, back = jax.vjp(self._outputs, {**layers, **loads}, self._inputs())

        def total(others: Params, output: Array, part: Microbatches) -> tuple[Array, LossSums]:
            sums = self._loss(others, output, part)
            return sums.total, sums

        def leave(slopes: Params, own: tuple[Array, Microbatches]) -> tuple[Params, tuple[Array, LossSums]]:
            (slope, of_output), sums = jax.grad(total, argnums=(0, 1), has_aux=True)(others, *own)
            return jax.tree.map(jnp.add, slopes, slope), (of_output, sums)

        def enter(slopes: Params, own: tuple[Array, Microbatches]) -> tuple[Params, None]:
            of_input, part = own
            (slope,) = jax.vjp(lambda others: self._input(others, part), others)[1](of_input)
            return jax.tree.map(jnp.add, slopes, slope), None

        zeros = {path: jnp.zeros(x.shape, jnp.float32) for path, x in others.items()}
        first = stored(self.program, zeros)
        slopes, (of_outputs, sums) = jax.lax.scan(leave, first, (outputs, self._own_with_reference()))
        of_layers, of_inputs = back(of_outputs)
        slopes, _ = jax.lax.scan(enter, slopes, (of_inputs, self._own))
        loads = {path: of_layers.pop(path) for path in loads}
        return _summed(sums), {**jax.lax.psum(slopes, AXIS), **stored(self.program, of_layers)}, loads

    def _inputs(self) -> Array:
        """Return what the first layer gets of this stage's own microbatches."""
        inputs: Array = jax.lax.map(partial(self._input, self._others), self._own)
        return inputs

    def _input(self, others: Params, part: Microbatches) -> Array:
        model = self._model({**self.params, **others})
        return model.entering(part.tokens, part.segments, self.dropout(part.rows), self.program.layout)

    def _outputs(self, layers: Params, inputs: Array) -> Array:
        """Send all stages' microbatches through all layers, and return what comes of this stage's own."""
        schedule = Schedule.of(self.program.training)
        layers = {**self._layers, **layers}
        stacks = {path: dealt(schedule, x) for path, x in layers.items()} if schedule.rounds > 1 else layers
        config = self.program.config
        num_layers = config.Layers.size // (schedule.stages * schedule.rounds)

        def visit(x: Array, turn: Array, microbatch: Array) -> Array:
            part = jax.tree.map(lambda x: x[microbatch], self.parts)
            pick = partial(jax.lax.dynamic_slice_in_dim, start_index=turn * num_layers, slice_size=num_layers)
            blocks = {path: pick(stack) for path, stack in stacks.items()} if schedule.rounds > 1 else stacks
            model = self._model({**self._others, **blocks})
            first = (turn * schedule.stages + jax.lax.axis_index(AXIS)) * num_layers
            numbers = first + jnp.arange(num_layers, dtype=jnp.int32)
            if config.num_dense_blocks:
                numbers = numbers + config.num_dense_blocks
            return model.through(x, numbers, part.segments, self.dropout(part.rows), self.program.layout)

        if schedule.rounds > 1:  # else the layers that were picked would be kept for every visit
            visit = jax.checkpoint(visit, policy=OF_A_VISIT[config.remat], prevent_cse=False)
        return run(schedule, visit, inputs)

    def _loss(self, others: Params, output: Array, part: Microbatches) -> LossSums:
        loss = loss_of_head(self.settings, self.program.training, part.segments, part.reference, self.moved)
        return self._model({**self.params, **others}).loss_of(
            output, part.targets, part.weights, self.program.layout, loss
        )

    def _model(self, params: Params) -> Gpt:
        return self.program.reference(params) if self.is_reference else self.program.model(params)

    def _own_with_reference(self) -> Microbatches:
        """Return this stage's own microbatches, ready for their loss."""
        if not self.program.training.has_reference:
            return self._own
        reference = replace(self, is_reference=True, dropout=lambda _: Dropout.none())
        return self._own._replace(reference=reference.token_losses())

    @property
    def _own(self) -> Microbatches:
        schedule = Schedule.of(self.program.training)
        own: Microbatches = jax.tree.map(partial(own_microbatches, schedule), self.parts)
        return own

    @property
    def _layers(self) -> Params:
        return {path: x for path, x in self.params.items() if "layers" in self.program.names[path]}

    @property
    def _others(self) -> Params:
        return {path: x for path, x in self.params.items() if "layers" not in self.program.names[path]}


def _float32(params: Params) -> Params:
    return {path: x.astype(jnp.float32) for path, x in params.items()}


def _summed(own: LossSums) -> LossSums:
    """Add the microbatches' sums up in their order, which is that of a step without a pipeline."""
    zeros = jax.tree.map(lambda _: jnp.zeros(()), own)
    every = jax.tree.map(of_all_stages, own)
    sums: LossSums = jax.lax.scan(lambda total, one: (jax.tree.map(jnp.add, total, one), None), zeros, every)[0]
    return sums

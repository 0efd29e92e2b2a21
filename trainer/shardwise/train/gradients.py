"""The loss of a global batch, of each token, its sums and its gradient: over replicas, microbatches, or a pipeline."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from shardwise.train.balance import zero_loads
from shardwise.train.dropout import Dropout
from shardwise.train.factors import Bend
from shardwise.train.loss import HeadLoss, LossSums, token_losses
from shardwise.train.microbatches import Batch, Compared, Point, split, stored
from shardwise.train.model import Gpt
from shardwise.train.pipeline import of_all_stages
from shardwise.train.pipelined import Microbatches, Stage
from shardwise.train.preferences import apart, loss_of_head
from shardwise.train.reinforcement import Sampled, completions_loss
from shardwise.train.state import Program
from shardwise.train.zigzag import straight

Array = jax.Array
Params = dict[str, Array]


class Gradients(NamedTuple):
    """What a step is made of, of all replicas."""

    sums: LossSums
    slopes: Params
    """Of the loss's sum, by what is trained, float32."""
    loads: Params
    """By `balance.LOADS` each expert's picks, or its shares of sequences': float32 [layers, experts]; or nothing."""


def head_settings(program: Program) -> HeadLoss:
    """Return the settings of a job's loss."""
    learning = program.training.reinforcement
    return HeadLoss(
        vocab_size=program.config.vocab_size,
        block_tokens=program.training.loss.block_tokens,
        z_loss=program.training.loss.z_loss,
        by_position=program.layout.splits_positions(program.config.seq_len),
        compute=program.layout.dtype,
        wire=program.layout.wire,
        logits=jnp.dtype(program.policy.output_dtype),
        bend=Bend.of(program.config, learning.temperature if learning else 1.0),
    )


def gradients(program: Program, params: Params, batch: Batch | Compared, step: Array) -> Gradients:
    """Return the sums of a global batch at this step."""
    own, moved = apart(batch, partial(each_loss, program, params))
    rows = jnp.arange(own.tokens.shape[0], dtype=jnp.int32)
    result: Gradients = _over_replicas(program, _gradients)(params, own, rows, Point(step, moved))
    return result


def loss_sums(program: Program, params: Params, batch: Batch | Compared) -> LossSums:
    """Return the loss alone, without dropout."""

    def local(program: Program, params: Params, batch: Batch, rows: Array, point: Point) -> LossSums:
        if program.layout.stages > 1:
            segments = _segments(program, batch)
            return _stage(program, params, batch, rows, lambda _: Dropout.none(), segments, point.moved).loss()

        def loss(part: Batch) -> LossSums:
            reference = _reference(program, params, part)
            return _loss(program, params, part, Dropout.none(), reference, point.moved)

        if program.training.batch.microbatches == 1:
            return loss(batch)

        def add(sums: LossSums, part: Batch) -> tuple[LossSums, None]:
            return jax.tree.map(jnp.add, sums, loss(part)), None

        # One microbatch at a time, as in a step: where that fits, the whole batch at once need not.
        return jax.lax.scan(add, _nothing(program), jax.tree.map(partial(split, program), batch))[0]

    own, moved = apart(batch, partial(each_loss, program, params))
    rows = jnp.zeros(own.tokens.shape[0], jnp.int32)
    sums: LossSums = _over_replicas(program, local)(params, own, rows, Point(jnp.int32(0), moved))
    return sums


def each_loss(program: Program, params: Params, batch: Batch, *, as_it_was: bool = False) -> Array:
    """Return the cross entropy of each token that counts, 0 of others, without dropout; segments do not see each other.

    It is float32 [batch, position], positions in the sequence's own order; in the model, or in that as it was.
    """
    model_of = program.reference if as_it_was else program.model

    def local(program: Program, params: Params, batch: Batch, rows: Array, _: Point) -> Array:
        if program.layout.stages > 1:
            stage = _stage(program, params, batch, rows, lambda _: Dropout.none(), batch.segments)
            losses = of_all_stages(replace(stage, is_reference=as_it_was).token_losses())
        elif program.training.batch.microbatches == 1:
            return _each(program, model_of(params), batch, batch.segments)
        else:
            parts = jax.tree.map(partial(split, program), batch)
            losses = jax.lax.map(lambda part: _each(program, model_of(params), part, part.segments), parts)
        return jnp.swapaxes(losses, 0, 1).reshape(batch.tokens.shape)  # the inverse of `split`

    rows = jnp.zeros(batch.tokens.shape[0], jnp.int32)
    losses: Array = _over_replicas(program, local, by_row=True)(params, batch, rows, Point(jnp.int32(0)))
    return straight(losses, program.layout.context, axis=1)


def _over_replicas(program: Program, local, *, by_row: bool = False):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Run `local` on each replica's rows, manual over `replica` and `pipeline` alone, and add the results up once.

    Results that are `by_row` stay those of each row.

    Left to itself, XLA would sum over replicas in every microbatch, each time over the slow network between slices.
    """
    shape = program.layout.mesh.shape
    manual = {axis for axis in ("replica", "pipeline") if shape[axis] > 1}  # XLA's partitioner refuses one of size 1
    if not manual:
        return partial(local, program)

    def summed(params: Params, batch: Batch, rows: Array, point: Point):  # type: ignore[no-untyped-def]  # noqa: ANN202
        results = local(program, params, batch, rows, point)
        if by_row or "replica" not in manual:
            return results
        return jax.tree.map(lambda x: jax.lax.psum(x, "replica"), results)

    stages = {path: P("pipeline") if "layers" in names else P() for path, names in program.names.items()}
    by_stage, rows = stages if "pipeline" in manual else P(), P("replica") if "replica" in manual else P()
    specs = (by_stage, rows, rows, P())
    in_stages: Any = (program.split(stages)[1], P("pipeline"))
    outs: Any = rows if by_row else P()
    if local is _gradients and "pipeline" in manual:
        outs = Gradients(P(), *in_stages)  # type: ignore[arg-type]
    return jax.shard_map(summed, in_specs=specs, out_specs=outs, axis_names=manual, check_vma=False)


def _gradients(program: Program, params: Params, batch: Batch, rows: Array, point: Point) -> Gradients:
    """Return the sums over a replica's microbatches."""
    sums, slopes, loads = _of_each_row(program, params, batch, rows, point)
    return Gradients(sums, slopes, jax.tree.map(lambda x: x.sum(1), loads))


def _of_each_row(program: Program, params: Params, batch: Batch, rows: Array, point: Point) -> Gradients:
    """Do the same, but for loads, which are of each row of a microbatch."""
    num_microbatches = program.training.batch.microbatches
    dropout = program.training.model.dropout

    def drop_of(rows: Array) -> Dropout:
        return Dropout.of(
            seed=program.training.seed,
            step=point.step,
            rows=rows,
            embed=dropout.embed,
            residual=dropout.residual,
            context=program.layout.context,
        )

    if program.layout.stages > 1:
        segments = _segments(program, batch)
        return Gradients(*_stage(program, params, batch, rows, drop_of, segments, point.moved).gradients())

    loads = zero_loads(program.config, program.layout, batch.tokens.shape[0] // num_microbatches)

    def microbatch(params: Params, batch: Batch, rows: Array) -> Gradients:
        drop, reference = drop_of(rows), _reference(program, params, batch)

        def total(trained: Params, loads: Params) -> tuple[Array, LossSums]:
            sums = _loss(program, {**params, **trained, **loads}, batch, drop, reference, point.moved)
            return sums.total, sums

        # A gradient has the dtype of its argument: float32 here, though the weights may be kept in fewer bits.
        trained = jax.tree.map(lambda x: x.astype(jnp.float32), program.split(params)[1])
        (slopes, counted), sums = jax.grad(total, argnums=(0, 1), has_aux=True)(trained, loads)
        return Gradients(sums, slopes, counted)

    if num_microbatches == 1:
        return microbatch(params, batch, rows)

    def add(carry: Gradients, inputs: tuple[Batch, Array]) -> tuple[Gradients, None]:
        return jax.tree.map(jnp.add, carry, microbatch(params, *inputs)), None

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), program.split(params)[1])
    # Sharded as the parameters are stored: otherwise XLA may carry whole gradients through the scan.
    first = Gradients(_nothing(program), stored(program, zeros), loads)
    return jax.lax.scan(add, first, jax.tree.map(partial(split, program), (batch, rows)))[0]


def _nothing(program: Program) -> LossSums:
    nothing = LossSums(*(jnp.zeros(()) for _ in LossSums._fields))
    return nothing if program.training.clips else nothing._replace(clipped=None)


def _loss(
    program: Program,
    params: Params,
    batch: Batch,
    dropout: Dropout,
    reference: Array | None,
    moved: Array | None,
) -> LossSums:
    """Return the loss sums, of tokens, of pairs, of answers or of completions."""
    segments, settings, learning = _segments(program, batch), head_settings(program), program.training.reinforcement
    if learning is None:
        loss = loss_of_head(settings, program.training, segments, reference, moved)
    else:
        assert batch.advantages is not None, "there are, of completions"
        loss = partial(completions_loss, settings, learning, Sampled(batch.advantages, batch.before), reference)
    model = program.model(params)
    return model.loss(batch.tokens, segments, batch.targets, batch.weights, dropout, program.layout, loss)


def _reference(program: Program, params: Params, batch: Batch) -> Array | None:
    """Return the cross entropy of each token that counts in the model as it was, or None if nothing asks for it."""
    if not program.training.has_reference:
        return None
    return _each(program, program.reference(params), batch, _segments(program, batch))


def _each(program: Program, model: Gpt, batch: Batch, segments: Array | None) -> Array:
    """Return the cross entropy of each token that counts in a model."""
    loss = partial(token_losses, head_settings(program))
    return model.loss(batch.tokens, segments, batch.targets, batch.weights, Dropout.none(), program.layout, loss)


def _stage(
    program: Program,
    params: Params,
    batch: Batch,
    rows: Array,
    dropout: Callable[[Array], Dropout],
    segments: Array | None,
    moved: Array | None = None,
) -> Stage:
    settings = head_settings(program)
    parts = Microbatches(batch.tokens, batch.targets, batch.weights, segments, rows)
    parts = jax.tree.map(partial(split, program), parts)
    return Stage(program=program, settings=settings, params=params, parts=parts, dropout=dropout, moved=moved)


def _segments(program: Program, batch: Batch) -> Array | None:
    return batch.segments if program.training.data.attend_across == "document" else None

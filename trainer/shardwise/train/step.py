"""The one step program: forward, backward, microbatches or a pipeline of them, reduction over replicas, update.

It is compiled ahead of time against fixed shardings, for fresh and restored runs alike. Calling it with anything else
is an error, never a second compile.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.extend.core import Jaxpr
from jax.sharding import PartitionSpec as P

from shardwise.train.bad_steps import Judge
from shardwise.train.dropout import Dropout
from shardwise.train.loss import HeadLoss, LossSums
from shardwise.train.microbatches import split, stored
from shardwise.train.optimizer import schedule
from shardwise.train.pipelined import Microbatches, Stage
from shardwise.train.state import Abstract, Program, State, parameters

Array = jax.Array
Params = dict[str, Array]


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


class Metrics(NamedTuple):
    """The results of a step: replicated scalars."""

    loss: Array
    """Mean cross entropy, nats a token."""
    z_loss: Array
    """Mean squared log of the softmax's denominator."""
    accuracy: Array
    """Share of the targets that have the largest logit."""
    weight: Array
    """Targets counted."""
    grad_norm: Array
    """Global norm of the mean gradient, before clipping."""
    learning_rate: Array
    control: Array
    """int32: the largest control of all processes."""


def lower_step(program: Program) -> jax.stages.Lowered:
    """Lower the step: (state, batch, controls) -> (state, metrics); the state is donated.

    In a job that skips bad steps a fourth argument is the limit of the loss, float32. Above it the update is held back:
    the step counts, but changes no parameter and no moment.
    """
    layout, shardings = program.layout, program.shardings()
    limit = [Abstract((), jnp.float32, sharding=layout.replicated)] if Judge(program.training.bad_steps).skips else []
    jitted = jax.jit(
        partial(_step, program),
        in_shardings=(shardings, layout.batch, layout.control, *(one.sharding for one in limit)),
        out_shardings=(shardings, layout.replicated),
        donate_argnums=0,
        compiler_options=program.compiler_options(),
    )
    return program.lower(jitted, program.abstract(), abstract_batch(program), _abstract_controls(program), *limit)


def trace_step(program: Program) -> Jaxpr:
    """Trace the step, and lower it for no platform."""
    with program.lowering():
        traced = jax.make_jaxpr(partial(_step, program))
        jaxpr: Jaxpr = traced(program.abstract(), abstract_batch(program), _abstract_controls(program)).jaxpr
    return jaxpr


def lower_evaluation(program: Program) -> jax.stages.Lowered:
    """Lower the loss sums of a batch: (params, batch) -> LossSums over all replicas, without dropout."""
    layout, shardings = program.layout, program.shardings()
    jitted = jax.jit(
        partial(_evaluate, program),
        in_shardings=(parameters(shardings), layout.batch),
        out_shardings=layout.replicated,
        compiler_options=program.compiler_options(),
    )
    return program.lower(jitted, parameters(program.abstract()), abstract_batch(program))


def abstract_batch(program: Program) -> Batch:
    """Return the shapes, dtypes and shardings of a global batch."""
    shape = (program.training.batch.sequences, program.config.seq_len)
    whole: Callable[..., Any] = partial(Abstract, shape, sharding=program.layout.batch)
    return Batch(*(whole(dtype=dtype) for dtype in (jnp.int32, jnp.int32, jnp.float32, jnp.int32)))


def head_settings(program: Program) -> HeadLoss:
    """Return the settings of a job's loss."""
    return HeadLoss(
        vocab_size=program.config.vocab_size,
        block_tokens=program.training.loss.block_tokens,
        z_loss=program.training.loss.z_loss,
        by_position=program.layout.splits_positions(program.config.seq_len),
        compute=program.layout.dtype,
        wire=program.layout.wire,
        logits=jnp.dtype(program.policy.output_dtype),
        softcap=program.config.logit_softcap,
    )


def _abstract_controls(program: Program) -> Abstract:
    """Return one control per device: each process sets those of its own devices, and the maximum is for all."""
    return Abstract((program.layout.mesh.size,), jnp.int32, sharding=program.layout.control)


def _step(
    program: Program, state: State, batch: Batch, controls: Array, limit: Array | None = None
) -> tuple[State, Metrics]:
    rows = jnp.arange(batch.tokens.shape[0], dtype=jnp.int32)
    sums, grads = _over_replicas(program, _gradients)(parameters(state), batch, rows, state["step"])
    mean = program.rule.trained(jax.tree.map(lambda g: g / sums.weight, grads))
    params, optimizer = program.rule.apply(mean, state["optimizer"], state["params"], state["step"])
    settings = program.training.optimizer
    rate = schedule(settings.schedule, settings.learning_rate, program.training.steps)(state["step"])
    metrics = Metrics(
        loss=sums.cross_entropy / sums.weight,
        z_loss=sums.z_squared / sums.weight,
        accuracy=sums.correct / sums.weight,
        weight=sums.weight,
        grad_norm=optax.tree.norm(mean),
        learning_rate=jnp.asarray(rate, jnp.float32),
        control=controls.max(),
    )
    new = {"params": params, "optimizer": optimizer}
    if limit is not None:
        good = jnp.isfinite(metrics.loss) & jnp.isfinite(metrics.grad_norm) & (metrics.loss <= limit)
        new = jax.tree.map(partial(jnp.where, good), new, {name: state[name] for name in new})
    return {**state, "step": state["step"] + 1, **new}, metrics


def _evaluate(program: Program, params: Params, batch: Batch) -> LossSums:
    def local(program: Program, params: Params, batch: Batch, rows: Array, _step: Array) -> LossSums:
        if program.layout.stages > 1:
            return _stage(program, params, batch, rows, lambda _: Dropout.none()).loss()
        if program.training.batch.microbatches == 1:
            return _loss(program, params, batch, Dropout.none())

        def add(sums: LossSums, part: Batch) -> tuple[LossSums, None]:
            return jax.tree.map(jnp.add, sums, _loss(program, params, part, Dropout.none())), None

        # One microbatch at a time, as in a step: where that fits, the whole batch at once need not.
        return jax.lax.scan(add, _nothing(), jax.tree.map(partial(split, program), batch))[0]

    rows = jnp.zeros(batch.tokens.shape[0], jnp.int32)
    sums: LossSums = _over_replicas(program, local)(params, batch, rows, jnp.int32(0))
    return sums


def _over_replicas(program: Program, local):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Run `local` on each replica's rows, manual over `replica` and `pipeline` alone, and add the results up once.

    Left to itself, XLA would sum over replicas in every microbatch, each time over the slow network between slices.
    """
    shape = program.layout.mesh.shape
    manual = {axis for axis in ("replica", "pipeline") if shape[axis] > 1}  # XLA's partitioner refuses one of size 1
    if not manual:
        return partial(local, program)

    def summed(params: Params, batch: Batch, rows: Array, step: Array):  # type: ignore[no-untyped-def]  # noqa: ANN202
        results = local(program, params, batch, rows, step)
        return jax.tree.map(lambda x: jax.lax.psum(x, "replica"), results) if "replica" in manual else results

    stages = {path: P("pipeline") if "layers" in names else P() for path, names in program.names.items()}
    by_stage, rows = stages if "pipeline" in manual else P(), P("replica") if "replica" in manual else P()
    specs = (by_stage, rows, rows, P())
    outs = (P(), program.split(stages)[1] if "pipeline" in manual else P()) if local is _gradients else P()
    return jax.shard_map(summed, in_specs=specs, out_specs=outs, axis_names=manual, check_vma=False)


def _gradients(program: Program, params: Params, batch: Batch, rows: Array, step: Array) -> tuple[LossSums, Params]:
    """Return the sums of the loss, and of its gradient by what is trained, float32, over a replica's microbatches."""
    num_microbatches = program.training.batch.microbatches
    dropout = program.training.model.dropout

    def drop_of(rows: Array) -> Dropout:
        return Dropout.of(
            seed=program.training.seed,
            step=step,
            rows=rows,
            embed=dropout.embed,
            residual=dropout.residual,
            context=program.layout.context,
        )

    if program.layout.stages > 1:
        return _stage(program, params, batch, rows, drop_of).gradients()

    def microbatch(params: Params, batch: Batch, rows: Array) -> tuple[LossSums, Params]:
        drop = drop_of(rows)

        def total(trained: Params) -> tuple[Array, LossSums]:
            sums = _loss(program, {**params, **trained}, batch, drop)
            return sums.total, sums

        # A gradient has the dtype of its argument: float32 here, though the weights may be kept in fewer bits.
        trained = jax.tree.map(lambda x: x.astype(jnp.float32), program.split(params)[1])
        grads, sums = jax.grad(total, has_aux=True)(trained)
        return sums, grads

    if num_microbatches == 1:
        return microbatch(params, batch, rows)

    def add(carry: tuple[LossSums, Params], inputs: tuple[Batch, Array]) -> tuple[tuple[LossSums, Params], None]:
        return jax.tree.map(jnp.add, carry, microbatch(params, *inputs)), None

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), program.split(params)[1])
    # Sharded as the parameters are stored: otherwise XLA may carry whole gradients through the scan.
    first = (_nothing(), stored(program, zeros))
    return jax.lax.scan(add, first, jax.tree.map(partial(split, program), (batch, rows)))[0]


def _nothing() -> LossSums:
    return LossSums(*(jnp.zeros(()) for _ in LossSums._fields))


def _loss(program: Program, params: Params, batch: Batch, dropout: Dropout) -> LossSums:
    model = program.model(params)
    segments = _segments(program, batch)
    return model.loss(
        batch.tokens, segments, batch.targets, batch.weights, dropout, program.layout, head_settings(program)
    )


def _stage(program: Program, params: Params, batch: Batch, rows: Array, dropout: Callable[[Array], Dropout]) -> Stage:
    segments = _segments(program, batch)
    parts = Microbatches(batch.tokens, batch.targets, batch.weights, segments, rows)
    parts = jax.tree.map(partial(split, program), parts)
    return Stage(program=program, settings=head_settings(program), params=params, parts=parts, dropout=dropout)


def _segments(program: Program, batch: Batch) -> Array | None:
    return batch.segments if program.training.data.attend_across == "document" else None

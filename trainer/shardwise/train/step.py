"""The one step program: forward and backward (`train/gradients.py`), and the update.

It is compiled ahead of time against fixed shardings, for fresh and restored runs alike. Calling it with anything else
is an error, never a second compile.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.extend.core import Jaxpr

from shardwise.train.bad_steps import Judge
from shardwise.train.balance import LOADS, busiest, by_gradient, moved
from shardwise.train.gradients import each_loss, gradients, loss_sums
from shardwise.train.host_memory import fetched, on_hosts
from shardwise.train.microbatches import Batch, Compared
from shardwise.train.optimizer import schedule
from shardwise.train.state import AVERAGE, Abstract, Program, State, parameters

Array = jax.Array
Params = dict[str, Array]


class Metrics(NamedTuple):
    """The results of a step: replicated scalars."""

    loss: Array
    """Mean cross entropy, nats a token; of preferences the mean loss of a pair, with DPO log 2 at first.

    Of completions it and the next two are what `train/reinforcement.py` says.
    """
    z_loss: Array
    """Mean squared log of the softmax's denominator."""
    accuracy: Array
    """Share of the targets that have the largest logit, or of the pairs whose chosen answer is ahead."""
    weight: Array
    """Targets, or pairs, counted."""
    grad_norm: Array
    """Global norm of the mean gradient, before clipping."""
    learning_rate: Array
    control: Array
    """int32: the largest control of all processes."""
    busiest_expert: Array | None
    """What a layer's busiest expert is given over what its experts are on average, in the layer where that is most."""
    idle_experts: Array | None
    """Share of the experts of all layers that no token picks. Both are of mixtures alone."""
    clipped: Array | None
    """Tokens whose ratio is clipped, of completions that several steps learn from."""


def lower_step(program: Program, sequences: int | None = None) -> jax.stages.Lowered:
    """Lower the step: (state, batch, controls) -> (state, metrics); the state is donated.

    A batch has so many sequences, or as many as after the job's ramp.

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
    return program.lower(
        jitted, program.abstract(), abstract_batch(program, sequences), _abstract_controls(program), *limit
    )


def trace_step(program: Program) -> Jaxpr:
    """Trace the step, and lower it for no platform."""
    with program.lowering():
        traced = jax.make_jaxpr(partial(_step, program))
        jaxpr: Jaxpr = traced(program.abstract(), abstract_batch(program), _abstract_controls(program)).jaxpr
    return jaxpr


def lower_evaluation(program: Program) -> jax.stages.Lowered:
    """Lower the loss sums of a batch: (params, batch) -> LossSums over all replicas, without dropout."""
    return _lower_of_batch(program, loss_sums, abstract_batch(program))


def lower_evaluation_of_text(program: Program) -> jax.stages.Lowered:
    """Lower the same of text, whatever loss the job has; its parameters are `without_copies`."""
    return lower_evaluation(program.of_text())


def lower_token_losses(program: Program) -> jax.stages.Lowered:
    """Lower the loss of each token: (params, batch) -> float32 [batch, position], as `each_loss` has it.

    Its parameters are `without_copies`, too.
    """
    text = program.of_text()
    return _lower_of_batch(text, each_loss, _abstract_rows(text))


def lower_scores(program: Program) -> jax.stages.Lowered:
    """Lower the same of completions, at the temperature that they were drawn at."""
    text, learning = program.of_text(), program.training.reinforcement
    assert learning is not None
    drawn = learning.model_copy(update={"kl_weight": 0.0})  # what it compares with is no part of this program
    tempered = replace(text, training=text.training.model_copy(update={"reinforcement": drawn}))
    return _lower_of_batch(tempered, each_loss, _abstract_rows(text))


def _lower_of_batch(
    program: Program, of: Callable[[Program, Params, Any], Any], batch: Batch | Compared
) -> jax.stages.Lowered:
    layout, shardings = program.layout, program.shardings()

    def _evaluate(params: Params, batch: Any) -> Any:  # a program's name is that of its function
        return of(program, params, batch)

    jitted = jax.jit(
        _evaluate,
        in_shardings=(parameters(shardings), layout.batch),
        out_shardings=layout.replicated,
        compiler_options=program.compiler_options(),
    )
    return program.lower(jitted, parameters(program.abstract()), batch)


def abstract_batch(program: Program, sequences: int | None = None) -> Batch | Compared:
    """Return the shapes, dtypes and shardings of a global batch; see `lower_step`."""
    own = _abstract_rows(program, sequences)
    return Compared(own, own) if program.training.has_unmatched else own


def _abstract_rows(program: Program, sequences: int | None = None) -> Batch:
    shape = (sequences or program.training.batch.sequences, program.config.seq_len)
    whole: Callable[..., Any] = partial(Abstract, shape, sharding=program.layout.batch)
    dtypes = [jnp.int32, jnp.int32, jnp.float32, jnp.int32]
    more = bool(program.training.reinforcement) + program.training.clips
    return Batch(*(whole(dtype=dtype) for dtype in dtypes + [jnp.float32] * more))


def _abstract_controls(program: Program) -> Abstract:
    """Return one control per device: each process sets those of its own devices, and the maximum is for all."""
    return Abstract((program.layout.mesh.size,), jnp.int32, sharding=program.layout.control)


def _step(
    program: Program, state: State, batch: Batch | Compared, controls: Array, limit: Array | None = None
) -> tuple[State, Metrics]:
    if on_hosts(program.training):
        state = {**state, "optimizer": fetched(state["optimizer"])}
    sums, slopes, loads = gradients(program, parameters(state), batch, state["step"])
    mean = program.rule.trained(jax.tree.map(lambda slope: slope / sums.weight, by_gradient(slopes)))
    params, optimizer = program.rule.apply(mean, state["optimizer"], by_gradient(state["params"]), state["step"])
    params = {**params, **moved(program.bias_rate, state["params"], loads)}
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
        busiest_expert=busiest(loads[LOADS]) if loads else None,
        idle_experts=(loads[LOADS] == 0).mean() if loads else None,
        clipped=sums.clipped,
    )
    new = {"params": params, "optimizer": optimizer}
    if settings.average:
        new[AVERAGE] = state[AVERAGE].with_step(settings.average, {**params, **program.rule.masters(optimizer)})
    if limit is not None:
        good = jnp.isfinite(metrics.loss) & jnp.isfinite(metrics.grad_norm) & (metrics.loss <= limit)
        new = jax.tree.map(partial(jnp.where, good), new, {name: state[name] for name in new})
    return program.placed({**state, "step": state["step"] + 1, **new}), metrics

"""The optimizers: optax chains whose masks and dimension numbers come from axis names, never from ndim.

Called by the state and the step. Parameters are a flat dict {path: array} with axis names beside it. Clipping by the
global norm is part of the chain; taking the gradients' mean is the step's.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from shardwise.job.spec import Optimizer, Schedule

Names = Mapping[str, tuple[str, ...]]
# Axes that stack matrices, and axes whose tables are looked up by a token or a position.
_STACKED = ("layers", "qkv")
_LOOKED_UP = ("vocab", "position")


def schedule(settings: Schedule, peak: float, steps: int) -> optax.Schedule:
    """The learning rate by step (counted from 0): a linear warm-up, then the named curve to the last step.

    The first of `warmup_steps` steps has rate peak / warmup_steps, so no step is spent at rate 0.
    """
    warmup, final = settings.warmup_steps, peak * settings.final_ratio
    rest = steps - warmup
    curve: optax.Schedule
    match settings.kind:
        case "constant":
            curve = optax.constant_schedule(peak)
        case "cosine":
            curve = optax.cosine_decay_schedule(peak, settings.decay_steps or rest, alpha=settings.final_ratio)
        case "linear":
            curve = optax.linear_schedule(peak, final, settings.decay_steps or rest)
        case "warmup-stable-decay":
            decay = settings.decay_steps or rest
            curve = optax.join_schedules(
                [optax.constant_schedule(peak), optax.linear_schedule(peak, final, decay)], [rest - decay]
            )
    if not warmup:
        return curve
    return optax.join_schedules([optax.linear_schedule(peak / warmup, peak, warmup - 1 or 1), curve], [warmup])


def falls_to_the_last_step(settings: Optimizer) -> bool:
    """Whether the learning rate of a step depends on how many steps there are."""
    curve = settings.schedule
    return curve.kind == "warmup-stable-decay" or (curve.kind != "constant" and curve.decay_steps is None)


def optimizer(settings: Optimizer, names: Names, steps: int) -> optax.GradientTransformation:
    """The update rule of a resolved job, for parameters with these axis names."""
    rate = schedule(settings.schedule, settings.learning_rate, steps)
    decayed = {path: is_matrix(axes) for path, axes in names.items()}
    moments: dict[str, Any] = {"b1": settings.beta1, "b2": settings.beta2}
    rule: optax.GradientTransformation
    match settings.name:
        case "adamw":
            rule = optax.adamw(rate, **moments, eps=settings.epsilon, weight_decay=settings.weight_decay, mask=decayed)
        case "adam":
            rule = optax.adam(rate, **moments, eps=settings.epsilon)
        case "lion":
            assert settings.epsilon is not None, "the job is resolved"
            rule = optax.chain(
                scale_by_lion(**moments, epsilon=settings.epsilon),
                optax.add_decayed_weights(settings.weight_decay, decayed),
                optax.scale_by_learning_rate(rate),
            )
        case "muon":
            adam_rate = settings.adam_learning_rate or settings.learning_rate
            rule = optax.contrib.muon(
                rate,
                beta=settings.momentum,
                eps=settings.epsilon,
                weight_decay=settings.weight_decay,
                weight_decay_mask=decayed,
                adam_b1=settings.beta1,
                adam_b2=settings.beta2,
                adam_learning_rate=schedule(settings.schedule, adam_rate, steps),
                muon_weight_dimension_numbers={path: muon_dimensions(axes) for path, axes in names.items()},
                consistent_rms=0.2,
            )
    if settings.clip_norm is None:
        return rule
    return optax.chain(optax.clip_by_global_norm(settings.clip_norm), rule)


def scale_by_lion(b1: float, b2: float, epsilon: float) -> optax.GradientTransformation:
    """Lion's update (Chen et al. 2023, arXiv:2302.06675) with its sign made steep instead of a jump.

    Its direction c = b1 m + (1 - b1) g becomes c / max(|c|, epsilon r), r the root mean square of c over its array: the
    sign where |c| >= epsilon r, straight between, and as indifferent to the gradient's scale as the sign. At a jump,
    the rounding of sums, which is another on every mesh, can decide a whole step of a weight.
    """
    lion = optax.scale_by_lion(b1, b2)

    def steep(grad: jax.Array, moment: jax.Array) -> jax.Array:
        direction = (1 - b1) * grad + b1 * moment
        least = epsilon * jnp.sqrt(jnp.mean(jnp.square(direction)))
        return jnp.where(direction == 0, 0.0, direction / jnp.maximum(jnp.abs(direction), least))

    def update(
        grads: optax.Updates, state: optax.ScaleByLionState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        return jax.tree.map(steep, grads, state.mu), lion.update(grads, state, params)[1]

    return optax.GradientTransformation(lion.init, update)


def is_matrix(axes: tuple[str, ...]) -> bool:
    """Whether weight decay applies: a weight maps embed to another axis; gains and biases have one feature axis."""
    return "embed" in axes and any(axis not in (*_STACKED, "embed") for axis in axes)


def muon_dimensions(axes: tuple[str, ...]) -> optax.contrib.MuonDimensionNumbers | None:
    """The reduction and output axes of a block's matrix; None for what Adam takes.

    Tables that are looked up by token or position, and the head, go to Adam, as Muon's authors advise. Query, key and
    value are matrices of their own, and so is each layer's.
    """
    if not is_matrix(axes) or any(axis in _LOOKED_UP for axis in axes):
        return None
    split = axes.index("embed")
    features = tuple(i for i, axis in enumerate(axes) if axis not in (*_STACKED, "embed"))
    if split < features[0]:
        return optax.contrib.MuonDimensionNumbers(reduction_axis=(split,), output_axis=features)
    return optax.contrib.MuonDimensionNumbers(reduction_axis=features, output_axis=(split,))


def is_moment_of(path: tuple[object, ...]) -> str | None:
    """The parameter that a leaf of the optimizer's state belongs to, read off the leaf's key path."""
    last = path[-1]
    return last.key if isinstance(last, jax.tree_util.DictKey) else None

"""The optimizers: optax chains whose masks and dimension numbers come from axis names, never from ndim.

Parameters are a flat dict {path: array} with axis names beside it. Clipping by the global norm is part of the chain;
the step takes the mean of the gradients.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from shardwise.job.spec import Optimizer, Schedule
from shardwise.train.axes import SPLIT_BY_FSDP
from shardwise.train.groups import groups_of, scaled

Names = Mapping[str, tuple[str, ...]]
Params = Mapping[str, jax.Array]
# Axes that stack matrices, and axes whose tables are looked up by a token or a position.
_STACKED = ("layers", "dense_layers", "experts", "qkv", "kv")
_LOOKED_UP = ("vocab", "position")


def schedule(settings: Schedule, peak: float, steps: int) -> optax.Schedule:
    """Return the learning rate by step (counted from 0): a linear warm-up, then the named curve to the last step.

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
    """Return whether the learning rate of a step depends on how many steps there are."""
    curve = settings.schedule
    return curve.kind == "warmup-stable-decay" or (curve.kind != "constant" and curve.decay_steps is None)


class Masters(NamedTuple):
    """The state of an optimizer whose parameters are kept in fewer bits than its updates need."""

    weights: Params
    """Float32: what the updates are added to; the parameters are these, rounded."""
    moments: optax.OptState


@dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """How parameters are updated from their gradients.

    The schedule is read at the run's step. A counter in the optimizer's state would start again when a run continues
    with another optimizer.
    """

    transform: optax.GradientTransformation
    """The update at a rate of 1."""
    rates: Mapping[str, optax.Schedule]
    """The learning rate of each parameter, by step from 0."""
    has_masters: bool
    """Whether parameters are kept in bfloat16, with float32 weights beside the moments."""
    decays: Mapping[str, float]
    """Weight decay that `transform` leaves to this rule: of a group that says it, and of what Adam has beside Muon."""
    frozen: frozenset[str]
    """Parameters that stay as they are."""

    def init(self, weights: Params) -> Any:
        """Return the state before the first step, for initial weights in float32."""
        moments = self.transform.init(weights)
        return Masters(weights, moments) if self.has_masters else moments

    def masters(self, state: Any) -> Params:
        """Return the float32 weights that a state keeps beside the parameters; nothing if those are float32."""
        return state.weights if self.has_masters else {}

    def trained(self, grads: Params) -> Params:
        """Return the gradients with 0 for what is frozen: it counts in no norm, and its moments see nothing."""
        if not self.frozen:
            return grads
        return {path: jnp.zeros_like(grad) if path in self.frozen else grad for path, grad in grads.items()}

    def apply(self, grads: Params, state: Any, params: Params, step: jax.Array) -> tuple[Params, Any]:
        """Return the parameters and the state after a step, given the mean gradient in float32."""
        weights, moments = (state.weights, state.moments) if self.has_masters else (params, state)
        updates, moments = self.transform.update(grads, moments, weights)
        moved = {path: self._moved(path, weights[path], updates[path], step) for path in weights}
        if not self.has_masters:
            return moved, moments
        return {path: x.astype(params[path].dtype) for path, x in moved.items()}, Masters(moved, moments)

    def _moved(self, path: str, weight: jax.Array, update: jax.Array, step: jax.Array) -> jax.Array:
        if path in self.frozen:
            return weight
        if path in self.decays:
            update = update - self.decays[path] * weight
        moved: jax.Array = weight + self.rates[path](step) * update
        return moved


def optimizer(
    settings: Optimizer, names: Names, steps: int, *, params: str = "float32", fixed: Collection[str] = ()
) -> UpdateRule:
    """Return the update rule of a resolved job, for parameters of this dtype with these axis names.

    `fixed` are the paths of the model's other parameters, which no step changes.
    """
    rate = schedule(settings.schedule, settings.learning_rate, steps)
    other = schedule(settings.schedule, settings.adam_learning_rate or settings.learning_rate, steps)
    of_muon = {path for path, axes in names.items() if settings.name != "muon" or muon_dimensions(axes)}
    groups = groups_of(settings, names, fixed)
    decays = {path: group.weight_decay for path, group in groups.items() if group.weight_decay is not None}
    if settings.name == "muon" and settings.weight_decay:  # optax would give Adam's part no mask
        beside = [path for path, axes in names.items() if is_matrix(axes) and path not in of_muon]
        decays = dict.fromkeys(beside, settings.weight_decay) | decays
    # Clipping stays a link of the chain when it is off: without it the moments would have other paths in checkpoints.
    clip = optax.identity() if settings.clip_norm is None else optax.clip_by_global_norm(settings.clip_norm)
    return UpdateRule(
        transform=optax.chain(clip, _transform(settings, names, decays.keys())),
        rates={path: scaled(rate if path in of_muon else other, groups.get(path)) for path in names},
        has_masters=params != "float32",
        decays=decays,
        frozen=frozenset(path for path, group in groups.items() if group.rate_factor == 0),
    )


def _transform(settings: Optimizer, names: Names, others: Collection[str]) -> optax.GradientTransformation:
    """Return the optimizer's own part, at a rate of 1; it leaves the weight decay of `others` out."""
    decayed = {path: is_matrix(axes) and path not in others for path, axes in names.items()}
    moments: dict[str, Any] = {"b1": settings.beta1, "b2": settings.beta2}
    rule: optax.GradientTransformation
    match settings.name:
        case "adamw":
            rule = optax.adamw(1.0, **moments, eps=settings.epsilon, weight_decay=settings.weight_decay, mask=decayed)
        case "adam":
            rule = optax.adam(1.0, **moments, eps=settings.epsilon)
        case "lion":
            assert settings.epsilon is not None, "the job is resolved"
            rule = optax.chain(
                scale_by_lion(**moments, epsilon=settings.epsilon),
                optax.add_decayed_weights(settings.weight_decay, decayed),
                optax.scale_by_learning_rate(1.0),
            )
        case "muon":
            rule = optax.contrib.muon(
                1.0,
                beta=settings.momentum,
                eps=settings.epsilon,
                weight_decay=settings.weight_decay,
                weight_decay_mask=decayed,
                adam_b1=settings.beta1,
                adam_b2=settings.beta2,
                adam_learning_rate=1.0,
                muon_weight_dimension_numbers={path: muon_dimensions(axes) for path, axes in names.items()},
                consistent_rms=0.2,
            )
    return rule


def scale_by_lion(b1: float, b2: float, epsilon: float) -> optax.GradientTransformation:
    """Return Lion's update (Chen et al. 2023, arXiv:2302.06675) with a steep slope instead of the sign's jump.

    Its direction c = b1 m + (1 - b1) g becomes c / max(|c|, epsilon r), where r is the root mean square of c over its
    array: the sign if |c| >= epsilon r, linear between, and as independent of the gradient's scale as the sign. At a
    jump the rounding of sums, which differs between meshes, could decide a whole step of a weight.
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
    """Return whether weight decay applies: to weights, not to biases.

    They map embed, a narrow vector or a rank to another axis.
    """
    sides = (*_STACKED, *SPLIT_BY_FSDP)
    return "rank" in axes or (_input(axes) is not None and any(axis not in sides for axis in axes))


def muon_dimensions(axes: tuple[str, ...]) -> optax.contrib.MuonDimensionNumbers | None:
    """Return the reduction and output axes of a block's matrix, or None for what Adam updates.

    Adam takes the tables that are looked up by token or position, and the head, as Muon's authors advise. Query, key
    and value are separate matrices, and so is each layer's. Which side of a matrix counts as its input makes no
    difference: it is orthogonalised, and scaled by the longer side.
    """
    if not is_matrix(axes) or any(axis in _LOOKED_UP for axis in axes):
        return None
    side = _input(axes)
    assert side is not None
    features = tuple(i for i, axis in enumerate(axes) if axis not in (*_STACKED, side))
    return optax.contrib.MuonDimensionNumbers(reduction_axis=(axes.index(side),), output_axis=features)


def _input(axes: tuple[str, ...]) -> str | None:
    """Return the axis that all of a block's weights map to or from: the stream, or a narrow vector that is made of it.

    None: this is no weight.
    """
    return next((axis for axis in axes if axis in SPLIT_BY_FSDP), None)


def state_bytes_of_a_weight(settings: Optimizer, params: str) -> int:
    """Return the bytes that a job has for each weight of a block's matrix beside it; it is kept in this dtype.

    They are of the optimizer's state and of the mean of the weights.
    """
    plain = settings.model_copy(update={"groups": (), "schedule": Schedule(kind="constant")})  # they change no size
    rule = optimizer(plain, {"weight": ("embed", "mlp")}, steps=1, params=params)
    state = jax.eval_shape(rule.init, {"weight": jax.ShapeDtypeStruct((1, 1), jnp.float32)})
    own: int = sum(leaf.dtype.itemsize for leaf in jax.tree.leaves(state) if leaf.ndim == 2)
    return own + (jnp.dtype(jnp.float32).itemsize if settings.average else 0)


def masters_paths(names: Names) -> dict[str, str]:
    """Return {path of a parameter: path of its float32 weights}, for states of an optimizer that keeps those."""
    return {f"params.{path}": f"optimizer.weights.{path}" for path in names}


def is_moment_of(path: tuple[object, ...]) -> str | None:
    """Return the parameter that a leaf of the optimizer's state belongs to, read off its path; None for counters."""
    last = path[-1]
    return last.key if isinstance(last, jax.tree_util.DictKey) else None

"""Low-rank adapters: two small factors beside a weight that stays as it is. They alone are trained.

    y = W x + alpha / rank * B (A x)

A maps to the rank and is drawn; B maps from it and begins at zero, so that a run begins with the model as it was. What
is one product has one adapter: queries, keys and values that are projected together share A. Each expert of a mixture
has its own, and its router has none. Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021).
"""

import math
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis

from shardwise.job.spec.training import Lora
from shardwise.train.config import GptConfig
from shardwise.train.linear import RANK, Adapter, Linear
from shardwise.train.model import Gpt
from shardwise.train.optimizer import Names, is_matrix

Array = jax.Array
_A, _B, _WEIGHT = ".adapter.a.weight", ".adapter.b.weight", ".weight"
# What is computed with in float32, though it is a matrix.
_IN_FLOAT32 = ("position", "routes")
# Of a mixture, what is no expert.
_OF_ROUTERS = ("router", "shared_gate")


def initial(config: GptConfig, lora: Lora | None, *, key: Array) -> Gpt:
    """Return the model with drawn weights, and adapters if it has any: without them the bits are the same."""
    model = Gpt.init(config, key=key)
    if lora is None:
        return model
    adapted = replace(model.blocks, stacked=_adapted(model.blocks.stacked, lora, config.Layers, key))
    before = model.dense_blocks
    if before is not None:
        of_before = _adapted(before.stacked, lora, config.DenseLayers, jax.random.fold_in(key, 0))
        before = replace(before, stacked=of_before)
    return replace(model, blocks=adapted, dense_blocks=before)


def without_adapters(model: Gpt) -> Gpt:
    """Return the model as it was before its adapters."""

    def plain(x: Any) -> Any:
        return replace(x, adapter=None) if isinstance(x, Linear) else x

    before: Gpt = jax.tree.map(plain, model, is_leaf=lambda x: isinstance(x, Linear))
    return before


def is_adapter(path: str) -> bool:
    """Return whether the parameter of this path is a factor of an adapter."""
    return path.endswith((_A, _B))


def factors_of(path: str) -> tuple[str, str]:
    """Return the paths of the factors, from the input and to the output, of the weight of this path."""
    return path.removesuffix(_WEIGHT) + _A, path.removesuffix(_WEIGHT) + _B


def dtype_of_base(axes: tuple[str, ...], compute: jnp.dtype) -> jnp.dtype:
    """Return the dtype in which a weight that is not trained is kept: that which it is computed with."""
    in_compute = RANK not in axes and is_matrix(axes) and not {*axes} & {*_IN_FLOAT32}
    return compute if in_compute else jnp.dtype(jnp.float32)


def merged(weights: Mapping[str, Any], adapters: Mapping[str, Any], names: Names, lora: Lora) -> dict[str, Any]:
    """Return the weights with what the adapters add to them, float32; those without an adapter as they are.

    Args:
        weights: by path, those of the model without adapters; any of them.
        adapters: by path, all factors.
        names: the axis names of the model with adapters, by path.
        lora: what the adapters are.

    """
    return {path: _merged(path, weight, adapters, names, lora) for path, weight in weights.items()}


def _merged(path: str, weight: Any, adapters: Mapping[str, Any], names: Names, lora: Lora) -> Any:
    a, b = factors_of(path)
    if a not in adapters:
        return weight
    assert lora.alpha is not None, "the job is resolved"
    factors = (hax.named(jnp.asarray(adapters[factor], jnp.float32), names[factor]) for factor in (a, b))
    with jax.default_matmul_precision("highest"):
        product = hax.dot(*factors, axis=RANK).rearrange(names[path]).array
    return jnp.asarray(weight, jnp.float32) + lora.alpha / lora.rank * product


def _adapted(blocks: Any, lora: Lora, Layers: Axis, key: Array) -> Any:
    """Return stacked blocks whose products have adapters."""
    of_blocks = ("attention", "mlp") if lora.mlp else ("attention",)

    def with_adapter(path: tuple[Any, ...], x: Any) -> Any:
        if not isinstance(x, Linear) or path[0].name not in of_blocks or path[-1].name in _OF_ROUTERS:
            return x
        name = ".".join(part.name for part in path)
        return replace(x, adapter=_adapter(x, lora, Layers, jax.random.fold_in(key, zlib.crc32(name.encode()))))

    is_linear = lambda x: isinstance(x, Linear)  # noqa: E731
    return jax.tree_util.tree_map_with_path(with_adapter, blocks, is_leaf=is_linear)


def _adapter(linear: Linear, lora: Lora, Layers: Axis, key: Array) -> Adapter:
    assert lora.alpha is not None, "the job is resolved"
    Rank, ins, outs = Axis(RANK, lora.rank), hax.axis.ensure_tuple(linear.In), hax.axis.ensure_tuple(linear.Out)
    experts = tuple(axis for axis in (*ins, *outs) if axis.name == "experts")
    ins, outs = (tuple(axis for axis in side if axis not in experts) for side in (ins, outs))
    of_a, of_b = (*ins, Rank), tuple(sorted((Rank, *outs), key=lambda axis: axis.name != "embed"))
    if experts:  # each has its own, as `train/expert_weights.py` computes with them
        of_a, of_b = (
            (*side, *experts, Rank) if side[0].name == "embed" else (Rank, *experts, *side) for side in (ins, outs)
        )
    std = 1 / math.sqrt(math.prod(axis.size for axis in ins))
    a = hax.random.normal(key, (Layers, *of_a)) * std
    b = hax.zeros((Layers, *of_b))
    return Adapter(lora.alpha / lora.rank, Linear(linear.In, Rank, a, None), Linear(Rank, linear.Out, b, None))

"""The arithmetic of a step as it is traced: every matrix product, as often as its loop runs, recomputation included.

The trace is what is counted, because XLA's own analysis counts the body of a loop once and on some platforms counts
nothing. A fused attention kernel hides its products: its share is counted by the formula of what it computes (Dao,
"FlashAttention-2", 2023): two products forward and five backward, each over the keys
that a causal token sees.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr

from shardwise.train.config import GptConfig
from shardwise.train.flops import keys_seen_twice

# Of which so many are as wide as keys, and so many as wide as values.
_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS = (1, 1), (3, 2)
_KERNELS = ("pallas_call", "dot_product_attention_fwd_wrapper", "dot_product_attention_bwd_wrapper")


def traced_flops(jaxpr: core.Jaxpr, mesh: Mapping[str, int]) -> int:
    """Return the FLOPs of all products of a trace over all devices of a mesh, those of kernels left out.

    What nothing uses is not counted, as the gradients of weights that are not trained: XLA drops it.
    """
    return sum(flops for _, flops in _counted(jaxpr, mesh))


def eight_bit_flops(jaxpr: core.Jaxpr, mesh: Mapping[str, int]) -> int:
    """Return those of them whose operands have 8 bits."""
    return sum(flops for equation, flops in _counted(jaxpr, mesh) if equation.invars[0].aval.dtype.itemsize == 1)


def _counted(jaxpr: core.Jaxpr, mesh: Mapping[str, int]) -> Iterator[tuple[Any, int]]:
    """Yield every product with its FLOPs."""
    used, _ = dce_jaxpr(jaxpr, used_outputs=True, instantiate=True)
    for equation, ways in _equations(used, 1, mesh):
        if flops := _flops(equation, ways):
            yield equation, flops


def kernel_flops(config: GptConfig, tokens: int, *, more_forwards: int = 0) -> int:
    """Return the FLOPs of a step's fused attention: forward, again if a layer is recomputed, and backward.

    `more_forwards` is how often a model goes forward beside that.
    """
    if config.attention not in ("splash", "cudnn"):
        return 0
    forwards = (1 if config.remat == "none" else 2) + more_forwards
    widths = (config.head_size, config.value_size)
    products = zip(_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS, widths, strict=True)
    wide = sum((forwards * forward + backward) * width for forward, backward, width in products)
    return tokens * keys_seen_twice(config) * config.num_heads * wide  # in all layers: 2 x half of the keys


def _equations(jaxpr: core.Jaxpr, times: int, mesh: Mapping[str, int]) -> Iterator[tuple[Any, int]]:
    """Yield every equation that runs, with how often it does on how many devices together."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if any(kernel in name for kernel in _KERNELS):
            continue
        if name == "while":  # how often is known to nobody; of a step these are picks beyond a device's average
            continue
        yield equation, times
        inner = times
        if name == "scan":
            inner *= equation.params["length"]
        if name == "shard_map":  # what is inside is one device's part along the axes that it takes
            inner *= math.prod(mesh[axis] for axis in equation.params["newly_manual_axes"])
        parts = list(_inside(equation.params.values()))
        if name == "cond":  # one branch runs; those that differ by platform do the same products
            parts = parts[:1]
        for part in parts:
            yield from _equations(part, inner, mesh)


def _inside(values: Iterable[Any]) -> Iterator[core.Jaxpr]:
    for value in values:
        if isinstance(value, core.ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, core.Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from _inside(value)


def _flops(equation: Any, ways: int) -> int:
    name, groups = equation.primitive.name, 1
    if name == "dot_general":
        dims = equation.params["dimension_numbers"]
    elif name == "ragged_dot_general":  # of experts, whose rows are as many together as there are picks
        ragged = equation.params["ragged_dot_dimension_numbers"]
        dims = ragged.dot_dimension_numbers
        if not ragged.rhs_group_dimensions:  # a gradient of all experts' weights: each contracts its own rows alone
            groups = equation.invars[2].aval.size
    else:
        return 0
    (contracted, _), _ = dims
    left = equation.invars[0].aval
    depth = math.prod(left.shape[axis] for axis in contracted)
    return int(2 * ways * depth * math.prod(equation.outvars[0].aval.shape) // groups)

"""Which mesh axes split which named axis: of parameters as they are stored, of activations, of the residual stream.

Every array is laid out by one of these tables and nothing else. Between attention and MLP the residual stream and the
norms are split by position instead of being copied over tensor (Korthikanti et al., "Reducing Activation Recomputation
in Large Transformer Models", 2022).

A weight has `embed` first, whichever way it maps: FSDP must not split the last dimension, along which a TPU would sum
the whole gradient on every chip.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from jax.sharding import PartitionSpec

from shardwise.train.mesh import DATA, EXPERT, FSDP

Axes = str | tuple[str, ...]
Table = Mapping[str, Axes]
"""Axis name -> mesh axes; a name that is not there is not split."""

_TENSOR = dict.fromkeys(("heads", "kv_heads", "mlp", "shared", "dense_mlp", "vocab", "kv_down", "q_down"), "tensor")
SPLIT_BY_FSDP = ("embed", "kv_latent", "q_latent")
"""What FSDP splits: the stream, of which nearly every weight has a side, and the narrow vectors of latent attention."""
PARAMETERS: Table = MappingProxyType({**_TENSOR, **dict.fromkeys(SPLIT_BY_FSDP, DATA)})
COMPUTE: Table = MappingProxyType({"batch": DATA, **_TENSOR})
STREAM: Table = MappingProxyType({"batch": DATA, "position": "tensor"})
# The same where `context` is used: it splits positions everywhere, and weights, which its devices would hold alike.
LONG_COMPUTE: Table = MappingProxyType({**COMPUTE, "position": "context"})
LONG_STREAM: Table = MappingProxyType({**STREAM, "position": ("context", "tensor")})
# Where `pipeline` is used, each of its devices stores the layers of a stage.
STAGES: Table = MappingProxyType({"layers": "pipeline"})


def parameters_table(*, fsdp: bool, is_long: bool, in_stages: bool, splits_experts: bool) -> Table:
    """Return the table of parameters; see the fields of `mesh` in a job file."""
    table = {**PARAMETERS, **dict.fromkeys(SPLIT_BY_FSDP, FSDP if is_long else DATA)}
    if not fsdp:
        table = {name: axes for name, axes in table.items() if name not in SPLIT_BY_FSDP}
    if in_stages:
        table |= STAGES
    if splits_experts:
        table |= {"experts": EXPERT}
    return MappingProxyType(table)


def activation_tables(*, is_long: bool) -> tuple[Table, Table]:
    """Return the tables of activations inside of attention and MLP, and of the residual stream."""
    return (LONG_COMPUTE, LONG_STREAM) if is_long else (COMPUTE, STREAM)


def partition(names: Sequence[str], table: Table) -> PartitionSpec:
    """Return the partition of an array with these axis names. Experts take the mesh axis that is theirs from others."""
    taken = table.get("experts") if "experts" in names else None
    return PartitionSpec(*(taken if name == "experts" else _without(taken, table.get(name)) for name in names))


def _without(taken: Axes | None, axes: Axes | None) -> Axes | None:
    return tuple(axis for axis in axes if axis != taken) if isinstance(axes, tuple) else axes

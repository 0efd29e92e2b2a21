"""How every array is sharded: the mesh, the tables of `train/axes.py` over it, and named arrays as plain ones.

Only this file, the config, and the model with what it is made of know haliax; the rest of the trainer sees arrays in a
flat dict with their axis names beside them.

Mesh axes, outermost first: replica (slices), the two of `data` (the batch, FSDP of `embed`, and over the inner one also
experts), context (positions, and FSDP of `embed`), pipeline (layers), tensor (heads, mlp, vocab; and positions between
its regions). Tensor is innermost because it communicates most. `train/mesh.py` decides which device goes where.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self, TypeVar

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis, NamedArray
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from shardwise.job.spec import Training
from shardwise.job.spec.training import ContextStrategy
from shardwise.train.axes import COMPUTE, SPLIT_BY_FSDP, STAGES, Table, activation_tables, parameters_table, partition
from shardwise.train.eight_bits import Format
from shardwise.train.fsdp import Placement, whole
from shardwise.train.mesh import DATA, EXPERT, FSDP, MESH_AXES, device_grid
from shardwise.train.stream import enter, leave

T = TypeVar("T")
Array = jax.Array


@dataclass(frozen=True)
class Layout:
    """A mesh, the tables over it, and the formats of what is computed and summed on it."""

    mesh: Mesh
    parameters: Table
    compute: Table
    stream: Table
    dtype: jnp.dtype
    """Of activations and matrix products."""
    wire: jnp.dtype
    """Of gradients, and of activations in hand-written collectives, while they are summed over devices."""
    context_strategy: ContextStrategy
    """How keys and values travel over `context`."""
    form: Format | None = None
    """The 8 bits in which activations are multiplied by the weights of layers; None for `dtype`."""

    @classmethod
    def of(cls, training: Training, devices: Sequence[jax.Device]) -> Self:
        """Return the layout of a resolved job over these devices; `data` takes what tensor and replica leave."""
        mesh, precision = training.mesh, training.precision
        wire = precision.compute if precision.reduce == "compute" else precision.reduce
        formats, strategy = {"dtype": precision.compute, "wire": wire}, mesh.context_strategy
        grid, splits_experts = device_grid(mesh, devices), mesh.expert > 1
        made = cls.over(grid, fsdp=mesh.fsdp, splits_experts=splits_experts, context_strategy=strategy, **formats)
        return made if precision.products == "compute" else replace(made, form=precision.products)

    @classmethod
    def over(
        cls,
        devices: np.ndarray[Any, Any],
        *,
        fsdp: bool = True,
        splits_experts: bool = False,
        dtype: DTypeLike = jnp.float32,
        wire: DTypeLike = jnp.float32,
        context_strategy: ContextStrategy = "gather",
    ) -> Self:
        """Return the layout over an array of devices with a dimension for each of `MESH_AXES`."""
        mesh = Mesh(devices, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))
        is_long, in_stages = mesh.shape["context"] > 1, mesh.shape["pipeline"] > 1
        parameters = parameters_table(fsdp=fsdp, is_long=is_long, in_stages=in_stages, splits_experts=splits_experts)
        compute, stream = activation_tables(is_long=is_long)
        on_cpu = devices.flat[0].platform == "cpu"  # its compiler aborts at a hand-written sum of bfloat16
        formats = (jnp.dtype(dtype), jnp.dtype(jnp.float32 if on_cpu else wire))
        return cls(mesh, parameters, compute, stream, *formats, context_strategy)

    @property
    def splits_experts(self) -> bool:
        """Whether each device of `EXPERT` has some of the experts of a mixture, instead of a part of each."""
        return "experts" in self.parameters

    @property
    def fsdp(self) -> bool:
        """Whether parameters are stored split over `data` and `context`."""
        return "embed" in self.parameters

    def spec(self, names: Sequence[str], table: Table) -> PartitionSpec:
        """Return the partition of an array with these axis names."""
        return partition(names, table)

    def stored(self, names: Sequence[str]) -> NamedSharding:
        """Return the sharding of a parameter, or of its optimizer state, with these axis names."""
        return NamedSharding(self.mesh, self.spec(names, self.parameters))

    def placed(self, tree: object) -> Any:
        """Return the tree of a model, which may be abstract, with the sharding of each named array in its place."""
        place = lambda x: self.stored([axis.name for axis in x.axes])  # noqa: E731
        return jax.tree.map(place, tree, is_leaf=_is_named)

    def whole_over_data(self) -> Self:
        """Return the layout for generation: parameters are stored as they are computed with, and nothing is rounded."""
        stored = {name: axes for name, axes in self.parameters.items() if axes != DATA}
        return replace(self, parameters=MappingProxyType(stored), form=None)

    def in_stage(self) -> Self:
        """Return the same layout inside of a shard_map over `pipeline`, where a stage's layers are all there are."""
        stored = {name: axes for name, axes in self.parameters.items() if name not in STAGES}
        return replace(self, parameters=MappingProxyType(stored))

    @property
    def replicated(self) -> NamedSharding:
        """The sharding of an array that every device holds whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch(self) -> NamedSharding:
        """The sharding of a [batch, position] array: rows over replica and data, positions over context."""
        rows = ("replica", *DATA)
        return NamedSharding(self.mesh, PartitionSpec(rows, "context") if self.context > 1 else PartitionSpec(rows))

    @property
    def control(self) -> NamedSharding:
        """The sharding of the controls: one value per device."""
        return NamedSharding(self.mesh, PartitionSpec(MESH_AXES))

    @property
    def stages(self) -> int:
        """Over how many devices the layers are split."""
        stages: int = self.mesh.shape["pipeline"]
        return stages

    # ---- activations

    @property
    def context(self) -> int:
        """Over how many devices each sequence is split; its positions are in the order of `zigzag`."""
        ways: int = self.mesh.shape["context"]
        return ways

    def splits_positions(self, num_positions: int) -> bool:
        """Return whether the residual stream is split by position over tensor, which must divide a device's part."""
        tensor: int = self.mesh.shape["tensor"]
        return tensor > 1 and num_positions % (self.context * tensor) == 0

    def put(self, x: NamedArray) -> NamedArray:
        """Lay out an activation as attention and MLP compute with it."""
        spec = self.spec([axis.name for axis in x.axes], self.compute)
        return hax.named(jax.lax.with_sharding_constraint(x.array, spec), x.axes)

    def enter(self, x: NamedArray) -> NamedArray:
        """Gather part of the residual stream for attention or the MLP; scatter its gradient."""
        return hax.named(enter(*self.partitions(x), x.array), x.axes)

    def leave(self, x: NamedArray) -> NamedArray:
        """Scatter what attention or the MLP adds to the residual stream; gather its gradient."""
        return hax.named(leave(*self.partitions(x), x.array), x.axes)

    def stay(self, x: NamedArray) -> NamedArray:
        """Lay out the residual stream, and its gradient, as between attention and MLP."""
        return hax.named(jax.lax.with_sharding_constraint(x.array, self.partitions(x)[1]), x.axes)

    def partitions(self, x: NamedArray) -> tuple[PartitionSpec, PartitionSpec]:
        """Return its partitions inside of attention and MLP, and in the stream."""
        names = [axis.name for axis in x.axes]
        split = self.splits_positions(x.resolve_axis("position").size)
        return self.spec(names, self.compute), self.spec(names, self.stream if split else self.compute)

    # ---- parameters

    def placement(self, names: Sequence[str], dtype: DTypeLike) -> Placement:
        """Return how a parameter with these axis names is gathered in this dtype, and its gradient scattered."""
        over, taken = FSDP if self.context > 1 else DATA, EXPERT if self.splits_experts and "experts" in names else None
        table = {**COMPUTE, "experts": EXPERT} if taken else COMPUTE
        return Placement(
            stored=self.spec(names, self.parameters),
            whole=self.spec(names, table),  # a table of positions is whole over context
            split=next((i for i, name in enumerate(names) if name in SPLIT_BY_FSDP and self.fsdp), None),
            over=tuple(axis for axis in over if axis != taken),
            compute=jnp.dtype(dtype),
            wire=self.wire,
        )

    def whole(self, tree: T, dtype: DTypeLike = jnp.float32) -> T:
        """Gather parameters over `data` and `context` in this dtype; their gradients are scattered, in float32."""
        gathered: T = jax.tree.map(lambda x: self._whole(x, dtype) if _is_named(x) else x, tree, is_leaf=_is_named)
        return gathered

    def _whole(self, x: NamedArray, dtype: DTypeLike) -> NamedArray:
        return hax.named(whole(self.placement([axis.name for axis in x.axes], dtype), x.array), x.axes)


# ---- named trees as flat dicts


def flatten(tree: object) -> dict[str, Array]:
    """Return the arrays of a model of named arrays, by dotted path, e.g. `blocks.attention.qkv.weight`."""
    return {path: named.array for path, named in _leaves(tree).items()}


def axis_names(tree: object) -> dict[str, tuple[str, ...]]:
    """Return the axis names of a model's arrays, by the paths of `flatten`."""
    return {path: tuple(axis.name for axis in named.axes) for path, named in _leaves(tree).items()}


def assemble(template: T, arrays: Mapping[str, Array]) -> T:
    """Return a model like the template (which may be abstract) with these arrays: the inverse of `flatten`.

    Arrays may have fewer layers than the template's.
    """
    replaced = [hax.named(arrays[path], _axes(x, arrays[path])) for path, x in _leaves(template).items()]
    where = jax.tree.structure(template, is_leaf=_is_named)
    others = iter(replaced)
    leaves = [next(others) if _is_named(x) else x for x in jax.tree.leaves(template, is_leaf=_is_named)]
    model: T = jax.tree.unflatten(where, leaves)
    return model


def in_float32(tree: T) -> T:
    """Return a tree with its arrays in float32, the dtype of a weight's gradient; XLA drops the way there and back."""
    widened: T = jax.tree.map(lambda x: x.astype(jnp.float32), tree)
    return widened


def _axes(like: NamedArray, array: Array) -> tuple[Axis, ...]:
    sizes = zip(like.axes, array.shape, strict=True)
    return tuple(axis.resize(size) if axis.name == "layers" else axis for axis, size in sizes)


def _leaves(tree: object) -> dict[str, NamedArray]:
    with_path = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, _is_named, is_leaf=_is_named), is_leaf=_is_named)
    return {_name(path): leaf for path, leaf in with_path}


def _name(path: tuple[Any, ...]) -> str:
    """Return the dotted path. Haliax's level `stacked` is left out: the axis `layers` has the same meaning."""
    return ".".join(key.name for key in path if key.name != "stacked")


def _is_named(x: object) -> bool:
    return isinstance(x, NamedArray)

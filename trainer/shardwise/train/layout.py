"""Where every array lives: the mesh, the one table from axis names to mesh axes, and named arrays as plain ones.

Called by the step, the state, generation and the converters. Only this file and the model know haliax; the rest of the
trainer sees arrays in a flat dict with their axis names beside them.

Mesh axes, outermost first: replica (slices), data (the batch, and FSDP of `embed`), context (positions; size 1 for
now), pipeline (layers; size 1 for now), tensor (heads, mlp, vocab). Tensor is innermost because it talks most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Self, TypeVar

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from shardwise.job.spec import Training

T = TypeVar("T")
Array = jax.Array
MESH_AXES = ("replica", "data", "context", "pipeline", "tensor")

# Axis name -> mesh axis. Every array is laid out by these two tables and nothing else: as it is stored (with FSDP),
# and as it is computed with, when parameters are whole over `data`.
PARAMETERS: Mapping[str, str] = MappingProxyType(
    {"heads": "tensor", "mlp": "tensor", "vocab": "tensor", "embed": "data"}
)
COMPUTE: Mapping[str, str] = MappingProxyType({"batch": "data", "heads": "tensor", "mlp": "tensor", "vocab": "tensor"})


@dataclass(frozen=True)
class Layout:
    """A mesh, the two tables over it, and how sums over it are made."""

    mesh: Mesh
    parameters: Mapping[str, str]
    compute: Mapping[str, str]
    sums_in_float32: bool

    @classmethod
    def of(cls, training: Training, devices: Sequence[jax.Device]) -> Self:
        """The layout of a resolved job over these devices; `data` takes what tensor and replica leave."""
        mesh = training.mesh
        replica = mesh.replica or 1
        shape = (replica, len(devices) // (replica * mesh.tensor), mesh.context, mesh.pipeline, mesh.tensor)
        grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
        return cls.over(grid, fsdp=mesh.fsdp, sums_in_float32=training.precision.reduce == "float32")

    @classmethod
    def over(cls, devices: np.ndarray[Any, Any], *, fsdp: bool = True, sums_in_float32: bool = False) -> Self:
        """The layout over a [replica, data, context, pipeline, tensor] array of devices."""
        mesh = Mesh(devices, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))
        stored = {name: axis for name, axis in PARAMETERS.items() if fsdp or axis != "data"}
        on_cpu = devices.flat[0].platform == "cpu"  # whose compiler aborts at a hand-written sum of bfloat16
        return cls(mesh, MappingProxyType(stored), COMPUTE, sums_in_float32 or on_cpu)

    @property
    def fsdp(self) -> bool:
        """Whether parameters are split over `data` while stored."""
        return "embed" in self.parameters

    def wire(self, dtype: jnp.dtype) -> jnp.dtype:
        """The dtype in which values of this dtype are summed over devices by hand."""
        return jnp.dtype(jnp.float32) if self.sums_in_float32 else dtype

    def spec(self, names: Sequence[str], table: Mapping[str, str]) -> PartitionSpec:
        """The partition of an array with these axis names."""
        return PartitionSpec(*(table.get(name) for name in names))

    def stored(self, names: Sequence[str]) -> NamedSharding:
        """The sharding of a parameter, or of its optimizer state, with these axis names."""
        return NamedSharding(self.mesh, self.spec(names, self.parameters))

    @property
    def replicated(self) -> NamedSharding:
        """The sharding of what every device holds whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch(self) -> NamedSharding:
        """The sharding of a [batch, ...] array: rows over replica and data."""
        return NamedSharding(self.mesh, PartitionSpec(("replica", "data")))

    @property
    def words(self) -> NamedSharding:
        """The sharding of one value a device."""
        return NamedSharding(self.mesh, PartitionSpec(MESH_AXES))

    def put(self, x: NamedArray) -> NamedArray:
        """An activation, laid out as computed with."""
        spec = self.spec([axis.name for axis in x.axes], self.compute)
        return hax.named(jax.lax.with_sharding_constraint(x.array, spec), x.axes)

    def whole(self, tree: T) -> T:
        """Parameters whole over `data`, as a block computes with them; their gradients go back split.

        The backward constraint is what turns the gradient's all-reduce into a reduce-scatter.
        """
        gathered: T = jax.tree.map(lambda x: self._gather(x) if _is_named(x) else x, tree, is_leaf=_is_named)
        return gathered

    def _gather(self, x: NamedArray) -> NamedArray:
        names = [axis.name for axis in x.axes]
        whole, split = self.spec(names, self.compute), self.spec(names, self.parameters)
        return hax.named(_gather(whole, split, x.array), x.axes)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gather(whole: PartitionSpec, _split: PartitionSpec, w: Array) -> Array:
    gathered: Array = jax.lax.with_sharding_constraint(w, whole)
    return gathered


def _gather_forward(whole: PartitionSpec, split: PartitionSpec, w: Array) -> tuple[Array, None]:
    return _gather(whole, split, w), None


def _gather_backward(_whole: PartitionSpec, split: PartitionSpec, _: None, grad: Array) -> tuple[Array]:
    return (jax.lax.with_sharding_constraint(grad, split),)


_gather.defvjp(_gather_forward, _gather_backward)


# ---- named trees as flat dicts


def flatten(tree: object) -> dict[str, Array]:
    """The arrays of a model of named arrays, by dotted path, e.g. `blocks.attention.qkv.weight`."""
    return {path: named.array for path, named in _leaves(tree).items()}


def axis_names(tree: object) -> dict[str, tuple[str, ...]]:
    """The axis names of a model's arrays, by the paths of `flatten`."""
    return {path: tuple(axis.name for axis in named.axes) for path, named in _leaves(tree).items()}


def assemble(template: T, arrays: Mapping[str, Array]) -> T:
    """A model like the template (which may be abstract) holding these arrays: the inverse of `flatten`."""
    replaced = [hax.named(arrays[path], named.axes) for path, named in _leaves(template).items()]
    where = jax.tree.structure(template, is_leaf=_is_named)
    others = iter(replaced)
    leaves = [next(others) if _is_named(x) else x for x in jax.tree.leaves(template, is_leaf=_is_named)]
    model: T = jax.tree.unflatten(where, leaves)
    return model


def _leaves(tree: object) -> dict[str, NamedArray]:
    with_path = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, _is_named, is_leaf=_is_named), is_leaf=_is_named)
    return {_name(path): leaf for path, leaf in with_path}


def _name(path: tuple[Any, ...]) -> str:
    """The dotted path; haliax's `stacked` level is left out, since the `layers` axis says it."""
    return ".".join(key.name for key in path if key.name != "stacked")


def _is_named(x: object) -> bool:
    return isinstance(x, NamedArray)

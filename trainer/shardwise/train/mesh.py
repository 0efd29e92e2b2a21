"""The place of each device in the mesh: slices apart, tensor on neighbours, `data` as two axes if it is long.

The names of the mesh axes are defined here, once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import PartitionSpec

from shardwise.job.spec import Mesh
from shardwise.job.topology import divided

DATA = ("data_outer", "data_inner")
"""The two mesh axes of `data`. FSDP gathers over the inner one first and scatters over it last."""
EXPERT = DATA[1]
"""The mesh axis over which the experts of a mixture are split, where they are: each of its devices has some."""
FSDP = (*DATA, "context")
"""The mesh axes over which FSDP splits weights: those of `data`, and `context`, whose devices share a sequence."""
MESH_AXES = ("replica", *DATA, "context", "pipeline", "tensor")

T = TypeVar("T")
Devices = np.ndarray[Any, Any]
Shape = tuple[int, ...]


def device_grid(mesh: Mesh, devices: Sequence[jax.Device]) -> Devices:
    """Return the devices as a [replica, data_outer, data_inner, context, pipeline, tensor] array.

    On TPUs the axes are laid along the torus of a slice. Several slices are joined by a slower network: each takes
    whole rows of `replica`, so that only the sum over replicas crosses it. Other devices keep JAX's order, in which
    those of a host are neighbours.
    """
    ways = divided(mesh, len(devices))
    assert ways is not None, "the rules have passed the mesh"
    if devices[0].platform != "tpu":
        return np.array(devices).reshape(ways.sizes)
    slices = list(_slices(devices))
    rows = (ways.replica // len(slices), *ways.sizes[1:])
    return np.concatenate([_along_torus(rows, devices) for devices in slices])


def non_manual_axes() -> set[str]:
    """Return the mesh axes that no surrounding shard_map has made manual. TPU kernels lower only if all are manual."""
    mesh = jax.sharding.get_abstract_mesh()
    return set(mesh.axis_names) - set(mesh.manual_axes)


def on_cpu() -> bool:
    """Return whether the devices of the mesh in use are CPUs: simulated ones."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device is not None and device.platform == "cpu"


def sharing() -> tuple[str, ...]:
    """Return the mesh axes whose devices have different tokens of one replica: `data`, and `context` if it is used."""
    return FSDP if jax.sharding.get_abstract_mesh().shape.get("context", 1) > 1 else DATA


def tokens_spec(*, by_tensor: bool = False) -> PartitionSpec:
    """Return the partition of [batch, position, ...]; `by_tensor` is whether tensor, too, splits the positions."""
    positions = (*(("context",) if sharing() == FSDP else ()), *(("tensor",) if by_tensor else ()))
    return PartitionSpec(DATA, positions[0] if len(positions) == 1 else positions or None)


def on_each_device(local: Callable[..., T], ins: Any, outs: Any) -> Callable[..., T]:
    """Return a function of whole arrays that runs `local` on each device's part, as these partitions say."""
    mapped: Callable[..., T] = jax.shard_map(
        local, in_specs=ins, out_specs=outs, axis_names=non_manual_axes(), check_vma=False
    )
    return mapped


def _slices(devices: Sequence[jax.Device]) -> Iterator[list[jax.Device]]:
    """Yield the devices of each slice, in the slices' order."""
    numbers = [getattr(device, "slice_index", None) or 0 for device in devices]
    for number in sorted(set(numbers)):
        yield [device for device, own in zip(devices, numbers, strict=True) if own == number]


def _along_torus(shape: Shape, devices: Sequence[jax.Device]) -> Devices:
    """Return one slice's devices in this shape, the last axes on the closest neighbours."""
    # JAX 0.10.2 loses factors of a number like 15 or 28 that it has to split (mesh_utils._get_prime_factors).
    if any(size & (size - 1) for size in shape):
        return _by_factors(shape, devices)
    return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)


def _by_factors(shape: Shape, devices: Sequence[jax.Device]) -> Devices:
    """Do the same for sizes that are no powers of two: make each axis, the last first, of prime factors of the sides.

    A factor is taken from the two devices of a chip, then from a side that the axis is on already, then from the
    longest side. It takes the innermost part of the side that is left, so that the axis runs along neighbours.
    """
    places = np.array([(*device.coords, device.core_on_chip) for device in devices])
    sides = tuple(int(side) + 1 for side in places.max(0))
    torus = np.empty(sides, dtype=object)
    torus[tuple(places.T)] = devices
    left = list(sides)
    cuts: list[list[tuple[int, int, int]]] = [[] for _ in sides]  # of each side: (axis, -index of the factor, size)
    for axis in reversed(range(len(shape))):
        on: set[int] = set()
        for number, prime in enumerate(_primes(shape[axis])):
            fits = [side for side, size in enumerate(left) if size % prime == 0]
            side = max(fits, key=lambda side: (side == len(sides) - 1, side in on, left[side]))
            left[side] //= prime
            on.add(side)
            cuts[side].insert(0, (axis, -number, prime))
    factors = [factor for side in cuts for factor in side]
    parts = torus.reshape([size for _, _, size in factors])
    return parts.transpose(sorted(range(len(factors)), key=factors.__getitem__)).reshape(shape)


def _primes(number: int) -> list[int]:
    """Return the prime factors of a number, largest first."""
    found: list[int] = []
    for prime in range(2, number + 1):
        while number % prime == 0:
            found.insert(0, prime)
            number //= prime
    return found

"""Which device stands where in the mesh: slices apart, tensor on neighbours, and `data` as two axes where it is long.

Called by the layout. Names of mesh axes are said here, once.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils

from shardwise.job.spec import Mesh

DATA = ("data_outer", "data_inner")
"""The two mesh axes of `data`. FSDP gathers over the inner one first and scatters over it last."""
MESH_AXES = ("replica", *DATA, "context", "pipeline", "tensor")

Devices = np.ndarray[Any, Any]
Shape = tuple[int, ...]


def device_grid(mesh: Mesh, devices: Sequence[jax.Device]) -> Devices:
    """The devices as a [replica, data_outer, data_inner, context, pipeline, tensor] array.

    On TPUs the axes are laid along the torus of a slice. Several slices are joined by a slower network: each takes
    whole rows of `replica`, so that nothing but the sum over replicas crosses it. Elsewhere devices keep JAX's order,
    which has those of a host side by side.
    """
    replica, inner = mesh.replica or 1, mesh.data_inner or 1
    data = len(devices) // (replica * mesh.tensor * mesh.context * mesh.pipeline)
    shape = (replica, data // inner, inner, mesh.context, mesh.pipeline, mesh.tensor)
    if devices[0].platform != "tpu":
        return np.array(devices).reshape(shape)
    slices = list(_slices(devices))
    rows = (replica // len(slices), *shape[1:])
    return np.concatenate([_along_torus(rows, devices) for devices in slices])


def unclaimed() -> set[str]:
    """The mesh axes that no surrounding shard_map has taken. A TPU's kernels lower only where all are manual."""
    mesh = jax.sharding.get_abstract_mesh()
    return set(mesh.axis_names) - set(mesh.manual_axes)


def _slices(devices: Sequence[jax.Device]) -> Iterator[list[jax.Device]]:
    """The devices of each slice, in the slices' order."""
    numbers = [getattr(device, "slice_index", None) or 0 for device in devices]
    for number in sorted(set(numbers)):
        yield [device for device, own in zip(devices, numbers, strict=True) if own == number]


def _along_torus(shape: Shape, devices: Sequence[jax.Device]) -> Devices:
    """One slice's devices in this shape, the last axes on the closest neighbours."""
    # JAX 0.10.2 loses factors of a number like 15 or 28 that it has to split (mesh_utils._get_prime_factors).
    if any(size & (size - 1) for size in shape):
        return _by_factors(shape, devices)
    return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)


def _by_factors(shape: Shape, devices: Sequence[jax.Device]) -> Devices:
    """As `_along_torus`: from the last axis on, each is made of prime factors of the torus's sides.

    A factor is taken from the two devices of a chip, then from a side that the axis is on already, then from the
    longest; of its side it takes the innermost part that is left, so that the axis is a stretch of neighbours.
    """
    places = np.array([(*device.coords, device.core_on_chip) for device in devices])
    sides = tuple(int(side) + 1 for side in places.max(0))
    torus = np.empty(sides, dtype=object)
    torus[tuple(places.T)] = devices
    left = list(sides)
    cuts: list[list[tuple[int, int, int]]] = [[] for _ in sides]  # of each side: (axis, its how many-th factor, size)
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
    """The prime factors of a number, largest first."""
    found: list[int] = []
    for prime in range(2, number + 1):
        while number % prime == 0:
            found.insert(0, prime)
            number //= prime
    return found

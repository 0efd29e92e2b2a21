"""A piece of work for this host's own devices: how fast they are, and whether they compute right.

Ranks train in lockstep, so one slow host makes the steps of all equally long, and step times do not show which one it
is. Nor does a loss show that a device computes wrong and reports no error, which happens in large fleets (Hochschild et
al., "Cores that don't count", HotOS 2021). So each rank times a chain of matrix products that waits for no other host,
and whose result is known. Ranks do so at steps that they agree on, when the devices have nothing else to do. It touches
no state of the run.

All numbers are whole, and small enough for every product and sum to be exact in float32, in bfloat16's and TF32's
products with sums of 32 bits too. So the result is the same on every device and in every order of the sums.
"""

import socket
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.stages import Compiled, Lowered
from numpy.typing import NDArray

from shardwise.protocol.errors import DeviceError
from shardwise.train.devices import simulated
from shardwise.train.executables import Executables

_SIZE = 2048
_SIZE_ON_CPU = 128
_SECONDS = 0.002  # more than the overhead of a call, and less than one time slice of a busy machine's scheduler
_RUNS = 3
_ROWS = 8
"""How many rows of the first factor differ, and are computed by the host too; they repeat down the matrix."""
_RANGE = 256.0
"""Entries of the chain are whole numbers from -_RANGE/2 to below _RANGE/2; those of the factor are from -8 to 7."""


class Probe:
    """The chain of products, compiled at its first use."""

    def __init__(self, kept: Executables) -> None:
        """Compile nothing yet; `kept` keeps the program for the next attempt."""
        self._kept = kept
        self._program: Compiled | None = None
        self._passes = 1

    def prepare(self) -> None:
        """Compile or load the program, and find how many products take long enough to be timed; only the first time.

        Each host finds its own number, since hosts are compared by the time of one product.
        """
        if self._program is not None:
            return
        self._mesh = _mesh()
        self._program = self._kept.get("probe", partial(lower_chain, self._mesh), list(self._mesh.devices.flat))
        rows, factor = _factors(_size(self._mesh))
        self._rows, self._factor, self._expected = self._put(rows), self._put(factor), self._put(rows)
        self._run()
        while self._run()[0] < _SECONDS:
            self._passes *= 2
        self._expected = self._put(_chained(rows, factor, self._passes))

    def seconds(self) -> float:
        """Return the seconds of one product on the slowest of the devices: the best of a few runs.

        Raises:
            DeviceError: a device has computed wrong; it is named.

        """
        runs = [self._run() for _ in range(_RUNS)]
        wrong = np.max([counts for _, counts in runs], axis=0)
        if wrong.any():
            raise DeviceError(self._message(wrong))
        return min(seconds for seconds, _ in runs) / self._passes

    def _run(self) -> tuple[float, NDArray[np.int32]]:
        """Return the seconds, and for each device how many of its results are wrong."""
        assert self._program is not None
        began = time.perf_counter()
        wrong = self._program(self._rows, self._factor, self._expected, np.int32(self._passes)).block_until_ready()
        return time.perf_counter() - began, np.asarray(wrong)

    def _put(self, value: NDArray[np.float32]) -> jax.Array:
        placed: jax.Array = jax.device_put(value, NamedSharding(self._mesh, P()))
        return placed

    def _message(self, wrong: NDArray[np.int32]) -> str:
        devices, size = self._mesh.devices.flat, _size(self._mesh)
        named = ", ".join(f"{device} ({count:,} wrong)" for device, count in zip(devices, wrong, strict=True) if count)
        return (
            f"a device of {socket.gethostname()} computes wrong and reports no error: of {size**2:,} results of "
            f"exact products of whole numbers, {named}. Test the device before it trains again; checkpoints of the "
            "last minutes may hold what it has computed"
        )


def _mesh() -> Mesh:
    """Return this host's devices, or one of them if they are simulated: those share the processors."""
    devices = jax.local_devices()[:1] if simulated() else jax.local_devices()
    return Mesh(np.array(devices), ("device",), axis_types=(AxisType.Auto,))


def _size(mesh: Mesh) -> int:
    return _SIZE_ON_CPU if mesh.devices.flat[0].platform == "cpu" else _SIZE


def _factors(size: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the rows [_ROWS, size] that the chain begins with, and its factor [size, size], of mixed whole numbers."""
    mixed = np.arange((_ROWS + size) * size, dtype=np.uint32) * np.uint32(2654435761)
    mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(2246822519)
    mixed = (mixed ^ (mixed >> np.uint32(13))).reshape(_ROWS + size, size) >> np.uint32(8)
    rows, factor = mixed[:_ROWS] % np.uint32(_RANGE), mixed[_ROWS:] % np.uint32(16)
    return rows.astype(np.float32) - _RANGE / 2, factor.astype(np.float32) - 8


def _chained(rows: NDArray[np.float32], factor: NDArray[np.float32], passes: int) -> NDArray[np.float32]:
    """Return by this host's processor what each pass makes of its rows: their products, brought back into the range."""
    for _ in range(passes):
        product = rows @ factor
        rows = product - _RANGE * np.floor(product / _RANGE + 0.5)
    return rows


def lower_chain(mesh: Mesh) -> Lowered:
    """Lower the chain for the devices of a mesh with the one axis "device", each of which does all of it."""
    whole, size = NamedSharding(mesh, P()), _size(mesh)
    rows, factor = (jax.ShapeDtypeStruct(shape, np.float32, sharding=whole) for shape in ((_ROWS, size), (size, size)))
    # Not checked for what varies by device: that devices differ, though all have been given the same, is the question.
    each = jax.shard_map(_wrong, mesh=mesh, in_specs=P(), out_specs=P("device"), check_vma=False)
    return jax.jit(each).lower(rows, factor, rows, jax.ShapeDtypeStruct((), np.int32, sharding=whole))


def _wrong(rows: jax.Array, factor: jax.Array, expected: jax.Array, passes: jax.Array) -> jax.Array:
    """Return how many entries of the chain [1] are not those that are expected."""
    size = factor.shape[0]

    def one(_: jax.Array, square: jax.Array) -> jax.Array:
        product = square @ factor
        return product - _RANGE * jnp.floor(product / _RANGE + 0.5)

    square = jax.lax.fori_loop(0, passes, one, jnp.tile(rows, (size // _ROWS, 1)))
    return jnp.sum(square.reshape(-1, *expected.shape) != expected, dtype=np.int32)[None]

"""The speed of this host's own devices: a timed chain of matrix products that waits for no other host.

Ranks train in lockstep, so one slow host makes the steps of all equally long, and step times do not show which one it
is. Ranks measure at steps that they agree on, when the devices have nothing else to do. It touches no state of the run.
"""

import time

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.stages import Compiled, Lowered

from shardwise.train.devices import simulated
from shardwise.train.executables import Executables

_SIZE = 2048
_SIZE_ON_CPU = 128
_SECONDS = 0.002  # more than the overhead of a call, and less than one time slice of a busy machine's scheduler
_RUNS = 3


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
        if self._program is None:
            self._program = self._kept.get("probe", _lower, list(_sharding().mesh.devices.flat))
            self._square = _square()
            self._run()
            while self._run() < _SECONDS:
                self._passes *= 2

    def seconds(self) -> float:
        """Return the seconds of one product on the slowest of the devices: the best of a few runs."""
        return min(self._run() for _ in range(_RUNS)) / self._passes

    def _run(self) -> float:
        assert self._program is not None
        began = time.perf_counter()
        self._program(self._square, np.int32(self._passes)).block_until_ready()
        return time.perf_counter() - began


def _sharding() -> NamedSharding:
    """Shard over this host's devices, or take one of them if they are simulated: those share the processors."""
    devices = jax.local_devices()[:1] if simulated() else jax.local_devices()
    mesh = Mesh(np.array(devices), ("device",), axis_types=(AxisType.Auto,))
    return NamedSharding(mesh, P("device"))


def _size() -> int:
    return _SIZE_ON_CPU if simulated() else _SIZE


def _square() -> jax.Array:
    """Return a matrix on each device that equals its own powers, so that no chain overflows."""
    shape = (1, _size(), _size())
    parts = [
        jax.device_put(np.full(shape, 1 / _size(), np.float32), device) for device in _sharding().mesh.devices.flat
    ]
    return jax.make_array_from_single_device_arrays((len(parts), *shape[1:]), _sharding(), parts)


def _lower() -> Lowered:
    sharding = _sharding()
    abstract = jax.ShapeDtypeStruct((sharding.mesh.size, _size(), _size()), np.float32, sharding=sharding)
    whole = NamedSharding(sharding.mesh, P())
    jitted = jax.jit(_chain, in_shardings=(sharding, whole), out_shardings=sharding)
    return jitted.lower(abstract, jax.ShapeDtypeStruct((), np.int32, sharding=whole))


def _chain(square: jax.Array, passes: jax.Array) -> jax.Array:
    chained: jax.Array = jax.lax.fori_loop(0, passes, lambda _, product: product @ square, square)
    return chained

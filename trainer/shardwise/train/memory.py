"""What each device holds: the bytes of parameters, optimizer state, batch and temporaries.

Sizes come from the shardings of the compiled program and its own memory analysis, not
from the allocator: a CPU has no allocator statistics.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import jax

from shardwise.train.state import Abstract, Program, flat
from shardwise.train.step import abstract_batch


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """Bytes on one device."""

    device: str
    params_bytes: int
    optimizer_bytes: int
    batch_bytes: int
    temporary_bytes: int

    @property
    def total_bytes(self) -> int:
        """The sum of all."""
        return self.params_bytes + self.optimizer_bytes + self.batch_bytes + self.temporary_bytes


def device_memory(program: Program, compiled: jax.stages.Compiled) -> list[DeviceMemory]:
    """Return one row per device, in mesh order."""
    state, batch = program.abstract(), abstract_batch(program)._asdict()
    params = _bytes_by_device(flat(state["params"]))
    moments = _bytes_by_device(flat(state["optimizer"]))
    rows = _bytes_by_device(batch)
    platform = program.layout.mesh.devices.flat[0].platform
    temporary = _temporary_bytes(compiled, platform)
    return [
        DeviceMemory(
            device=str(device),
            params_bytes=params[device],
            optimizer_bytes=moments[device],
            batch_bytes=rows[device],
            temporary_bytes=temporary,
        )
        for device in program.layout.mesh.devices.flat
    ]


def _temporary_bytes(compiled: jax.stages.Compiled, platform: str) -> int:
    """Return the most that the program holds beside its arguments.

    It is read off the compiler's peak, since its sum of temporaries counts memory that two of them share twice. The
    compiler for CPUs leaves temporaries out of its peak.
    """
    analysis = compiled.memory_analysis()
    if analysis is None:
        return 0
    if platform == "cpu":
        return int(analysis.temp_size_in_bytes)
    return max(0, int(analysis.peak_memory_in_bytes) - int(analysis.argument_size_in_bytes))


def _bytes_by_device(leaves: Mapping[str, Abstract]) -> dict[jax.Device, int]:
    held: dict[jax.Device, int] = {}
    for leaf in leaves.values():
        size = leaf.dtype.itemsize
        for extent in leaf.sharding.shard_shape(leaf.shape):
            size *= extent
        for device in leaf.sharding.device_set:
            held[device] = held.get(device, 0) + size
    return held

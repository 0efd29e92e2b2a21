"""What each device holds: the bytes of parameters, optimizer state, batch and temporaries.

Sizes come from the shardings of the compiled program and its own memory analysis, not
from the allocator: a CPU has no allocator statistics.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax

from shardwise.train.state import Abstract, Program, beside_weights, parameters
from shardwise.train.step import batch_arrays

MOST_DEVICES = 16
"""Of thousands a table takes seconds of every start, and a megabyte of metrics.jsonl."""


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
    """Return one row per device, in mesh order: of the first `MOST_DEVICES`, since all hold as much."""
    state = program.abstract()
    devices = list(program.layout.mesh.devices.flat)
    alike = DeviceMemory(
        device="",
        params_bytes=local_bytes(parameters(state)),
        optimizer_bytes=local_bytes(beside_weights(state)),
        batch_bytes=local_bytes(batch_arrays(program)),
        temporary_bytes=_temporary_bytes(compiled, devices[0].platform),
    )
    return [replace(alike, device=str(device)) for device in devices[:MOST_DEVICES]]


def local_bytes(leaves: Mapping[str, Abstract]) -> int:
    """Return what each device holds of these arrays: as much as any other, since the mesh divides them evenly."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves.values())


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

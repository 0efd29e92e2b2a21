"""What each device holds: the bytes of parameters, optimizer state, batch and temporaries.

Sizes come from the shardings of the compiled program and its own memory analysis, not
from the allocator: a CPU has no allocator statistics.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from shardwise.train.host_memory import is_on_host
from shardwise.train.state import Abstract, Program, beside_weights, flat, parameters
from shardwise.train.step import abstract_batch

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
        batch_bytes=local_bytes(flat(abstract_batch(program))),
        temporary_bytes=_temporary_bytes(compiled, devices[0].platform),
    )
    return [replace(alike, device=str(device)) for device in devices[:MOST_DEVICES]]


def local_bytes(leaves: Mapping[str, Abstract]) -> int:
    """Return what each device holds of these arrays: as much as any other, since the mesh divides them evenly.

    Those in the memory of its host are none of them.
    """
    here = (leaf for leaf in leaves.values() if not is_on_host(leaf.sharding))
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in here)


def peak_bytes(memory: Any, platform: str) -> int:
    """Return the peak on one device; a CPU's compiler counts it without the arguments, which are added.

    A TPU's counts what lies with the host, too (docs/decisions/0066-memory-of-the-host.md).
    """
    if platform == "tpu":
        with_host = memory.host_argument_size_in_bytes + memory.host_temp_size_in_bytes
        return int(memory.peak_memory_in_bytes - with_host)
    if platform != "cpu":
        return int(memory.peak_memory_in_bytes)
    unshared = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.argument_size_in_bytes + memory.temp_size_in_bytes + unshared)


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
    return max(0, peak_bytes(analysis, platform) - int(analysis.argument_size_in_bytes))

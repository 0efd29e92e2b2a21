"""Bytes on each device: of the arrays that are alive, and of what a compiled program needs beside them."""

from typing import Any

import jax

from show.profile import allocations


def by_device() -> list[int]:
    """The bytes of all living buffers on each device, in the order of `jax.local_devices()`."""
    held = dict.fromkeys((device.id for device in jax.local_devices()), 0)
    for allocation in allocations():
        held[allocation.device] += allocation.num_bytes
    return list(held.values())


def compiled(program: Any, *args: Any) -> Any:
    """A jitted function compiled for the shapes and shardings of `args`; one that is compiled already, as it is."""
    return program if isinstance(program, jax.stages.Compiled) else program.lower(*args).compile()


def temporaries(program: Any, *args: Any) -> int:
    """The bytes on each device that a jitted or compiled function needs beside its arguments and results.

    Of the compiled program's own account (`memory_analysis`), for the shapes and shardings of `args`.
    """
    needed: int = compiled(program, *args).memory_analysis().temp_size_in_bytes
    return needed

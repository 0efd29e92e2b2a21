"""The host's memory as a second place for arrays: which lie there, and how a program fetches them and puts them back.

JAX calls it `pinned_host`, a memory kind of a sharding: https://docs.jax.dev/en/latest/notebooks/host-offloading.html.
Simulated devices have it too, as a name: their own memory is the host's. A GPU's compiler without a GPU has it not, so
there a plan places all of a state on the devices (docs/decisions/0066-memory-of-the-host.md).
"""

from typing import Any

import jax
from jax.sharding import NamedSharding, Sharding

from shardwise.job.spec import Training

HOST = "pinned_host"


def on_host(sharding: NamedSharding) -> NamedSharding:
    """Return the sharding of the same parts in the memory of the hosts of their devices."""
    return sharding.with_memory_kind(HOST)


def is_on_host(sharding: Sharding | None) -> bool:
    """Return whether arrays of this sharding lie in the memory of hosts."""
    return sharding is not None and sharding.memory_kind == HOST


def fetched(tree: Any) -> Any:
    """Return arrays of a program on their devices, wherever they lie; those that are there as they are."""
    return jax.device_put(tree, jax.memory.Space.Device)


def put_back(tree: Any, shardings: Any) -> Any:
    """Return arrays of a program where these shardings say; the tree of both is the same."""
    put = lambda x, sharding: jax.device_put(x, sharding) if is_on_host(sharding) else x  # noqa: E731
    return jax.tree.map(put, tree, shardings)


def not_moved(training: Training, platform: str) -> str | None:
    """Return what a person is told who asked for the host's memory on simulated devices; None otherwise."""
    fields = {"model.remat: offload": training.model.remat == "offload", "optimizer.memory: host": on_hosts(training)}
    asked = " and ".join(name for name, is_there in fields.items() if is_there)
    if not asked or platform != "cpu":
        return None
    return f"{asked}: the memory of simulated devices is their host's, so nothing is moved"


def on_hosts(training: Training) -> bool:
    """Return whether a job keeps its optimizer's state in the memory of hosts."""
    return training.optimizer.memory == "host"

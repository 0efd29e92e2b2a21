"""The private parts of JAX that the trainer uses, all of them, so that an upgrade of JAX breaks this file alone.

`jax._src.distributed.global_state.client` is the client of the coordination service, whose key-value store carries text
between processes. `jax.distributed` starts that service and publishes no name for the store; checkpoint libraries reach
for the same client. The public alternative is `jax.experimental.multihost_utils` (`process_allgather`,
`broadcast_one_to_all`): it sends arrays through the devices, so it must not run in a thread beside a step.

When an upgrade breaks something here, `tests/train/test_jax_private.py` says what.
"""

from typing import Any, Protocol

from jax._src import distributed


class KeyValueStore(Protocol):
    """The key-value store of JAX's coordination service, served by rank 0. Every method may raise JaxRuntimeError."""

    def key_value_set(self, key: str, value: str) -> None:
        """Store text under a key that has none yet."""

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        """Wait until the key has text, and return it."""

    def key_value_delete(self, key: str) -> None:
        """Remove the key, and all keys below it (`key/...`)."""


def key_value_store() -> KeyValueStore:
    """Return the store of this process; `jax.distributed.initialize` must have returned."""
    store: Any = distributed.global_state.client
    client: KeyValueStore = store
    return client

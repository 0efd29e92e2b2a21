"""The processes of one incarnation: how they join, and the few bytes they tell each other beside the arrays.

What goes between them here is small and seldom: digests of a save, a verdict on a checkpoint, the fingerprint of the
data. It travels through the key-value store of JAX's coordination service, never through the devices, so that it may
happen in a thread beside a step. Called by the start, the checkpoint's writer and reader, and the loop.
"""

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import jax
from jax._src import distributed  # the store has no public name; it is what checkpoint libraries use as well

from shardwise.job.errors import PeerError
from shardwise.job.orders import Orders

Exchange = Callable[[str, str], list[str]]
"""(name, text) -> the texts of all processes, by rank. Every process calls it with the same names in the same order."""

WRITER = 0
"""The rank that writes what is written once."""

_HEARTBEAT_SECONDS = 100
_LEAVE_SECONDS = 30
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Processes:
    """This process's place among those of the incarnation.

    `limit_seconds` is how long one waits for another.
    """

    rank: int
    count: int
    limit_seconds: float
    _client: Any = None
    _rounds: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def alone(cls) -> Self:
        """The one process of a run on one host."""
        return cls(0, 1, 0.0)

    @classmethod
    def join(cls, orders: Orders, *, limit_seconds: float) -> Self:
        """Meet the others at the coordinator; call it before anything asks JAX for devices.

        Raises:
            PeerError: not all of them came within the limit.

        """
        if orders.num_processes == 1:
            return cls.alone()
        host, _, port = orders.coordinator.rpartition(":")
        until = time.monotonic() + limit_seconds
        if orders.rank != WRITER:
            _wait_until_served(host, int(port), until)
        try:
            jax.distributed.initialize(
                coordinator_address=orders.coordinator,
                num_processes=orders.num_processes,
                process_id=orders.rank,
                cluster_detection_method="deactivate",
                initialization_timeout=max(1, int(until - time.monotonic())),
                heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
                shutdown_timeout_seconds=_LEAVE_SECONDS,
                coordinator_bind_address=orders.coordinator if host else None,
            )
        except jax.errors.JaxRuntimeError as error:
            raise PeerError(
                f"rank {orders.rank}: the {orders.num_processes} processes did not all reach {orders.coordinator} "
                f"within {limit_seconds:.0f} seconds: {_first_line(error)}"
            ) from error
        return cls(orders.rank, orders.num_processes, limit_seconds, distributed.global_state.client)

    @property
    def writes(self) -> bool:
        """Whether it is this process that writes what is written once."""
        return self.rank == WRITER

    def leave(self) -> None:
        """Part from the others at a good end; after a bad one the process just ends."""
        if self.count > 1:
            jax.distributed.shutdown()

    def exchange(self, name: str, text: str) -> list[str]:
        """What every process says under this name, by rank; returns when all have spoken.

        Raises:
            PeerError: some did not within the limit; it names the first of them.

        """
        if self.count == 1:
            return [text]
        with self._lock:
            self._rounds[name] += 1
            key = f"shardwise/{name}/{self._rounds[name]}"
            before = f"shardwise/{name}/{self._rounds[name] - 1}"
        self._client.key_value_set(f"{key}/{self.rank}", text)
        heard = [text if rank == self.rank else self._hear(key, rank) for rank in range(self.count)]
        self._client.key_value_delete(f"{before}/{self.rank}")  # whoever speaks in this round has heard the last one
        return heard

    def _hear(self, key: str, rank: int) -> str:
        try:
            heard: str = self._client.blocking_key_value_get(f"{key}/{rank}", int(self.limit_seconds * 1000))
        except jax.errors.JaxRuntimeError as error:
            raise PeerError(
                f"rank {self.rank} waited {self.limit_seconds:.0f} seconds for rank {rank} at {key}: "
                f"{_first_line(error)}"
            ) from error
        return heard


def _wait_until_served(host: str, port: int, until: float) -> None:
    """Wait until somebody listens there, or until then (monotonic seconds): JAX, refused once, waits a whole second."""
    while (left := until - time.monotonic()) > 0:
        try:
            socket.create_connection((host, port), timeout=left).close()
        except OSError:
            time.sleep(_LOOK_SECONDS)
        else:
            break


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]


ALONE = Processes.alone()

"""The processes of one incarnation: how they join, and the few bytes they tell each other beside the arrays.

What goes between them here is small and seldom: digests of a save, a verdict on a checkpoint, the fingerprint of the
data. It travels through the key-value store of JAX's coordination service, never through the devices, so that it may
happen in a thread beside a step. Called by the start, the checkpoint's writer and reader, and the loop.
"""

import json
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

Settle = Callable[[list[str]], str]
"""What follows from the texts of all processes, by rank."""

Agree = Callable[[str, Settle], str]
"""(own text, settle) -> what rank 0 has settled from the texts of all; `Processes.agree` under one name."""

WRITER = 0
"""The rank that writes what is written once."""

_HEARTBEAT_SECONDS = 100
_LEAVE_SECONDS = 30
_LOOK_SECONDS = 0.02
_ANSWER_SECONDS = 7 * 86400.0
"""So long one waits for another, which may read or write for hours: whether it hangs is the watchdog's to say."""


@dataclass(frozen=True)
class Processes:
    """This process's place among those of the incarnation.

    `answer_seconds` is how long one waits for another's word.
    """

    rank: int
    count: int
    answer_seconds: float = _ANSWER_SECONDS
    _client: Any = None
    _rounds: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def alone(cls) -> Self:
        """The one process of a run on one host."""
        return cls(0, 1)

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
        return cls(orders.rank, orders.num_processes, _client=distributed.global_state.client)

    @property
    def writes(self) -> bool:
        """Whether it is this process that writes what is written once."""
        return self.rank == WRITER

    def leave(self) -> None:
        """Part from the others at a good end; after a bad one the process just ends."""
        if self.count > 1:
            jax.distributed.shutdown()

    def agree(self, name: str, text: str, settle: Settle) -> str:
        """What rank 0 settles from what every process says under this name; returns when all have spoken.

        Every process calls it with the same names in the same order. Each says one thing and hears one. Rank 0, on
        whose host the store is, gathers, so that only its own part grows with their number.

        Raises:
            PeerError: some did not within the limit; on rank 0 it names the first of them.

        """
        if self.count == 1:
            return settle([text])
        with self._lock:
            self._rounds[name] += 1
            key = f"shardwise/{name}/{self._rounds[name]}"
            before = f"shardwise/{name}/{self._rounds[name] - 1}"
        if not self.writes:
            self._client.key_value_set(f"{key}/{self.rank}", text)
            return self._hear(key, WRITER)
        said = [text, *(self._hear(key, rank) for rank in range(1, self.count))]
        settled = settle(said)
        self._client.key_value_set(f"{key}/{WRITER}", settled)
        self._client.key_value_delete(before)  # whoever has spoken in this round has heard the last one
        return settled

    def exchange(self, name: str, text: str) -> list[str]:
        """What every process says under this name, by rank; a short word, since all are told to all."""
        heard: list[str] = json.loads(self.agree(name, text, json.dumps))
        return heard

    def _hear(self, key: str, rank: int) -> str:
        try:
            heard: str = self._client.blocking_key_value_get(f"{key}/{rank}", int(self.answer_seconds * 1000))
        except jax.errors.JaxRuntimeError as error:
            raise PeerError(
                f"rank {self.rank} waited {self.answer_seconds:.0f} seconds for rank {rank} at {key}: "
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

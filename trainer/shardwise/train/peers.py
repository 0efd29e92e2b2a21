"""The trainer processes of one attempt: how they join, and the few bytes they exchange beside the arrays.

Messages here are small and rare: digests of a save, a verdict on a checkpoint, the fingerprint of the data. They travel
through the key-value store of JAX's coordination service and never through the devices, so that an exchange may run in
a thread beside a step.
"""

import json
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import jax

from shardwise.protocol.errors import PeerError, UsageError
from shardwise.protocol.orders import Orders
from shardwise.protocol.program import Place
from shardwise.protocol.storage import first_line
from shardwise.train.jax_private import key_value_store, receive_with_low_priority

_PROXIES = frozenset({"grpc_proxy", "https_proxy", "http_proxy"})

Settle = Callable[[list[str]], str]
"""A function from the texts of all processes, by rank, to the result they share."""

Agree = Callable[[str, Settle], str]
"""(own text, settle) -> what rank 0 settled from the texts of all: `Peers.agree` under a fixed name."""

WRITER = 0
"""The rank that writes what is written once."""

_HEARTBEAT_SECONDS = 100
_LEAVE_SECONDS = 30
_RETRY_SECONDS = 0.02
_ANSWER_SECONDS = 7 * 86400.0
"""How long a process waits for another, which may read or write for hours. The watchdog decides what hangs."""


@dataclass(frozen=True)
class Peers:
    """The processes of the attempt, as one of them sees them.

    `answer_seconds` is how long this process waits for a message of another.
    """

    rank: int
    count: int
    answer_seconds: float = _ANSWER_SECONDS
    _client: Any = None
    _exchanges: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _counters: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def join(cls, orders: Orders | Place, *, limit_seconds: float) -> Self:
        """Meet the other processes at the coordinator. Call it before anything asks JAX for devices.

        Raises:
            PeerError: some process did not come within the limit.
            UsageError: JAX is at work already.

        """
        if orders.num_processes == 1:
            return cls(WRITER, 1)
        host, _, port = orders.coordinator.rpartition(":")
        until = time.monotonic() + limit_seconds
        if orders.rank != WRITER:
            _wait_until_served(host, int(port), until)
        receive_with_low_priority()
        _reach_without_proxy(host)
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
                f"within {limit_seconds:.0f} seconds: {first_line(error)}"
            ) from error
        except RuntimeError as error:  # JAX's own word for what an own program has done before
            raise UsageError(
                "shardwise.init() came too late: call it before the script makes any array or key of JAX, and without "
                f"jax.distributed.initialize() ({first_line(error)})"
            ) from error
        return cls(orders.rank, orders.num_processes, _client=key_value_store())

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes what is written once."""
        return self.rank == WRITER

    def leave(self) -> None:
        """Leave the others after a good end. After a failure the process just exits.

        JAX ends all processes if one comes to its shutdown much later than the first: rank 0 may remove checkpoints
        and write the summary for minutes. So they meet here before, where the watchdog alone decides what hangs.
        """
        if self.count > 1:
            self.exchange("leave", "")
            jax.distributed.shutdown()

    def agree(self, name: str, text: str, settle: Settle) -> str:
        """Send this process's text to rank 0 and return what rank 0 settles from the texts of all.

        Every process calls it with the same names in the same order, and writes and reads one key. Only rank 0, whose
        host serves the store, reads one key for each process, so only its cost grows with their number.

        Raises:
            PeerError: a process sent nothing within the limit; on rank 0 the error names the first of them.

        """
        if self.count == 1:
            return settle([text])
        with self._lock:
            self._exchanges[name] += 1
            key = f"shardwise/{name}/{self._exchanges[name]}"
            before = f"shardwise/{name}/{self._exchanges[name] - 1}"
        if not self.writes:
            self._client.key_value_set(f"{key}/{self.rank}", text)
            return self._read(key, WRITER)
        texts = [text, *(self._read(key, rank) for rank in range(1, self.count))]
        settled = settle(texts)
        self._client.key_value_set(f"{key}/{WRITER}", settled)
        # Every process that has written in this exchange has read the result of the one before it.
        self._client.key_value_delete(before)
        return settled

    def exchange(self, name: str, text: str) -> list[str]:
        """Return the texts of all processes under this name, by rank. Keep them short: every process gets all."""
        texts: list[str] = json.loads(self.agree(name, text, json.dumps))
        return texts

    def add(self, name: str, amount: int) -> int:
        """Add to a counter that all processes of the attempt share, and return what it is then; it begins at 0."""
        if self.count == 1:
            with self._lock:
                self._counters[name] += amount
                return self._counters[name]
        try:
            total: int = self._client.key_value_increment(f"shardwise/count/{name}", amount)
        except jax.errors.JaxRuntimeError as error:
            raise PeerError(f"rank {self.rank} cannot reach the coordinator: {first_line(error)}") from error
        return total

    def _read(self, key: str, rank: int) -> str:
        try:
            text: str = self._client.blocking_key_value_get(f"{key}/{rank}", int(self.answer_seconds * 1000))
        except jax.errors.JaxRuntimeError as error:
            raise PeerError(
                f"rank {self.rank} waited {self.answer_seconds:.0f} seconds for rank {rank} at {key}: "
                f"{first_line(error)}"
            ) from error
        return text


def _reach_without_proxy(host: str) -> None:
    """Have this process connect to the coordinator itself, whatever proxy a platform names for the way out.

    gRPC, by which JAX speaks to it, takes its own variable in the place of `no_proxy`.
    """
    if not any(name.lower() in _PROXIES for name in os.environ):
        return
    known = os.environ.get("no_grpc_proxy", os.environ.get("no_proxy", ""))  # noqa: SIM112  gRPC's own names
    os.environ["no_grpc_proxy"] = ",".join(filter(None, (known, host)))  # noqa: SIM112


def _wait_until_served(host: str, port: int, until: float) -> None:
    """Wait until the port accepts connections, or until then (monotonic seconds).

    JAX itself waits a whole second after its first refused connection.
    """
    while (left := until - time.monotonic()) > 0:
        try:
            socket.create_connection((host, port), timeout=left).close()
        except OSError:
            time.sleep(_RETRY_SECONDS)
        else:
            break


ALONE = Peers(WRITER, 1)
"""The only process of a run on one host."""

"""Requests to host 0 (save, stop), sent beside the passes: a host 0 that does not answer holds up no other job.

A policy repeats its request as long as it wants it, so a request that failed is dropped.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from shardwise_operator.decide.plan import RequestSave, RequestStop
from shardwise_operator.observe.agents import AgentError, Agents, Target
from shardwise_operator.runtime.queue import Key

_WORKERS = 8

_log = logging.getLogger(__name__)


class Requests:
    """The requests to all jobs, one of each job at a time."""

    def __init__(self, agents: Agents, changed: Callable[[Key], None]) -> None:
        """`changed` is called with a job once its host 0 has taken a request."""
        self._agents, self._changed = agents, changed
        self._lock = threading.Lock()
        self._under_way: set[Key] = set()
        self._taken: dict[Key, RequestStop | RequestSave] = {}
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="requests")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def send(self, key: Key, target: Target, request: RequestStop | RequestSave) -> bool:
        """Return whether host 0 has taken this request before; if it has not, send it once more."""
        with self._lock:
            if key in self._under_way:
                return False
            # Returned once: the pass then writes it into the status, after which the policy asks no more.
            if self._taken.pop(key, None) == request:
                return True
            self._under_way.add(key)
        self._pool.submit(self._carry_out, key, target, request)
        return False

    def forget(self, key: Key) -> None:
        """Drop what is kept of a job that is gone, or is not this operator's."""
        with self._lock:
            self._taken.pop(key, None)

    def _carry_out(self, key: Key, target: Target, request: RequestStop | RequestSave) -> None:
        send = self._agents.stop if isinstance(request, RequestStop) else self._agents.save
        try:
            send(target)
        except AgentError as error:
            _log.info("%s/%s did not take the request: %s", *key, error)
        else:
            with self._lock:
                self._taken[key] = request
            self._changed(key)
        finally:
            with self._lock:
                self._under_way.discard(key)

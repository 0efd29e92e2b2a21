"""Requests to host 0 (save, stop), carried out beside the passes: who does not answer holds up no other job.

Called by `apply.py`. A request is repeated by its policy until it is no longer wanted, so nothing is kept of one that
came to nothing.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from shardwise_operator.agents import AgentError, Agents, Target
from shardwise_operator.plan import AskSave, AskStop
from shardwise_operator.poll import Key

_WORKERS = 8

_log = logging.getLogger(__name__)


class Asks:
    """The requests of all jobs, one of each at a time."""

    def __init__(self, agents: Agents, changed: Callable[[Key], None]) -> None:
        """`changed` is called with a job whose host 0 has taken a request."""
        self._agents, self._changed = agents, changed
        self._lock = threading.Lock()
        self._under_way: set[Key] = set()
        self._taken: dict[Key, AskStop | AskSave] = {}
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="ask")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def ask(self, key: Key, target: Target, request: AskStop | AskSave) -> bool:
        """Whether host 0 has taken this request since it was first made; where it has not, it is asked again."""
        with self._lock:
            if key in self._under_way:
                return False
            if self._taken.pop(key, None) == request:
                return True
            self._under_way.add(key)
        self._pool.submit(self._carry_out, key, target, request)
        return False

    def forget(self, key: Key) -> None:
        """The job is gone, or another's."""
        with self._lock:
            self._taken.pop(key, None)

    def _carry_out(self, key: Key, target: Target, request: AskStop | AskSave) -> None:
        send = self._agents.stop if isinstance(request, AskStop) else self._agents.save
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

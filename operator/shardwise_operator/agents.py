"""Speaks to the agents of host 0: how they stand, and requests to save or to stop. Every call is bounded.

Called by `poll.py` and `apply.py`. What answers is a pod, which anybody may have taken over: an answer is size-limited
and checked for its shape before it is believed.
"""

import json
from dataclasses import dataclass
from typing import Any

import urllib3

from shardwise.job.pods import AGENT_PORT

_TIMEOUT_SECONDS = 2.0
_MAX_ANSWER_BYTES = 1 << 20
_MAX_HOSTS = 64  # kept connections


class AgentError(Exception):
    """The agent did not answer, or not as an agent does."""


@dataclass(frozen=True)
class Target:
    """Host 0 of a job: the UID of its pod, the pod's address, and the token that opens its status."""

    pod: str
    address: str
    token: str


class Agents:
    """A client for many agents, safe in threads."""

    def __init__(self, port: int = AGENT_PORT) -> None:
        """Every agent listens on `port`."""
        self._port = port
        self._pools = urllib3.PoolManager(
            num_pools=_MAX_HOSTS, timeout=urllib3.Timeout(_TIMEOUT_SECONDS), retries=False, block=False
        )

    def status(self, target: Target) -> dict[str, Any]:
        """The run's `/status`; AgentError where there is no such answer."""
        answer = self._ask("GET", target, "/status")
        try:
            status = json.loads(answer)
        except ValueError as error:
            raise AgentError(f"{target.address}: an answer that is not JSON") from error
        if not isinstance(status, dict) or not isinstance(status.get("phase"), str):
            raise AgentError(f"{target.address}: an answer that is no status")
        return status

    def save(self, target: Target) -> None:
        """Ask the run to save and go on; AgentError where nobody takes it."""
        self._ask("POST", target, "/save")

    def stop(self, target: Target) -> None:
        """Ask the run to save and stop; AgentError where nobody takes it."""
        self._ask("POST", target, "/stop")

    def _ask(self, method: str, target: Target, path: str) -> bytes:
        host = f"[{target.address}]" if ":" in target.address else target.address
        headers = {"Authorization": f"Bearer {target.token}"}
        try:
            answer = self._pools.request(
                method, f"http://{host}:{self._port}{path}", headers=headers, preload_content=False, redirect=False
            )
            body = answer.read(_MAX_ANSWER_BYTES + 1)
            answer.release_conn()
        except urllib3.exceptions.HTTPError as error:
            raise AgentError(f"{target.address}: {error}") from error
        if answer.status >= 300:
            raise AgentError(f"{target.address}: HTTP {answer.status}")
        if len(body) > _MAX_ANSWER_BYTES:
            answer.close()
            raise AgentError(f"{target.address}: an answer of more than {_MAX_ANSWER_BYTES} bytes")
        return bytes(body)

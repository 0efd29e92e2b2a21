"""Speaks to the agents of host 0: how they stand, and requests to save or to stop. Every call is bounded.

Called by `poll.py` and `apply.py`. What answers is a pod, which anybody may have taken over: an answer is size-limited
and checked for its shape before it is believed.
"""

import http.client
import json
from dataclasses import dataclass
from typing import Any

from shardwise.job.pods import AGENT_PORT

_TIMEOUT_SECONDS = 2.0
_MAX_ANSWER_BYTES = 1 << 20


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
        """One request over a connection of its own: that many are not kept open, and a pool costs twice the time."""
        connection = http.client.HTTPConnection(target.address, self._port, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request(method, path, headers={"Authorization": f"Bearer {target.token}"})
            answer = connection.getresponse()
            body = answer.read(_MAX_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise AgentError(f"{target.address}: {error}") from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise AgentError(f"{target.address}: HTTP {answer.status}")
        if len(body) > _MAX_ANSWER_BYTES:
            raise AgentError(f"{target.address}: an answer of more than {_MAX_ANSWER_BYTES} bytes")
        return body

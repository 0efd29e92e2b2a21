"""Speaks to the agents of host 0: how they stand, and requests to save or to stop. Every call is bounded as a whole.

Called by `poll.py` and `asks.py`. What answers is a pod, which anybody may have taken over: an answer has a time and a
size, and is checked for its shape (`told.py`) before it is believed.
"""

import http.client
from dataclasses import dataclass
from typing import Any

from shardwise.job.exchange import exchange
from shardwise.job.pods import AGENT_PORT
from shardwise_operator.told import read_told

_TIMEOUT_SECONDS = 2.0
_MAX_ANSWER_BYTES = 4 << 20  # of 4,096 hosts, each with its times by phase


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
            return read_told(answer)
        except ValueError as error:
            raise AgentError(f"{target.address}: an answer that is no status") from error

    def save(self, target: Target) -> None:
        """Ask the run to save and go on; AgentError where nobody takes it."""
        self._ask("POST", target, "/save")

    def stop(self, target: Target) -> None:
        """Ask the run to save and stop; AgentError where nobody takes it."""
        self._ask("POST", target, "/stop")

    def _ask(self, method: str, target: Target, path: str) -> bytes:
        """One request over a connection of its own: that many are not kept open, and a pool costs twice the time."""
        try:
            answer = exchange(
                (target.address, self._port),
                method,
                path,
                headers={"Authorization": f"Bearer {target.token}"},
                seconds=_TIMEOUT_SECONDS,
                most_bytes=_MAX_ANSWER_BYTES,
            )
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise AgentError(f"{target.address}: {error}") from error
        if answer.status >= 300:
            raise AgentError(f"{target.address}: HTTP {answer.status}")
        return answer.body

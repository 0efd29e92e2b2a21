"""Requests to the agents of host 0: for the status of their run, to save, or to stop.

What answers is a pod, which may have been taken over: an answer is bounded in time and in size, and its values have the
bounds of `RunSummary` before they are believed.
"""

import http.client
from dataclasses import dataclass
from http import HTTPStatus

from pydantic import ValidationError

from shardwise.protocol.exchange import Answer, exchange
from shardwise.protocol.pods import AGENT_PORT
from shardwise.protocol.run_status import RunSummary

_TIMEOUT_SECONDS = 2.0
_MAX_ANSWER_BYTES = 4 << 20  # of 4,096 hosts, each with its times by phase


class AgentError(Exception):
    """The agent did not answer, or not as an agent does."""


@dataclass(frozen=True)
class Target:
    """Host 0 of a job: the UID of its pod, the pod's address, and the tokens of which one opens its status."""

    pod: str
    address: str
    tokens: tuple[str, ...]


class Agents:
    """A client for many agents, safe in threads."""

    def __init__(self, port: int = AGENT_PORT) -> None:
        """Ask every agent at `port`."""
        self._port = port

    def status(self, target: Target) -> RunSummary:
        """Return the run's `/status`; AgentError if there is no valid answer."""
        answer = self._ask("GET", target, "/status")
        try:
            return RunSummary.model_validate_json(answer)
        except ValidationError as error:
            raise AgentError(f"{target.address}: an answer that is no status") from error

    def save(self, target: Target) -> None:
        """Ask the run to save and go on; AgentError if the request is not taken."""
        self._ask("POST", target, "/save")

    def stop(self, target: Target) -> None:
        """Ask the run to save and stop; AgentError if the request is not taken."""
        self._ask("POST", target, "/stop")

    def _ask(self, method: str, target: Target, path: str) -> bytes:
        """Send one request over its own connection: that many are not kept open, and a pool costs twice the time."""
        first, *others = target.tokens
        answer = self._send(method, target.address, path, first)
        for token in others:
            if answer.status == HTTPStatus.UNAUTHORIZED:
                answer = self._send(method, target.address, path, token)
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise AgentError(f"{target.address}: HTTP {answer.status}")
        return answer.body

    def _send(self, method: str, address: str, path: str, token: str) -> Answer:
        try:
            return exchange(
                (address, self._port),
                method,
                path,
                headers={"Authorization": f"Bearer {token}"},
                seconds=_TIMEOUT_SECONDS,
                most_bytes=_MAX_ANSWER_BYTES,
            )
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise AgentError(f"{address}: {error}") from error

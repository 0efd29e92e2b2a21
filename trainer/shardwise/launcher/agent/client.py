"""Requests to host 0's HTTP: for its status, to save or to stop, and the polls of the followers."""

import http.client
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shardwise.protocol.exchange import Answer, exchange
from shardwise.protocol.leader_address import LeaderAddress
from shardwise.protocol.poll import POLL_PATH, SIGNATURE, Poll, PollAnswer, answer_signature, poll_signature, same
from shardwise.protocol.run_status import RunStatus

_POLL_SECONDS = 0.3
_MOST_POLLS_PER_SECOND = 400.0
_SECONDS = 2.0
_MOST_BYTES = 16 << 20  # the status of the largest run is a twentieth of it


class NoLeaderError(Exception):
    """No leader answered, or the one that did refused."""


def request(leader: str, token: str, method: str, path: str) -> dict[str, Any]:
    """Return the answer of the leader at "ip:port", bounded in time and size; NoLeaderError if there is none."""
    return _read(leader, _exchange(leader, method, path, b"", {"Authorization": f"Bearer {token}"}))


def read_status(leader: str, token: str) -> RunStatus:
    """Return the status that the leader at "ip:port" serves; NoLeaderError if there is none."""
    try:
        return RunStatus.model_validate(request(leader, token, "GET", "/status"))
    except ValidationError as error:
        raise NoLeaderError(f"{leader}: an answer that is no status") from error


def poll(leader: str, token: str, message: Poll) -> PollAnswer:
    """Return the answer of the leader at "ip:port" to a follower; NoLeaderError if it is not signed by the leader."""
    body = message.model_copy(update={"nonce": secrets.token_hex(16)}).model_dump_json().encode()
    signature = poll_signature(token, body)
    answer = _exchange(leader, "POST", POLL_PATH, body, {SIGNATURE: signature})
    read = _read(leader, answer)
    if not same(answer.headers.get(SIGNATURE, ""), answer_signature(token, signature, answer.body)):
        raise NoLeaderError(f"{leader}: an answer of somebody else")
    try:
        return PollAnswer.model_validate(read)
    except ValidationError as error:
        raise NoLeaderError(f"{leader}: an answer to no poll") from error


def _exchange(leader: str, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
    try:
        address, port = leader.rsplit(":", 1)
        where = (address.strip("[]"), int(port))
        return exchange(where, method, path, headers=headers, body=body, seconds=_SECONDS, most_bytes=_MOST_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoLeaderError(f"{leader}: {error}") from error


def _read(leader: str, answer: Answer) -> dict[str, Any]:
    try:
        read: Any = json.loads(answer.body)
    except (ValueError, RecursionError) as error:  # whoever has the address may answer, and as deeply as he likes
        raise NoLeaderError(f"{leader}: an answer that is no JSON") from error
    if answer.status >= http.HTTPStatus.BAD_REQUEST or not isinstance(read, dict):
        raise NoLeaderError(f"{leader}: {read.get('error') if isinstance(read, dict) else answer.status}")
    return read


class LeaderClient:
    """A follower's way to the leader of its run.

    Its address is read again only after a request has failed: followers ask several times a second, and a successor
    has another address.
    """

    def __init__(self, directory: Path, run: str, token: str) -> None:
        """`directory` is the run's, `run` its life that the leader must belong to, `token` the gang's."""
        self._directory, self._run, self._token = directory, run, token
        self._leader: LeaderAddress | None = None

    def poll(self, message: Poll) -> PollAnswer:
        """Return the leader's answer; NoLeaderError if there is none, or no leader yet."""
        try:
            self._leader = self._leader or self._look_up()
            seen = message.model_copy(update={"sees": self._leader.agent_id})
            return poll(self._leader.address, self._token, seen)
        except NoLeaderError:
            self._leader = None
            raise

    def _look_up(self) -> LeaderAddress:
        try:
            leader = LeaderAddress.read(self._directory)
        except (OSError, ValueError) as error:
            raise NoLeaderError(f"{self._directory} does not say who leads: {error}") from error
        if leader.run != self._run:
            raise NoLeaderError(f"{self._directory} says who led before")
        return leader


def poll_seconds(num_hosts: int) -> float:
    """Return how long a follower waits from one poll to the next: longer in a large run, to spare the leader."""
    return max(_POLL_SECONDS, num_hosts / _MOST_POLLS_PER_SECOND)

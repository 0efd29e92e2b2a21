"""Requests to host 0's HTTP, from the command, the followers, and `shardwise status` and `stop`."""

import http.client
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.job.exchange import Answer, exchange
from shardwise.launcher.shared import Word
from shardwise.launcher.signature import answer_signature, poll_signature, same

POLL_PATH = "/gang"
SIGNATURE = "Shardwise-Signature"  # the header
_SECONDS = 2.0
_MOST_BYTES = 16 << 20  # the status of the largest gang is a twentieth of it


class NoLeaderError(Exception):
    """Nobody leads the run at the moment, or who does refused."""


def request(leader: str, token: str, method: str, path: str) -> dict[str, Any]:
    """The answer of the leader at "ip:port", bounded in time and size; NoLeaderError where there is none."""
    return _read(leader, _exchange(leader, method, path, b"", {"Authorization": f"Bearer {token}"}))


def poll(leader: str, token: str, words: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of the leader at "ip:port" to a follower's words; NoLeaderError where none comes that is its."""
    body = json.dumps({**words, "nonce": secrets.token_hex(16)}).encode()
    signature = poll_signature(token, body)
    answer = _exchange(leader, "POST", POLL_PATH, body, {SIGNATURE: signature})
    read = _read(leader, answer)
    if not same(answer.headers.get(SIGNATURE, ""), answer_signature(token, signature, answer.body)):
        raise NoLeaderError(f"{leader}: an answer of somebody else")
    return read


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


class Leader:
    """The leader of a run, as its followers ask it.

    Where it is is read again only after a request has failed: followers ask several times a second, and a successor
    has another address.
    """

    def __init__(self, directory: Path, run: str, token: str) -> None:
        """`directory` is the run's, `run` its life that the leader must belong to, `token` the gang's."""
        self._directory, self._run, self._token = directory, run, token
        self._word: Word | None = None

    def poll(self, words: Mapping[str, Any]) -> dict[str, Any]:
        """The leader's answer; NoLeaderError where there is none, also where nobody has begun to lead yet."""
        try:
            self._word = self._word or self._look_up()
            return poll(self._word.address, self._token, {**words, "sees": self._word.agent_id})
        except NoLeaderError:
            self._word = None
            raise

    def _look_up(self) -> Word:
        try:
            word = Word.read(self._directory)
        except (OSError, ValueError, RecursionError) as error:
            raise NoLeaderError(f"{self._directory} does not say who leads: {error}") from error
        if word.run != self._run:
            raise NoLeaderError(f"{self._directory} says who led before")
        return word

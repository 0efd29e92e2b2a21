"""Requests to host 0's HTTP, from the command, the followers, and `shardwise status` and `stop`."""

import http.client
import json
import secrets
import socket
from collections.abc import Mapping
from typing import Any

from shardwise.job.exchange import Answer, exchange
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
    address, port = leader.rsplit(":", 1)
    where = (address.strip("[]"), int(port))
    try:
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
    """The leader by its name, as its followers ask it.

    The name is looked up again only after a request has failed: followers ask several times a second, and a successor
    may have another address.
    """

    def __init__(self, leader: str, token: str) -> None:
        """`leader` is "name:port"."""
        self._name, port = leader.rsplit(":", 1)
        self._port, self._token = int(port), token
        self._address: str | None = None

    def poll(self, words: Mapping[str, Any]) -> dict[str, Any]:
        """The leader's answer; NoLeaderError where there is none, also where its name has no address yet."""
        try:
            self._address = self._address or self._look_up()
            return poll(f"{self._address}:{self._port}", self._token, words)
        except NoLeaderError:
            self._address = None
            raise

    def _look_up(self) -> str:
        try:
            found = socket.getaddrinfo(self._name, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise NoLeaderError(f"{self._name}: {error}") from error
        address = str(found[0][4][0])
        return f"[{address}]" if ":" in address else address

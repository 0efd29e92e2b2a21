"""Requests to host 0's HTTP, from the command, the followers, and `shardwise status` and `stop`."""

import http.client
import json
import secrets
import socket
from collections.abc import Mapping
from typing import Any

from shardwise.launcher.signature import answer_signature, poll_signature, same

POLL_PATH = "/gang"
SIGNATURE = "Shardwise-Signature"  # the header
_SECONDS = 2.0


class NoLeaderError(Exception):
    """Nobody leads the run at the moment, or who does refused."""


def request(leader: str, token: str, method: str, path: str) -> dict[str, Any]:
    """The answer of the leader at "ip:port", bounded in time; NoLeaderError where there is none."""
    return _exchange(leader, method, path, None, {"Authorization": f"Bearer {token}"})[0]


def poll(leader: str, token: str, words: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of the leader at "ip:port" to a follower's words; NoLeaderError where none comes that is its."""
    body = json.dumps({**words, "nonce": secrets.token_hex(16)}).encode()
    signature = poll_signature(token, body)
    answer, raw, signed = _exchange(leader, "POST", POLL_PATH, body, {SIGNATURE: signature})
    if not same(signed, answer_signature(token, signature, raw)):
        raise NoLeaderError(f"{leader}: an answer of somebody else")
    return answer


def _exchange(
    leader: str, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> tuple[dict[str, Any], bytes, str]:
    """What comes back: read, as it came, and how it is signed."""
    connection = http.client.HTTPConnection(leader, timeout=_SECONDS)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        raw = response.read()
        answer: Any = json.loads(raw)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoLeaderError(f"{leader}: {error}") from error
    finally:
        connection.close()
    if response.status >= http.HTTPStatus.BAD_REQUEST or not isinstance(answer, dict):
        raise NoLeaderError(f"{leader}: {answer.get('error') if isinstance(answer, dict) else response.status}")
    return answer, raw, response.headers.get(SIGNATURE, "")


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

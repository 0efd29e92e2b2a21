"""Requests to host 0's HTTP, from the command, the followers, and `shardwise status` and `stop`."""

import http.client
import json
import socket
from typing import Any

_SECONDS = 2.0


class NoLeaderError(Exception):
    """Nobody leads the run at the moment, or who does refused."""


def request(leader: str, token: str, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answer of the leader at "ip:port", bounded in time; NoLeaderError where there is none."""
    connection = http.client.HTTPConnection(leader, timeout=_SECONDS)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoLeaderError(f"{leader}: {error}") from error
    finally:
        connection.close()
    if response.status >= http.HTTPStatus.BAD_REQUEST:
        raise NoLeaderError(f"{leader}: {answer.get('error', response.status)}")
    return answer


class Leader:
    """The leader by its name.

    The name is looked up again only after a request has failed: followers ask several times a second, and a successor
    may have another address.
    """

    def __init__(self, leader: str, token: str) -> None:
        """`leader` is "name:port"."""
        self._name, port = leader.rsplit(":", 1)
        self._port, self._token = int(port), token
        self._address: str | None = None

    def request(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The leader's answer; NoLeaderError where there is none, also where its name has no address yet."""
        try:
            self._address = self._address or self._look_up()
            return request(f"{self._address}:{self._port}", self._token, method, path, body)
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

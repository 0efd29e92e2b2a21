"""Requests to host 0's HTTP, from the command, the followers, and `shardwise status` and `stop`."""

import http.client
import json
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

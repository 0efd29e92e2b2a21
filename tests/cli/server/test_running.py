"""The server as a whole in this process: a signal ends it, and so does a model that fails."""

import json
import os
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import httpx
import pytest
from tests.cli.server.small import ENDLESS, TOKEN, Small, client_of, events_of, until

from shardwise.cli.server import running
from shardwise.cli.server.running import answer_until_stopped
from shardwise.protocol.errors import NonFiniteError
from shardwise.train.decoder import Decoder

ENDING = (signal.SIGINT, signal.SIGTERM)
MANY = 2_000
"""Tokens that take longer to make than a signal to be heard."""
T = TypeVar("T")


def answering_while(small: Small, decoder: Decoder, act: Callable[[httpx.Client], T]) -> T:
    """Answer requests in this thread, as the command does, while another one acts, which has to end the server.

    Returns what that one has found. However the server ends, signals are handled as before.
    """
    before = [signal.getsignal(number) for number in ENDING]
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        host, port = listener.getsockname()
        with client_of(f"http://{host}:{port}") as client:
            acting = pool.submit(act, client)
            try:
                answer_until_stopped(small.model, decoder, TOKEN, listener)
            finally:
                found = acting.result()
                assert [signal.getsignal(number) for number in ENDING] == before
    return found


def is_closed(client: httpx.Client) -> bool:
    """Whether nobody answers new connections."""
    try:
        socket.create_connection((client.base_url.host, client.base_url.port or 0)).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_ends_it_when_all_is_answered(number: signal.Signals, small: Small) -> None:
    """What is under way is finished, the stream and the whole answer; nobody else is answered any more."""

    def act(client: httpx.Client) -> list[str]:
        asked = {"prompt": "hi", "max_tokens": MANY, "temperature": 0, "stream": True}
        with client.stream("POST", "/v1/completions", json=asked) as response:
            assert response.status_code == 200
            os.kill(os.getpid(), number)
            until(lambda: is_closed(client))
            return events_of(response)

    events = answering_while(small, small.decoder, act)
    assert events.pop() == "[DONE]"
    text = "".join(json.loads(event)["choices"][0]["text"] for event in events)
    assert [text] == small.texts([*b"hi"], num_tokens=MANY, temperature=0)


def test_what_takes_too_long_is_ended(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that are not answered in the time that they have are given up, and the server ends."""
    monkeypatch.setattr(running, "FINISH_SECONDS", 0)

    def act(client: httpx.Client) -> str:
        asked = {"prompt": "hi", "max_tokens": ENDLESS, "temperature": 0, "stream": True}
        with client.stream("POST", "/v1/completions", json=asked) as response:
            os.kill(os.getpid(), signal.SIGTERM)
            try:
                return response.read().decode()
            except httpx.RemoteProtocolError:
                return ""

    assert "[DONE]" not in answering_while(small, small.decoder, act)


def test_a_model_that_fails_ends_it(small: Small) -> None:
    """Who asked is told, and the command is told why."""
    found: list[httpx.Response] = []
    with pytest.raises(NonFiniteError, match="its parameters are not"):
        answering_while(small, small.broken, lambda client: found.append(client.post("/v1/completions", json={})))
    assert [response.status_code for response in found] == [500]

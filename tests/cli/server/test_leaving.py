"""Who goes away, who is turned away, and what is heard of a server that fails or ends: nothing hangs."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from typing import Any

import pytest
from tests.cli.server.small import ENDLESS, ROWS, TOKEN, Server, Small, events_of, serving, until

HEADERS = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
LONG: Mapping[str, Any] = {"prompt": "hi", "max_tokens": ENDLESS, "temperature": 0}


@contextmanager
def asking(server: Server, **fields: Any) -> Iterator[HTTPConnection]:
    """Ask for completions, and go away in the end, whatever is answered."""
    url = server.client.base_url
    connection = HTTPConnection(url.host, url.port)
    connection.request("POST", "/v1/completions", json.dumps({**LONG, **fields}), HEADERS)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def streaming(server: Server, **fields: Any) -> Iterator[Iterator[str]]:
    """Ask for a stream that has begun, and go away in the end; its lines."""
    asked = {**LONG, **fields, "stream": True}
    with server.client.stream("POST", "/v1/completions", json=asked) as response:
        assert response.status_code == 200
        yield response.iter_lines()


def until_live(server: Server, count: int) -> None:
    """Wait until so many texts are in the making."""
    until(lambda: server.metrics()["texts"] == count)


def test_a_client_that_goes_away_frees_its_rows(server: Server) -> None:
    """It waits for a whole answer: its texts are made no more, and the answer that nobody gets is counted."""
    name = 'requests_total{code="499"}'
    before = server.metrics().get(name, 0)
    with asking(server, n=2):
        until_live(server, 2)
    server.until_idle()
    until(lambda: server.metrics().get(name, 0) == before + 1)


def test_a_client_that_goes_away_within_a_stream_frees_its_rows(server: Server) -> None:
    """Some of it has come already; other texts go on."""
    with asking(server) as other, streaming(server, n=3) as lines:
        assert next(lines).startswith("data: {")
        until_live(server, 4)
        other.close()
        until_live(server, 3)
        assert next(line for line in lines if line).startswith("data: {")
    server.until_idle()


def test_clients_that_go_away_while_they_wait(server: Server) -> None:
    """Texts without a row wait no more once their client has gone, stream or not; those in the rows go on."""
    with streaming(server, n=ROWS) as lines:
        until_live(server, ROWS)
        with asking(server), streaming(server, n=2):
            until(lambda: server.metrics()["texts_waiting"] == 3)
        until(lambda: server.metrics()["texts_waiting"] == 0)
        assert server.metrics()["texts"] == ROWS
        assert next(lines)
    server.until_idle()


def test_a_client_that_goes_away_before_it_has_asked(server: Server) -> None:
    """Half a body is no request: it is counted as one that nobody waits for, and nothing is made of it."""
    name, url = 'requests_total{code="499"}', server.client.base_url
    before = server.metrics()
    connection = HTTPConnection(url.host, url.port)
    connection.putrequest("POST", "/v1/completions")
    for key, value in {**HEADERS, "Content-Length": "100"}.items():
        connection.putheader(key, value)
    connection.endheaders(b'{"prompt": ')
    connection.close()
    until(lambda: server.metrics().get(name, 0) == before.get(name, 0) + 1)
    assert server.metrics()["generated_tokens_total"] == before["generated_tokens_total"]


def test_a_server_with_too_much_to_do(server: Server) -> None:
    """When as many texts wait as may, more are turned away with when to come again; those that wait are not lost."""
    with ExitStack() as others:
        others.enter_context(streaming(server, n=ROWS))
        until_live(server, ROWS)
        others.enter_context(streaming(server, prompt=["hi"] * 8, n=127))
        with asking(server, n=8, max_tokens=1) as waiting:
            until(lambda: server.metrics()["texts_waiting"] == 1024)
            for stream in (False, True):
                response = server.post("/v1/completions", prompt="hi", stream=stream)
                assert (response.status_code, response.headers["Retry-After"]) == (429, "1")
                assert "1024 texts wait already" in response.json()["error"]["message"]
            others.close()
            assert len(json.loads(waiting.getresponse().read())["choices"]) == 8
    server.until_idle()


@pytest.fixture
def broken(small: Small) -> Iterator[Server]:
    """Return a server whose parameters are no numbers."""
    with serving(small.model, small.broken) as made:
        yield made


def test_a_model_that_fails(broken: Server) -> None:
    """Its texts are answered with why, what is asked later too, and it is well no more."""
    assert broken.client.get("/health").status_code == 200
    for _ in range(2):
        response = broken.post("/v1/completions", prompt="hi")
        assert response.status_code == 500
        error = response.json()["error"]
        assert (error["type"], "its parameters are not" in error["message"]) == ("server_error", True)
    health = broken.client.get("/health")
    assert (health.status_code, health.text) == (503, "failed\n")
    assert broken.failures == [broken.engine.error]
    assert broken.metrics()['requests_total{code="500"}'] == 2


def test_a_model_that_fails_within_a_stream(broken: Server) -> None:
    """The stream ends with the error, and does not say that it is done."""
    asked = {"prompt": "hi", "stream": True, "stream_options": {"include_usage": True}}
    with broken.client.stream("POST", "/v1/completions", json=asked) as response:
        assert response.status_code == 200
        events = events_of(response)
    [error] = [json.loads(event)["error"] for event in events]
    assert (error["type"], "its parameters are not" in error["message"]) == ("server_error", True)


def test_a_server_that_ends(small: Small) -> None:
    """Who still waits when it makes no more is told, within a stream and before an answer."""
    with serving(small.model, small.decoder) as server:
        with streaming(server, n=2) as lines, asking(server) as connection:
            until_live(server, 3)
            server.engine.stop()
            events = [line.removeprefix("data: ") for line in lines if line]
            response = connection.getresponse()
            whole = json.loads(response.read())
        assert json.loads(events[-1])["error"]["message"] == "the server is stopping"
        assert (response.status, whole["error"]["message"]) == (500, "the server is stopping")
        assert server.post("/v1/completions").status_code == 500
        assert server.client.get("/health").status_code == 200, "it has not failed"

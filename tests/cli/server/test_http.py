"""Who may ask, and what is answered at which address; refusals have the form of OpenAI's API."""

from typing import Any

import httpx
import pytest
from tests.cli.server.small import BROKEN, TOKEN, Server, found

from shardwise.cli.server.http import MAX_BODY_BYTES

ROUTES = (
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/small"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
)
WRONG = ("", "Bearer", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", TOKEN, f"Basic {TOKEN}", "Bearer \xff")


def error_of(response: httpx.Response) -> dict[str, Any]:
    """Return the error of a refusal, which holds nothing else."""
    content = response.json()
    assert list(content) == ["error"]
    error: dict[str, Any] = content["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    return error


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_request_has_the_token(method: str, path: str, server: Server) -> None:
    """Without it, or with any other, nothing is answered but how it is given, whatever else is wrong."""
    without = httpx.Request(method, server.client.base_url.join(path))
    refused = [server.client.send(without)]
    for token in WRONG:
        headers = {b"Authorization": token.encode("latin-1")}
        refused.append(server.client.request(method, path, headers=headers, content=b"no JSON"))
    for response in refused:
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert "Authorization: Bearer ..." in error_of(response)["message"]
        assert TOKEN not in response.text
    assert server.client.request(method, path).status_code in (200, 400)


def test_whether_it_is_well_needs_no_token(server: Server) -> None:
    """A probe has no secrets; it learns nothing but that the server is ready."""
    response = httpx.get(server.client.base_url.join("/health"), trust_env=False)
    assert (response.status_code, response.text) == (200, "ready\n")


def test_the_models_are_the_one_that_is_served(server: Server) -> None:
    """It is listed, and found by its name; no other is."""
    listed = found(server.client.get("/v1/models"))
    assert (listed["object"], [model["id"] for model in listed["data"]]) == ("list", ["small"])
    assert found(server.client.get("/v1/models/small")) == listed["data"][0]
    assert {key: listed["data"][0][key] for key in ("object", "owned_by")} == {
        "object": "model",
        "owned_by": "shardwise",
    }
    response = server.client.get("/v1/models/large")
    assert (response.status_code, error_of(response)["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/v1/models/small", 405),
    ],
)
def test_what_is_not_there(method: str, path: str, status: int, server: Server) -> None:
    """Another address or method is refused in the API's form, with what was asked and what is allowed."""
    response = server.client.request(method, path)
    assert response.status_code == status
    error = error_of(response)
    assert (error["type"], error["param"]) == ("invalid_request_error", None)
    assert error["message"].startswith(f"{method} {path}: ")
    assert ("Allow" in response.headers) == (status == 405)


def test_a_request_that_is_refused(server: Server) -> None:
    """The answer has the status and the error, and names the field; so it is of both kinds, stream or not."""
    asked: dict[str, dict[str, Any]] = {"/v1/completions": {}, "/v1/chat/completions": {"messages": [{}]}}
    for path, what in asked.items():
        for stream in (False, True):
            response = server.post(path, **what, n=0, stream=stream)
            assert (response.status_code, error_of(response)["param"]) == (400, "n")
    response = server.client.post("/v1/completions", content=b"no JSON")
    assert (response.status_code, "no JSON" in error_of(response)["message"]) == (400, True)


def test_a_body_that_is_too_long(server: Server) -> None:
    """It is refused with the limit, in one piece or in many; one that is as long as allowed is answered."""
    body = b'{"prompt": "a", "max_tokens": 1}'
    most = body + b" " * (MAX_BODY_BYTES - len(body))
    assert server.client.post("/v1/completions", content=most).status_code == 200
    for content in (most + b" ", iter([most, b" "])):
        response = server.client.post("/v1/completions", content=content)
        assert response.status_code == 413
        assert "longer than 1,048,576 bytes" in error_of(response)["message"]


def test_too_many_texts(server: Server) -> None:
    """More texts than may wait at all are no reason to come again: the request is wrong."""
    response = server.post("/v1/completions", prompt=["a"] * 1025)
    assert (response.status_code, "1025 texts" in error_of(response)["message"]) == (400, True)


def test_a_mistake_of_the_server(server: Server) -> None:
    """What nobody expected is answered in the API's form, without what it was, and the server goes on."""
    before = server.metrics().get('requests_total{code="500"}', 0)
    response = server.post("/v1/completions", prompt=BROKEN)
    assert response.status_code == 500
    error = error_of(response)
    assert (error["type"], error["message"]) == ("server_error", "the server made a mistake")
    assert server.complete(prompt="hi", max_tokens=1)["choices"]
    assert server.metrics()['requests_total{code="500"}'] == before + 1


def test_what_is_counted(server: Server) -> None:
    """Each answer counts by its status, each token once; nothing waits, and nothing is in the making."""
    before = server.metrics()
    server.complete(prompt="hi", max_tokens=7, n=3, temperature=0)
    server.client.get("/v1/models")
    server.post("/v1/completions", n=0)
    server.client.get("/metrics", headers={"Authorization": ""})
    server.client.get("/nothing")
    after = server.metrics()
    expected = {"200": 3, "400": 1, "401": 1, "404": 1}  # of those the page of metrics before is one
    names = {code: f'requests_total{{code="{code}"}}' for code in expected}
    assert {code: after[name] - before.get(name, 0) for code, name in names.items()} == expected
    assert after["generated_tokens_total"] - before["generated_tokens_total"] == 21
    assert (after["texts"], after["texts_waiting"]) == (0, 0)

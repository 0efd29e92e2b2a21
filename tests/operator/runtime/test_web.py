"""shardwise_operator.runtime.web and access: tokens, TLS, and peers that send slowly or nonsense."""

import ssl
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from shutil import copy
from socket import create_connection
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge
from tests.cluster.authority import Authority

from shardwise_operator.runtime import web
from shardwise_operator.runtime.access import Certificate, TokenFile
from shardwise_operator.runtime.web import WebServer, metrics_pages

TOKEN = "t" * 32


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return an authority that has signed two certificates of this machine."""
    made = Authority(tmp_path_factory.mktemp("tls") / "authority")
    for name in ("first", "second"):
        made.sign(name, f"/CN={name}", "IP:127.0.0.1")
    return made


@pytest.fixture
def pair(authority: Authority, tmp_path: Path) -> Path:
    """Return a folder as a Secret of a certificate is mounted."""
    folder = tmp_path / "secret"
    folder.mkdir()
    _bring(authority, "first", folder)
    return folder


def _bring(authority: Authority, name: str, folder: Path) -> None:
    for ending in ("crt", "key"):
        copy(authority.folder / f"{name}.{ending}", folder / f"tls.{ending}")


@pytest.fixture
def registry() -> CollectorRegistry:
    """Return one metric."""
    made = CollectorRegistry()
    Gauge("heat", "Of the room.", registry=made).set(20)
    return made


@pytest.fixture
def tls(pair: Path, registry: CollectorRegistry) -> Iterator[WebServer]:
    """Return metrics over TLS."""
    with WebServer("127.0.0.1:0", metrics_pages(registry), certificate=Certificate(pair)) as server:
        yield server


def _over_tls(server: WebServer, authority: Authority) -> tuple[str, str]:
    """Return who answers, and what."""
    context = ssl.create_default_context(cafile=str(authority.folder / "ca.crt"))
    connection = HTTPSConnection("127.0.0.1", server.port, timeout=30, context=context)
    connection.connect()
    assert isinstance(connection.sock, ssl.SSLSocket)
    certificate: Any = connection.sock.getpeercert()
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    (((_, name),),) = certificate["subject"]
    return str(name), text


def test_metrics_for_who_has_the_token(tmp_path: Path, registry: CollectorRegistry) -> None:
    """With a token they are for who sends it; without one for everybody, as Prometheus comes by default."""
    (tmp_path / "token").write_text(f"{TOKEN}\n", encoding="utf-8")
    answers = []
    for token in (TokenFile(tmp_path / "token"), None):
        with WebServer("127.0.0.1:0", metrics_pages(registry, token)) as server:
            for sent in ({"Authorization": f"Bearer {TOKEN}"}, {"Authorization": f"Bearer {TOKEN}x"}, {}):
                connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
                connection.request("GET", "/metrics", headers=sent)
                answer = connection.getresponse()
                answers.append((answer.status, b"heat 20.0" in answer.read()))
                connection.close()

    assert answers == [(200, True), (401, False), (401, False), (200, True), (200, True), (200, True)]


@pytest.mark.parametrize("content", [b"", b"\n" * 40, b"t" * 31])
def test_a_token_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    """At the start, in words: an empty token would let everybody in."""
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(ValueError, match="expected a token of at least 32"):
        TokenFile(tmp_path / "token")


def test_over_tls_alone(tls: WebServer, authority: Authority) -> None:
    """A certificate that the authority has signed, and nothing in plain HTTP."""
    name, text = _over_tls(tls, authority)
    plain = HTTPConnection("127.0.0.1", tls.port, timeout=30)
    plain.request("GET", "/metrics")

    assert (name, "heat 20.0" in text) == ("first", True)
    with pytest.raises((OSError, HTTPException)):
        plain.getresponse()
    plain.close()
    assert _over_tls(tls, authority)[0] == "first"


@pytest.mark.parametrize("half", ["crt", "key"])
def test_a_certificate_is_renewed_without_a_restart(
    tls: WebServer, pair: Path, authority: Authority, half: str
) -> None:
    """The new one is served from the next connection on; half of a new one leaves the old one in place."""
    assert _over_tls(tls, authority)[0] == "first"
    copy(authority.folder / f"second.{half}", pair / f"tls.{half}")
    assert _over_tls(tls, authority)[0] == "first"
    _bring(authority, "second", pair)
    assert _over_tls(tls, authority)[0] == "second"


def test_a_silent_peer_keeps_nobody_waiting(tls: WebServer, authority: Authority) -> None:
    """Who connects and shakes no hands has a thread of its own; others are answered meanwhile."""
    with create_connection(("127.0.0.1", tls.port)):
        assert "heat 20.0" in _over_tls(tls, authority)[1]


def test_a_peer_that_drips_is_cut_off(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection has a bound as a whole: who sends a byte now and then is never silent for long."""
    monkeypatch.setattr(web, "_CONNECTION_SECONDS", 0.5)
    monkeypatch.setattr(web._Handler, "timeout", 600)  # of silence
    with (
        WebServer("127.0.0.1:0", metrics_pages(registry)) as server,
        create_connection(("127.0.0.1", server.port), timeout=30) as peer,
    ):
        peer.sendall(b"POST /metrics HTTP/1.1\r\n")
        assert peer.recv(1) == b""

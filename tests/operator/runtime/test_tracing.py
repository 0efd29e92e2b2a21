"""shardwise_operator.runtime.tracing: what arrives at a collector, and what a bad one cannot do."""

import logging
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.authority import Authority
from tests.operator.collecting import Collector, answered

from shardwise.launcher.system.ports import free_port
from shardwise_operator.runtime import otlp, tracing
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.tracing import Span, Tracing, checked_endpoint

Eventually = Callable[[Callable[[], object]], None]

_TRACE = 0x11111111222233334444555555555555
_MOST = 4096


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Return a collector that takes everything."""
    with Collector() as running:
        yield running


@contextmanager
def _tracing(url: str, metrics: Metrics) -> Iterator[Tracing]:
    with Tracing(checked_endpoint(url), metrics, version="1.2.3", instance="here") as running:
        yield running


def _span(number: int = 1, **fields: Any) -> Span:
    filled: dict[str, Any] = {
        "trace_id": _TRACE,
        "span_id": number,
        "parent_id": None,
        "name": "Running",
        "start": 1_800_000_000.125,
        "end": 1_800_000_001.25,
        "attributes": {"shardwise.job.name": "job", "steps": 7, "goodput": 0.5},
        **fields,
    }
    return Span(**filled)


def _count(metrics: Metrics, result: str) -> float:
    return metrics.registry.get_sample_value("shardwise_operator_spans_total", {"result": result}) or 0.0


def test_what_arrives(collector: Collector, metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a trace and its root, whole, as OpenTelemetry's own messages have them; with the headers asked for."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc,x-team=ml")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=west")
    with _tracing(collector.url, metrics) as running:
        running.send([_span(2, parent_id=1), _span(1, name="TrainingJob", error="the loss is nan")])

    part, root = collector.spans
    assert collector.paths == ["/v1/traces"]
    assert (collector.headers[0]["authorization"], collector.headers[0]["x-team"]) == ("Bearer abc", "ml")
    assert (part.trace, part.span, part.parent) == ("11111111222233334444555555555555", f"{2:016x}", f"{1:016x}")
    assert (part.name, part.start, part.end) == ("Running", 1_800_000_000_125_000_000, 1_800_000_001_250_000_000)
    assert part.attributes == {"shardwise.job.name": "job", "steps": 7, "goodput": 0.5}
    assert (part.failed, part.message) == (False, "")
    assert (root.trace, root.span, root.parent) == (part.trace, f"{1:016x}", "")
    assert (root.failed, root.message) == (True, "the loss is nan")
    named = {"service.name": "shardwise-operator", "service.version": "1.2.3", "service.instance.id": "here"}
    assert part.resource.items() >= {**named, "k8s.cluster.name": "west"}.items()
    assert (_count(metrics, "sent"), _count(metrics, "failed"), _count(metrics, "dropped")) == (2, 0, 0)


def test_a_path_is_taken_as_it_is(collector: Collector, metrics: Metrics) -> None:
    """As a vendor gives it."""
    with _tracing(f"{collector.url}/otlp/v1/traces", metrics) as running:
        running.send([_span()])

    assert collector.paths == ["/otlp/v1/traces"]


@pytest.mark.parametrize("other", [None, "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_the_certificate_that_is_named_for_spans_is_trusted(
    other: str | None, metrics: Metrics, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is asked for before the bundle that the environment names for all requests."""
    monkeypatch.setattr(otlp, "_SECONDS", 0.5)
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    ours.sign("collector", "/CN=collector", "IP:127.0.0.1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(ours.folder / "ca.crt"))
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    if other is not None:
        monkeypatch.setenv(other, str(others.folder / "ca.crt"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(ours.folder / "collector.crt", ours.folder / "collector.key")
    with Collector(tls=tls) as collector, _tracing(collector.url, metrics) as running:
        running.send([_span()])
        eventually(lambda: _count(metrics, "sent") + _count(metrics, "failed") == 1)
    assert (_count(metrics, "sent"), len(collector.spans)) == (1, 1)


def test_a_refusal_is_counted_and_the_next_are_sent(
    collector: Collector, metrics: Metrics, eventually: Eventually
) -> None:
    """What a collector answers with an error is lost; nothing waits for it."""
    collector.answer = lambda handler: answered(handler, 500)
    with _tracing(collector.url, metrics) as running:
        running.send([_span(1)])
        eventually(lambda: _count(metrics, "failed") == 1)
        collector.answer = lambda handler: answered(handler, 200)
        running.send([_span(2)])
        eventually(lambda: _count(metrics, "sent") == 1)


def test_a_collector_that_restarts(metrics: Metrics, eventually: Eventually, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody answers, then somebody does: the spans arrive, once."""
    port = free_port("127.0.0.1")
    with _tracing(f"http://127.0.0.1:{port}", metrics) as running:
        running.send([_span()])
        eventually(lambda: "retrying" in caplog.text)
        with Collector(port) as collector:
            eventually(lambda: _count(metrics, "sent") == 1)

    assert len(collector.spans) == 1


def test_a_collector_that_is_down(metrics: Metrics, eventually: Eventually, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its spans are counted as failed once the time for it is over."""
    monkeypatch.setattr(otlp, "_SECONDS", 0.5)
    port = free_port("127.0.0.1")
    with _tracing(f"http://127.0.0.1:{port}", metrics) as running:
        running.send([_span()])
        eventually(lambda: _count(metrics, "failed") == 1)


def _hangs(handler: BaseHTTPRequestHandler, collector: Collector) -> None:
    del handler
    collector.closing.wait()


def _drips(handler: BaseHTTPRequestHandler, collector: Collector) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Drip: ")
    while not collector.closing.wait(0.05):
        handler.wfile.write(b"x")


@pytest.mark.parametrize("how", [_hangs, _drips])
def test_a_collector_that_hangs(
    collector: Collector,
    metrics: Metrics,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    how: Callable[[BaseHTTPRequestHandler, Collector], None],
) -> None:
    """Who sends never waits; what finds no room is counted, the rest is bounded, and the process may end."""
    monkeypatch.setattr(tracing, "_LAST_SECONDS", 0.5)
    collector.answer = lambda handler: how(handler, collector)
    with _tracing(collector.url, metrics) as running:
        running.send([_span()])
        eventually(lambda: len(collector.spans) == 1)
        running.send(_span(number) for number in range(2, 2 + _MOST + 100))
        assert _count(metrics, "dropped") == 100
        began = time.monotonic()
    assert time.monotonic() - began < 30.0  # the exporter itself would wait for a minute
    assert _count(metrics, "sent") == 0


def test_an_endless_answer_is_not_read(collector: Collector, metrics: Metrics, eventually: Eventually) -> None:
    """The status is all that counts; a body of any size costs nothing."""

    def pours(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1000000000000\r\n\r\n")
        while not collector.closing.is_set():
            handler.wfile.write(bytes(1 << 20))

    collector.answer = pours
    with _tracing(collector.url, metrics) as running:
        running.send([_span()])
        eventually(lambda: _count(metrics, "sent") == 1)


@pytest.mark.parametrize("status", [300, 302, 307, 308])
def test_a_redirection_is_no_success(
    collector: Collector, metrics: Metrics, eventually: Eventually, status: int
) -> None:
    """Spans, and the headers with a secret, go to the endpoint alone; that they did not arrive is counted."""
    with Collector() as elsewhere:
        collector.answer = lambda handler: answered(handler, status, Location=f"{elsewhere.url}/v1/traces")
        with _tracing(collector.url, metrics) as running:
            running.send([_span()])
            eventually(lambda: _count(metrics, "failed") == 1)

        assert elsewhere.paths == []


def test_what_waits_at_the_end_is_sent(collector: Collector, metrics: Metrics) -> None:
    """However many there are; each arrives once, in its order."""
    with _tracing(collector.url, metrics) as running:
        running.send(_span(number) for number in range(1, 1001))

    assert [int(each.span, 16) for each in collector.spans] == list(range(1, 1001))
    assert _count(metrics, "sent") == 1000


def test_a_header_that_cannot_be_read_is_not_logged(
    collector: Collector, metrics: Metrics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The library says that it is wrong, and would say it with the secret in it."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "secret\u00fcber")
    with caplog.at_level(logging.DEBUG), _tracing(collector.url, metrics):
        pass

    assert "Header format invalid" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
        ("https://vendor.example/otlp/v1/traces?a=b", "https://vendor.example/otlp/v1/traces?a=b"),
    ],
)
def test_an_endpoint(given: str, wanted: str) -> None:
    """Without a path it is the usual one; with one it is taken as it is."""
    assert checked_endpoint(given) == wanted


@pytest.mark.parametrize(
    "given",
    [
        *(
            "collector:4318",
            "grpc://collector:4317",
            "file:///etc/passwd",
            "http://",
            "http:///v1/traces",
            "//collector",
        ),
        *("http://collector:http", "http://collector:99999", "http://collector:0", "http://[::1", "http://a b/"),
        *("http://collector/#traces", "http://collector/\nX: y", "https://collector\x00", "-"),
    ],
)
def test_what_is_no_endpoint_is_refused(given: str) -> None:
    """In words: what was given, and what was expected."""
    with pytest.raises(ValueError, match=r"(?s)^given .*expected an http:// or https:// URL, such as http://collector"):
        checked_endpoint(given)


@pytest.mark.parametrize("given", ["https://me:secret@collector", "http://secret@collector:x", "secret@["])
def test_a_secret_in_an_endpoint_is_refused_and_not_repeated(given: str) -> None:
    """Arguments of a process are for everybody to see, and so is its log."""
    with pytest.raises(ValueError, match="secrets go into OTEL_EXPORTER_OTLP_HEADERS") as refused:
        checked_endpoint(given)

    assert "secret@" not in str(refused.value)
    assert ":secret" not in str(refused.value)


def test_without_an_endpoint_nothing_is_imported() -> None:
    """Who wants no spans pays nothing for them."""
    program = "import sys, shardwise_operator.main; print([name for name in sys.modules if 'opentelemetry' in name])"

    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)

    assert ended.stdout == "[]\n"

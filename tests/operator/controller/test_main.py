"""The command: it becomes ready, looks after jobs, serves its pages, and gives its lease back at SIGTERM."""

import json
import signal
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cluster.api_server import ApiServer
from tests.operator.building import manifest
from tests.operator.operating import Place

from shardwise.launcher.system.ports import free_port
from shardwise_operator.config import read_key


def _answers(port: int, path: str, token: str = "") -> str:
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:  # noqa: S310  our own address
            return str(answer.read().decode())
    except OSError:
        return ""


def test_the_command(place: Place, api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    """From start to end, as a pod would run it."""
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    token = tmp_path / "token"
    token.write_bytes(b"t" * 48)
    health, metrics, page = (free_port("127.0.0.1") for _ in range(3))
    command = [sys.executable, "-m", "shardwise_operator", "run", "--trainer-image", "none", "--key-file", str(key)]
    command += ["--namespace", namespace, "--lease-namespace", namespace, "--kubeconfig", str(api_server.kubeconfig)]
    command += [f"--health-address=127.0.0.1:{health}", f"--metrics-address=127.0.0.1:{metrics}"]
    command += [f"--page-address=127.0.0.1:{page}", f"--page-token={token}"]
    log = tmp_path / "log"
    with log.open("w") as stderr, subprocess.Popen(command, stderr=stderr) as process, ExitStack() as whatever_happens:
        whatever_happens.callback(process.kill)
        place.until("readiness", lambda: _answers(health, "/readyz"))
        assert _answers(health, "/healthz") == "ok\n"
        place.apply(manifest(suspend=True))
        place.until_phase("Suspended")
        assert "shardwise_operator_leader 1.0" in _answers(metrics, "/metrics")
        place.until("its row", lambda: '"phase":"Suspended"' in _answers(page, "/jobs.json", "t" * 48))
        assert '"name":"job"' in _answers(page, "/jobs", "t" * 48)
        assert not _answers(page, "/jobs.json")
        process.send_signal(signal.SIGTERM)

        assert process.wait(60) == 0
    lease = place.client.request("GET", place.path("leases", "shardwise", "apis/coordination.k8s.io/v1"))
    assert not lease["spec"].get("holderIdentity")
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert any("Suspended" in line["message"] for line in lines)


def test_two_keys(tmp_path: Path) -> None:
    """Jobs are told the token of the key; that of the key before it is known as long as its file is there."""
    (tmp_path / "key").write_bytes(b"n" * 32)
    new = read_key(tmp_path / "key")
    (tmp_path / "previous").write_bytes(b"o" * 32)
    both = read_key(tmp_path / "key")
    (tmp_path / "key").write_bytes(b"o" * 32)
    (tmp_path / "previous").unlink()
    old = read_key(tmp_path / "key")

    assert both.statuses("uid") == (new.status("uid"), old.status("uid"))
    assert (both.status("uid"), both.gang("uid")) == (new.status("uid"), new.gang("uid"))
    assert new.statuses("uid") == (new.status("uid"),)
    (tmp_path / "previous").write_bytes(b"short")
    with pytest.raises(ValueError, match="previous: given 5 bytes"):
        read_key(tmp_path / "key")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--page-token", "given 5 bytes, expected a token of at least 32"),
        ("--metrics-token", "given 5 bytes, expected a token of at least 32"),
        ("--tls", "tls.crt"),
    ],
)
def test_what_opens_nothing_is_refused(tmp_path: Path, option: str, words: str) -> None:
    """A token that is none, or a folder without a certificate, ends the start: nothing is served openly instead."""
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "token").write_bytes(b"short")
    given = tmp_path if option == "--tls" else tmp_path / "token"
    command = [sys.executable, "-m", "shardwise_operator", "run", "--trainer-image=none", f"--key-file={tmp_path}/key"]

    ended = subprocess.run([*command, option, str(given)], check=False, capture_output=True, text=True, timeout=60)

    assert ended.returncode != 0
    assert words in ended.stderr


def test_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    """In words, before anything is asked of a cluster."""
    key = tmp_path / "key"
    key.write_bytes(b"short")
    command = [sys.executable, "-m", "shardwise_operator", "run", "--trainer-image", "none", "--key-file", str(key)]

    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

    assert ended.returncode != 0
    assert "given 5 bytes, expected a key of at least 32 random bytes" in ended.stderr


@pytest.mark.parametrize(
    ("given", "names", "words"),
    [
        ("--ttl-after-finished=soon", "--ttl-after-finished (ttlAfterFinished in the chart): ", "such as 90s"),
        ('--pod-defaults={"labels": 1}', "--pod-defaults (trainingPods in the chart): ", "labels"),
    ],
)
def test_a_wrong_option_is_refused(tmp_path: Path, given: str, names: str, words: str) -> None:
    """In words that name the option and the chart's value, before anything is asked of a cluster."""
    (tmp_path / "key").write_bytes(b"k" * 32)
    command = [sys.executable, "-m", "shardwise_operator", "run", "--trainer-image=none", f"--key-file={tmp_path}/key"]

    ended = subprocess.run([*command, given], check=False, capture_output=True, text=True, timeout=60)

    assert ended.returncode == 1
    assert ended.stderr.startswith(names)
    assert words in ended.stderr


def test_an_endpoint_of_spans_that_is_none_is_refused(tmp_path: Path) -> None:
    """In words, before anything is asked of a cluster, and without a secret that is in it."""
    (tmp_path / "key").write_bytes(b"k" * 32)
    command = [sys.executable, "-m", "shardwise_operator", "run", "--trainer-image=none", f"--key-file={tmp_path}/key"]

    for given, words in (("grpc://collector:4317", "given 'grpc://"), ("http://me:secret@x", "OTEL_EXPORTER_OTLP_")):
        ended = subprocess.run(
            [*command, f"--tracing-endpoint={given}"], check=False, capture_output=True, text=True, timeout=60
        )

        assert ended.returncode == 1
        assert ended.stderr.startswith("--tracing-endpoint (tracing.endpoint in the chart): given ")
        assert words in ended.stderr
        assert "Traceback" not in ended.stderr
        assert "secret@" not in ended.stderr


def test_gangs_need_a_cluster_that_knows_them(api_server: ApiServer, tmp_path: Path) -> None:
    """In words: jobs would wait for ever for what nobody serves."""
    (tmp_path / "key").write_bytes(b"k" * 32)
    command = [sys.executable, "-m", "shardwise_operator", "run", "--trainer-image=none", f"--key-file={tmp_path}/key"]
    command += [f"--kubeconfig={api_server.kubeconfig}", "--gang-scheduling"]

    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

    assert ended.returncode == 1
    assert "given a cluster without scheduling.k8s.io/v1alpha1, expected Kubernetes 1.35" in ended.stderr

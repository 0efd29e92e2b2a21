"""shardwise.client.api: how a cluster is found, and in which of its namespaces jobs are."""

from pathlib import Path
from typing import Any

import pytest
from kubernetes.config import incluster_config, kube_config
from tests.client.answering import kubeconfig

from shardwise.client import Cluster, api
from shardwise.protocol.errors import ClusterError

SERVER = "https://127.0.0.1:9"


def context(name: str, **more: Any) -> dict[str, Any]:
    """Return a context of the one cluster."""
    return {"name": name, "context": {"cluster": "c", "user": "u", **more}}


def test_without_a_current_context(tmp_path: Path) -> None:
    """A context that is named is enough; without one the error says that there is none."""
    path = kubeconfig(tmp_path / "config", SERVER)
    path.write_text(path.read_text(encoding="utf-8").replace("current-context: there\n", ""), encoding="utf-8")
    assert Cluster(kubeconfig=path, context="there").namespace == "team"
    assert Cluster(kubeconfig=path, context="there", namespace="mine").namespace == "mine"
    with pytest.raises(ClusterError, match=r"current-context.*give --context"):
        Cluster(kubeconfig=path)


@pytest.mark.parametrize(
    ("named", "namespace"), [(None, "first"), ("second", "other"), ("without", "default"), ("empty", "default")]
)
def test_the_namespace_is_the_contexts(named: str | None, namespace: str, tmp_path: Path) -> None:
    """It is that of the context in use; one that names none, or an empty one, means `default`, as for kubectl."""
    contexts = [
        context("there", namespace="first"),
        context("second", namespace="other"),
        context("without"),
        context("empty", namespace=""),
    ]
    path = kubeconfig(tmp_path / "config", SERVER, contexts=contexts)
    assert Cluster(kubeconfig=path, context=named).namespace == namespace


def test_an_empty_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With $KUBECONFIG set to nothing the file is ~/.kube/config, as for kubectl."""
    (tmp_path / ".kube").mkdir()
    kubeconfig(tmp_path / ".kube" / "config", SERVER)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", "")  # what the client reads of it
    assert Cluster().namespace == "team"


@pytest.mark.parametrize("text", ["clusters: [", "- a list", "\x00"], ids=["no YAML", "a list", "binary"])
def test_a_malformed_kubeconfig(text: str, tmp_path: Path) -> None:
    """It is an error in words."""
    (tmp_path / "config").write_text(text, encoding="utf-8")
    with pytest.raises(ClusterError, match="no cluster to talk to"):
        Cluster(kubeconfig=tmp_path / "config")


def test_in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no kubeconfig, a pod talks to its own cluster by its service account, in its own namespace."""
    for name, text in {"token": "secret", "ca.crt": "certificates", "namespace": "team"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(api, "_POD_NAMESPACE", tmp_path / "namespace")
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(ClusterError, match=f"no kubeconfig at {tmp_path}/none"):
        Cluster()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "9")
    here = Cluster()
    assert here.namespace == "team"
    with pytest.raises(ClusterError, match=r"https://127.0.0.1:9"):
        here.jobs()

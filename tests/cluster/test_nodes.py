"""The bare cluster: what tests of whole jobs stand on."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.bare import Bare
from tests.cluster.cluster import Cluster
from tests.cluster.commands import wait
from tests.cluster.places import BASE_IMAGE

SERVE = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000, bind='0.0.0.0')"
# Asks until it is answered, and then renames the file; a refusal is a peer that does not listen yet.
ASK = """
import os, time, urllib.request
while True:
    try:
        print(urllib.request.urlopen("http://server.pods:8000", timeout=10).status)
        break
    except OSError:
        time.sleep(0.2)
os.rename("one", "two")
"""
# Asks once, and says what became of it.
ASK_ONCE = """
import socket
try:
    socket.create_connection(("{}", 8000), timeout=3)
    print("answered")
except OSError as error:
    print(type(error).__name__)
"""
LIMIT_SECONDS = 300.0  # before a test gives up; nothing is measured with it

Start = Callable[..., None]


def pod(name: str, node: str, code: str) -> dict[str, object]:
    """A pod on one node that runs Python code, with the volume of runs as its folder."""
    volume = {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}
    container = {
        "name": "main",
        "image": BASE_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-uc", code],
        "workingDir": "/runs",
        "securityContext": {"runAsUser": 10001, "runAsGroup": 10001},
        "volumeMounts": [{"name": "runs", "mountPath": "/runs"}],
    }
    return {
        "metadata": {"name": name, "labels": {"app": "pods"}},
        "spec": {
            "hostname": name,
            "subdomain": "pods",
            "nodeName": node,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "volumes": [volume],
        },
    }


@pytest.fixture
def start(bare: Bare, cluster_namespace: str, runs_volume: Path) -> Start:
    """Return a function of (name, node, code) that starts a pod and waits until it runs."""
    del runs_volume  # the pods mount it
    bare.load_image(BASE_IMAGE)
    service = {"metadata": {"name": "pods"}, "spec": {"clusterIP": "None", "selector": {"app": "pods"}}}
    bare.client.request("POST", f"/api/v1/namespaces/{cluster_namespace}/services", service)
    pods = f"/api/v1/namespaces/{cluster_namespace}/pods"

    def begin(name: str, node: str, code: str) -> None:
        bare.client.request("POST", pods, pod(name, node, code))

        def begun() -> bool:
            return phase(bare, cluster_namespace, name) != "Pending"

        wait(f"the start of pod {name}", begun, LIMIT_SECONDS)

    return begin


def phase(cluster: Cluster, namespace: str, name: str) -> str:
    """The phase of a pod."""
    return str(cluster.client.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]["phase"])


def said(cluster: Cluster, namespace: str, name: str) -> list[str]:
    """The words that a pod has printed by its end."""
    wait(f"the end of pod {name}", lambda: phase(cluster, namespace, name) == "Succeeded", LIMIT_SECONDS)
    return cluster.client.kubectl("logs", "--namespace", namespace, name).split()


def test_pods_of_two_nodes_share_names_and_a_volume(
    cluster: Cluster, cluster_namespace: str, runs_volume: Path, start: Start
) -> None:
    """A pod reaches one of another node by its name, and both write into the same folder."""
    one, other = cluster.nodes[:2]
    start("server", one, f"open('one', 'w').write('1'); {SERVE}")
    wait("the server's file", (runs_volume / "one").exists, LIMIT_SECONDS)
    start("client", other, ASK)

    assert said(cluster, cluster_namespace, "client") == ["200"]
    assert (runs_volume / "two").stat().st_uid == 10001


def test_a_node_without_power_is_silent_and_comes_back(
    bare: Bare, whole_cluster: Cluster, cluster_namespace: str, start: Start
) -> None:
    """Peers of a killed node see silence, not a refusal; its pods end as on a host that lost power, and it boots."""
    *_, survivor, victim = whole_cluster.nodes
    start("server", victim, SERVE)
    path = f"/api/v1/namespaces/{cluster_namespace}/pods/server"
    address = whole_cluster.client.request("GET", path)["status"]["podIP"]
    bare.kill_node(victim)
    try:
        assert victim not in whole_cluster.nodes
        start("client", survivor, ASK_ONCE.format(address))
        assert said(whole_cluster, cluster_namespace, "client") == ["TimeoutError"]
    finally:
        bare.start_node(victim)
    wait("the end of the pod", lambda: phase(whole_cluster, cluster_namespace, "server") == "Failed", LIMIT_SECONDS)


@pytest.mark.usefixtures("bare")
def test_the_tools_are_of_the_versions_that_are_pinned(cluster: Cluster) -> None:
    """Kubectl and the nodes say what they were compiled from: charts read it."""
    told = json.loads(cluster.client.kubectl("version", "--output=json"))

    assert told["serverVersion"]["gitVersion"].startswith("v1.35.")
    assert told["clientVersion"]["gitVersion"].startswith("v1.")

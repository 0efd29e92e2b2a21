"""KubeRay's operator, as a process beside the bare test cluster. Called by `peers.py`.

A RayCluster here is its head alone, whose container runs a command of ours: KubeRay is what makes the pod, and makes it
again. Ray's dashboard and job server, which a RayJob submits to, are not in our images.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.operator.peer_source import Module, compiled, is_ready
from benchmarks.operator.stage import process
from tests.cluster.client import Client
from tests.cluster.commands import wait
from tests.cluster.places import CACHE, KUBECONFIG

MODULE = Module(
    name="KubeRay",
    path="github.com/ray-project/kuberay/ray-operator",
    version="v1.6.0",
    checksum="h1:1hs7Di2U/vm09ot7MIU8jUqEo7gHDc4gkbv1eFvqCsQ=",
)
_PROBE = "127.0.0.1:18485"


def ray_cluster(name: str, pod: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Return a RayCluster whose head is a pod of this template, with the template's own command."""
    marks = {**pod["metadata"], "annotations": {"ray.io/overwrite-container-cmd": "true"}}
    head = {"rayStartParams": {}, "template": {**pod, "metadata": marks}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"headGroupSpec": head},
    }


@contextmanager
def operating(client: Client) -> Iterator[int]:
    """Have KubeRay's operator look after the cluster as long as this lasts; its process."""
    built = compiled(MODULE)
    client.kubectl("apply", "--server-side", "--filename", built / "source" / "config" / "crd" / "bases")
    wait("KubeRay's type", partial(client.answers, "/apis/ray.io/v1/rayclusters"))
    command = (
        # Its probes ask Ray's dashboard agent.
        *("/usr/bin/env", "ENABLE_PROBES_INJECTION=false", str(built / "manager"), f"--kubeconfig={KUBECONFIG}"),
        *("--enable-leader-election=false", "--metrics-addr=0", f"--health-probe-bind-address={_PROBE}"),
    )
    log = CACHE / "bench-kuberay.log"
    with process(log, *command) as pid:
        wait("KubeRay's operator", partial(is_ready, _PROBE), hint=f"See {log}")
        yield pid

"""JobSet beside ours: Kubernetes' own operator for gangs, as a process. Called by `beside.py`.

As in its chart, the API server asks its webhooks about every JobSet and every pod of one, here at an address of this
machine.
"""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from benchmarks.operator.peer_source import Module, compiled, is_ready
from benchmarks.operator.stage import NAMESPACE, process
from tests.cluster.authority import Authority
from tests.cluster.client import Client
from tests.cluster.commands import run, wait
from tests.cluster.places import CACHE, KUBECONFIG
from tests.cluster.programs import programs

VERSION = "v0.12.0"
_MODULE = Module(
    name="JobSet",
    path="sigs.k8s.io/jobset",
    version=VERSION,
    checksum="h1:YYPuV0px8Ongq/RXmJg6V0w2UC67aiR+rCMD06vhQQQ=",
)
_ADDRESS, _PORT, _PROBE = "127.0.0.1", 18_483, "127.0.0.1:18484"


def path(namespace: str) -> str:
    """Where the JobSets of a namespace are."""
    return f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets"


def job_set(name: str, hosts: int, pod: dict[str, Any], namespace: str = NAMESPACE) -> dict[str, Any]:
    """One gang: an Indexed Job of so many pods of this template, which is started anew as a whole."""
    job = {"completionMode": "Indexed", "completions": hosts, "parallelism": hosts, "backoffLimit": 0}
    replicated = {"name": "hosts", "replicas": 1, "template": {"spec": {**job, "template": pod}}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"failurePolicy": {"maxRestarts": 3}, "replicatedJobs": [replicated]},
    }


@contextmanager
def operating(client: Client, folder: Path) -> Iterator[int]:
    """Have JobSet's operator look after the cluster as long as this lasts; its process."""
    built = compiled(_MODULE)
    rendered = _rendered(built)
    client.kubectl("apply", "--server-side", "--filename", built / "source" / "charts" / "jobset" / "crds")
    wait("JobSet's type", partial(client.answers, "/apis/jobset.x-k8s.io/v1alpha2/jobsets"))
    authority = Authority(folder / "authority")
    authority.sign("tls", "/CN=jobset", f"IP:{_ADDRESS}")
    config = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": _ADDRESS, "port": _PORT, "certDir": str(authority.folder)},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    command = (
        *(str(built / "manager"), f"--config={folder / 'config.yaml'}", f"--kubeconfig={KUBECONFIG}"),
        *("--metrics-bind-address=0", f"--health-probe-bind-address={_PROBE}"),
    )
    log = CACHE / "bench-jobset.log"
    with process(log, *command) as pid:
        wait("JobSet's operator", partial(is_ready, _PROBE), hint=f"See {log}")
        hooks = [_by_address(each, (authority.folder / "ca.crt").read_bytes()) for each in rendered]
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": hooks})
        client.kubectl("apply", "--server-side", "--filename=-", stdin=listed)
        try:
            yield pid
        finally:
            client.kubectl("delete", "--filename=-", stdin=listed)


def _rendered(built: Path) -> list[dict[str, Any]]:
    """The configurations of its webhooks, as its chart has them."""
    chart = built / "source" / "charts" / "jobset"
    text = run(programs() / "helm", "template", "jobset", chart, "--show-only", "templates/webhook/manifests.yaml")
    return [each for each in yaml.safe_load_all(text) if each]


def _by_address(configuration: dict[str, Any], authority: bytes) -> dict[str, Any]:
    """Its webhooks at an address, where the chart has them at a Service."""
    for hook in configuration["webhooks"]:
        path = hook["clientConfig"]["service"]["path"]
        hook["clientConfig"] = {
            "url": f"https://{_ADDRESS}:{_PORT}{path}",
            "caBundle": base64.b64encode(authority).decode(),
        }
    return configuration

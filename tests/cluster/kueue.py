"""Kueue for tests: its real manager as a process beside an API server, compiled from its module, of one version.

Nothing of it is kept here: its source comes as a Go module, checked by its sum, and its CRDs and webhooks from there.
As in its own installation the API server asks its webhooks about its objects, here at an address of this machine.
"""

import base64
import hashlib
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.authority import Authority
from tests.cluster.client import Client
from tests.cluster.commands import ClusterError, retry, run, say, wait
from tests.cluster.places import CACHE
from tests.cluster.programs import go_compiler, locked

from shardwise.launcher.system.ports import free_port

VERSION = "v0.19.2"
API = "/apis/kueue.x-k8s.io/v1beta2"
_SUM = "h1:mPNzr37u0nwI7ikST5QQl5gg6EgtYOAvC9ZbTgywdN8="
_MODULE = "sigs.k8s.io/kueue"
_BUILD = ("build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w")
# Where it looks for the certificate of its metrics is fixed, and nothing is there but in an image of its own.
_FIXED, _INSTEAD = '"/etc/kueue/metrics/certs"', "cfg.Webhook.CertDir"
_KEPT = ("config/components/crd/bases", "config/components/webhook")
_GROUP = "kueue.x-k8s.io"
_HOST = "127.0.0.1"


@contextmanager
def operating(client: Client, folder: Path, **config: Any) -> Iterator[None]:
    """Have Kueue look after the queues of a cluster as long as this lasts, configured with more fields."""
    built = prepare()
    client.kubectl("apply", "--server-side", "--filename", built / "bases")
    for plural in ("workloads", "clusterqueues", "localqueues", "resourceflavors"):
        wait(f"Kueue's {plural}", partial(client.answers, f"{API}/{plural}"))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}}
    client.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(namespace))
    authority = Authority(folder / "authority")
    authority.sign("tls", "/CN=kueue", f"IP:{_HOST}")
    port, probe = free_port(_HOST), free_port(_HOST)
    filled = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": _HOST, "port": port, "certDir": str(authority.folder)},
        "health": {"healthProbeBindAddress": f"{_HOST}:{probe}"},
        "metrics": {"bindAddress": "0"},
        "clientConnection": {"qps": 300, "burst": 500},
        "integrations": {"frameworks": ["batch/job"], "externalFrameworks": ["TrainingJob.v1alpha1.shardwise.dev"]},
        "featureGates": {"VisibilityOnDemand": False, "PriorityBoost": True},
        **config,
    }
    (folder / "config.yaml").write_text(json.dumps(filled))
    command = (built / "manager", f"--config={folder / 'config.yaml'}", f"--kubeconfig={client.kubeconfig}")
    log = folder / "kueue.log"
    with log.open("wb") as file:
        manager = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        wait("Kueue", partial(_ready, manager, probe, log))
        hooks = list(_webhooks(built, port, (authority.folder / "ca.crt").read_bytes()))
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": hooks})
        client.kubectl("apply", "--server-side", "--filename=-", stdin=listed)
        yield
        client.kubectl("delete", "--filename=-", stdin=listed)
    finally:
        manager.terminate()
        manager.wait()


def prepare() -> Path:
    """The folder of its program, its CRDs and its webhooks, compiled where that is missing."""
    digest = hashlib.sha256(repr((VERSION, _SUM, _BUILD, _FIXED, _INSTEAD, _KEPT)).encode()).hexdigest()[:16]
    folder = CACHE / f"kueue-{digest}"
    with locked("kueue"):
        if not folder.exists():
            _compile(folder)
    return folder


def _compile(folder: Path) -> None:
    made = folder.with_suffix(".part")
    shutil.rmtree(made, ignore_errors=True)
    say(f"compiling Kueue {VERSION}: above 3 minutes the first time on two cores")
    go = go_compiler()
    found = json.loads(retry(go, "mod", "download", "-json", f"{_MODULE}@{VERSION}", folder=CACHE))
    if found["Sum"] != _SUM:
        raise ClusterError(f"{_MODULE} {VERSION} has the sum {found['Sum']}, expected {_SUM}")
    source = made / "source"
    shutil.copytree(found["Dir"], source)
    run("chmod", "-R", "u+w", made)
    main = source / "cmd" / "kueue" / "main.go"
    text = main.read_text()
    if text.count(_FIXED) != 1:
        raise ClusterError(f"{_MODULE} {VERSION}: expected {_FIXED} once in {main.name}")
    main.write_text(text.replace(_FIXED, _INSTEAD))
    retry(go, "mod", "download", folder=source)
    run(go, *_BUILD, "-o", made / "manager", "./cmd/kueue", folder=source, environment={"CGO_ENABLED": "0"})
    for kept in _KEPT:
        (source / kept).rename(made / Path(kept).name)
    shutil.rmtree(source)
    made.rename(folder)


def _webhooks(built: Path, port: int, authority: bytes) -> Iterator[dict[str, Any]]:
    """Its webhooks for its own kinds, at an address where its installation has them at a Service."""
    for configuration in yaml.safe_load_all((built / "webhook" / "manifests.yaml").read_text()):
        hooks = [hook for hook in configuration["webhooks"] if _GROUP in hook["rules"][0]["apiGroups"]]
        for hook in hooks:
            path = hook["clientConfig"]["service"]["path"]
            url = f"https://{_HOST}:{port}{path}"
            hook["clientConfig"] = {"url": url, "caBundle": base64.b64encode(authority).decode()}
        yield {**configuration, "metadata": {"name": f"kueue-{configuration['metadata']['name']}"}, "webhooks": hooks}


def _ready(manager: subprocess.Popen[bytes], probe: int, log: Path) -> bool:
    if manager.poll() is not None:
        raise ClusterError(f"Kueue ended with {manager.returncode}:\n{log.read_text()[-4000:]}")
    try:
        with urllib.request.urlopen(f"http://{_HOST}:{probe}/readyz", timeout=2):
            return True
    except OSError:  # it does not listen yet, or says no
        return False

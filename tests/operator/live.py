"""An operator as a process, as a Deployment runs it, on an API server with the chart types: for tests and the soak."""

import secrets
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.client import Client
from tests.cluster.commands import wait

from shardwise.launcher.system.ports import free_port


@dataclass(frozen=True)
class Live:
    """The operator that runs, and the namespace that it looks after."""

    process: subprocess.Popen[bytes]
    log: Path
    health: str
    namespace: str

    def check(self) -> None:
        """It runs, says that it is well, and no pass of it ever failed for an error of its own."""
        assert self.process.poll() is None, self.log.read_text(encoding="utf-8")[-4000:]
        with urllib.request.urlopen(self.health, timeout=20) as answer:  # noqa: S310  our own address
            assert answer.status == 200
        said = self.log.read_text(encoding="utf-8")
        assert "Traceback" not in said, said[said.index("Traceback") - 1000 :][:4000]


@contextmanager
def live_operator(client: Client, folder: Path) -> Iterator[Live]:
    """Run it as long as this lasts, for a namespace of its own."""
    namespace = f"live-{uuid.uuid4().hex[:8]}"
    client.kubectl("create", "namespace", namespace)
    key, log, port = folder / "key", folder / "operator.log", free_port("127.0.0.1")
    key.write_text(secrets.token_hex(32))
    command = (
        *(str(Path(sys.executable).with_name("shardwise-operator")), "run", "--trainer-image=localhost/none"),
        *(f"--key-file={key}", f"--namespace={namespace}", f"--kubeconfig={client.kubeconfig}"),
        *(f"--lease-namespace={namespace}", "--metrics-address=127.0.0.1:0", f"--health-address=127.0.0.1:{port}"),
    )
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/shardwise"
        wait("the operator", lambda: client.answers(lease))
        yield Live(process, log, f"http://127.0.0.1:{port}/healthz", namespace)
    finally:
        process.terminate()
        process.wait()
        client.kubectl("delete", "namespace", namespace, "--wait=false")

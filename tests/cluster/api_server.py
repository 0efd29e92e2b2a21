"""A real API server by itself: etcd, kube-apiserver, and the controllers that give objects their semantics.

For tests of CRDs, admission, the operator and charts that need no container. Needs neither root nor a network; several
may run at once. Its processes end with the process that started it, however that ends.

What service accounts ask for is kept in `audit.jsonl` of its folder, as audit events: who, what, and the answer's code.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster.authority import Authority
from tests.cluster.client import Client
from tests.cluster.commands import ClusterError, wait
from tests.cluster.packages import API_SERVER, require
from tests.cluster.programs import programs

from shardwise.launcher.system.ports import free_port

# Not pod garbage collection and not node lifecycle: they would delete pods that a test binds to a node by hand.
_CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "validatingadmissionpolicy-status-controller",
)
# Once for each request, but for a watch, which is there from its beginning; without what was sent and answered.
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}],
}
_ATTEMPTS = 3  # a port that was free a moment ago may be taken by another process


class ApiServer:
    """An API server that runs from `start` to `stop`, or for the length of a `with` statement."""

    client: Client

    def __init__(self, *, admission: Sequence[str] = (), options: Sequence[str] = ()) -> None:
        """It has a folder of its own from now on; nothing runs yet.

        Args:
            admission: plugins that check requests beside those of every API server.
            options: more options of kube-apiserver, such as for what is alpha.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="shardwise-api-"))
        self.kubeconfig = self.folder / "admin.kubeconfig"
        self.audit = self.folder / "audit.jsonl"
        self._admission, self._options = admission, options
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, Sequence[str]] = {}

    def start(self) -> None:
        """Start it and wait until it serves; compiles the programs first where they are missing.

        Raises:
            ClusterError: it did not come up; the text has the end of its logs.
        """
        require(*API_SERVER)
        programs()
        self._authority = Authority(self.folder / "pki")
        self._authority.sign("server", "/CN=kube-apiserver", "DNS:localhost", "IP:127.0.0.1")
        self._authority.sign("admin", "/O=system:masters/CN=admin")
        for number in range(1, _ATTEMPTS + 1):
            try:
                return self._start_once()
            except ClusterError as failure:
                self._end()
                if number == _ATTEMPTS:
                    raise ClusterError(f"{failure}\n{self._log_ends()}") from failure
        return None

    def stop(self) -> None:
        """End its processes and remove its folder."""
        self._end()
        shutil.rmtree(self.folder)

    def start_scheduler(self, *options: str) -> None:
        """Start Kubernetes's scheduler too, which there is none of otherwise; it ends with the rest."""
        self._launch(
            "kube-scheduler",
            *(f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0"),
            *options,
        )

    def kill(self, program: str) -> None:
        """Kill one of its programs, as `etcd`."""
        self._processes[program].kill()
        self._processes[program].wait()

    def start_again(self, program: str) -> None:
        """Start a program that was killed, at the same address and with what it had stored."""
        self._run(program, self._commands[program])

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --------------------------------------------------------------------------------------------------- the processes

    def _start_once(self) -> None:
        etcd, peer, port = (free_port("127.0.0.1") for _ in range(3))
        url = f"https://127.0.0.1:{port}"
        self._authority.write_kubeconfig(self.kubeconfig, "admin", url)
        self.client = Client(url, self._authority.folder, self.kubeconfig, programs())
        self._start_etcd(etcd, peer)
        self._start_api_server(etcd, port)
        wait("the API server", lambda: self._alive() and self.client.answers("/readyz"), hint=str(self.folder))
        self._start_controllers()
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        wait("the controllers", lambda: self._alive() and self.client.answers(path), hint=str(self.folder))

    def _start_etcd(self, port: int, peer: int) -> None:
        clients, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
        self._launch(
            "etcd",
            *(f"--data-dir={self.folder / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn"),
            *(f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}"),
            *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
            f"--initial-cluster=default={peers}",
        )

    def _start_api_server(self, etcd: int, port: int) -> None:
        pki = self._authority.folder
        policy = self.folder / "audit-policy.yaml"
        policy.write_text(json.dumps(_AUDIT_POLICY), encoding="utf-8")  # JSON is YAML
        self._launch(
            "kube-apiserver",
            *(f"--etcd-servers=http://127.0.0.1:{etcd}", "--bind-address=127.0.0.1", f"--secure-port={port}"),
            *("--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"),  # no Endpoints may be on loopback
            *("--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC", "--allow-privileged"),
            *(f"--client-ca-file={pki / 'ca.crt'}", f"--tls-cert-file={pki / 'server.crt'}"),
            *(
                f"--tls-private-key-file={pki / 'server.key'}",
                "--service-account-issuer=https://kubernetes.default.svc",
            ),
            f"--service-account-key-file={pki / 'service-account.pub'}",
            f"--service-account-signing-key-file={pki / 'service-account.key'}",
            *(f"--audit-policy-file={policy}", f"--audit-log-path={self.audit}"),
            *(f"--enable-admission-plugins={plugin}" for plugin in self._admission),
            *self._options,
        )

    def _start_controllers(self) -> None:
        pki = self._authority.folder
        self._launch(
            "kube-controller-manager",
            *(f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--secure-port=0"),
            *(f"--controllers={','.join(_CONTROLLERS)}", "--kube-api-qps=300", "--kube-api-burst=500"),
            *(f"--root-ca-file={pki / 'ca.crt'}", f"--service-account-private-key-file={pki / 'service-account.key'}"),
        )

    def _launch(self, program: str, *words: str) -> None:
        self._commands[program] = ("setpriv", "--pdeathsig", "KILL", str(programs() / program), *words)
        self._run(program, self._commands[program])

    def _run(self, program: str, command: Sequence[str]) -> None:
        with (self.folder / f"{program}.log").open("ab") as log:
            self._processes[program] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _alive(self) -> bool:
        """Always true.

        Raises:
            ClusterError: a process has ended.
        """
        for process in self._processes.values():
            if process.poll() is not None:
                raise ClusterError(f"{process.args!r} ended with {process.returncode}")
        return True

    def _end(self) -> None:
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait()
        self._processes.clear()

    def _log_ends(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in logs)

"""The control plane of the nodes: etcd, API server, controllers, scheduler, CoreDNS, kube-proxy. Called by `lifecycle`.

All of it is one set of processes for all nodes, on the address of the bridge and on loopback.
"""

from functools import cache, partial

from tests.cluster import cgroups, processes
from tests.cluster.authority import Authority
from tests.cluster.client import Client
from tests.cluster.commands import wait
from tests.cluster.places import (
    API_SERVICE,
    API_URL,
    CONTROL_PLANE,
    KUBECONFIG,
    PKI,
    POD_NETWORK,
    RUN,
    SERVICE_NETWORK,
    node_address,
)
from tests.cluster.programs import programs

# The usual 20 requests a second make a Deployment of 5,000 pods take five minutes.
_RATES = ("--kube-api-qps=300", "--kube-api-burst=500")
_launch = partial(processes.start, cgroup=cgroups.CONTROL_PLANE)

_COREFILE = f"""\
cluster.local:53 in-addr.arpa:53 {{
    bind {CONTROL_PLANE}
    errors
    ready {CONTROL_PLANE}:8181
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {KUBECONFIG}
        ttl 1
    }}
}}
# There is no other name server: without this, unknown names would take seconds to fail.
.:53 {{
    bind {CONTROL_PLANE}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""
# It takes its address from the first node, but serves all: they share one network namespace.
_PROXY = f"""\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: {POD_NETWORK}
nodePortAddresses: [{POD_NETWORK}]
healthzBindAddress: {CONTROL_PLANE}:10256
metricsBindAddress: 127.0.0.1:10249
clientConnection: {{kubeconfig: {RUN / "kube-proxy.kubeconfig"}}}
conntrack: {{maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
"""


@cache
def client() -> Client:
    """The cluster's administrator; the certificates must exist."""
    return Client(API_URL, PKI, KUBECONFIG, programs())


def make_certificates(nodes: list[str]) -> None:
    """Make the authority, and a certificate and a kubeconfig of everyone who talks to the API server."""
    authority = Authority(PKI)
    services = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
    addresses = (f"IP:{CONTROL_PLANE}", f"IP:{API_SERVICE}")
    authority.sign("apiserver", "/CN=kube-apiserver", *(f"DNS:{name}" for name in services), *addresses)

    def member(name: str, subject: str, *names: str) -> None:
        authority.sign(name, subject, *names)
        authority.write_kubeconfig(RUN / f"{name}.kubeconfig", name, API_URL)

    member("admin", "/O=system:masters/CN=admin")
    for component in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
        member(component, f"/CN=system:{component}")
    for node in nodes:
        member(node, f"/O=system:nodes/CN=system:node:{node}", f"DNS:{node}", f"IP:{node_address(node)}")


def start(grace_seconds: int) -> None:
    """Start all of it; the API server answers when this returns."""
    cgroups.make(cgroups.CONTROL_PLANE)
    _start_storage()
    _start_api_server()
    wait("the API server", lambda: client().answers("/readyz"), hint=f"See {processes.LOGS}")
    wait("namespace default", lambda: client().answers("/api/v1/namespaces/default"))
    _start_controllers(grace_seconds)
    (RUN / "Corefile").write_text(_COREFILE)
    _launch("coredns", programs() / "coredns", f"-conf={RUN / 'Corefile'}")
    (RUN / "kube-proxy.yaml").write_text(_PROXY)
    _launch("kube-proxy", programs() / "kube-proxy", f"--config={RUN / 'kube-proxy.yaml'}", "--hostname-override=node1")


def _start_storage() -> None:
    clients, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    _launch(
        "etcd",
        programs() / "etcd",
        *(f"--data-dir={RUN / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn"),
        *(f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}"),
        *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
        f"--initial-cluster=default={peers}",
    )


def _start_api_server() -> None:
    _launch(
        "kube-apiserver",
        programs() / "kube-apiserver",
        *("--etcd-servers=http://127.0.0.1:2379", f"--bind-address={CONTROL_PLANE}", "--secure-port=6443"),
        *(f"--advertise-address={CONTROL_PLANE}", f"--service-cluster-ip-range={SERVICE_NETWORK}"),
        *("--allow-privileged", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
        *(f"--client-ca-file={PKI / 'ca.crt'}", f"--tls-cert-file={PKI / 'apiserver.crt'}"),
        f"--tls-private-key-file={PKI / 'apiserver.key'}",
        *(f"--kubelet-client-certificate={PKI / 'admin.crt'}", f"--kubelet-client-key={PKI / 'admin.key'}"),
        f"--kubelet-certificate-authority={PKI / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",  # the names of nodes resolve nowhere
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={PKI / 'service-account.pub'}",
        f"--service-account-signing-key-file={PKI / 'service-account.key'}",
    )


def _start_controllers(grace_seconds: int) -> None:
    _launch(
        "kube-controller-manager",
        programs() / "kube-controller-manager",
        *(f"--kubeconfig={RUN / 'kube-controller-manager.kubeconfig'}", "--bind-address=127.0.0.1"),
        *("--leader-elect=false", "--use-service-account-credentials", f"--node-monitor-grace-period={grace_seconds}s"),
        *(f"--root-ca-file={PKI / 'ca.crt'}", f"--service-account-private-key-file={PKI / 'service-account.key'}"),
        *(f"--cluster-signing-cert-file={PKI / 'ca.crt'}", f"--cluster-signing-key-file={PKI / 'ca.key'}", *_RATES),
    )
    _launch(
        "kube-scheduler",
        programs() / "kube-scheduler",
        *(f"--kubeconfig={RUN / 'kube-scheduler.kubeconfig'}", "--bind-address=127.0.0.1", "--leader-elect=false"),
        *_RATES,
    )

"""The network of the nodes: one bridge with an address per node, a table that lets a node fall silent, and policies.

All nodes share the machine's network namespace, so one kube-proxy and one CoreDNS serve them all. Called by the verbs.
"""

from pathlib import Path

from tests.cluster import cgroups, processes
from tests.cluster.commands import attempt, run, wait
from tests.cluster.places import (
    BRIDGE,
    CONTROL_PLANE,
    KUBECONFIG,
    POD_NETWORK,
    RUN,
    SERVICE_NETWORK,
    node_address,
    node_subnet,
)
from tests.cluster.programs import programs

# `dead`: packets from and to these subnets vanish, as at a dead host. Else a killed process's kernel says goodbye (FIN,
# RST). `outbound`: nothing of the cluster leaves the machine, not even a packet to a Service that has no rule yet.
_RULES = f"""
table ip shardwise {{
    set dead {{ type ipv4_addr; flags interval; }}
    chain forwarded {{ type filter hook prerouting priority raw; ip saddr @dead drop; ip daddr @dead drop; }}
    chain local {{ type filter hook output priority raw; ip saddr @dead drop; ip daddr @dead drop; }}
    chain outbound {{
        type filter hook postrouting priority filter;
        oifname {{ "{BRIDGE}", "lo" }} accept
        ip daddr {{ {POD_NETWORK}, {SERVICE_NETWORK} }} drop
        ip saddr {POD_NETWORK} drop
    }}
}}
"""


_BRIDGE_MAC = "02:00:0a:f4:00:01"  # of local administration
_POLICIES = "policies"
_ACCEPTS = (
    *(
        "--match",
        "comment",
        "--comment",
        "KUBE-ROUTER rule to explicitly ACCEPT traffic that comply to network policies",
    ),
    *("--match", "mark", "--mark", "0x20000/0x20000", "--jump", "ACCEPT"),
)


def make(nodes: list[str]) -> None:
    """Make the bridge, its addresses and the table."""
    # Without one of its own a bridge has the lowest of its ports' addresses. It would be another one whenever that port
    # goes with its pod, and the other pods would send to the old one until their neighbour tables are stale.
    run("ip", "link", "add", BRIDGE, "address", _BRIDGE_MAC, "type", "bridge")
    for address in (CONTROL_PLANE, *map(node_address, nodes)):
        run("ip", "address", "add", f"{address}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    settings = Path("/proc/sys/net")
    (settings / "ipv4/ip_forward").write_text("1")
    # Pods of one node meet on the bridge; without this their replies would bypass the translation of Service addresses.
    (settings / "bridge/bridge-nf-call-iptables").write_text("1")
    # Nodes share the bridge, but pods must not learn to bypass their gateway.
    (settings / f"ipv4/conf/{BRIDGE}/send_redirects").write_text("0")
    run("nft", "-f", "-", stdin=_RULES)


def enforce_policies(node: str) -> None:
    """Have a controller keep out whom a NetworkPolicy does not let in, on all nodes, as if they were this one."""
    processes.start(
        _POLICIES,
        *(programs() / _POLICIES, f"--kubeconfig={KUBECONFIG}", f"--services={SERVICE_NETWORK}"),
        *(f"--network={POD_NETWORK}", f"--node={node}", f"--address={node_address(node)}"),
        cgroup=cgroups.CONTROL_PLANE,
    )
    wait("the controller of NetworkPolicies", _filters, hint=f"See {processes.LOGS}")


def allow_everything() -> None:
    """End the controller, and let everybody in again; nothing where there is none."""
    if _POLICIES in {name for name, _, _ in processes.recorded()}:
        processes.end(_POLICIES)
        run(programs() / _POLICIES, "--clean")
        for chain in ("INPUT", "FORWARD", "OUTPUT"):  # which it does not
            run("iptables", "--delete", chain, *_ACCEPTS)


def _filters() -> bool:
    ended, _ = attempt("iptables", "--list", "KUBE-ROUTER-FORWARD")
    return ended == 0


def silence(node: str) -> None:
    """From now on every packet from and to the node and its pods vanishes."""
    run("nft", "add", "element", "ip", "shardwise", "dead", f"{{ {node_subnet(node)} }}")


def connect(node: str) -> None:
    """Undo `silence`; nothing where the node was not silent."""
    attempt("nft", "delete", "element", "ip", "shardwise", "dead", f"{{ {node_subnet(node)} }}")


def remove() -> None:
    """Remove all that `make`, kube-proxy and the pods have made; what is not there is no failure."""
    attempt("ip", "link", "delete", BRIDGE)
    for family, table in (("ip", "shardwise"), ("ip", "kube-proxy"), ("ip6", "kube-proxy")):
        attempt("nft", "delete", "table", family, table)
    for path in Path("/var/lib/cni/results").glob("*"):  # of pods that were killed, not deleted
        if str(RUN) in path.read_text():
            path.unlink()

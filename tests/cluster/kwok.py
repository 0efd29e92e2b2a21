"""Nodes that exist only in the API server, played by KWOK: for measuring the operator at a size no machine has.

Called by the verb `kwok`; the cluster must be up.
"""

import json

from tests.cluster import cgroups, processes
from tests.cluster.commands import say, wait
from tests.cluster.control_plane import client
from tests.cluster.nodes import ready_nodes
from tests.cluster.places import KUBECONFIG
from tests.cluster.programs import STAGES, programs

_MARK = "kwok.x-k8s.io/node"
_CAPACITY = {"cpu": "32", "memory": "256Gi", "pods": "110"}


def add(number: int) -> None:
    """Start KWOK, once, and add the nodes kwok1 to kwokN for it to play."""
    if "kwok" not in processes.running():
        processes.start(
            "kwok",
            programs() / "kwok",
            *(f"--kubeconfig={KUBECONFIG}", f"--config={programs() / STAGES}", "--manage-all-nodes=false"),
            *(f"--manage-nodes-with-annotation-selector={_MARK}=fake", "--node-lease-duration-seconds=40"),
            cgroup=cgroups.CONTROL_PLANE,
        )
    names = {f"kwok{one}" for one in range(1, number + 1)}
    say(f"adding {number} nodes")
    listed = {"apiVersion": "v1", "kind": "List", "items": [_node(name) for name in sorted(names)]}
    client().kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(listed))
    wait("all KWOK nodes to be ready", lambda: names <= ready_nodes(), 600, hint=f"See {processes.LOGS}")
    say(f"{number} KWOK nodes are ready")


def _node(name: str) -> dict[str, object]:
    labels = {"type": "kwok", "kubernetes.io/hostname": name}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {_MARK: "fake"}, "labels": labels},
        # Only pods that ask for it land on a node that runs nothing.
        "spec": {"taints": [{"key": _MARK, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": _CAPACITY, "capacity": _CAPACITY},
    }

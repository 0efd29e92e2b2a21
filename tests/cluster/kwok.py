"""Nodes that exist only in the API server, played by KWOK: for what no machine has, such as a thousand nodes, or pools.

Called by the verb `kwok` of the bare cluster, and by tests that add nodes of their own to either.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster import cgroups, processes
from tests.cluster.commands import say, wait
from tests.cluster.control_plane import client
from tests.cluster.places import KUBECONFIG
from tests.cluster.programs import STAGES, programs

# The addresses of KWOK's pods: a range for benchmarks, which nobody routes.
POD_NETWORK = "198.18.0.0/15"
MARK = "kwok.x-k8s.io/node"
LEASE_SECONDS = 40
_CAPACITY = {"cpu": "32", "memory": "256Gi", "pods": "110"}


def add(number: int, lease_seconds: int = LEASE_SECONDS) -> None:
    """Start KWOK, once, and add the nodes kwok1 to kwokN for it to play; with 0 it plays those that others add.

    A node renews its lease four times in `lease_seconds`.
    """
    if "kwok" not in processes.running():
        managed = f"--manage-nodes-with-annotation-selector={MARK}=fake"
        processes.start("kwok", *_command(KUBECONFIG, managed, lease_seconds), cgroup=cgroups.CONTROL_PLANE)
    if number == 0:
        return
    names = {f"kwok{one}" for one in range(1, number + 1)}
    say(f"adding {number} nodes")
    listed = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [node(name, {"type": "kwok"}, _CAPACITY) for name in sorted(names)],
    }
    client().kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(listed))
    wait("all KWOK nodes to be ready", lambda: names <= client().ready_nodes, 600, hint=f"See {processes.LOGS}")
    say(f"{number} KWOK nodes are ready")


@contextmanager
def playing(kubeconfig: Path, label: str, log: Path) -> Iterator[None]:
    """Play the nodes of a cluster that have this label, "key=value", as long as this lasts."""
    command = _command(kubeconfig, f"--manage-nodes-with-label-selector={label}")
    with log.open("w") as file:
        player = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield
    finally:
        player.terminate()
        player.wait()


def node(name: str, labels: Mapping[str, str], capacity: Mapping[str, str]) -> dict[str, Any]:
    """A node for KWOK to play."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {MARK: "fake"},
            "labels": {"kubernetes.io/hostname": name, **labels},
        },
        # Only pods that ask for it land on a node that runs nothing.
        "spec": {"taints": [{"key": MARK, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": dict(capacity), "capacity": dict(capacity)},
    }


def _command(kubeconfig: Path, managed: str, lease_seconds: int = LEASE_SECONDS) -> list[str]:
    """KWOK for the nodes that one more option selects."""
    return [
        str(programs() / "kwok"),
        *(f"--kubeconfig={kubeconfig}", f"--config={programs() / STAGES}", "--manage-all-nodes=false", managed),
        *(f"--node-lease-duration-seconds={lease_seconds}", f"--cidr={POD_NETWORK}"),
    ]

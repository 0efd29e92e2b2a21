"""shardwise_operator.observe.node: what is kept of a node."""

import json

from shardwise_operator.observe.node import read_node, trimmed
from shardwise_operator.runtime.kinds import Object, condition_of

_HOLDS = {"cloud.google.com/impending-node-termination": True, "node.kubernetes.io/not-ready": False}


def node(taint: str) -> Object:
    """A node as a kubelet reports it."""
    pressure = [{"type": name, "status": "False", "message": "x" * 200} for name in ("MemoryPressure", "DiskPressure")]
    return {
        "metadata": {
            "name": "node",
            "uid": "1",
            "resourceVersion": "7",
            "labels": {"cloud.google.com/gke-spot": "true"},
            "annotations": {"csi": "x" * 500},
        },
        "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}], "podCIDR": "10.0.0.0/24"},
        "status": {
            "capacity": {"cpu": "208", "memory": "407Gi"},
            "conditions": [*pressure, {"type": "Ready", "status": "Unknown"}],
        },
    }


def test_what_is_kept_says_the_same() -> None:
    """In a fourth of the bytes; it has what a store needs of each object."""
    for taint, leaving in _HOLDS.items():
        whole = node(taint)
        kept = trimmed(whole)

        assert read_node(kept) == read_node(whole)
        assert (read_node(kept).leaving, read_node(kept).notice_seconds) == (leaving, 15.0)
        assert condition_of(kept, "Ready") == condition_of(whole, "Ready")
        assert kept["metadata"].items() <= whole["metadata"].items()
        assert {"name", "uid", "resourceVersion"} <= kept["metadata"].keys()
        assert len(json.dumps(kept)) < 0.25 * len(json.dumps(whole))
    assert read_node(trimmed({"metadata": {"name": "new"}})).leaving is False

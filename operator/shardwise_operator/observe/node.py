"""A node as the policies see it: its labels, whether it is about to be taken down, and how much notice it gives.

The marks are GKE's; the nodes of other clouds have none of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# A node that is being taken down has the taint, and while its maintenance goes on the label.
LEAVING_TAINT = "cloud.google.com/impending-node-termination"
_MAINTENANCE_LABEL, _ONGOING = "cloud.google.com/active-node-maintenance", "ONGOING"
_METADATA = ("name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels")
_SPOT_LABELS = ("cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible")
# The machine goes 30 s after its notice, and the kubelet keeps the second half of that for the system's own pods.
_SPOT_NOTICE_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node.

    Attributes:
        labels: its labels.
        leaving: whether it is about to be taken down.

    """

    labels: Mapping[str, str]
    leaving: bool = False

    @property
    def notice_seconds(self) -> float | None:
        """How long its pods have to save at most, whatever their grace period; None if only that bounds it."""
        spot = any(self.labels.get(label) == "true" for label in _SPOT_LABELS)
        return _SPOT_NOTICE_SECONDS if spot else None


def trimmed(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a node that is read: thousands are held in memory."""
    metadata = {name: raw["metadata"][name] for name in _METADATA if name in raw["metadata"]}
    taints = [taint for taint in raw.get("spec", {}).get("taints", []) if taint["key"] == LEAVING_TAINT]
    ready = [each for each in raw.get("status", {}).get("conditions", []) if each["type"] == "Ready"]
    return {"metadata": metadata, "spec": {"taints": taints}, "status": {"conditions": ready}}


def read_node(raw: Mapping[str, Any]) -> Node:
    """Read a node of the API server."""
    labels = raw["metadata"].get("labels", {})
    tainted = any(taint["key"] == LEAVING_TAINT for taint in raw.get("spec", {}).get("taints", []))
    return Node(labels=labels, leaving=tainted or labels.get(_MAINTENANCE_LABEL) == _ONGOING)

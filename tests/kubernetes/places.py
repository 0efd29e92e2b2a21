"""Places for slices on a real cluster, which a test can take away and give back."""

from typing import Any

from tests.cluster.cluster import Cluster
from tests.kubernetes.jobs import small


class Places:
    """Two nodes of the cluster, each of which may have one pod of a job that looks for them."""

    def __init__(self, cluster: Cluster, label: str) -> None:
        """Take two of its nodes."""
        self._client, self._label, self.nodes = cluster.client, label, cluster.nodes[-2:]

    def open(self, node: str) -> None:
        """Let the job's pods go there."""
        self._client.kubectl("label", "node", node, f"{self._label}=yes", "--overwrite")

    def close(self, node: str) -> None:
        """Let no more of them go there; those that are there stay."""
        self._client.kubectl("label", "node", node, f"{self._label}-")

    def job(self, steps: int, **recovery: Any) -> dict[str, Any]:
        """A job of two slices, each a host on a node of its own; a step is the same however many follow."""
        optimizer = {"name": "adamw", "learningRate": 1e-3}
        job = small(steps=steps, optimizer=optimizer, checkpoint={"everySteps": 20, "keep": {"last": 1}})
        job["spec"]["hardware"] |= {"topology": "1x1", "slices": 2}
        job["spec"]["recovery"] = recovery
        alone = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"test": self._label}}}
        affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alone]}}
        template = job["spec"]["pod"]["template"]
        template["metadata"] = {"labels": {"test": self._label}}
        template["spec"] |= {"nodeSelector": {self._label: "yes"}, "affinity": affinity}
        return job

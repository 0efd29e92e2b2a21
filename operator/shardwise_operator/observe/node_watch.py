"""Watch the nodes of the accelerator classes, by the classes' labels: a notice on one of them wakes its jobs.

A class without labels may have any node, so nothing is watched for it.
"""

from collections.abc import Callable, Iterator

from shardwise.protocol.pods import JOB_LABEL
from shardwise_operator.observe.node import read_node
from shardwise_operator.runtime.cache import Cache
from shardwise_operator.runtime.kinds import ACCELERATOR_CLASSES, NODES, PODS, Object
from shardwise_operator.runtime.manager import Watch
from shardwise_operator.runtime.queue import Key


class NodeWatch:
    """The watches of nodes, one for each set of labels."""

    def __init__(self, cache: Cache, watch: Callable[[Watch], None]) -> None:
        """Read classes and pods from `cache`; `watch` starts a watch, unless there is the same one."""
        self._cache, self._watch = cache, watch

    def reconcile(self) -> None:
        """Watch the nodes of every class from now on."""
        for machine in self._cache.list(ACCELERATOR_CLASSES):
            if labels := selector(machine):
                self._watch(Watch(kind=NODES, keys=self._jobs_on, labels=labels))

    def _jobs_on(self, node: Object) -> Iterator[Key]:
        """Yield the jobs with a pod on a node that is about to go; other changes of a node show in its pods."""
        if not read_node(node).leaving:
            return
        for pod in self._cache.list(PODS):
            metadata = pod["metadata"]
            if pod["spec"].get("nodeName") == node["metadata"]["name"] and JOB_LABEL in metadata["labels"]:
                yield metadata["namespace"], metadata["labels"][JOB_LABEL]


def selector(machine: Object) -> str:
    """Return the label selector of a class's nodes, for every topology and machine; "" if the class has no labels."""
    labels = machine["spec"].get("nodeSelector", {})
    return ",".join(key if "{" in value else f"{key}={value}" for key, value in sorted(labels.items()))

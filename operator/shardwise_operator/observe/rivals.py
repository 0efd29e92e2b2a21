"""Jobs that each hold a part of the nodes that all of them need: which of them gives way, so that another is complete.

It goes by the pods in the caches. Pods compete if they ask for nodes with the same labels. Of a slice that lands whole
only the first host competes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise_operator.observe.caches import Caches
from shardwise_operator.observe.made_pods import read_made_pods
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.state import Phase
from shardwise_operator.runtime.kinds import PODS, TRAINING_JOBS


@dataclass(frozen=True)
class _Part:
    """A job that holds only a part of its nodes."""

    created: str
    uid: str
    name: str
    held: int
    lacking: int


class Rivals:
    """What the jobs of a cluster hold and lack."""

    def __init__(self, caches: Caches) -> None:
        """Read jobs and pods from `caches`."""
        self._caches = caches

    def older(self, job: Mapping[str, Any], pods: Sequence[Pod]) -> str:
        """Return the older job that needs the nodes of this one, as "namespace/name"; "" if this job keeps them.

        The youngest job gives way first, for the oldest one that the nodes of all others together can complete.
        """
        selector = next((pod.selector for pod in pods if _lacks(pod)), None)
        own = None if selector is None else _part(job, pods, selector)
        if own is None or selector is None:
            return ""
        parts = sorted([own, *self._others(job["uid"], selector)], key=lambda part: (part.created, part.uid))
        while parts[-1] is own and len(parts) > 1:
            if sum(part.held for part in parts[1:]) >= parts[0].lacking:
                return parts[0].name
            parts = parts[1:]
        return ""

    def _others(self, uid: str, selector: Mapping[str, str]) -> Iterator[_Part]:
        for job in self._caches.list(TRAINING_JOBS):
            metadata = job["metadata"]
            if metadata["uid"] == uid or job.get("status", {}).get("phase") != Phase.PENDING:
                continue
            pods = self._caches.by_owner(PODS, metadata["namespace"], metadata["uid"])
            like = (pod for pod in pods if pod["spec"].get("nodeSelector", {}) == selector)
            part = _part(metadata, tuple(read_made_pods(metadata["name"], like)), selector)
            if part is not None:
                yield part


def _part(job: Mapping[str, Any], pods: Sequence[Pod], selector: Mapping[str, str]) -> _Part | None:
    """Return what a job holds and lacks of these nodes; None if it holds all or nothing of what it needs."""
    like = [pod for pod in pods if pod.selector == selector and pod.alive]
    held, lacking = sum(pod.node is not None for pod in like), sum(map(_lacks, like))
    if not (held and lacking):
        return None
    return _Part(job["creationTimestamp"], job["uid"], f"{job['namespace']}/{job['name']}", held, lacking)


def _lacks(pod: Pod) -> bool:
    return bool(pod.unschedulable) and pod.node is None and pod.deleting_at is None

"""Jobs that hold a part each of the places that all of them need: which of them stands back, so that another is whole.

Called by `observe.py`, for a job that holds some places and lacks some. It knows the pods of the caches alone. Places
are the same where pods ask for nodes of the same labels: of a slice that lands whole only its first host's are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise_operator.pod import Pod, read_pod
from shardwise_operator.runtime.kinds import PODS, TRAINING_JOBS
from shardwise_operator.state import Phase
from shardwise_operator.views import Caches


@dataclass(frozen=True)
class _Part:
    """A job that has come to a part of its places; the one that was made first is the first."""

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

    def elder(self, job: Mapping[str, Any], pods: Sequence[Pod]) -> str:
        """The older job that this one's places help, as "namespace/name"; "" where this one need not give them back.

        The youngest stands back first, for the oldest that all the others together can help.
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
            like = [pod for pod in self._caches.by_owner(PODS, metadata["uid"]) if _selector(pod) == selector]
            part = _part(metadata, [read_pod(pod) for pod in like], selector)
            if part is not None:
                yield part


def _part(job: Mapping[str, Any], pods: Sequence[Pod], selector: Mapping[str, str]) -> _Part | None:
    """None of a job that holds all, or nothing, of what it needs of these places."""
    like = [pod for pod in pods if pod.selector == selector and not pod.ended and pod.deleting_at is None]
    held, lacking = sum(pod.node is not None for pod in like), sum(map(_lacks, like))
    if not (held and lacking):
        return None
    return _Part(job["creationTimestamp"], job["uid"], f"{job['namespace']}/{job['name']}", held, lacking)


def _lacks(pod: Pod) -> bool:
    return bool(pod.unschedulable) and pod.node is None and pod.deleting_at is None


def _selector(pod: Mapping[str, Any]) -> Mapping[str, str]:
    selector: Mapping[str, str] = pod["spec"].get("nodeSelector", {})
    return selector

"""Observe a job's place in its queue: its Workload, where its pods may go, and before there is one, its priority."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.job.document import shown
from shardwise.protocol.errors import JobError, Problem
from shardwise_operator.observe.caches import Caches, Reader
from shardwise_operator.observe.priority import Priority, read_priority
from shardwise_operator.observe.snapshot import Snapshot
from shardwise_operator.observe.workload import QUEUE_LABEL, Admission, Workload, read_admission, read_workload
from shardwise_operator.runtime.kinds import RESOURCE_FLAVORS, WORKLOADS, Kind, Object

Own = Callable[[Kind, str, str], Sequence[Object]]


@dataclass(frozen=True, kw_only=True)
class Queueing:
    """How a job stands with its queue.

    Attributes:
        queue: the LocalQueue; "" if the job has left it and only a Workload is left of that.
        workload: the job's Workload; None before it is made, and after somebody has deleted it.
        admission: what its pods get from the queue; None while they may not run.
        priority: for a Workload that is to be made; None if there is one, or the job's class of priority is missing.
        problem: why there is no Workload, or no admission of an admitted one; "" if nothing is wrong.

    """

    queue: str
    workload: Workload | None = None
    admission: Admission | None = None
    priority: Priority | None = None
    problem: str = ""


class Queues:
    """Observes the queueing of all jobs."""

    def __init__(self, caches: Caches, api: Reader, own: Own, *, enabled: bool) -> None:
        """Look at Kueue's objects only if it is `enabled`: a cluster without Kueue has no such kinds.

        Args:
            caches: have the flavors.
            api: has the classes of priority.
            own: returns a job's objects of a kind, by its namespace and its UID.
            enabled: whether there is Kueue.

        """
        self._caches, self._api, self._own, self._enabled = caches, api, own, enabled

    def check(self, job: Object) -> None:
        """Raise JobError if the job names a queue and nobody would admit it."""
        queue = _live_queue(job)
        if queue and not self._enabled:
            expected = "no queue, since this operator runs without Kueue; the chart's value kueue.enabled changes that"
            raise JobError([Problem(path=f"metadata.labels.{QUEUE_LABEL}", given=shown(queue), expected=expected)])

    def observe(self, job: Object, made_of: Snapshot | None) -> Queueing | None:
        """Return how the job stands with its queue; None without one.

        The round's own label says whether it has a queue. Which one it is may change until it is admitted.
        """
        if not self._enabled:
            return None
        queue = made_of.job.metadata.labels.get(QUEUE_LABEL, "") if made_of else ""
        queue = queue and (_live_queue(job) or queue)
        raw = self._workload(job["metadata"])
        if raw is None:
            return self._without_workload(queue, made_of) if queue else None
        workload = read_workload(raw)
        found = read_admission(raw, self._flavors()) if workload.admitted else None
        return Queueing(
            queue=queue,
            workload=workload,
            admission=found if isinstance(found, Admission) else None,
            problem=found if isinstance(found, str) else "",
        )

    def _without_workload(self, queue: str, made_of: Snapshot | None) -> Queueing:
        assert made_of is not None
        priority = read_priority(self._api, made_of)
        if isinstance(priority, str):
            return Queueing(queue=queue, problem=priority)
        return Queueing(queue=queue, priority=priority)

    def _workload(self, job: Mapping[str, Any]) -> Object | None:
        return next(iter(self._own(WORKLOADS, job["namespace"], job["uid"])), None)

    def _flavors(self) -> Mapping[str, Object]:
        return {each["metadata"]["name"]: each for each in self._caches.list(RESOURCE_FLAVORS)}


def _live_queue(job: Mapping[str, Any]) -> str:
    return str(job["metadata"].get("labels", {}).get(QUEUE_LABEL, ""))

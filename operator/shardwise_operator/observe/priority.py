"""The priority of a job in its queue: a number, and the class that it is from."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise_operator.observe.caches import Reader
from shardwise_operator.observe.snapshot import Snapshot
from shardwise_operator.runtime.errors import NotFoundError
from shardwise_operator.runtime.kinds import PRIORITY_CLASSES, WORKLOAD_PRIORITY_CLASSES, Kind

CLASS_LABEL = "kueue.x-k8s.io/priority-class"


@dataclass(frozen=True)
class Priority:
    """A priority, and a reference to its class; None without one."""

    value: int = 0
    of: Mapping[str, str] | None = None


def read_priority(api: Reader, made_of: Snapshot) -> Priority | str:
    """Return the priority by the label on the job, else by the PriorityClass of its pods; or why there is none."""
    named = made_of.job.metadata.labels.get(CLASS_LABEL, "")
    if named:
        return _of_class(api, WORKLOAD_PRIORITY_CLASSES, named)
    of_pods = made_of.pod.spec.get("priorityClassName", "")
    if of_pods:
        return _of_class(api, PRIORITY_CLASSES, of_pods)
    every = [each for page in api.pages(PRIORITY_CLASSES) for each in page.items]
    default = next((each for each in every if each.get("globalDefault")), None)
    return Priority() if default is None else _of_class(api, PRIORITY_CLASSES, default["metadata"]["name"])


def _of_class(api: Reader, kind: Kind, name: str) -> Priority | str:
    try:
        found = api.get(kind, "", name)
    except NotFoundError:
        return f"{kind.kind} {name} is not there"
    return Priority(int(found["value"]), {"group": kind.group, "kind": kind.kind, "name": name})

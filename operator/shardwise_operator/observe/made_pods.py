"""The pods of a job that an operator has made, among all that name the job as their controller.

Whoever may make pods in a namespace can name any job there, with labels of any kind. Such a pod is none of the
operator's: it is not a host, no pass fails because of it, and nobody deletes it.
"""

from collections.abc import Iterable, Iterator

from shardwise.protocol import pods
from shardwise_operator.observe.pod import Pod, host_of, read_pod
from shardwise_operator.render.names import pod_name
from shardwise_operator.runtime.kinds import Object

_OF_EVERY_POD = (pods.POD_ATTEMPT_LABEL, pods.ROUND_LABEL)
_OF_A_HOST = (pods.SLICE_LABEL, pods.HOST_LABEL)


def read_made_pods(job: str, found: Iterable[Object]) -> Iterator[Pod]:
    """Read the pods of a job, given by its name, that have the labels and the names that an operator gives."""
    return (read_pod(raw) for raw in found if is_made(job, raw))


def is_made(job: str, raw: Object) -> bool:
    """Return whether a pod has the labels and the name that an operator gives those of this job."""
    labels = raw["metadata"].get("labels", {})
    numbered = _OF_EVERY_POD if pods.PLAN_LABEL in labels else _OF_EVERY_POD + _OF_A_HOST
    if not all(labels.get(label, "").isdecimal() for label in numbered):
        return False
    made: bool = raw["metadata"]["name"] == pod_name(job, host_of(raw), int(labels[pods.POD_ATTEMPT_LABEL]))
    return made

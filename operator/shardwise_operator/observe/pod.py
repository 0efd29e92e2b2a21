"""A pod as the policies see it: the few facts that decisions go by, out of the object of the API server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwise.protocol import pods
from shardwise.protocol.pods import TerminationRecord
from shardwise_operator.observe.hosts import host_name, numbers_of
from shardwise_operator.runtime.kinds import seconds_of

ENDED = ("Succeeded", "Failed")
_CONDITIONS = ("PodScheduled", "Ready", "DisruptionTarget")
# What is read of a pod: the fields of an object, or of each one of a list, and of these again; None for all of a value.
_CONTAINER = {"name": None, "imageID": None, "state": None}
_READ: Mapping[str, Any] = {
    # The store and the queue go by the metadata too.
    "metadata": dict.fromkeys(
        ("name", "namespace", "uid", "resourceVersion", "labels", "ownerReferences", "deletionTimestamp")
    ),
    "spec": {
        **dict.fromkeys(("nodeName", "nodeSelector", "schedulingGates")),
        "initContainers": dict.fromkeys(("name", "restartPolicy")),
    },
    "status": {
        **dict.fromkeys(("phase", "reason", "podIP")),
        "conditions": dict.fromkeys(("type", "status", "reason", "message", "lastTransitionTime")),
        "containerStatuses": _CONTAINER,
        "initContainerStatuses": _CONTAINER,
    },
}
_ON_THE_WAY = ("", "ContainerCreating", "PodInitializing")  # reasons of a container that only waits for its turn


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One pod of a job.

    Attributes:
        name: its name.
        uid: its UID.
        key: its host, "<slice>-<host>"; "plan" for the pod that plans the job.
        attempt: its number among the pods of this host.
        round: the round it belongs to.
        phase: Pending, Running, Succeeded, Failed or Unknown.
        node: the node that it is bound to; None before.
        selector: the labels that its node must have.
        image_id: the image of its container as its node reports it; "" before it runs.
        address: its IP; None before it has one.
        created_at: when it was created; None of a host's pod, of which nothing goes by that.
        placed_at: when it was bound to its node.
        started_at: when its container began to run; None while it does not.
        others_run: whether containers run in it that are not ours. The phase does not tell: the kubelet reports the end
            of the last container some time before that of the pod.
        ready: whether its containers run; made by an older operator, whether its host's trainer has joined the run too.
        gates: the scheduling gates that keep it from a node, those of others too.
        deleting_at: when it is to be gone, if it is being deleted.
        disruption: the reason of its DisruptionTarget condition; "" without one.
        reason: the reason of its end that the kubelet or a controller gives; "" without one.
        exit_reason: how its container ended, or the one that failed before it (OOMKilled, Error); "" before.
        failure: which container failed of a pod that has failed, ours or one that had to end before it, and how, for
            people; "" of others. A sidecar's end ends no pod.
        waiting: why a container of it cannot start, ours first; "" if none is kept from it.
        waiting_message: the same for people, with the container's name if it is not ours.
        unschedulable: the scheduler's message if it finds no node; "" otherwise.
        unschedulable_since: since when it finds none.
        exit_code: the exit code of its container; None before it has ended.
        termination_message: the termination message of its container.
        record: the same as a record, if it is that of an agent.

    """

    name: str
    uid: str
    key: str
    attempt: int
    round: int
    phase: str = "Pending"
    node: str | None = None
    selector: Mapping[str, str] = field(default_factory=dict)
    image_id: str = ""
    address: str | None = None
    created_at: float | None = None
    placed_at: float | None = None
    started_at: float | None = None
    others_run: bool = False
    ready: bool = False
    gates: tuple[str, ...] = ()
    deleting_at: float | None = None
    disruption: str = ""
    reason: str = ""
    exit_reason: str = ""
    failure: str = ""
    waiting: str = ""
    waiting_message: str = ""
    unschedulable: str = ""
    unschedulable_since: float | None = None
    exit_code: int | None = None
    termination_message: str = ""
    record: TerminationRecord | None = None

    @property
    def slice(self) -> int:
        """The number of its slice."""
        return numbers_of(self.key)[0]

    @property
    def gated(self) -> bool:
        """Whether it waits for the first host of its slice."""
        return pods.SLICE_GATE in self.gates

    @property
    def ended(self) -> bool:
        """Whether its container has ended for good: no pod of ours starts one again."""
        return self.phase in ENDED or self.exit_code is not None

    @property
    def alive(self) -> bool:
        """Whether it has neither ended nor is being deleted."""
        return not self.ended and self.deleting_at is None

    @property
    def lingers(self) -> bool:
        """Whether its container has ended and others go on that were put into the pod, such as a service mesh's."""
        return self.ended and self.others_run

    @property
    def running(self) -> bool:
        """Whether its container runs, and the pod is not being deleted."""
        return self.phase == "Running" and self.alive


def host_of(raw: Mapping[str, Any]) -> str:
    """Return the host of a pod of ours, "<slice>-<host>"; that of a plan's pod is "plan"."""
    labels = raw["metadata"]["labels"]
    return pods.PLAN if pods.PLAN_LABEL in labels else host_name(labels[pods.SLICE_LABEL], labels[pods.HOST_LABEL])


def trimmed(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a pod that `read_pod` reads: thousands are held in memory, and most of each is its spec."""
    kept: dict[str, Any] = _part({"spec": {}, "status": {}, **raw}, _READ)
    if pods.PLAN_LABEL in raw["metadata"].get("labels", {}) and "creationTimestamp" in raw["metadata"]:
        kept["metadata"]["creationTimestamp"] = raw["metadata"]["creationTimestamp"]
    if conditions := kept["status"].get("conditions"):
        kept["status"]["conditions"] = [each for each in conditions if each["type"] in _CONDITIONS]
    return kept


def read_pod(raw: Mapping[str, Any]) -> Pod:
    """Read a pod that the operator has created."""
    metadata, status = raw["metadata"], raw.get("status", {})
    labels = metadata["labels"]
    containers = {each["name"]: each for each in status.get("containerStatuses", [])}
    own = pods.PLAN if pods.PLAN_LABEL in labels else pods.AGENT
    container: Mapping[str, Any] = containers.get(own, {})
    others = [each for each in (*containers.values(), *status.get("initContainerStatuses", [])) if each["name"] != own]
    ended = _end_of(container)
    failed = _failed([container] if ended else _before_it(raw))
    waiting, waiting_message = _kept_waiting([container, *others], own)
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    scheduled = conditions.get("PodScheduled", {})
    hold = {name: condition for name, condition in conditions.items() if condition.get("status") == "True"}
    unschedulable = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        key=host_of(raw),
        attempt=int(labels[pods.POD_ATTEMPT_LABEL]),
        round=int(labels[pods.ROUND_LABEL]),
        phase=status.get("phase", "Pending"),
        node=raw["spec"].get("nodeName"),
        selector=raw["spec"].get("nodeSelector", {}),
        image_id=container.get("imageID", ""),
        address=status.get("podIP"),
        created_at=_time(metadata.get("creationTimestamp")) if own == pods.PLAN else None,
        placed_at=_time(hold.get("PodScheduled", {}).get("lastTransitionTime")),
        started_at=_time(container.get("state", {}).get("running", {}).get("startedAt")),
        others_run=any("running" in each.get("state", {}) for each in others),
        ready="Ready" in hold,
        gates=tuple(gate["name"] for gate in raw["spec"].get("schedulingGates", [])),
        deleting_at=_time(metadata.get("deletionTimestamp")),
        disruption=hold.get("DisruptionTarget", {}).get("reason", ""),
        reason=status.get("reason", ""),
        exit_reason=(ended or _end_of(failed)).get("reason", ""),
        failure=_failure(failed),
        waiting=waiting,
        waiting_message=waiting_message,
        unschedulable=scheduled.get("message", "no node fits") if unschedulable else "",
        unschedulable_since=_time(scheduled.get("lastTransitionTime")) if unschedulable else None,
        exit_code=ended.get("exitCode"),
        termination_message=ended.get("message", ""),
        record=TerminationRecord.loads(ended.get("message", "")) if ended else None,
    )


def _part(value: Any, fields: Mapping[str, Any] | None) -> Any:
    """Return these fields of an object, of each one if it is a list of objects."""
    if fields is not None and isinstance(value, dict):
        return {name: _part(value[name], inner) for name, inner in fields.items() if name in value}
    if fields is not None and isinstance(value, list):
        return [_part(each, fields) for each in value]
    return value


def _time(written: str | None) -> float | None:
    return None if written is None else seconds_of(written)


def _end_of(container: Mapping[str, Any]) -> Mapping[str, Any]:
    end: Mapping[str, Any] = container.get("state", {}).get("terminated", {})
    return end


def _before_it(raw: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the containers that have to end before ours begins: not sidecars, which the kubelet starts again."""
    asked = raw["spec"].get("initContainers", [])
    sidecars = {each["name"] for each in asked if each.get("restartPolicy") == "Always"}
    return [each for each in raw.get("status", {}).get("initContainerStatuses", []) if each["name"] not in sidecars]


def _failed(containers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return which of these failed, the first one to end, as it ends those that run beside it; empty if none did."""
    failed = [each for each in containers if _end_of(each).get("exitCode", 0) != 0]
    return min(failed, key=lambda each: str(_end_of(each).get("finishedAt", "")), default={})


def _failure(failed: Mapping[str, Any]) -> str:
    end = _end_of(failed)
    how = ", ".join(filter(None, (end.get("reason", ""), f"exit code {end.get('exitCode')}")))
    return f"container {failed['name']} ended ({how})" if failed else ""


def _kept_waiting(containers: Sequence[Mapping[str, Any]], own: str) -> tuple[str, str]:
    """Return why the first of these that cannot start does not: reason and message; both empty if there is none."""
    for container in containers:
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason", "") not in _ON_THE_WAY:
            which = "" if container["name"] == own else f"container {container['name']}: "
            return waiting["reason"], which + waiting.get("message", "")
    return "", ""

"""A job's Workload, by which Kueue gives it quota, as the policies see it; and where its pods may go with that."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwise_operator.runtime.kinds import Object, condition_of, seconds_of

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
BOOST = "kueue.x-k8s.io/priority-boost"
SHAPE = "shardwise.dev/shape"
"""The annotation with the digest of what the job asked for when its Workload was made."""
POD_SET = "hosts"
"""The one set of a job's pods: they ask for the same, and are admitted together or not at all."""
RECOVERS = "WaitForRecovery"
"""Kueue's reason why the pods of a job do not all run, though they did."""
_WORKLOAD = "kueue.x-k8s.io/workload"
_POD_SET = "kueue.x-k8s.io/podset"
_TOPOLOGY = "kueue.x-k8s.io/podset-{}-topology"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A Workload.

    Attributes:
        name: its name.
        uid: its UID.
        queue: the LocalQueue that it is in.
        active: whether it may be admitted; if not, somebody has deactivated it.
        reserved: whether quota is taken for it.
        admitted: whether the pods may run: it has its quota, and every check has agreed.
        admitted_at: since when; None if they may not.
        cluster_queue: the ClusterQueue that has admitted it; "" without quota.
        evicted: why it is to give its quota back, or had to and waits since, as one word; "" otherwise.
        evicted_message: the same for people.
        finished: whether it counts as ended, which cannot be taken back.
        pods_ready: whether it is told that all pods run.
        recovers: whether it is told that one that ran was lost.
        boost: what is added to its priority, as text; None without it.
        shape: what its pods asked for when it was made, as a digest; "" if an older release has made it.
        waits: why it is not admitted, for people; "" before Kueue has looked at it.
        raw: the object of the API server, without its spec.

    """

    name: str
    uid: str
    queue: str = ""
    active: bool = True
    reserved: bool = False
    admitted: bool = False
    admitted_at: float | None = None
    cluster_queue: str = ""
    evicted: str = ""
    evicted_message: str = ""
    finished: bool = False
    pods_ready: bool = False
    recovers: bool = False
    boost: str | None = None
    shape: str = ""
    waits: str = ""
    raw: Object = field(default_factory=dict, compare=False)


@dataclass(frozen=True, kw_only=True)
class Admission:
    """What the pods of an admitted job get from its queue.

    Attributes:
        labels: labels of each pod.
        annotations: annotations of each pod.
        node_selector: labels that each pod's node must have: those of the assigned flavors.
        tolerations: taints that each pod may ignore, as Kubernetes writes them.
        domains: by rank, labels of the place that was found for the pod; empty if Kueue has chosen no places.

    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    domains: tuple[Mapping[str, str], ...] = ()


def kept_of_workload(raw: Object) -> Object:
    """Return the part of a Workload that is held in memory: its templates of pods are most of it, and not read."""
    spec = {name: value for name, value in raw.get("spec", {}).items() if name in ("queueName", "active")}
    return {**raw, "spec": spec}


def read_workload(raw: Object) -> Workload:
    """Read a Workload."""
    metadata, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    reserved, admitted = condition_of(raw, "QuotaReserved"), condition_of(raw, "Admitted")
    evicted, told = condition_of(raw, "Evicted"), condition_of(raw, "PodsReady")
    is_evicted, is_finished = _true(evicted), _true(condition_of(raw, "Finished"))
    active = bool(spec.get("active", True)) and "deletionTimestamp" not in metadata
    may_run = _true(admitted) and _true(reserved) and active and not is_evicted and not is_finished
    return Workload(
        name=metadata["name"],
        uid=metadata["uid"],
        queue=spec.get("queueName", ""),
        active=active,
        reserved=_true(reserved),
        admitted=may_run,
        admitted_at=seconds_of(admitted["lastTransitionTime"]) if may_run else None,
        cluster_queue=status.get("admission", {}).get("clusterQueue", ""),
        evicted=evicted["reason"] if is_evicted else "",
        evicted_message=evicted.get("message", "") if is_evicted else "",
        finished=is_finished,
        pods_ready=_true(told),
        recovers=told.get("reason") == RECOVERS,
        boost=metadata.get("annotations", {}).get(BOOST),
        shape=metadata.get("annotations", {}).get(SHAPE, ""),
        waits=_waits(status, reserved, admitted),
        raw={name: value for name, value in raw.items() if name != "spec"},
    )


def read_admission(raw: Object, flavors: Mapping[str, Object]) -> Admission | str:
    """Return what the pods get from an admitted Workload, or why that is not known yet."""
    assignments = raw["status"].get("admission", {}).get("podSetAssignments", [])
    assigned = next((each for each in assignments if each["name"] == POD_SET), None)
    if assigned is None:
        return f"Workload {raw['metadata']['name']} has no assignment of the pod set {POD_SET}"
    names = sorted(set(assigned.get("flavors", {}).values()))
    if missing := [name for name in names if name not in flavors]:
        return f"ResourceFlavor {missing[0]} is not there"
    specs = [flavors[name].get("spec", {}) for name in names]
    updates = [
        update
        for check in raw["status"].get("admissionChecks", [])
        for update in check.get("podSetUpdates", [])
        if update["name"] == POD_SET
    ]
    selectors = [*(spec.get("nodeLabels", {}) for spec in specs), *(each.get("nodeSelector", {}) for each in updates)]
    topology = assigned.get("topologyAssignment")
    return Admission(
        labels=_merged([{_POD_SET: POD_SET}, *(each.get("labels", {}) for each in updates)]),
        annotations=_merged([_placed(raw, topology), *(each.get("annotations", {}) for each in updates)]),
        node_selector=_merged(selectors),
        tolerations=tuple(each for source in (*specs, *updates) for each in source.get("tolerations", [])),
        domains=tuple(_domains(topology)) if topology else (),
    )


def topology_request(annotations: Mapping[str, str], hosts_per_slice: int) -> dict[str, Any]:
    """Return the topology request of the template's annotations; {} without one."""
    request: dict[str, Any] = {
        kind: annotations[_TOPOLOGY.format(kind)]
        for kind in ("required", "preferred")
        if _TOPOLOGY.format(kind) in annotations
    }
    if annotations.get(_TOPOLOGY.format("unconstrained")) == "true":
        request["unconstrained"] = True
    if level := annotations.get(_TOPOLOGY.format("slice-required")):
        size = annotations.get("kueue.x-k8s.io/podset-slice-size", "")
        request["podSetSliceRequiredTopology"] = level
        request["podSetSliceSize"] = int(size) if size.isdecimal() else hosts_per_slice
    return request


def _true(condition: Object) -> bool:
    return condition.get("status") == "True"


def _waits(status: Object, reserved: Object, admitted: Object) -> str:
    if _true(admitted):
        return ""
    if not _true(reserved):
        return str(reserved.get("message", ""))
    checks = [f"{each['name']} is {each['state']}" for each in status.get("admissionChecks", [])]
    return f"quota is reserved; admission checks: {', '.join(checks)}" if checks else str(admitted.get("message", ""))


def _placed(raw: Object, topology: Object | None) -> dict[str, str]:
    """Return annotations that make Kueue count a pod once, where it was placed."""
    if topology is None:
        return {}
    return {_WORKLOAD: raw["metadata"]["name"], _TOPOLOGY.format("unconstrained"): "true"}


def _domains(topology: Object) -> Iterator[dict[str, str]]:
    """Yield the place of each pod, in the order of ranks: neighbours come after one another."""
    for part in topology["slices"]:
        for number in range(part["domainCount"]):
            values = [_value(level, number) for level in part["valuesPerLevel"]]
            counts = part["podCounts"]
            count = counts["universal"] if "universal" in counts else counts["individual"][number]
            for _ in range(count):
                yield dict(zip(topology["levels"], values, strict=True))


def _value(level: Object, number: int) -> str:
    if "universal" in level:
        return str(level["universal"])
    each = level["individual"]
    return f"{each.get('prefix', '')}{each['roots'][number]}{each.get('suffix', '')}"


def _merged(parts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {name: value for part in parts for name, value in part.items()}

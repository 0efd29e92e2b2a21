"""A job's Workload, and what is told to Kueue about it: that its pods run, that they gave their quota back, its end."""

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.priority import Priority
from shardwise_operator.observe.workload import POD_SET, RECOVERS, SHAPE, Workload, topology_request
from shardwise_operator.reasons import FALSE, TRUE, ConditionStatus
from shardwise_operator.render.names import metadata, workload_name
from shardwise_operator.render.pods import Place, pod_manifest
from shardwise_operator.runtime.kinds import WORKLOADS, Object, timestamp

# By these Kueue chooses a flavor and counts; the rest of a pod would only make the object larger.
_OF_A_POD = ("nodeSelector", "tolerations", "priorityClassName", "runtimeClassName", "overhead", "restartPolicy")
_OF_A_CONTAINER = ("name", "image", "resources", "restartPolicy")
_JOB_UID = "kueue.x-k8s.io/job-uid"  # by which Kueue names the job where it says who preempts whom
# Kueue itself puts these back into the queue at once, and all others when what has evicted them is over.
_QUEUED_AGAIN_AT_ONCE = ("Preempted", "NodeFailures")


def workload_manifest(seen: Observed, queue: str, priority: Priority) -> dict[str, Any]:
    """Return the Workload of a job: all its pods or none, also of one that may then go on with fewer slices."""
    asked: dict[str, Any] = {"queueName": queue, "priority": priority.value, "podSets": [_pod_set(seen)]}
    if priority.of is not None:
        asked["priorityClassRef"] = dict(priority.of)
    meta = metadata(seen, workload_name(seen.name, seen.uid))
    meta["labels"][_JOB_UID] = seen.uid
    meta["annotations"] = {SHAPE: shape(seen)}
    return WORKLOADS.manifest(meta, spec=asked)


def shape(seen: Observed) -> str:
    """Return a digest of what a queue counts and chooses by: pods of another one need to be admitted for it."""
    pods = _pod_set(replace(seen, queueing=None))  # without what the queue itself gives to the pods
    spec = pods["template"]["spec"]
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        container.pop("image", None)  # its digest is known only once a pod has run
    return sha256(json.dumps(pods, sort_keys=True).encode()).hexdigest()[:16]


def _pod_set(seen: Observed) -> dict[str, Any]:
    made_of = seen.round_snapshot
    pod = pod_manifest(seen, seen.hosts[-1], Place())
    spec = {name: pod["spec"][name] for name in _OF_A_POD if name in pod["spec"]}
    for group in ("containers", "initContainers"):
        if group in pod["spec"]:
            spec[group] = [_container(each) for each in pod["spec"][group]]
    if node_affinity := pod["spec"].get("affinity", {}).get("nodeAffinity"):
        spec["affinity"] = {"nodeAffinity": node_affinity}
    pods = {"name": POD_SET, "count": len(seen.all_hosts), "template": {"spec": spec}}
    if topology := topology_request(made_of.pod.metadata.get("annotations", {}), made_of.topology.hosts):
        pods["topologyRequest"] = topology
    return pods


def running(workload: Workload, *, ready: bool, now: float) -> Object:
    """Return the Workload that says whether all its pods run, for queues that wait for that.

    The reasons are Kueue's, which waits for what has run before by another of its times, `recoveryTimeout`.
    """
    has_run = workload.pods_ready or workload.recovers
    if ready:
        return _with(workload, now, PodsReady=(TRUE, "Recovered" if has_run else "Started", "All pods run"))
    if has_run:
        return _with(workload, now, PodsReady=(FALSE, RECOVERS, "A pod that ran was lost, and is made anew"))
    return _with(workload, now, PodsReady=(FALSE, "WaitForStart", ""))


def released(workload: Workload, now: float) -> Object:
    """Return the Workload without quota, because its pods have ended, ready to be admitted again."""
    message, again = workload.evicted_message, workload.evicted in _QUEUED_AGAIN_AT_ONCE
    told = _with(
        workload,
        now,
        QuotaReserved=(FALSE, "Pending", message),
        Admitted=(FALSE, "NoReservation", "The workload has no reservation"),
        Requeued=(TRUE if again else FALSE, workload.evicted, message),
        PodsReady=(FALSE, "WaitForStart", ""),
    )
    status = {name: value for name, value in told["status"].items() if name != "admission"}
    return {**told, "status": status}


def ended(workload: Workload, *, complete: bool, message: str, now: float) -> Object:
    """Return the Workload of a job that is Complete or Failed, which frees its quota."""
    return _with(workload, now, Finished=(TRUE, "Succeeded" if complete else "Failed", message))


def _container(container: Mapping[str, Any]) -> dict[str, Any]:
    return {name: container[name] for name in _OF_A_CONTAINER if name in container}


def _with(workload: Workload, now: float, **told: tuple[ConditionStatus, str, str]) -> Object:
    raw = workload.raw
    status = raw.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", [])}
    for kind, (value, reason, message) in told.items():
        before = conditions.get(kind, {})
        since = before["lastTransitionTime"] if before.get("status") == value else timestamp(now)
        conditions[kind] = {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message[:1024],
            "lastTransitionTime": since,
            "observedGeneration": raw["metadata"].get("generation", 1),
        }
    return {**raw, "status": {**status, "conditions": list(conditions.values())}}

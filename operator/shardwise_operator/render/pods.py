"""The pod of one host: where it may run, and what keeps it there. Its container is in `container.py`.

The class comes first, the job's template over it, and what the pods cannot do without over both. The class decides
where a pod may run: the job's `nodeSelector` and `affinity` narrow that further.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.job.load import as_data
from shardwise.job.topology import node_labels
from shardwise.protocol import pods
from shardwise_operator.observe.hosts import is_first, numbers_of
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.snapshot import Snapshot
from shardwise_operator.observe.workload import Admission
from shardwise_operator.render.container import container, side_container, sidecar
from shardwise_operator.render.gang import gang_reference
from shardwise_operator.render.names import metadata, pod_name
from shardwise_operator.render.security import pod_security
from shardwise_operator.render.volumes import volumes
from shardwise_operator.runtime.kinds import PODS

# Names one slice of one job among all of the cluster; written here, read by host 0's anti-affinity.
SLICE_ID_LABEL = "shardwise.dev/slice-id"
# With the time that the cluster takes to notice, a pod of a silent node is given up after about a minute and a half.
_TOLERATED_SECONDS = 30
LOST_NODES = [
    {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED_SECONDS}
    for taint in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
]


_PLACEHOLDER = ("python", "-P", "-m", "shardwise.launcher.placeholder")


@dataclass(frozen=True)
class Place:
    """Where a pod has to go, and where not.

    Attributes:
        pool: its slice's place.
        avoid: the node that has failed it twice.
        avoid_pool: the place that has failed its slice twice, or several, joined by commas.
        gang: the gang with which it gets a node; None if it looks for one alone.

    """

    pool: str | None = None
    avoid: str | None = None
    avoid_pool: str | None = None
    gang: str | None = None


def pod_manifest(seen: Observed, host: str, place: Place) -> dict[str, Any]:
    """Return the next pod of a host, "<slice>-<host>"."""
    snapshot = seen.round_snapshot
    meta, asked = metadata(seen, pod_name(seen.name, host, seen.state.attempts[host])), snapshot.pod.metadata
    queue = _admission(seen)
    meta["labels"] = {**asked.get("labels", {}), **queue.labels, **meta["labels"], **_labels(seen, host)}
    ours = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", **snapshot.machine.spec.annotations}
    meta["annotations"] = {**ours, **queue.annotations, **asked.get("annotations", {})}
    return PODS.manifest(meta, spec=_spec(seen, snapshot, host, place))


def placeholder_manifest(seen: Observed, host: str, place: Place) -> dict[str, Any]:
    """Return a pod that holds the place of a host and runs nothing, without what its job would run beside the agent."""
    made = pod_manifest(seen, host, place)
    agent = {**made["spec"]["containers"][0], "command": [*_PLACEHOLDER]}
    spec = {name: value for name, value in made["spec"].items() if name != "initContainers"}
    return {**made, "spec": {**spec, "containers": [agent]}}


def _spec(seen: Observed, snapshot: Snapshot, host: str, place: Place) -> dict[str, Any]:
    label = snapshot.placement_label
    pool = {label: place.pool} if label and place.pool else {}
    queue = _admission(seen)
    domain = queue.domains[snapshot.rank(host)] if queue.domains else {}
    asked = snapshot.pod.spec
    machine = snapshot.machine.spec
    sides = [side_container(each) for each in asked.get("containers", []) if each["name"] != pods.AGENT]
    spec: dict[str, Any] = {
        "hostname": f"{seen.name}-{host}",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": int(snapshot.grace_seconds),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": {
            **queue.node_selector,
            **domain,
            **asked.get("nodeSelector", {}),
            **node_labels(snapshot.machine, snapshot.job.spec.hardware),
            **pool,
        },
        "tolerations": [*_tolerations(snapshot), *map(dict, queue.tolerations)],
        "securityContext": pod_security(snapshot, machine.pod_security),
        "containers": [container(seen, snapshot, host), *sides],
        "volumes": volumes(seen, snapshot),
    }
    # The class's first: what a job runs before its trainer may need the network already.
    before = [*map(sidecar, machine.sidecars), *map(side_container, asked.get("initContainers", []))]
    if before:
        spec["initContainers"] = before
    affinity = _both(asked.get("affinity", {}), _affinity(seen, label, host, place))
    if affinity:
        spec["affinity"] = affinity
    if place.gang:
        spec["workloadRef"] = gang_reference(place.gang)
    if label and not is_first(host) and place.pool is None:
        spec["schedulingGates"] = [{"name": pods.SLICE_GATE}]
    return spec | {name: value for name, value in asked.items() if name not in spec}


def _labels(seen: Observed, host: str) -> dict[str, str]:
    slice_, of_slice = numbers_of(host)
    return {
        pods.SLICE_LABEL: str(slice_),
        pods.HOST_LABEL: str(of_slice),
        pods.POD_ATTEMPT_LABEL: str(seen.state.attempts[host]),
        pods.ROUND_LABEL: str(seen.state.round),
        SLICE_ID_LABEL: _slice_id(seen, host),
    }


def _slice_id(seen: Observed, host: str) -> str:
    return f"{seen.uid}-{numbers_of(host)[0]}"


def _tolerations(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return all tolerations, ours first.

    Of those that match a taint the first counts: a job's toleration of every taint would keep its pod on a lost node.
    """
    of_class = [as_data(toleration) for toleration in snapshot.machine.spec.tolerations]
    asked = [*of_class, *snapshot.pod.spec.get("tolerations", [])]
    named = {each.get("key") for each in asked if each.get("effect") in (None, "NoExecute")}
    return [ours for ours in LOST_NODES if ours["key"] not in named] + asked


def _affinity(seen: Observed, label: str | None, host: str, place: Place) -> dict[str, Any]:
    """Return the affinity: one slice per place, and no place that failed twice."""
    if label is None:
        return _elsewhere(place.avoid) if place.avoid else {}
    if not is_first(host):
        return {}
    others = [
        {"key": pods.JOB_LABEL, "operator": "Exists"},
        {"key": SLICE_ID_LABEL, "operator": "NotIn", "values": [_slice_id(seen, host)]},
    ]
    term = {"topologyKey": label, "namespaceSelector": {}, "labelSelector": {"matchExpressions": others}}
    alone = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    if place.avoid_pool is None:
        return alone
    # Only where there is another: a place that was mended is better than none.
    other = {"matchExpressions": [{"key": label, "operator": "NotIn", "values": place.avoid_pool.split(",")}]}
    rather = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": other}]}
    return {**alone, "nodeAffinity": rather}


def _both(asked: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Join two affinities so that both hold: terms that are required of pods, or preferred, are lists to add to.

    Those that are required of nodes are alternatives, so what holds for all of them goes into each.
    """
    both = {kind: {**asked.get(kind, {})} for kind in {**asked, **ours}}
    for kind, parts in ours.items():
        for when, terms in parts.items():
            there = both[kind].get(when)
            if isinstance(terms, list):
                both[kind][when] = [*(there or []), *terms]
            elif not there:
                both[kind][when] = terms
            else:
                ((term,),) = terms.values()
                fields = [{**each, "matchFields": [*each.get("matchFields", []), *term["matchFields"]]}
                          for each in there["nodeSelectorTerms"]]  # fmt: skip
                both[kind][when] = {"nodeSelectorTerms": fields}
    return both


def _elsewhere(node: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "NotIn", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _admission(seen: Observed) -> Admission:
    """Return what the job's queue gives to its pods; nothing without one."""
    queueing = seen.queueing
    return queueing.admission if queueing and queueing.admission else Admission()

"""Objects that name a job as their controller without being its own: the API server checks no owner."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from tests.operator.building import NOW, SETTINGS, UID, begun, classes, manifest, pod, snapshot

from shardwise_operator.observe.observe import Observer
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.rivals import Rivals
from shardwise_operator.observe.state_fields import write_state
from shardwise_operator.render.names import config_map_name, pod_name
from shardwise_operator.runtime.cache import Cache
from shardwise_operator.runtime.errors import NotFoundError
from shardwise_operator.runtime.kinds import (
    ACCELERATOR_CLASSES,
    CONFIG_MAPS,
    NETWORK_POLICIES,
    PODS,
    TRAINING_JOBS,
    Kind,
    Object,
)
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.reflector import Reflector
from shardwise_operator.runtime.transport import Api, Page

_KINDS = (ACCELERATOR_CLASSES, CONFIG_MAPS, NETWORK_POLICIES, PODS, TRAINING_JOBS)


class _Cluster:
    """The runtime's own caches, filled by hand, and an API server with the same objects."""

    def __init__(self) -> None:
        self.caches, self._stores = Cache(), {}
        for kind in _KINDS:
            reflector = Reflector(cast("Api", None), Metrics(), kind, lambda _: None)
            self._stores[kind] = reflector.store
            self.caches.add(reflector)
        for name, each in classes().items():
            self.put(ACCELERATOR_CLASSES, {**each, "metadata": {"name": name}})

    def put(self, kind: Kind, obj: Object) -> None:
        """Hold an object; its UID tells its namespace and its name."""
        metadata = obj["metadata"]
        uid = f"uid-{metadata.get('namespace', '')}-{metadata['name']}"
        self._stores[kind].put({**obj, "metadata": {"uid": uid, "resourceVersion": "1", **metadata}})

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        found = self.caches.get(kind, namespace, name)
        if found is None:
            raise NotFoundError(404, "NotFound", name)
        return found

    def pages(self, _kind: Kind, _namespace: str = "", *, labels: str = "") -> Iterator[Page]:  # noqa: ARG002
        return iter(())

    def observe(self, job: Object) -> Observed:
        return Observer(self.caches, self, SETTINGS).observe(job, None, NOW)


def _job(name: str = "job", **status: Any) -> Object:
    job = manifest(name)
    metadata = {**job["metadata"], "uid": UID, "generation": 1, "creationTimestamp": "2027-01-15T08:00:00Z"}
    return {**job, "metadata": metadata, "status": write_state(begun(sealed_round=0), 1) | status}


def _owned(name: str, namespace: str = "default", **metadata: Any) -> Object:
    owner = TRAINING_JOBS.reference("job", UID) | {"controller": True}
    return {"metadata": {"namespace": namespace, "name": name, "ownerReferences": [owner], **metadata}}


def _snapshot(namespace: str = "default") -> Object:
    data = snapshot().data
    seal = {"shardwise.dev/seal": SETTINGS.tokens.seal(UID, 0, data)}
    return {**_owned(config_map_name("job", 0), namespace, annotations=seal), "data": data, "immutable": True}


def _pod(host: str, namespace: str = "default", *, name: str = "", **labels: str) -> Object:
    """A pod that runs, by its labels and its name that of a host."""
    slice_, of_slice = host.split("-")
    numbers = {"slice": slice_, "host": of_slice, "attempt": "0", "round": "0"} | labels
    labelled = {f"shardwise.dev/{label}": number for label, number in numbers.items()}
    made = _owned(name or pod_name("job", host, 0), namespace, labels=labelled)
    return {**made, "spec": {}, "status": {"phase": "Running", "podIP": "10.0.0.1"}}


def _uids(seen: Observed) -> Sequence[str]:
    return [pod.uid for pod in seen.pods]


def _running() -> _Cluster:
    """A job whose two hosts run."""
    cluster = _Cluster()
    cluster.put(CONFIG_MAPS, _snapshot())
    for host in ("0-0", "0-1"):
        cluster.put(PODS, _pod(host))
    return cluster


def test_no_pod_of_another_namespace_is_a_host() -> None:
    """Neither its address nor its termination record counts, of a job that runs and of one that has ended."""
    cluster, job = _running(), _job(pods={"0-0": "uid-default-job-0-0-0", "0-1": "uid-default-job-0-1-0"})
    before = cluster.observe(job)
    cluster.put(PODS, _pod("0-0", "others"))
    cluster.put(PODS, _pod("0-0", "others", name="job-0-0-1", attempt="1"))

    after = cluster.observe(job)

    assert _uids(after) == _uids(before) == ["uid-default-job-0-0-0", "uid-default-job-0-1-0"]
    assert after.leader == before.leader is not None
    assert _uids(cluster.observe(_job(phase="Complete"))) == _uids(before)


def test_no_object_of_another_namespace_is_a_child() -> None:
    """A ConfigMap there is not what a round is made of, and none of a job's guards."""
    cluster = _Cluster()
    cluster.put(CONFIG_MAPS, _snapshot("others"))
    cluster.put(NETWORK_POLICIES, _owned("job-shardwise", "others"))

    found = cluster.observe(_job())

    assert (found.children, found.guard, found.snapshot, found.foreign_snapshot) == ({}, None, None, "")


_UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"}
_LABELS = _pod("0-0")["metadata"]["labels"]
NONE_OF_OURS = {
    "without labels": _owned("job-0-0-0"),
    "without a slice": _owned("job-0-0-0", labels={**_LABELS, "shardwise.dev/slice": ""}),
    "without a round": _owned("job-0-0-0", labels={**_LABELS, "shardwise.dev/round": "first"}),
    "with an attempt that is no number": _pod("0-0", attempt="1.5", name="job-0-0-1.5"),
    "of another name": _pod("0-0", name="any"),
    "of another attempt's name": _pod("0-0", name="job-0-0-1"),
    "of a plan's label": _pod("0-0", plan="plan"),
}
none_of_ours = pytest.mark.parametrize("forged", NONE_OF_OURS.values(), ids=NONE_OF_OURS.keys())


@none_of_ours
def test_a_pod_that_the_operator_has_not_made_is_no_host(forged: Object) -> None:
    """It stops no pass of the job that it names, whether that runs or has ended, and is left alone."""
    cluster = _Cluster()
    cluster.put(CONFIG_MAPS, _snapshot())
    cluster.put(PODS, _pod("0-1"))
    cluster.put(PODS, {"spec": {}, "status": {"phase": "Succeeded"}, **forged})

    made = {"0-0": "uid-that-is-gone", "0-1": "uid-default-job-0-1-0"}
    for phase in ("Running", "Complete"):
        assert _uids(cluster.observe(_job(phase=phase, pods=made))) == ["uid-default-job-0-1-0"]


@none_of_ours
def test_such_a_pod_stops_no_other_job(forged: Object) -> None:
    """Nor does another job give way for what it holds, as it would for a pod of the job's own."""
    cluster = _Cluster()
    cluster.put(TRAINING_JOBS, _job(phase="Pending"))
    cluster.put(PODS, {**_pod("0-1"), "status": {"phase": "Pending", "conditions": [_UNSCHEDULABLE]}})
    held = {"spec": {"nodeName": "node"}, "status": {"phase": "Running"}}
    cluster.put(PODS, {**forged, **held})
    young = {"namespace": "young", "name": "job", "uid": "uid-young", "creationTimestamp": "2027-01-16T08:00:00Z"}
    pods = [pod(), pod("0-1", phase="Pending", node=None, unschedulable="no node fits")]

    assert Rivals(cluster.caches).older(young, pods) == ""
    cluster.put(PODS, {**_pod("0-2"), **held})
    assert Rivals(cluster.caches).older(young, pods) == "default/job"

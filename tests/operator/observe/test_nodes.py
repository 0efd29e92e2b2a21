"""What nodes do to a job, on a real API server with Node objects and nobody behind them.

Two pools of two nodes, and a class whose slices are one pool each.
"""

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.operator.building import classes, manifest
from tests.operator.operating import MERGE, Place, StandInAgents, told

from shardwise_operator.observe.agents import AgentError, Target
from shardwise_operator.observe.node import LEAVING_TAINT
from shardwise_operator.observe.nodes import selector

pytestmark = pytest.mark.usefixtures("operator")

OWNER, POOL = "example.com/test", "example.com/pool"
NODES = "/api/v1/nodes"
_GKE, _INSTANCE = "cloud.google.com/", "node.kubernetes.io/instance-type"


class Pools:
    """The nodes a-0, a-1, b-0 and b-1 of one test, and a class of slices on them."""

    def __init__(self, place: Place) -> None:
        """Nothing is made yet."""
        self.place, self.machine = place, f"{place.namespace}-class"
        self.nodes = [self.node(pool, host) for pool in "ab" for host in range(2)]

    def node(self, pool: str, host: int) -> str:
        """The name of a node: the whole cluster sees it."""
        return f"{self.place.namespace}-{pool}-{host}"

    def make(self) -> None:
        """Make the nodes, ready, and the class."""
        for name in self.nodes:
            labels = {OWNER: self.place.namespace, POOL: name.split("-")[-2]}
            self.place.client.request("POST", NODES, {"metadata": {"name": name, "labels": labels}})
            self.ready(name, "True")
        base = classes()["tpu-v5e-4t"]
        spec = {**base["spec"], "nodeSelector": {OWNER: self.place.namespace}, "placementLabel": POOL}
        made = {**base, "metadata": {"name": self.machine}, "spec": spec}
        self.place.client.request("POST", "/apis/shardwise.dev/v1alpha1/acceleratorclasses", made)

    def remove(self, *names: str) -> None:
        """Remove nodes that are there."""
        there = {each["metadata"]["name"] for each in self.place.client.request("GET", NODES)["items"]}
        for name in there.intersection(names):
            self.place.client.request("DELETE", f"{NODES}/{name}")

    def ready(self, name: str, status: str) -> None:
        """Say of a node whether it is ready; Unknown is what the cluster says of a silent one."""
        conditions = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
        self.place.client.request("PATCH", f"{NODES}/{name}/status", conditions, MERGE)

    def job(self, slices: int) -> dict[str, Any]:
        """A job of slices of two hosts."""
        return manifest(hardware={"accelerator": self.machine, "topology": "2x4", "slices": slices})

    def train(self, slices: int) -> None:
        """Have a job run, slice 0 in pool a, slice 1 in pool b."""
        self.place.apply(self.job(slices))
        pods = [
            (f"job-{slice_}-{host}-0", self.node("ab"[slice_], host)) for slice_ in range(slices) for host in range(2)
        ]
        self.place.until_pods(*(pod for pod, _ in pods))
        for pod, node in pods:
            self.place.until(f"the open gate of {pod}", partial(self.open, pod))
            self.place.bind(pod, node)
        self.place.run(*(pod for pod, _ in pods))
        self.place.until_phase("Running")

    def told(self, reason: str) -> list[int]:
        """How often each event of a reason was told."""
        listed = self.place.client.request("GET", self.place.path("events"))["items"]
        return [event["count"] for event in listed if event["reason"] == reason]

    def gated(self, pod: str) -> bool:
        """Whether a pod waits for its slice's place."""
        return "schedulingGates" in self.place.pods()[pod]["spec"]

    def open(self, pod: str) -> bool:
        """Whether it may go to a node."""
        return not self.gated(pod)

    def pool_of(self, pod: str) -> str | None:
        """The pool that a pod has to go to; None where it may choose."""
        pool: str | None = self.place.pods()[pod]["spec"]["nodeSelector"].get(POOL)
        return pool


@pytest.fixture
def pools(place: Place, agents: StandInAgents) -> Iterator[Pools]:
    """Return pools with nodes and a class; host 0 of every job says that it trains."""
    agents.answer = told()
    pools = Pools(place)
    pools.make()
    yield pools
    pools.remove(*pools.nodes)


def test_a_notice_brings_a_save(place: Place, pools: Pools, agents: StandInAgents) -> None:
    """GKE's taint on a host's node has the run saved, once; what is lost there later is a maintenance's."""
    pools.train(slices=1)
    node = pools.node("a", 1)
    taint = {"spec": {"taints": [{"key": LEAVING_TAINT, "effect": "NoSchedule"}]}}
    place.client.request("PATCH", f"{NODES}/{node}", taint, MERGE)

    place.until("the notice", lambda: place.status().get("leaving") == {"0-1": node})
    assert agents.saved == ["192.0.2.1"]
    pools.remove(node)
    gone = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
    place.end("job-0-1-0", 137, conditions=[gone])
    place.until("the replacement", lambda: "job-0-1-1" in place.pods())

    assert place.status()["restarts"] == {"maintenance": 1}
    assert "leaving" not in place.status()
    assert agents.saved == ["192.0.2.1"]
    assert pools.pool_of("job-0-1-1") == "a"


def test_a_notice_is_told_once(
    place: Place, pools: Pools, agents: StandInAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often host 0 has to be asked before it takes the request for a save."""
    asked: list[str] = []

    def save(target: Target) -> None:
        asked.append(target.address)
        if len(asked) < 3:
            raise AgentError(f"{target.address}: silence")

    monkeypatch.setattr(agents, "save", save)
    pools.train(slices=1)
    node = pools.node("a", 1)
    taint = {"spec": {"taints": [{"key": LEAVING_TAINT, "effect": "NoSchedule"}]}}
    place.client.request("PATCH", f"{NODES}/{node}", taint, MERGE)

    place.until("the notice", lambda: place.status().get("leaving") == {"0-1": node})
    place.until("the event", lambda: pools.told("NodeLeaving"))

    assert len(asked) == 3
    assert pools.told("NodeLeaving") == [1]


def test_the_watch_of_nodes_goes_with_the_class(
    place: Place, pools: Pools, agents: StandInAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class that takes other nodes has those watched; its old ones are until no pod of a job is on them any more."""
    monkeypatch.setattr("shardwise_operator.observe.nodes._LOOK_AGAIN_SECONDS", 0.1)
    before, after = f"{OWNER}={place.namespace}", f"{POOL}=b,{OWNER}={place.namespace}"
    pools.train(slices=1)
    assert _watches(before)

    selects = {"spec": {"nodeSelector": {OWNER: place.namespace, POOL: "b"}}}
    place.client.request("PATCH", f"/apis/shardwise.dev/v1alpha1/acceleratorclasses/{pools.machine}", selects, MERGE)
    place.until("the new watch", lambda: _watches(after))
    taint = {"spec": {"taints": [{"key": LEAVING_TAINT, "effect": "NoSchedule"}]}}
    place.client.request("PATCH", f"{NODES}/{pools.node('a', 1)}", taint, MERGE)
    place.until("the notice", lambda: place.status().get("leaving") == {"0-1": pools.node("a", 1)})
    assert agents.saved == ["192.0.2.1"]

    place.delete()
    for pod in place.pods():
        place.remove(pod)
    place.until("the end of the old watch", lambda: not _watches(before))
    assert _watches(after)


def test_the_same_slice_twice_is_relocated(place: Place, pools: Pools) -> None:
    """First its lost host is replaced where the slice is; then the whole slice goes, and the other one stays."""
    pools.train(slices=2)
    kept = {name: place.pods()[name]["metadata"]["uid"] for name in ("job-1-0-0", "job-1-1-0")}
    place.end("job-0-1-0", 137)
    place.until("the replacement", lambda: "job-0-1-1" in place.pods())
    assert (pools.pool_of("job-0-1-1"), pools.gated("job-0-1-1")) == ("a", False)
    place.bind("job-0-1-1", pools.node("a", 1))
    place.run("job-0-1-1")

    place.end("job-0-1-1", 137)
    place.until("the end that is asked of host 0", lambda: "deletionTimestamp" in place.pods()["job-0-0-0"]["metadata"])
    place.remove("job-0-0-0")
    place.until_pods("job-0-0-1", "job-0-1-1", "job-0-1-2", *kept)

    assert (pools.pool_of("job-0-0-1"), pools.gated("job-0-1-2")) == (None, True)
    assert "NotIn" in str(place.pods()["job-0-0-1"]["spec"]["affinity"]["nodeAffinity"])
    assert place.status()["avoid"] == {"0": "a"}
    assert {name: place.pods()[name]["metadata"]["uid"] for name in kept} == kept
    place.bind("job-0-0-1", pools.node("b", 0))
    place.until("the open gate", lambda: not pools.gated("job-0-1-2"))
    assert pools.pool_of("job-0-1-2") == "b"


def test_a_slice_whose_place_is_gone_is_relocated(place: Place, pools: Pools) -> None:
    """A pod that was to join the others there waits for nothing; two that went one after the other are one loss."""
    pools.train(slices=1)
    place.end("job-0-0-0", 137, reason="Error", conditions=[_evicted()])
    place.until("the replacement", lambda: "job-0-0-1" in place.pods())
    assert pools.pool_of("job-0-0-1") == "a"
    pools.remove(*pools.nodes[:2])
    place.end("job-0-1-0", 137, conditions=[_evicted()])

    place.until("host 0's next pod", lambda: "job-0-0-2" in place.pods())

    assert pools.pool_of("job-0-0-2") is None
    place.until("the follower", lambda: any(name.startswith("job-0-1-") and pools.gated(name) for name in place.pods()))
    assert place.status()["restarts"] == {"eviction": 1}
    assert "avoid" not in place.status()


def test_a_stuck_pod_is_forced_only_when_its_node_is_gone(place: Place, pools: Pools) -> None:
    """No kubelet ends it: a ready node's is waited for, a silent one's is given up, one that is gone has it removed."""
    job = manifest()
    job["spec"]["pod"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    place.apply(job)
    place.until_pods("job-0-0-0", "job-0-1-0")
    node = pools.node("a", 0)
    place.bind("job-0-1-0", node)
    place.run("job-0-0-0", "job-0-1-0")
    place.until_phase("Running")

    place.client.request("DELETE", place.path("pods", "job-0-1-0"))
    place.until("the wait for its end", lambda: place.status().get("reason") == "PodEnding")
    assert set(place.pods()) == {"job-0-0-0", "job-0-1-0"}
    pools.ready(node, "Unknown")
    place.until_pods("job-0-0-0", "job-0-1-0", "job-0-1-1")
    assert "deletionTimestamp" in place.pods()["job-0-1-0"]["metadata"]
    pools.remove(node)

    place.until_pods("job-0-0-0", "job-0-1-1")


def test_a_replaced_pod_has_the_image_that_the_others_run(place: Place, agents: StandInAgents) -> None:
    """By its digest, for the tag may have moved since."""
    agents.answer = told()
    digest = "sha256:" + "d" * 64
    place.train(manifest())
    container = {"name": "agent", "image": "localhost/trainer:dev", "ready": True, "restartCount": 0}
    started = {"state": {"running": {}}, "imageID": f"localhost/trainer@{digest}"}
    place.report("job-0-0-0", containerStatuses=[container | started])
    place.until("the digest", lambda: place.status().get("image") == f"localhost/trainer@{digest}")

    place.end("job-0-1-0", 137)
    place.until("the replacement", lambda: "job-0-1-1" in place.pods())

    images = {name: pod["spec"]["containers"][0]["image"] for name, pod in place.pods().items()}
    assert images["job-0-1-0"] == "localhost/trainer:dev"
    assert images["job-0-1-1"] == f"localhost/trainer@{digest}"


@pytest.mark.parametrize(
    ("machine", "labels"),
    [
        ("cpu-sim", ""),
        ("gpu", ""),
        ("gke-gpu-h200", f"{_GKE}gke-accelerator=nvidia-h200-141gb"),
        ("tpu-v5e", f"{_GKE}gke-tpu-accelerator=tpu-v5-lite-podslice,{_GKE}gke-tpu-topology,{_INSTANCE}"),
    ],
)
def test_which_nodes_are_watched(machine: str, labels: str) -> None:
    """Those of the class, of every topology; of a class that takes any node, none."""
    assert selector(dict(classes()[machine])) == labels


@pytest.mark.parametrize(
    "labels",
    [{POOL: "v5e pool"}, {POOL: "a" * 64}, {"example.com/": "a"}, {"example..com/a": "a"}, {"a b": "{topology}"}],
    ids=str,
)
def test_labels_that_no_node_can_have_are_not_watched(labels: dict[str, str]) -> None:
    """The API server refuses such a watch, and the operator would wait for it, unready, until it is started again."""
    machine = dict(classes()["tpu-v5e"])
    assert selector({**machine, "spec": {**machine["spec"], "nodeSelector": labels}}) == ""


def _watches(labels: str) -> bool:
    """Return whether the nodes with these labels are watched."""
    return f"watch nodes {labels}" in [thread.name for thread in threading.enumerate()]


def _evicted() -> dict[str, str]:
    return {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}

"""Slices land whole on a real scheduler: two pools of nodes that KWOK plays, each with room for one slice of two hosts.

The pods run nothing: what is tested is where they go.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import kwok
from tests.cluster.client import RefusedError
from tests.cluster.cluster import Cluster
from tests.cluster.commands import wait
from tests.kubernetes.jobs import TRAINING_JOBS, Job, manifest

Apply = Callable[[Mapping[str, Any]], Job]

POOL_LABEL = "test.shardwise.dev/pool"
OWNER_LABEL = "test.shardwise.dev/namespace"
HELD_FOR = "test.shardwise.dev/held-for"
ROOM = {"cpu": "1", "memory": "4Gi", "pods": "10"}  # one host, which asks for a CPU
CLASSES = "/apis/shardwise.dev/v1alpha1/acceleratorclasses"
CATALOG = "/apis/shardwise.dev/v1alpha1/acceleratorcatalogs/shardwise"


class Pools:
    """Two pools of two nodes, a and b, their class, and the pods of one namespace on them."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        """Nothing is made yet."""
        self._client, self._namespace = cluster.client, namespace
        self.accelerator = f"pools-{namespace}"
        self._pool_of = {f"{namespace}-{pool}{number}": pool for pool in "ab" for number in range(2)}

    def make(self) -> None:
        """Make the nodes and the class, and wait until a job may ask for it."""
        for name, pool in self._pool_of.items():
            labels = {OWNER_LABEL: self._namespace, POOL_LABEL: pool}
            self._client.request("POST", "/api/v1/nodes", kwok.node(name, labels, ROOM))
        self._client.request("POST", CLASSES, self._class())
        wait("the nodes", lambda: self._pool_of.keys() <= self._client.ready_nodes)
        wait("the class to be known", lambda: self._client.answers(CATALOG) and self._admits(self.job("asks", 1)))

    def remove(self) -> None:
        """Remove what `make` has made; no pod may be left on the nodes, since nobody would end it."""
        self._client.kubectl("delete", "acceleratorclass", self.accelerator, "--ignore-not-found")
        self._client.kubectl("delete", "nodes", *self._pool_of, "--ignore-not-found")

    def hold(self, pool: str, job: str) -> None:
        """Keep a pool for the pods of one job."""
        self._taint(pool, {"key": HELD_FOR, "value": job, "effect": "NoSchedule"})

    def open(self, pool: str) -> None:
        """Let everyone into a pool that was held."""
        self._taint(pool)

    def job(self, name: str, slices: int) -> dict[str, Any]:
        """A job of slices of two hosts each; besides open pools, those that are held for its name take its pods."""
        job = manifest("cpu-two-hosts")
        job["metadata"]["name"] = name
        job["spec"]["hardware"] = {"accelerator": self.accelerator, "topology": "2x4", "slices": slices}
        job["spec"]["recovery"] = {"startWithin": "10s"}
        asked = job["spec"]["pod"]["template"]["spec"]
        asked["containers"][0]["resources"]["requests"]["cpu"] = "1"
        asked["tolerations"] = [{"key": HELD_FOR, "operator": "Equal", "value": name}]
        return job

    def slices(self, job: Job) -> list[str]:
        """The pools of the slices of a job that are there with both hosts.

        Whoever asks, every slice of the namespace is looked at: none is in two pools, and no two are in one.
        """
        pods = self._client.request("GET", f"/api/v1/namespaces/{self._namespace}/pods")["items"]
        hosts: dict[tuple[str, str], list[str]] = defaultdict(list)
        for pod in pods:
            if "nodeName" in pod["spec"] and "deletionTimestamp" not in pod["metadata"]:
                labels = pod["metadata"]["labels"]
                slice_ = labels["shardwise.dev/job"], labels["shardwise.dev/slice"]
                hosts[slice_].append(self._pool_of[pod["spec"]["nodeName"]])
        assert all(len(set(pools)) == 1 for pools in hosts.values()), f"a slice is split: {dict(hosts)}"
        taken = [pools[0] for pools in hosts.values()]
        assert len(set(taken)) == len(taken), f"slices share a pool: {dict(hosts)}"
        return sorted(pools[0] for (name, _), pools in hosts.items() if name == job.name and len(pools) == 2)

    def _admits(self, job: Mapping[str, Any]) -> bool:
        """Whether the policy of admission knows the class of a job, which is not made."""
        try:
            self._client.request("POST", f"{TRAINING_JOBS.format(self._namespace)}?dryRun=All", job)
        except RefusedError as refusal:
            if self.accelerator not in str(refusal):
                raise
            return False
        return True

    def _taint(self, pool: str, *taints: Mapping[str, str]) -> None:
        ours = kwok.node("", {}, ROOM)["spec"]["taints"]
        for name in (name for name, of in self._pool_of.items() if of == pool):
            patch = {"spec": {"taints": [*ours, *taints]}}
            self._client.request("PATCH", f"/api/v1/nodes/{name}", patch, "application/merge-patch+json")

    def _class(self) -> dict[str, Any]:
        spec = {
            "platform": "cpu",
            "description": "two pools of a test",
            "kernels": ["plain"],
            "hosts": {"max": 2, "minDevices": 1, "maxDevices": 8},
            "nodeSelector": {OWNER_LABEL: self._namespace},
            "tolerations": [{"key": kwok.MARK, "operator": "Exists"}],
            "placementLabel": POOL_LABEL,
        }
        metadata = {"name": self.accelerator}
        return {
            "apiVersion": "shardwise.dev/v1alpha1",
            "kind": "AcceleratorClass",
            "metadata": metadata,
            "spec": {**spec, "podSecurity": "restricted"},
        }


@pytest.fixture
def pools(_chart: Cluster, cluster: Cluster, cluster_namespace: str, tmp_path: Path) -> Iterator[Pools]:
    """Return two empty pools. A test names this fixture before `apply`, so that its jobs go first."""
    made = Pools(cluster, cluster_namespace)
    with kwok.playing(cluster.kubeconfig, f"{OWNER_LABEL}={cluster_namespace}", tmp_path / "kwok.log"):
        try:
            made.make()
            yield made
        finally:
            made.remove()


@pytest.mark.long  # tests/operator/controller/test_gangs.py has slices that want a place each
def test_two_jobs_of_one_slice_each_have_a_pool_of_their_own(pools: Pools, apply: Apply) -> None:
    """The scheduler likes to spread pods: both hosts of a slice are in one pool all the same, and no other's is."""
    with ThreadPoolExecutor() as threads:
        left, right = threads.map(apply, [pools.job("left", 1), pools.job("right", 1)])

    left.until("its slice", lambda: pools.slices(left), 60)
    right.until("its slice", lambda: pools.slices(right), 60)

    assert {*pools.slices(left), *pools.slices(right)} == {"a", "b"}


def test_of_two_jobs_with_half_each_one_gets_all_and_then_the_other(pools: Pools, apply: Apply) -> None:
    """Each holds one of the two pools that it needs: the younger gives its own back long before `startWithin`."""
    pools.hold("a", "left")
    pools.hold("b", "right")
    with ThreadPoolExecutor() as threads:
        patient = {"recovery": {"startWithin": "1h"}}
        jobs = [pools.job(name, 2) for name in ("left", "right")]
        left, right = threads.map(apply, [{**job, "spec": {**job["spec"], **patient}} for job in jobs])

    def given_way() -> bool:
        return any(job.status.get("attempts", {}).get("0-0", 0) >= 1 for job in (left, right))

    left.until("one to give way", given_way, 60)
    pools.open("a")
    pools.open("b")

    def whole() -> list[Job]:
        return [job for job in (left, right) if pools.slices(job) == ["a", "b"]]

    left.until("one to be whole", whole, 180)
    winner = whole()[0]
    other = right if winner is left else left
    winner.delete()
    other.until("it to be whole", lambda: pools.slices(other) == ["a", "b"], 180)

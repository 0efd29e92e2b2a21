"""Queues of a real Kueue for the jobs of one namespace, and jobs that wait in them. For tests of the operator."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.cluster.client import Client
from tests.cluster.kueue import API
from tests.operator.building import asking, manifest
from tests.operator.living import Living
from tests.operator.operating import MERGE, Place, StandInAgents

from shardwise.protocol.run_status import RunSummary
from shardwise_operator.observe.agents import AgentError, Target

QUEUE = "team"
FLAVOR_LABEL = "test.shardwise.dev/flavor"
FLAVOR_TAINT = {"key": "test.shardwise.dev/reserved", "operator": "Exists", "effect": "NoSchedule"}
_WORKLOADS = API.removeprefix("/")


def queued_job(name: str = "job", *, priority: str = "", cpu: str = "1", **spec: Any) -> dict[str, Any]:
    """A job of two hosts, each of which asks for so many CPUs, in the queue of its namespace."""
    job = asking(manifest(name, **spec), agent={"resources": {"requests": {"cpu": cpu}}})
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": QUEUE}
    if priority:
        job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = priority
    return job


def make(client: Client, kind: str, name: str, *, namespace: str = "", **fields: Any) -> None:
    """Make an object of Kueue's."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    body = {"apiVersion": API.removeprefix("/apis/"), "kind": kind, "metadata": metadata, **fields}
    client.kubectl("create", "--filename=-", stdin=json.dumps(body))


class Queues:
    """A ClusterQueue with a quota of CPUs of one flavor, memory enough, and a LocalQueue of it in one namespace."""

    def __init__(self, place: Place, cpus: int, *, topology: str = "", **flavor: Any) -> None:
        """Make them, and classes of priority from `low` to `high`: 100 apart, since boosts come between them."""
        self.place, self._client = place, place.client
        self.name = place.namespace
        labels = {FLAVOR_LABEL: self.name}
        spec = {"nodeLabels": labels, "tolerations": [FLAVOR_TAINT], **flavor}
        if topology:
            spec["topologyName"] = topology
        self._make("ResourceFlavor", self.name, spec=spec)
        resources = [{"name": "cpu", "nominalQuota": str(cpus)}, {"name": "memory", "nominalQuota": "64Gi"}]
        quota = {"name": self.name, "resources": resources}
        cluster_queue = {
            "namespaceSelector": {},
            "queueingStrategy": "BestEffortFIFO",
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{"coveredResources": ["cpu", "memory"], "flavors": [quota]}],
        }
        self._make("ClusterQueue", self.name, spec=cluster_queue)
        self._make("LocalQueue", QUEUE, namespace=self.name, spec={"clusterQueue": self.name})
        for name, value in (("low", 100), ("high", 200)):
            self._make("WorkloadPriorityClass", self.priority(name), value=value)

    def priority(self, name: str) -> str:
        """The class of priority of this name in these queues."""
        return f"{self.name}-{name}"

    def remove(self) -> None:
        """Remove what is of no namespace, once what is in the queues is gone."""
        listed = self._client.request("GET", self.place.path("trainingjobs", group="apis/shardwise.dev/v1alpha1"))
        for job in listed["items"]:
            self.place.delete(job["metadata"]["name"])
        for plural in ("clusterqueues", "resourceflavors"):
            self._client.request("DELETE", f"{API}/{plural}/{self.name}")
        for name in ("low", "high"):
            self._client.request("DELETE", f"{API}/workloadpriorityclasses/{self.priority(name)}")

    def workloads(self) -> dict[str, dict[str, Any]]:
        """The Workloads of the namespace by the names of their jobs."""
        listed = self._client.request("GET", self.place.path("workloads", group=_WORKLOADS))["items"]
        return {each["metadata"]["labels"]["shardwise.dev/job"]: each for each in listed}

    def condition(self, job: str, kind: str) -> dict[str, Any]:
        """One condition of a job's Workload; {} without one."""
        conditions = self.workloads().get(job, {}).get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {})

    def change(self, job: str, patch: Mapping[str, Any]) -> None:
        """Change a job's Workload as a person does."""
        name = self.workloads()[job]["metadata"]["name"]
        self._client.request("PATCH", self.place.path("workloads", name, _WORKLOADS), patch, MERGE)

    def delete(self, job: str) -> None:
        """Delete a job's Workload as a person does."""
        self._client.request(
            "DELETE", self.place.path("workloads", self.workloads()[job]["metadata"]["name"], _WORKLOADS)
        )

    def _make(self, kind: str, name: str, **fields: Any) -> None:
        make(self._client, kind, name, **fields)


class ManyAgents(StandInAgents):
    """Host 0 of several jobs, each with what its own hosts say; whoever is asked to stop, stops."""

    def __init__(self) -> None:
        """Nobody answers yet."""
        super().__init__()
        self._answers: dict[str, RunSummary | None] = {}
        self._hosts: dict[str, Living] = {}

    @contextmanager
    def living(self, place: Place, name: str, number: int = 0) -> Iterator[Living]:
        """Have the hosts of a job live as long as this lasts."""

        def say(address: str, answer: RunSummary | None) -> None:
            self._answers[address] = answer

        with Living(place, name, say, number=number) as hosts:
            self._hosts[_network(number)] = hosts
            yield hosts

    def status(self, target: Target) -> RunSummary:
        """Answer as this job's hosts say."""
        answer = self._answers.get(target.address)
        if answer is None:
            raise AgentError(f"{target.address}: silence")
        return answer

    def stop(self, target: Target) -> None:
        """Have the job save and stop."""
        super().stop(target)
        self._hosts[target.address.rpartition(".")[0]].stops = True


def _network(number: int) -> str:
    """The first three numbers of the addresses of the hosts with this number."""
    return f"192.0.{2 + number}"

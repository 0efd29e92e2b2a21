"""A cluster in simulated time: what a job's operator sees of API server, scheduler, kubelets, nodes and launcher.

Stand-ins, and named so: `World` for the API server (objects in memory, caches that never lag), `Cluster` for scheduler,
kubelets and the cloud's node pools, `Launcher` for the agents and trainers of one run. The operator's observing,
deciding and writing and the launcher's budgets are the real ones. A month takes a minute.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.operator.building import NOW, classes

from shardwise.job.spec import Recovery
from shardwise.launcher.leader import budgets
from shardwise.protocol.contract import Cause, ExitCode
from shardwise.protocol.leader_record import Used
from shardwise.protocol.pods import TerminationRecord
from shardwise.protocol.run_status import CheckpointStatus, RunProgress, RunSummary
from shardwise_operator.observe.pod import host_of
from shardwise_operator.runtime.errors import ConflictError, NotFoundError, error_of
from shardwise_operator.runtime.kinds import (
    ACCELERATOR_CLASSES,
    NODES,
    PODS,
    TRAINING_JOBS,
    WORKLOADS,
    Kind,
    Object,
    condition_of,
    timestamp,
)
from shardwise_operator.runtime.store import controller_uid
from shardwise_operator.runtime.transport import Page

_POOL = "cloud.google.com/gke-nodepool"
_LEAVING = {"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}
_START_SECONDS, _JOIN_SECONDS, _RESTORE_SECONDS, _GRACE_SECONDS = 45.0, 30.0, 60.0, 20.0
_NODE_LOST_SECONDS = 40.0 + 30.0  # until its pods are deleted: what the cluster takes to notice, and what they tolerate
_SILENT_SECONDS, _HANG_SECONDS = 10.0, 300.0
_GONE_SECONDS = 300.0
_QUEUE_SECONDS = 20.0


class KilledError(Exception):
    """The operator is killed before one of its writes."""


class World:
    """The API server and its caches, and a clock with what is still to happen."""

    def __init__(self) -> None:
        """It holds the built-in classes."""
        self.now = NOW
        self.changed = True
        self.writes_left: int | None = None
        self._objects: dict[str, dict[str, Object]] = {}
        self._numbers = itertools.count(1)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        for name, each in classes().items():
            self.put(ACCELERATOR_CLASSES, {**deepcopy(dict(each)), "metadata": {"name": name}})

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something in a while."""
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), act))

    def pass_time(self, until: float) -> None:
        """Go on to the next thing that happens, but no further than `until`."""
        if not self._due or self._due[0][0] > until:
            self.now = max(self.now, until)
            return
        self.now, _, act = heapq.heappop(self._due)
        act()
        while self._due and self._due[0][0] <= self.now:
            heapq.heappop(self._due)[2]()

    def count_write(self) -> None:
        """Of the operator, which may be its last."""
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left < 0:
                raise KilledError

    def put(self, kind: Kind, obj: Object) -> Object:
        """An object as it is from now on."""
        number = str(next(self._numbers))
        metadata = {"uid": f"uid-{number}", **obj["metadata"], "resourceVersion": number}
        kept: dict[str, Any] = {**obj, "metadata": metadata}
        self._objects.setdefault(kind.kind, {})[metadata["name"]] = kept
        self.changed = True
        return kept

    def remove(self, kind: Kind, name: str) -> None:
        """An object that is gone."""
        self._objects.get(kind.kind, {}).pop(name, None)
        self.changed = True

    def find(self, kind: Kind, name: str) -> Any:
        """An object that may be there."""
        return self._objects.get(kind.kind, {}).get(name)

    def list(self, kind: Kind) -> Sequence[Object]:
        """Every object of a kind."""
        return [*self._objects.get(kind.kind, {}).values()]

    def by_owner(self, kind: Kind, namespace: str, owner_uid: str) -> Sequence[Object]:  # noqa: ARG002  as below
        """Those that one object controls."""
        return [obj for obj in self.list(kind) if controller_uid(obj) == owner_uid]

    def get(self, kind: Kind, namespace: str, name: str) -> Any:  # noqa: ARG002  one namespace is enough
        """One object; of the caches' kinds None where there is none."""
        found = self.find(kind, name)
        if found is None and kind not in (NODES, TRAINING_JOBS):
            raise NotFoundError(404, "NotFound", name)
        return found

    def pages(self, kind: Kind, namespace: str = "", *, labels: str = "") -> Iterator[Page]:  # noqa: ARG002
        """The objects with a label."""
        key, _, value = labels.partition("=")
        yield Page([each for each in self.list(kind) if each["metadata"]["labels"].get(key) == value], "0")

    def create(self, kind: Kind, manifest: Object) -> Object:
        """Make an object under a name that nobody has."""
        self.count_write()
        if self.find(kind, manifest["metadata"]["name"]):
            raise error_of(409, {"reason": "AlreadyExists"})
        fresh = {"status": {"phase": "Pending", "conditions": []}} if kind == PODS else {}
        given = {"namespace": "default", "creationTimestamp": timestamp(self.now)}
        return self.put(kind, {**manifest, **fresh, "metadata": {**manifest["metadata"], **given}})

    def apply(self, kind: Kind, manifest: Object) -> None:
        """Write over an object of this UID."""
        self.count_write()
        self.put(kind, {**manifest, "metadata": {**self._of(kind, manifest["metadata"])["metadata"]}})

    def patch(self, kind: Kind, _: str, name: str, patch: Object, *, uid: str) -> None:
        """Merge into the object of this UID."""
        self.count_write()
        found = self._of(kind, {"name": name, "uid": uid})
        self.put(kind, {**found, **{part: {**found[part], **patch[part]} for part in patch}})

    def replace_status(self, kind: Kind, obj: Object) -> Object:
        """Write the status of an object of this UID."""
        self.count_write()
        return self.put(kind, {**self._of(kind, obj["metadata"]), "status": obj["status"]})

    def delete(self, kind: Kind, _: str, name: str, *, uid: str, grace_seconds: int | None = None) -> None:
        """Have a pod end, in its time, as the operator asks for it; anything else goes at once."""
        self.count_write()
        if kind == PODS:
            self.delete_pod(name, uid=uid, grace_seconds=grace_seconds)
        else:
            self.remove(kind, self._of(kind, {"name": name, "uid": uid})["metadata"]["name"])

    def delete_pod(self, name: str, *, uid: str, grace_seconds: int | None = None) -> None:
        """Have a pod end, in its time, as whoever asks for it."""
        pod = self._of(PODS, {"name": name, "uid": uid})
        seconds = _GRACE_SECONDS if grace_seconds is None else float(grace_seconds)
        self.put(PODS, {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": timestamp(self.now + seconds)}})
        self.later(seconds, lambda: self._end(name, uid))

    def _end(self, name: str, uid: str) -> None:
        found = self.find(PODS, name)
        if found and found["metadata"]["uid"] == uid and not _on_a_dead_node(self, found):
            self.remove(PODS, name)

    def _of(self, kind: Kind, metadata: Mapping[str, Any]) -> Object:
        found: Any = self.find(kind, metadata["name"])
        if found is None:
            raise NotFoundError(404, "NotFound", metadata["name"])
        if found["metadata"]["uid"] != metadata["uid"]:
            raise ConflictError(409, "Conflict", metadata["name"])
        return dict(found)


def _on_a_dead_node(world: World, pod: Mapping[str, Any]) -> bool:
    node = world.find(NODES, pod["spec"].get("nodeName", ""))
    return node is not None and node["metadata"]["annotations"]["stand-in"] == "dead"


class Cluster:
    """Node pools of one slice each, and what becomes of pods on their nodes."""

    def __init__(self, world: World, labels: Mapping[str, str], pools: int, hosts: int) -> None:
        """All nodes are well."""
        self.world, self._labels, self.hosts = world, labels, hosts
        self.pools = [f"pool-{number}" for number in range(pools)]
        self._addresses = itertools.count(1)
        for pool in self.pools:
            self.come(pool)

    def nodes(self, pool: str) -> list[str]:
        """The names of a pool's nodes."""
        return [f"{pool}-{number}" for number in range(self.hosts)]

    def come(self, pool: str) -> None:
        """The nodes of a pool that are not there."""
        for node in self.nodes(pool):
            if self.world.find(NODES, node) is None:
                self.set_node(node, "well", pool=pool)

    def set_node(self, node: str, how: str, *, pool: str = "") -> None:
        """How a node is: well, leaving, dead."""
        pool = pool or self.pool_of(node)
        metadata = {"name": node, "labels": {**self._labels, _POOL: pool}, "annotations": {"stand-in": how}}
        ready = {"type": "Ready", "status": "Unknown" if how == "dead" else "True"}
        taints = [_LEAVING] if how == "leaving" else []
        self.world.put(NODES, {"metadata": metadata, "spec": {"taints": taints}, "status": {"conditions": [ready]}})

    def pool_of(self, node: str) -> str:
        """The pool of a node."""
        return node.rpartition("-")[0]

    def is_well(self, node: str) -> bool:
        """Whether it is there and runs what is on it."""
        found = self.world.find(NODES, node)
        return found is not None and found["metadata"]["annotations"]["stand-in"] != "dead"

    def pods_on(self, node: str) -> list[dict[str, Any]]:
        """The pods that have not ended there."""
        pods = self.world.list(PODS)
        return [
            dict(pod)
            for pod in pods
            if pod["spec"].get("nodeName") == node and pod["status"]["phase"] in ("Pending", "Running")
        ]

    def used(self) -> list[str]:
        """The pools in which pods run."""
        return [pool for pool in self.pools if any(self.pods_on(node) for node in self.nodes(pool))]

    def schedule(self) -> None:
        """Bind what can be bound; each pod takes a node."""
        taken = {
            pod["spec"].get("nodeName")
            for pod in self.world.list(PODS)
            if pod["status"]["phase"] not in ("Succeeded", "Failed")
        }
        for pod in self.world.list(PODS):
            spec = pod["spec"]
            if "nodeName" in spec or spec.get("schedulingGates") or "deletionTimestamp" in pod["metadata"]:
                continue
            fitting = [node for node in self._fitting(pod) if node not in taken]
            if fitting:
                taken.add(fitting[0])
                self._bind(pod, fitting[0])
            elif not pod["status"]["conditions"]:
                self._report(pod, conditions=[self._scheduled("False", reason="Unschedulable", message="no node fits")])

    def _fitting(self, pod: Object) -> list[str]:
        """Nodes with its labels: of a slice's first host in a pool of its own, rather not an avoided one."""
        wanted = pod["spec"].get("nodeSelector", {})
        affinity = pod["spec"].get("affinity", {})
        found = []
        for node in self.world.list(NODES):
            labels = node["metadata"]["labels"]
            well = node["metadata"]["annotations"]["stand-in"] == "well"
            if well and all(labels.get(key) == value for key, value in wanted.items()):
                found.append((node["metadata"]["name"], labels[_POOL]))
        if "podAntiAffinity" in affinity:
            own = pod["metadata"]["labels"]["shardwise.dev/slice"]
            others = {
                self.pool_of(each["spec"]["nodeName"])
                for each in self.world.list(PODS)
                if "nodeName" in each["spec"]
                and each["metadata"]["labels"]["shardwise.dev/slice"] != own
                and each["status"]["phase"] in ("Pending", "Running")
            }
            found = [(node, pool) for node, pool in found if pool not in others]
        avoided = str(affinity.get("nodeAffinity", {}))
        found.sort(key=lambda each: (f"'{each[1]}'" in avoided, each))
        return [node for node, _ in found]

    def _scheduled(self, status: str, **words: str) -> dict[str, Any]:
        return {"type": "PodScheduled", "status": status, "lastTransitionTime": timestamp(self.world.now), **words}

    def _bind(self, pod: Object, node: str) -> None:
        bound = self.world.put(PODS, {**pod, "spec": {**pod["spec"], "nodeName": node}})
        self._report(bound, conditions=[self._scheduled("True")])
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        self.world.later(_START_SECONDS, lambda: self._run(name, uid))

    def _run(self, name: str, uid: str) -> None:
        pod = self.world.find(PODS, name)
        if pod is None or pod["metadata"]["uid"] != uid or not self.is_well(pod["spec"]["nodeName"]):
            return
        if pod["status"]["phase"] != "Pending" or "deletionTimestamp" in pod["metadata"]:
            return
        running = {"name": "agent", "imageID": "", "state": {"running": {"startedAt": timestamp(self.world.now)}}}
        number = next(self._addresses)
        address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        ready = [*pod["status"]["conditions"], {"type": "Ready", "status": "True"}]
        self._report(pod, phase="Running", podIP=address, containerStatuses=[running], conditions=ready)

    def end(self, pod: Object, code: int | None, record: TerminationRecord | None = None, **status: Any) -> None:
        """A pod's container has ended."""
        terminated = {"exitCode": code or 0, "reason": "Error", "message": record.dumps() if record else ""}
        container = {"name": "agent", "imageID": "", "state": {"terminated": terminated}}
        self._report(pod, phase="Failed" if code else "Succeeded", containerStatuses=[container], **status)

    def _report(self, pod: Object, **status: Any) -> None:
        self.world.put(PODS, {**pod, "status": {**pod["status"], **status}})

    # What goes wrong.

    def kill_node(self, node: str, repair_seconds: float) -> None:
        """A machine that is silent from now on: its pods are deleted, it is replaced, and comes back mended."""
        self.set_node(node, "dead")
        uid = self.world.find(NODES, node)["metadata"]["uid"]
        self.world.later(_NODE_LOST_SECONDS, lambda: self._taint_manager(node, uid))
        self.world.later(_GONE_SECONDS, lambda: self._take(node, uid))
        self.world.later(repair_seconds, lambda: self.come(self.pool_of(node)))

    def _is(self, node: str, uid: str) -> bool:
        """Whether a node is that one, and not another of its name that has come since."""
        found = self.world.find(NODES, node)
        return found is not None and found["metadata"]["uid"] == uid

    def _taint_manager(self, node: str, uid: str) -> None:
        if not self._is(node, uid):
            return
        for pod in self.pods_on(node):
            target = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
            gone = timestamp(self.world.now + _GRACE_SECONDS)
            pod["metadata"] = {**pod["metadata"], "deletionTimestamp": gone}
            self._report(pod, conditions=[*pod["status"]["conditions"], target])

    def _take(self, node: str, uid: str) -> None:
        if not self._is(node, uid):
            return
        self.world.remove(NODES, node)
        for pod in self.world.list(PODS):
            if pod["spec"].get("nodeName") == node:
                self.world.remove(PODS, pod["metadata"]["name"])

    def preempt(self, pool: str, back_seconds: float, notice_seconds: float = 30.0) -> None:
        """The machines of a whole slice are taken, after a notice."""
        for node in self.nodes(pool):
            if self.is_well(node):
                self.set_node(node, "leaving")
        self.world.later(notice_seconds, lambda: self._shut_down(pool))
        self.world.later(notice_seconds + back_seconds, lambda: self.come(pool))

    def _shut_down(self, pool: str) -> None:
        for node in self.nodes(pool):
            for pod in self.pods_on(node):
                self.end(pod, 137, reason="Terminated")
            self.world.remove(NODES, node)


class Queue:
    """A queue of Kueue: what waits in it is admitted in a while, and what it has admitted may be evicted."""

    def __init__(self, world: World) -> None:
        """It is empty."""
        self.world = world

    def look(self) -> None:
        """Admit what is there without quota, in its time."""
        for each in self.world.list(WORKLOADS):
            name, uid = each["metadata"]["name"], each["metadata"]["uid"]
            if condition_of(each, "QuotaReserved").get("status") != "True":
                self.world.later(_QUEUE_SECONDS, partial(self._admit, name, uid))

    def evict(self) -> None:
        """Want all quota back."""
        for each in self.world.list(WORKLOADS):
            if condition_of(each, "Admitted").get("status") == "True":
                self._tell(each, Evicted="True")

    def _admit(self, name: str, uid: str) -> None:
        found = self.world.find(WORKLOADS, name)
        if found and found["metadata"]["uid"] == uid and condition_of(found, "QuotaReserved").get("status") != "True":
            assigned = [{"name": "hosts", "flavors": {}, "count": found["spec"]["podSets"][0]["count"]}]
            admission = {"clusterQueue": "cluster", "podSetAssignments": assigned}
            self._tell(found, {"admission": admission}, QuotaReserved="True", Admitted="True", Evicted="False")

    def _tell(self, workload: Object, status: Mapping[str, Any] | None = None, **told: str) -> None:
        since = timestamp(self.world.now)
        before = {each["type"]: each for each in workload.get("status", {}).get("conditions", [])}
        new = {
            kind: {"type": kind, "status": value, "reason": "Preempted", "message": "", "lastTransitionTime": since}
            for kind, value in told.items()
        }
        conditions = [*(before | new).values()]
        status = {**workload.get("status", {}), **(status or {}), "conditions": conditions}
        self.world.put(WORKLOADS, {**workload, "status": status})


@dataclass
class Launcher:
    """The agents and trainers of one run, as far as the operator hears of them."""

    cluster: Cluster
    recovery: Recovery
    steps: int
    full_step_seconds: float  # of a step on all slices; on half of them it takes twice as long
    save_seconds: float
    saved: int = 0
    used: Used = field(default_factory=Used)
    restarts: dict[str, int] = field(default_factory=dict)
    attempt: int = -1
    storage_is_well: bool = True
    done: bool = False
    _phase: str = "starting"
    _members: dict[str, str] = field(default_factory=dict)
    _began: float | None = None
    _epoch: int = 0
    _hosts_of_all: int = 0
    _ran: int | None = None  # the last round in which all hosts were there
    _leaders: set[str] = field(default_factory=set)  # those that wait for the hosts of their first attempt

    @property
    def step_seconds(self) -> float:
        """How long a step takes on the hosts that there are."""
        return self.full_step_seconds * self._hosts_of_all / max(1, len(self._members))

    @property
    def world(self) -> World:
        """Where it all is."""
        return self.cluster.world

    def step(self) -> int:
        """The step that it is at."""
        if self._began is None:
            return self.saved
        return min(self.steps, self.saved + int((self.world.now - self._began) / self.step_seconds))

    def hosts(self, job: Object) -> int:
        """How many hosts the round has."""
        slices: int = job.get("status", {}).get("slices") or job["spec"]["hardware"]["slices"]
        return slices * self.cluster.hosts

    def alive(self, job: Object) -> dict[str, dict[str, Any]]:
        """The pods whose agents answer, by host; not those that only hold a place."""
        state, slices = job.get("status", {}), self.hosts(job) // self.cluster.hosts
        return {
            host_of(pod): dict(pod)
            for pod in self.world.list(PODS)
            if pod["status"]["phase"] == "Running"
            and int(pod["metadata"]["labels"]["shardwise.dev/slice"]) < slices
            and "deletionTimestamp" not in pod["metadata"]
            and state.get("pods", {}).get(host_of(pod)) == pod["metadata"]["uid"]
            and self.cluster.is_well(pod["spec"]["nodeName"])
        }

    def look(self, job: Object) -> None:
        """What the leader notices."""
        hosts, self._hosts_of_all = self.hosts(job), job["spec"]["hardware"]["slices"] * self.cluster.hosts
        alive = {host: pod["metadata"]["uid"] for host, pod in self.alive(job).items()}
        if self.done:
            return
        if self._members and any(alive.get(host) != uid for host, uid in self._members.items()):
            self._members, self._epoch = {}, self._epoch + 1
            self._phase, self._began = "recovering", None
            if "0-0" in alive:
                epoch = self._epoch
                self.world.later(_SILENT_SECONDS, lambda: self._lost(epoch, job["metadata"]["name"]))
                self.world.later(
                    self.recovery.replace_within.seconds, lambda: self._give_up(epoch, job["metadata"]["name"])
                )
        if not self._members and len(alive) == hosts:
            self._members, self._epoch = alive, self._epoch + 1
            self._ran = job["status"]["round"]
            self._start(wait_seconds=0.0)
        leader, name = alive.get("0-0"), job["metadata"]["name"]
        if leader and self._ran != job["status"]["round"] and leader not in self._leaders:
            self._leaders.add(leader)
            self.world.later(self.recovery.start_within.seconds, lambda: self._give_up_first(leader, name))

    def status(self) -> RunSummary:
        """Return the status that host 0 serves."""
        return RunSummary(
            phase=self._phase,
            attempt=max(0, self.attempt),
            restarts=dict(self.restarts),
            progress=RunProgress(step=self.step(), of=self.steps, loss=2.5, step_seconds=self.step_seconds),
            checkpoint=CheckpointStatus(step=self.saved) if self.saved else None,
            goodput={"step": 1.0},
        )

    def fault(self, cause: Cause) -> None:
        """A trainer ends; the gang starts again in place."""
        if self._phase == "running":
            detected = _HANG_SECONDS if cause == Cause.HANG else 1.0
            self._end_trainers()
            epoch = self._epoch
            self.world.later(detected, lambda: self._again(epoch, cause))

    def save(self) -> None:
        """Commit a checkpoint, if there is anything new and the storage lets it."""
        if self._began is not None and self.storage_is_well and self._phase == "running":
            step = self.step()
            self._began += (step - self.saved) * self.step_seconds
            self.saved = step

    def stop(self, job: Object) -> None:
        """Save, and end all agents, where there is a leader to ask: the next round goes on, with fresh budgets."""
        alive = self.alive(job)
        if "0-0" not in alive:
            return
        self.save()
        self._end_trainers()
        self._members, self._phase, self.used = {}, "starting", Used()
        for pod in alive.values():
            self.cluster.end(pod, ExitCode.SAVED, self._record(ExitCode.SAVED, "saved and stopped"))

    def _start(self, *, wait_seconds: float) -> None:
        self.attempt += 1
        self._phase = "recovering" if self.attempt else "starting"
        epoch = self._epoch
        self.world.later(wait_seconds + _JOIN_SECONDS + _RESTORE_SECONDS, lambda: self._step(epoch))
        self.world.changed = True

    def _step(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        if not self.storage_is_well:
            self._again(epoch, Cause.STORAGE)
            return
        self._phase, self._began = "running", self.world.now
        self.world.later(self.save_seconds, lambda: self._save_due(epoch))
        left = (self.steps - self.saved) * self.step_seconds
        self.world.later(left, lambda: self._complete(epoch))
        self.world.changed = True

    def _save_due(self, epoch: int) -> None:
        if epoch == self._epoch:
            self.save()
            self.world.later(self.save_seconds, lambda: self._save_due(epoch))
            self.world.changed = True

    def _end_trainers(self) -> None:
        self._began, self._phase, self._epoch = None, "recovering", self._epoch + 1
        self.world.changed = True

    def _charge(self, cause: Cause) -> float:
        charged = budgets.charge(self.used, cause, restarts=self.recovery.restarts, committed=self.saved or -1)
        assert charged is not None, f"the budget for {cause} is used up: {self.used}"
        self.used, self.restarts[cause] = charged, self.restarts.get(cause, 0) + 1
        return budgets.wait_seconds(charged, cause, self.recovery.backoff.seconds)

    def _again(self, epoch: int, cause: Cause) -> None:
        if epoch == self._epoch and self._members:
            self._end_trainers()
            self._start(wait_seconds=self._charge(cause))

    def _lost(self, epoch: int, job: str) -> None:
        if epoch == self._epoch and "0-0" in self.alive(self.world.find(TRAINING_JOBS, job)):
            self._charge(Cause.HOST_LOST)

    def _give_up_first(self, leader: str, name: str) -> None:
        """The leader of a round that never had all of its hosts has waited for too long."""
        job = self.world.find(TRAINING_JOBS, name)
        alive = self.alive(job)
        if self._ran == job["status"].get("round") or self._members or "0-0" not in alive:
            return
        if alive["0-0"]["metadata"]["uid"] == leader:
            self._end_in_vain(alive)

    def _give_up(self, epoch: int, job: str) -> None:
        """Hosts were missing for too long: all agents end."""
        alive = self.alive(self.world.find(TRAINING_JOBS, job))
        if epoch == self._epoch and not self._members and "0-0" in alive:
            self._end_in_vain(alive)

    def _end_in_vain(self, alive: Mapping[str, dict[str, Any]]) -> None:
        for pod in alive.values():
            self.cluster.end(pod, ExitCode.HOSTS_MISSING, self._record(ExitCode.HOSTS_MISSING, "a host is missing"))
        self._epoch += 1

    def _complete(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        if not self.storage_is_well:
            self.world.later(60.0, lambda: self._complete(epoch))
            return
        self.saved, self.done = self.steps, True
        self._epoch += 1
        for uid in self._members.values():
            (pod,) = (each for each in self.world.list(PODS) if each["metadata"]["uid"] == uid)
            self.cluster.end(pod, 0, self._record(ExitCode.OK, "complete"))

    def _record(self, code: ExitCode, words: str) -> TerminationRecord:
        return TerminationRecord(
            code=code,
            host=0,
            attempt=self.attempt,
            step=self.saved,
            steps=self.steps,
            loss="2.5",
            checkpoint_step=self.saved or None,
            digest="d" * 16 if code == ExitCode.OK else None,
            restarts=dict(self.restarts),
            goodput={"step": 1.0},
            cause=None,
            rank=None,
            exit=None,
            message=words,
            tail="",
        )

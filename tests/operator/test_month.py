"""A month of a job on 64 hosts, in simulated time, under a schedule of faults that a seed draws."""

import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from tests.operator.building import SETTINGS, frozen, manifest
from tests.operator.world import Cluster, Launcher, World

from shardwise.job.contract import Cause
from shardwise_operator.apply import Applier
from shardwise_operator.decide import decide
from shardwise_operator.observe import Observer
from shardwise_operator.poll import Poll
from shardwise_operator.runtime.kinds import TRAINING_JOBS
from shardwise_operator.status import compose

HOUR, DAY = 3600.0, 86_400.0
_SLICES, _STEP_SECONDS = 4, 10.0  # of 16 hosts each
_MEAN: Mapping[str, float] = {
    "preempted": 1.5 * DAY,
    "dead": 1.0 * DAY,
    "failure": 3.0 * DAY,
    "hang": 6.0 * DAY,
    "device": 5.0 * DAY,
    "storage": 2.0 * DAY,
    "api": 1.0 * DAY,
}
"""The time between two faults of a kind, all machines together."""


class Month:
    """The job, its operator and what befalls them."""

    def __init__(self, seed: int, *, steps: int, pools: int) -> None:
        """Nothing has happened yet."""
        self.random, self.world = random.Random(seed), World()
        labels = {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
            "cloud.google.com/gke-tpu-topology": "4x4x4",
            "node.kubernetes.io/instance-type": "ct5p-hightpu-4t",
        }
        self.cluster = Cluster(self.world, labels, pools=pools, hosts=16)
        job = manifest(hardware={"accelerator": "tpu-v5p", "topology": "4x4x4", "slices": _SLICES})
        job["spec"]["training"]["steps"] = steps
        recovery = frozen(job).job.spec.recovery
        self.launcher = Launcher(
            self.cluster, recovery, steps=steps, step_seconds=_STEP_SECONDS, save_seconds=0.5 * HOUR
        )
        job["metadata"] |= {"creationTimestamp": "2027-01-15T08:00:00Z", "generation": 1}
        self.world.put(TRAINING_JOBS, job)
        self.begun, self.silent_until, self.befell = self.world.now, 0.0, dict.fromkeys(_MEAN, 0)
        self.again_at = 0.0
        self._operator()
        for fault in _MEAN:
            self._plan(fault)

    @property
    def status(self) -> dict[str, Any]:
        """The job's."""
        status: dict[str, Any] = self.world.find(TRAINING_JOBS, "job").get("status", {})
        return status

    @property
    def days(self) -> float:
        """Since the job was made."""
        return (self.world.now - self.begun) / DAY

    def run(self, days: float) -> None:
        """Go on until the job has finished, or for so many days."""
        end = self.begun + days * DAY
        while self.world.now < end and self.status.get("phase") not in ("Complete", "Failed"):
            if self.world.now >= self.silent_until and (self.world.changed or self.world.now >= self.again_at):
                self._pass()
            else:
                self.world.pass_time(min(end, max(self.again_at, self.silent_until, self.world.now + 1.0)))

    def _pass(self) -> None:
        self.world.changed = False
        job = self.world.find(TRAINING_JOBS, "job")
        seen = self.observer.observe(job, self._poll(job), self.world.now)
        plan = decide(seen, SETTINGS, self.world.now)
        outcome = self.applier.apply(seen, plan)
        status = compose(seen, plan, outcome, job.get("status", {}), self.world.now)
        if status != job.get("status"):
            self.world.put(TRAINING_JOBS, {**job, "status": status})
        self.cluster.schedule()
        self.launcher.look(self.world.find(TRAINING_JOBS, "job"), len(seen.hosts))
        self.again_at = self.world.now + min(600.0, max(1.0, plan.again_seconds or 600.0))

    def _poll(self, job: Any) -> Poll | None:
        leader = "0-0" in self.launcher.alive(job)
        return Poll(heard_at=self.world.now, fresh_seconds=10.0, status=self.launcher.status()) if leader else None

    def _operator(self) -> None:
        """Another process of it, which knows nothing but what the API server has."""
        asks: Any = SimpleNamespace(ask=self._asked, forget=lambda _: None)
        world: Any = self.world
        self.observer = Observer(world, world, SETTINGS)
        self.applier = Applier(world, asks, SETTINGS.tokens)

    def _asked(self, *_: object) -> bool:
        self.launcher.save()
        return True

    def _plan(self, fault: str) -> None:
        self.world.later(self.random.expovariate(1.0 / _MEAN[fault]), lambda: self._befall(fault))

    def _befall(self, fault: str) -> None:
        self._plan(fault)
        self.befell[fault] += 1
        acts: Mapping[str, Callable[[], None]] = {
            "preempted": self._preempted,
            "dead": self._dead,
            "failure": lambda: self.launcher.fault(Cause.FAILURE),
            "hang": lambda: self.launcher.fault(Cause.HANG),
            "device": lambda: self.launcher.fault(Cause.DEVICE),
            "storage": self._storage,
            "api": self._api,
        }
        acts[fault]()

    def _preempted(self) -> None:
        used = self.cluster.used()
        if used:
            self.cluster.preempt(self.random.choice(used), self.random.uniform(0.2, 6.0) * HOUR)

    def _dead(self) -> None:
        nodes = [
            node for pool in self.cluster.used() for node in self.cluster.nodes(pool) if self.cluster.is_well(node)
        ]
        if nodes:
            self.cluster.kill_node(self.random.choice(nodes), self.random.uniform(0.5, 4.0) * HOUR)

    def _storage(self) -> None:
        self.launcher.storage_is_well = False

        def well() -> None:
            self.launcher.storage_is_well = True

        self.world.later(self.random.uniform(60.0, 2400.0), well)

    def _api(self) -> None:
        """No answer for a while; after it another operator leads."""
        self.silent_until = self.world.now + self.random.uniform(30.0, 1800.0)
        self._operator()


@pytest.mark.parametrize(
    ("seed", "pools", "steps"), [(1, 5, 240_000), (2, 4, 60_000)], ids=["one pool to spare", "none, and a week"]
)
def test_a_month_of_faults_ends_complete(seed: int, pools: int, steps: int) -> None:
    """No budget fails the job, whatever befalls it; each fault is charged once, by its own name, however many hosts.

    Where machines are missing for hours the job waits for them. Where there are others, it is late by a twentieth.
    """
    month = Month(seed, steps=steps, pools=pools)
    month.run(60.0)
    losses, restarts, befell = month.status["losses"], month.launcher.restarts, month.befell

    assert (month.status["phase"], month.status["progress"]["step"]) == ("Complete", steps)
    assert losses.keys() == {"maintenance", "nodeLost", "hostLost"}
    for cause, fault in (("maintenance", "preempted"), ("nodeLost", "dead")):
        assert 0.8 * befell[fault] <= losses[cause] <= befell[fault]
    assert losses["hostLost"] <= befell["preempted"] + befell["dead"], "rounds that were given back"
    for cause in (Cause.FAILURE, Cause.HANG, Cause.DEVICE):
        assert restarts.get(cause, 0) <= befell[cause]
    if pools > _SLICES:
        assert month.days < 1.06 * steps * _STEP_SECONDS / DAY

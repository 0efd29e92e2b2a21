"""Schedules of faults that hypothesis draws, and shrinks where one breaks what must hold, in simulated time.

Few and the same ones in `make test`; `HYPOTHESIS_PROFILE=thorough` draws many, others each time.

Only here faults come in any order, by the hundred and over weeks: agents and nodes are stand-ins, and so is time.
"""

import json
import os
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.operator.life import DAY, HOUR, Life

from shardwise.launcher.leader import budgets
from shardwise.protocol.contract import Cause
from shardwise.protocol.job_status import JobStatus
from shardwise_operator.observe.pod import host_of
from shardwise_operator.runtime.kinds import PODS

_STEPS = 3000  # of ten seconds, a save every half hour
_SECONDS = st.sampled_from([1.0, 20.0, 50.0, 90.0, 200.0, 700.0, 0.6 * HOUR, 3.0 * HOUR])
_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


class Faults(RuleBasedStateMachine):
    """A job of two slices of two hosts, with a pool to spare or without, that may go on with one slice or waits.

    It may be in a queue.
    """

    life: Life

    @initialize(
        pools=st.integers(2, 3),
        begun=st.sampled_from([300.0, 1.0]),
        how=st.sampled_from([{}, {"least": 1}, {"queued": True}, {"least": 1, "queued": True}]),
    )
    def begin(self, pools: int, begun: float, how: dict[str, Any]) -> None:
        """Apply the job."""
        self.life = Life(topology="2x2x2", slices=2, pools=pools, steps=_STEPS, **how)
        self.lost, self.outages = 0, 0
        self.befell = dict.fromkeys((Cause.FAILURE, Cause.HANG, Cause.DEVICE), 0)
        self.life.run(begun)

    @rule(seconds=_SECONDS)
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.life.run(seconds)

    @rule(which=st.integers(0, 2), back=_SECONDS, notice=st.sampled_from([0.0, 30.0, 300.0]))
    def preempt(self, which: int, back: float, notice: float) -> None:
        """Take a slice's machines."""
        used = self.life.cluster.used()
        if used:
            self.lost += 1
            self.life.cluster.preempt(used[which % len(used)], back, notice)
            self.life.run(1.0)

    @rule()
    @precondition(lambda self: self.life.settings.kueue)
    def evict(self) -> None:
        """Have the queue take its quota back."""
        self.life.queue.evict()
        self.life.run(1.0)

    @rule(which=st.integers(0, 5), repair=_SECONDS)
    def kill_node(self, which: int, repair: float) -> None:
        """Have a machine be silent; it comes back when it has been replaced."""
        cluster = self.life.cluster
        nodes = [node for pool in cluster.used() for node in cluster.nodes(pool) if cluster.is_well(node)]
        if nodes:
            self.lost += 1
            cluster.kill_node(nodes[which % len(nodes)], 301.0 + repair)
            self.life.run(1.0)

    @rule(which=st.integers(0, 3), grace=st.sampled_from([None, 0, 120]))
    def delete_pod(self, which: int, grace: int | None) -> None:
        """Delete a pod as a person does."""
        pods = [pod for pod in self._pods() if "deletionTimestamp" not in pod["metadata"]]
        if pods:
            self.lost += 1
            pod = pods[which % len(pods)]["metadata"]
            self.life.world.delete_pod(pod["name"], uid=pod["uid"], grace_seconds=grace)
            self.life.run(1.0)

    @rule(cause=st.sampled_from([Cause.FAILURE, Cause.HANG, Cause.DEVICE]))
    def fail(self, cause: Cause) -> None:
        """End a trainer, where its budget holds it."""
        launcher = self.life.launcher
        restarts, saved = launcher.recovery.restarts, launcher.saved or -1
        if budgets.charge(launcher.used, cause, restarts=restarts, committed=saved) is not None:
            self.befell[cause] += 1
            launcher.fault(cause)
            self.life.run(1.0)

    @rule(seconds=st.sampled_from([10.0, 300.0, 1200.0]))
    @precondition(lambda self: self.life.launcher.storage_is_well and self.outages < 5)
    def fail_storage(self, seconds: float) -> None:
        """Have nothing be saved or restored."""
        self.outages += 1
        self.life.fail_storage(seconds)

    @rule(seconds=_SECONDS)
    def silence(self, seconds: float) -> None:
        """Have no API server."""
        self.life.silence(seconds)

    @rule(writes=st.integers(0, 9))
    def kill_operator(self, writes: int) -> None:
        """Kill it after so many more writes; its successor knows what the API server has."""
        self.life.world.writes_left = writes
        self.life.run(100.0)
        self.life.start_operator()

    @rule(seconds=_SECONDS)
    def suspend(self, seconds: float) -> None:
        """Change the job's mind, and a while later again."""
        self.life.suspend(suspended=True)
        self.life.run(seconds)
        self.life.suspend(suspended=False)
        self.life.run(1.0)

    @invariant()
    def one_gang(self) -> None:
        """No host has two pods that may do something, and what runs is of one round."""
        living = [pod for pod in self._pods() if self._may_act(pod)]
        hosts = [host_of(pod) for pod in living]
        running = [pod for pod in living if pod["status"]["phase"] == "Running"]

        assert len(hosts) == len(set(hosts)) <= len(self.life.hosts), hosts
        assert len({pod["metadata"]["labels"]["shardwise.dev/round"] for pod in running}) <= 1, running

    @invariant()
    def each_fault_is_charged_once(self) -> None:
        """Whatever it took with it, and whoever looked when."""
        losses, restarts = self.life.status.get("losses", {}), self.life.launcher.restarts

        assert sum(count for cause, count in losses.items() if cause != "hostLost") <= self.lost, losses
        assert losses.get("hostLost", 0) <= self.lost, losses
        assert all(restarts.get(cause, 0) <= count for cause, count in self.befell.items()), restarts
        assert restarts.get(Cause.HOST_LOST, 0) <= self.lost, restarts

    @invariant()
    def its_status_is_right(self) -> None:
        """It has not failed, and the API server takes what is said of it."""
        status = self.life.status

        JobStatus.model_validate(json.loads(json.dumps(status)), by_alias=True, by_name=False)
        assert status.get("phase") != "Failed", status

    def teardown(self) -> None:
        """When nothing more befalls it, it comes to its end."""
        if not hasattr(self, "life"):
            return
        self.life.world.writes_left = None
        self.life.run(max(0.0, self.life.silent_until - self.life.world.now) + 2.0 * DAY)
        status = self.life.status

        assert (status["phase"], status["progress"]["step"]) == ("Complete", _STEPS), status
        self.each_fault_is_charged_once()

    def _pods(self) -> list[Any]:
        return [
            pod for pod in self.life.world.list(PODS) if pod.get("status", {}).get("phase") in ("Pending", "Running")
        ]

    def _may_act(self, pod: Any) -> bool:
        node = pod["spec"].get("nodeName")
        return node is None or self.life.cluster.is_well(node)


Faults.TestCase.settings = settings(settings.default, max_examples=1000 if _THOROUGH else 60, stateful_step_count=20)
TestFaults = Faults.TestCase


def test_a_queued_job_comes_to_rest_in_each_of_its_waits() -> None:
    """Evicted, and with a slice's machines away for hours: no pass of a backoff brings the next (`Life.run`)."""
    life = Life(topology="2x2x2", slices=2, pools=2, steps=_STEPS, queued=True)
    life.run(300.0)
    life.queue.evict()
    life.run(300.0)
    assert (life.status["phase"], life.status["round"]) == ("Running", 1)

    life.cluster.preempt(life.cluster.used()[0], 3.0 * HOUR, 0.0)
    life.run(2.0 * DAY)

    assert (life.status["phase"], life.status["losses"]) == ("Complete", {"maintenance": 1})


def test_an_operator_with_a_clock_that_is_ahead_holds_up_no_successor() -> None:
    """It charged a loss and ended; the next one has the right time, and makes the lost pod within minutes."""
    life = Life(topology="2x2x2", slices=2, pools=2, steps=_STEPS)
    life.run(300.0)
    (pod,) = [pod for pod in life.world.list(PODS) if host_of(pod) == "1-1"]
    life.cluster.end(pod, 1)

    life.world.now += 2.0 * HOUR
    life._pass()
    life.world.now -= 2.0 * HOUR
    assert life.status["losses"] == {"unknown": 1}
    life.start_operator()
    life.run(0.3 * HOUR)

    assert life.status["phase"] == "Running"

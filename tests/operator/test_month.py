"""A month of a job on 64 hosts, in simulated time, under a schedule of faults that a seed draws."""

import random
from collections.abc import Callable, Mapping

import pytest
from tests.operator.life import DAY, HOUR, STEP_SECONDS, Life

from shardwise.protocol.contract import Cause
from shardwise_operator.runtime.kinds import CONFIG_MAPS

_SLICES = 4  # of 16 hosts each
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


class Month(Life):
    """A job of 64 hosts, and what befalls it."""

    def __init__(self, seed: int, *, steps: int, pools: int, least: int | None = None) -> None:
        """Nothing has happened yet."""
        super().__init__(topology="4x4x4", slices=_SLICES, pools=pools, steps=steps, least=least)
        self.random, self.befell = random.Random(seed), dict.fromkeys(_MEAN, 0)
        for fault in _MEAN:
            self._plan(fault)

    @property
    def days(self) -> float:
        """Since the job was made."""
        return (self.world.now - self.begun) / DAY

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
        self.fail_storage(self.random.uniform(60.0, 2400.0))

    def _api(self) -> None:
        self.silence(self.random.uniform(30.0, 1800.0))


@pytest.mark.parametrize(
    ("seed", "pools", "steps"),
    [(1, 5, 240_000), pytest.param(2, 4, 60_000, marks=pytest.mark.long)],
    ids=["one pool to spare", "none, and a week"],
)
def test_a_month_of_faults_ends_complete(seed: int, pools: int, steps: int) -> None:
    """No budget fails the job, whatever befalls it; each fault is charged once, by its own name, however many hosts.

    Where machines are missing for hours the job waits for them. Where there are others, it is late by a twentieth.
    """
    month = Month(seed, steps=steps, pools=pools)
    month.run(60.0 * DAY)
    losses, restarts, befell = month.status["losses"], month.launcher.restarts, month.befell

    assert (month.status["phase"], month.status["progress"]["step"]) == ("Complete", steps)
    assert losses.keys() == {"maintenance", "nodeLost", "hostLost"}
    for cause, fault in (("maintenance", "preempted"), ("nodeLost", "dead")):
        assert 0.8 * befell[fault] <= losses[cause] <= befell[fault]
    assert losses["hostLost"] <= befell["preempted"] + befell["dead"], "rounds that were given back"
    last = month.status["round"]
    assert last > 0
    assert [each["metadata"]["name"] for each in month.world.list(CONFIG_MAPS)] == [f"job-shardwise-{last}"]
    for cause in (Cause.FAILURE, Cause.HANG, Cause.DEVICE):
        assert restarts.get(cause, 0) <= befell[cause]
    if pools > _SLICES:
        assert month.days < 1.06 * steps * STEP_SECONDS / DAY


def test_a_week_without_a_pool_to_spare_loses_little_where_fewer_slices_will_do() -> None:
    """Waiting for all slices costs this job a seventh of its time; going on with those that there are half of that."""
    steps = 60_000
    month = Month(1, steps=steps, pools=_SLICES, least=1)
    month.run(60.0 * DAY)
    losses, befell = month.status["losses"], month.befell

    assert (month.status["phase"], month.status["progress"]["step"]) == ("Complete", steps)
    assert losses["maintenance"] <= befell["preempted"]
    assert losses["nodeLost"] <= befell["dead"]
    assert losses.get("hostLost", 0) == 0, "no round was given back in vain"
    assert [each["metadata"]["name"] for each in month.world.list(CONFIG_MAPS)] == [
        f"job-shardwise-{month.status['round']}"
    ]
    assert month.days < 1.08 * steps * STEP_SECONDS / DAY

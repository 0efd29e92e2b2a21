"""A job that may go on with fewer slices, in simulated time: while slices are away, and when they are back."""

from typing import Any

import pytest
from tests.operator.life import HOUR, STEP_SECONDS, Life
from tests.operator.world import Cluster

from shardwise_operator.runtime.kinds import ACCELERATOR_CLASSES, CONFIG_MAPS, PODS, WORKLOADS

_STEPS = 3000  # of ten seconds on all slices, a save every half hour
_REPLACE_WITHIN = 600.0


def _begun(*, least: int = 1, slices: int = 4, queued: bool = False) -> Life:
    """A job that has taken its first steps, on as many pools as it needs."""
    life = Life(topology="2x2x2", slices=slices, pools=slices, steps=_STEPS, least=least, queued=queued)
    life.run(300.0)
    assert life.status["phase"] == "Running"
    return life


def _fewer(life: Life) -> dict[str, Any] | None:
    return next((each for each in life.status["conditions"] if each["type"] == "FewerSlices"), None)


def _pods(life: Life, *, placeholders: bool) -> list[Any]:
    """The pods that have not ended: those that train, or those that hold a place."""
    return [
        pod
        for pod in life.world.list(PODS)
        if pod["status"]["phase"] in ("Pending", "Running")
        and (pod["spec"]["containers"][0]["command"][-1] == "shardwise.launcher.placeholder") == placeholders
    ]


@pytest.mark.parametrize("pool", ["pool-0", "pool-2"], ids=["with host 0", "of others"])
def test_the_run_goes_on_without_a_slice_and_takes_it_in_again(pool: str) -> None:
    """After replaceWithin three slices of four train; once the fourth is back it is taken in, and that loses no step.

    The loss is charged once. What waits meanwhile is said, and holds no place that the three could need.
    """
    life = _begun()
    life.cluster.preempt(pool, 3.0 * HOUR)

    life.run(_REPLACE_WITHIN - 100.0)
    assert "slices" not in life.status
    life.run(400.0)
    status, condition = life.status, _fewer(life)
    assert (status["phase"], status["slices"], status["hosts"]["summary"]) == ("Running", 3, "6/8")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("True", "SlicesLeftOut")
    assert condition["message"].startswith("3 of 4 slices; job-3-0-")
    assert condition["message"].endswith(": no node fits")
    assert (len(_pods(life, placeholders=False)), len(_pods(life, placeholders=True))) == (6, 2)

    life.run(3.0 * HOUR)
    status, condition = life.status, _fewer(life)
    assert (status["phase"], status.get("slices"), status["hosts"]["summary"]) == ("Running", None, "8/8")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("False", "AllThere")
    assert _pods(life, placeholders=True) == []

    life.run(24.0 * HOUR)
    assert (life.status["phase"], life.status["progress"]["step"]) == ("Complete", _STEPS)
    assert life.status["losses"] == {"maintenance": 1}
    assert [each["metadata"]["name"] for each in life.world.list(CONFIG_MAPS)] == ["job-shardwise-2"]


def test_a_queued_job_keeps_the_quota_of_the_slices_that_are_away() -> None:
    """It goes on with three of four and takes the fourth in again, all by the admission that it had."""
    life = _begun(queued=True)
    (workload,) = life.world.list(WORKLOADS)
    assert workload["spec"]["podSets"][0]["count"] == 8
    life.cluster.preempt("pool-2", 3.0 * HOUR)

    life.run(0.5 * HOUR)
    assert (life.status["phase"], life.status["slices"]) == ("Running", 3)
    assert (len(_pods(life, placeholders=False)), len(_pods(life, placeholders=True))) == (6, 2)
    life.run(3.0 * HOUR)
    assert (life.status["phase"], life.status.get("slices")) == ("Running", None)
    assert [each["metadata"]["uid"] for each in life.world.list(WORKLOADS)] == [workload["metadata"]["uid"]]
    assert life.status["losses"] == {"maintenance": 1}


def test_a_queued_job_begins_with_the_slices_that_there_are() -> None:
    """Admitted with all, it does not give its quota back after startWithin, as long as some slices are whole."""
    life = Life(topology="2x2x2", slices=4, pools=4, steps=_STEPS, least=2, queued=True)
    life.cluster.preempt("pool-3", 5.0 * HOUR, notice_seconds=0.0)

    life.run(HOUR)
    assert (life.status["phase"], life.status["slices"]) == ("Running", 3)
    life.run(5.0 * HOUR)
    assert (life.status["phase"], life.status.get("slices")) == ("Running", None)
    assert len({each["metadata"]["uid"] for each in life.world.list(WORKLOADS)}) == 1


def test_a_queued_job_that_is_evicted_has_all_slices_when_it_is_admitted_again() -> None:
    """Its placeholders end with its pods; what it is admitted with next is all that it asks for."""
    life = _begun(queued=True)
    life.cluster.preempt("pool-2", 2.0 * HOUR)
    life.run(0.5 * HOUR)
    assert life.status["slices"] == 3
    waiting = {pod["metadata"]["name"] for pod in _pods(life, placeholders=True)}

    life.queue.evict()
    life.run(0.2 * HOUR)
    again = {pod["metadata"]["name"] for pod in _pods(life, placeholders=False)}
    assert (len(waiting), len(again), waiting & again) == (2, 8, set())
    life.run(2.5 * HOUR)
    (workload,) = life.world.list(WORKLOADS)
    assert workload["spec"]["podSets"][0]["count"] == 8
    assert (life.status["phase"], life.status.get("slices")) == ("Running", None)
    assert _pods(life, placeholders=True) == []
    life.run(24.0 * HOUR)
    assert (life.status["phase"], life.status["progress"]["step"]) == ("Complete", _STEPS)


def test_a_queued_job_of_which_too_few_slices_are_whole_gives_its_quota_back() -> None:
    """Three of four are the fewest, and two are there: it queues again, for all of them."""
    life = _begun(least=3, queued=True)
    (workload,) = life.world.list(WORKLOADS)
    life.cluster.preempt("pool-1", 2.0 * HOUR)
    life.cluster.preempt("pool-2", 2.0 * HOUR)

    life.run(1.5 * HOUR)
    assert "slices" not in life.status
    assert workload["metadata"]["uid"] not in [each["metadata"]["uid"] for each in life.world.list(WORKLOADS)]
    life.run(24.0 * HOUR)
    assert life.status["phase"] == "Complete"


def test_a_queued_job_on_fewer_slices_that_loses_too_many_queues_for_all() -> None:
    """Three of four go on, and a second one is lost: the quota of all is given back."""
    life = _begun(least=3, queued=True)
    (workload,) = life.world.list(WORKLOADS)
    life.cluster.preempt("pool-1", 8.0 * HOUR)
    life.run(0.5 * HOUR)
    assert life.status["slices"] == 3
    life.cluster.preempt("pool-2", 6.0 * HOUR)

    life.run(3.0 * HOUR)
    assert "slices" not in life.status
    assert _pods(life, placeholders=True) == []
    assert {each["spec"]["podSets"][0]["count"] for each in life.world.list(WORKLOADS)} <= {8}
    assert workload["metadata"]["uid"] not in [each["metadata"]["uid"] for each in life.world.list(WORKLOADS)]
    life.run(24.0 * HOUR)
    assert life.status["phase"] == "Complete"


def test_fewer_than_the_fewest_are_waited_for() -> None:
    """Two slices of four are too few for three: all are given back and tried again, as of any job."""
    life = _begun(least=3)
    life.cluster.preempt("pool-1", 2.0 * HOUR)
    life.cluster.preempt("pool-2", 2.0 * HOUR)

    life.run(HOUR)
    assert "slices" not in life.status
    assert life.status["phase"] in ("Pending", "Recovering")
    life.run(24.0 * HOUR)
    assert life.status["phase"] == "Complete"


@pytest.mark.parametrize("way", ["at once", "by a restart"])
def test_a_job_that_may_no_longer_have_fewer_has_all_again(way: str) -> None:
    """It was suspended, changed and resumed before the operator looked, so that its round went on with three slices."""
    life = _begun()
    life.cluster.preempt("pool-1", 2.0 * HOUR)
    life.run(1500.0)
    assert life.status["slices"] == 3

    life.change(recovery={})
    if way == "by a restart":
        life.cluster.preempt(life.cluster.used()[-1], 0.5 * HOUR)
    life.run(4.0 * HOUR)

    status, condition = life.status, _fewer(life)
    assert (status["phase"], status.get("slices"), status["hosts"]["summary"]) == ("Running", None, "8/8")
    assert condition is not None
    assert condition["status"] == "False"
    assert _pods(life, placeholders=True) == []
    assert status["losses"].keys() <= {"maintenance", "hostLost"}


def test_a_job_on_fewer_slices_goes_on_without_its_class() -> None:
    """It holds no places meanwhile: another round could not begin. With the class it takes in what is back."""
    life = _begun()
    life.cluster.preempt("pool-1", HOUR)
    life.run(1500.0)
    machine = life.world.find(ACCELERATOR_CLASSES, "tpu-v5p")

    life.world.remove(ACCELERATOR_CLASSES, "tpu-v5p")
    life.run(3.0 * HOUR)
    condition = _fewer(life)
    assert (life.status["phase"], life.status["slices"]) == ("Running", 3)
    assert condition is not None
    assert condition["status"] == "True"
    assert _pods(life, placeholders=True) == []
    life.world.put(ACCELERATOR_CLASSES, machine)
    life.run(HOUR)
    assert (life.status["phase"], life.status.get("slices")) == ("Running", None)


def test_a_job_begins_with_the_slices_that_there_are() -> None:
    """After startWithin; the others come later."""
    life = Life(topology="2x2x2", slices=4, pools=4, steps=_STEPS, least=2)
    life.cluster.preempt("pool-3", 5.0 * HOUR, notice_seconds=0.0)

    life.run(0.4 * HOUR)
    assert life.status["phase"] == "Pending"
    life.run(0.3 * HOUR)
    assert (life.status["phase"], life.status["slices"]) == ("Running", 3)
    life.run(5.0 * HOUR)
    assert (life.status["phase"], life.status.get("slices")) == ("Running", None)


def test_a_host_that_is_lost_comes_before_placeholders() -> None:
    """Its node is dead, and the only one left is held for a slice: the host gets it."""
    life = _begun(slices=2)
    life.cluster.preempt("pool-1", 1.0 * HOUR)
    life.run(1200.0)
    assert (life.status["phase"], life.status["slices"]) == ("Running", 1)
    life.cluster.come("pool-1")
    life.run(60.0)
    assert len(_pods(life, placeholders=True)) == 2

    life.cluster.kill_node(life.cluster.nodes(life.cluster.used()[0])[0], 6.0 * HOUR)
    life.run(900.0)

    assert (life.status["phase"], life.status["slices"], life.status["hosts"]["summary"]) == ("Running", 1, "2/4")


def test_a_resumed_job_asks_for_all_of_its_slices() -> None:
    """A suspend ends the round with fewer, and its placeholders."""
    life = _begun()
    life.cluster.preempt("pool-1", 4.0 * HOUR)
    life.run(1200.0)
    assert life.status["slices"] == 3

    life.suspend(suspended=True)
    life.run(600.0)
    assert (life.status["phase"], _pods(life, placeholders=True)) == ("Suspended", [])
    life.suspend(suspended=False)
    life.run(300.0)
    assert "slices" not in life.status
    assert life.status["hosts"]["of"] == 8
    life.run(24.0 * HOUR)
    assert life.status["phase"] == "Complete"


@pytest.mark.parametrize("when", ["left out", "taken in"])
def test_an_operator_may_be_killed_before_each_of_its_writes(when: str) -> None:
    """Its successor goes on from what the API server has: the same slices, the same charges, nothing left behind."""
    for writes in range(30):
        life = _begun(slices=2)
        life.cluster.preempt("pool-1", 2.0 * HOUR)
        life.run(500.0 if when == "left out" else 7000.0)
        before = life.status.get("slices")
        life.world.writes_left = writes
        life.run(1500.0)
        life.start_operator()
        life.run(60.0)

        slices = life.status.get("slices")
        assert (before, slices) == ((None, 1) if when == "left out" else (1, None)), writes
        assert life.status["losses"] == {"maintenance": 1}
        assert len(_pods(life, placeholders=False)) == (2 if slices else 4)
        assert len(_pods(life, placeholders=True)) == (2 if slices else 0)
        life.run(24.0 * HOUR)
        assert (life.status["phase"], life.status["progress"]["step"]) == ("Complete", _STEPS)


def test_a_job_that_ends_on_fewer_slices_lacks_none() -> None:
    """Nothing of it waits for a slice any more."""
    life = _begun()
    life.cluster.preempt("pool-1", 48.0 * HOUR)
    life.run(24.0 * HOUR)
    condition = _fewer(life)

    assert (life.status["phase"], life.status["slices"]) == ("Complete", 3)
    assert condition is not None
    assert condition["status"] == "False"
    life.cluster.world.pass_time(life.world.now + 60.0)
    life._pass()
    life.world.pass_time(life.world.now + 60.0)
    assert _pods(life, placeholders=True) == []


def test_broken_places_are_left_for_whole_ones() -> None:
    """Two of four slices have a dead node each: the two others go on, and not in what room is left there."""
    life = _begun()
    for pool in ("pool-0", "pool-1"):
        life.cluster.kill_node(f"{pool}-0", 240.0 * HOUR)
    life.run(0.5 * HOUR)

    assert (life.status["phase"], life.status["slices"]) == ("Running", 2)
    training = {life.cluster.pool_of(pod["spec"]["nodeName"]) for pod in _pods(life, placeholders=False)}
    assert training == {"pool-2", "pool-3"}


def test_a_slice_comes_back_in_another_place() -> None:
    """Where there is one to spare: a node that is dead for days keeps no slice out."""
    life = Life(topology="2x2x2", slices=2, pools=3, steps=_STEPS, least=1)
    life.run(300.0)
    life.cluster.kill_node("pool-1-0", 240.0 * HOUR)
    life.run(HOUR)

    assert (life.status["phase"], life.status.get("slices")) == ("Running", None)
    assert life.cluster.used() == ["pool-0", "pool-2"]


def test_a_slice_that_is_about_to_go_again_is_not_taken_in() -> None:
    """Its nodes have their notice; so the run goes on undisturbed."""
    life = _begun(slices=2)
    life.cluster.preempt("pool-1", HOUR)
    life.world.later(HOUR + 90.0, lambda: life.cluster.preempt("pool-1", 12.0 * HOUR, notice_seconds=300.0))
    life.run(3.0 * HOUR)

    assert (life.status["phase"], life.status["slices"], life.status["round"]) == ("Running", 1, 1)


def test_a_slice_that_is_of_no_use_alone_is_given_back() -> None:
    """A batch that divides over two slices and four, not over three: for others, or for nobody to pay for."""
    life = Life(topology="2x2x2", slices=4, pools=4, steps=100_000, least=1)
    life.job["spec"]["training"]["batch"] = {"sequences": 512}
    life.run(300.0)
    life.cluster.preempt("pool-2", HOUR)
    life.cluster.preempt("pool-3", 1000.0 * HOUR)
    life.run(1.2 * HOUR)
    assert (life.status["slices"], len(life.cluster.used())) == (2, 3)

    held = 0
    for _ in range(96):
        life.run(HOUR / 2)
        held += len(life.cluster.used()) > 2
    assert (life.status["phase"], life.status["slices"], life.status["round"]) == ("Running", 2, 1)
    assert 2 <= held <= 12, "it is asked for again, each time later, for half an hour"


def test_what_was_taken_in_in_vain_is_taken_in_later_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where placeholders run and hosts do not, the run is stopped for it a few times in two days, not every hour."""
    runs, broken = Cluster._run, [False]

    def run(cluster: Cluster, name: str, uid: str) -> None:
        pod: Any = cluster.world.find(PODS, name)
        command = pod["spec"]["containers"][0]["command"] if pod else []
        in_place = pod is not None and cluster.pool_of(pod["spec"].get("nodeName", "-")) == "pool-1"
        if not (broken[0] and in_place and command[-1] != "shardwise.launcher.placeholder"):
            runs(cluster, name, uid)

    monkeypatch.setattr(Cluster, "_run", run)
    life = Life(topology="2x2x2", slices=2, pools=2, steps=100_000, least=1)
    life.run(HOUR)
    broken[0] = True
    life.cluster.preempt("pool-1", HOUR)
    life.run(48.0 * HOUR)

    assert (life.status["phase"], life.status["losses"]) == ("Running", {"maintenance": 1})
    assert 6 <= life.status["round"] <= 30
    assert life.status["growth"]["inVain"] >= 3
    steps_of_one_slice = 48.0 * HOUR / (2.0 * STEP_SECONDS)
    assert life.status["progress"]["step"] > 0.8 * steps_of_one_slice

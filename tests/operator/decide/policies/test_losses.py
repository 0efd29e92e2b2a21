"""Lost pods: each is charged once, to its own cause; its host gets a new number; a used up budget ends the job."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import NOW, begun, manifest, pod, seen, snapshot

from shardwise_operator.decide.policies import losses
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.snapshot import Snapshot
from shardwise_operator.observe.state import Loss, Phase, State
from shardwise_operator.reasons import Lost

OTHER = pod("0-1")
LEFT = "99 of 100 restarts for nodeLost are left before a newer checkpoint"


@pytest.mark.parametrize(
    ("lost", "cause"),
    [
        (pod(phase="Failed", disruption="EvictionByEvictionAPI"), Lost.EVICTION),
        (pod(phase="Failed", disruption="PreemptionByScheduler"), Lost.EVICTION),
        (pod(phase="Failed", disruption="TerminationByKubelet"), Lost.EVICTION),
        (pod(phase="Failed", reason="Evicted"), Lost.EVICTION),
        (pod(deleting_at=NOW + 30, disruption="DeletionByTaintManager"), Lost.NODE_LOST),
        (pod(phase="Failed", disruption="DeletionByPodGC"), Lost.NODE_LOST),
        (pod(phase="Failed", reason="NodeShutdown"), Lost.MAINTENANCE),
        (pod(phase="Failed", reason="Terminated", disruption="TerminationByKubelet"), Lost.MAINTENANCE),
        (pod(phase="Failed", reason="UnexpectedAdmissionError"), Lost.ADMISSION),
        (pod(phase="Failed", reason="OutOfcpu"), Lost.ADMISSION),
        (pod(phase="Failed", exit_reason="OOMKilled"), Lost.OUT_OF_MEMORY),
        (pod(phase="Failed", exit_reason="Error"), Lost.UNKNOWN),
        (pod(phase="Succeeded"), Lost.UNKNOWN),
        (pod(deleting_at=NOW + 30), Lost.UNKNOWN),
    ],
)
def test_every_end_has_its_cause(lost: Pod, cause: Lost) -> None:
    """The cause is what the cluster says of the pod; its host alone gets a new number."""
    plan = losses.decide(seen(begun(), lost, OTHER), NOW)

    assert plan is not None
    assert plan.state.charged == plan.state.losses == {cause: 1}
    assert plan.state.attempts == {"0-0": 1, "0-1": 0}
    assert plan.state.pods == {"0-1": OTHER.uid}
    assert plan.state.phase == Phase.RECOVERING
    assert plan.steps == ()


def test_what_ends_on_a_silent_node_is_the_node_s_loss() -> None:
    """Where the pod itself says nothing of it."""
    plan = losses.decide(seen(begun(), pod(deleting_at=NOW), OTHER, silent_nodes=frozenset({"node-0-0"})), NOW)

    assert plan is not None
    assert plan.state.charged == {Lost.NODE_LOST: 1}


def test_a_pod_that_is_gone_is_lost() -> None:
    """One that was made and is not there any more counts, too."""
    plan = losses.decide(seen(begun(), OTHER), NOW)

    assert plan is not None
    assert plan.state.charged == {Lost.UNKNOWN: 1}


def test_a_pod_that_is_not_made_yet_is_not_lost() -> None:
    """Only a pod that the status knows can be missed."""
    assert losses.decide(seen(begun(pods={"0-1": OTHER.uid}), OTHER), NOW) is None


def test_running_pods_are_not_lost() -> None:
    """Nothing is charged while all is well; neither is one that is not ready."""
    assert losses.decide(seen(begun(), pod(ready=False), OTHER), NOW) is None


def test_one_end_is_counted_once() -> None:
    """The pass after the charge sees the same dead pod, and has nothing to say."""
    dead = pod(phase="Failed", reason="Evicted")
    first = losses.decide(seen(begun(), dead, OTHER), NOW)
    assert first is not None

    assert losses.decide(seen(first.state, dead, OTHER), NOW) is None


def test_pods_of_one_slice_at_once_are_one_loss() -> None:
    """A node, or a whole slice, that takes two pods with it costs as much as one that takes one."""
    gone = (pod(deleting_at=NOW, disruption="DeletionByTaintManager"), pod("0-1", phase="Failed", reason="NodeLost"))

    plan = losses.decide(seen(begun(), *gone), NOW)

    assert plan is not None
    assert plan.state.charged == {Lost.NODE_LOST: 1}
    assert plan.state.attempts == {"0-0": 1, "0-1": 1}
    assert plan.state.pods == {}
    assert plan.state.not_before == NOW
    assert [event.message for event in plan.events] == [f"2 hosts lost their pods (0-0, 0-1): nodeLost; {LEFT}"]
    assert plan.state.message == plan.events[0].message


def test_a_big_slice_is_one_loss() -> None:
    """128 hosts of which one pod says less than the others; an evicted pod of another slice is a second loss."""
    big = snapshot(manifest(hardware={"accelerator": "gpu", "topology": "128x1", "slices": 2}))
    gone = [pod(host, phase="Failed", reason="NodeLost") for host in big.hosts[1:128]]

    plan = losses.decide(
        seen(
            begun(hosts=big.hosts),
            *gone,
            *map(pod, big.hosts[129:]),
            pod("1-0", reason="Evicted", phase="Failed"),
            made_of=big,
        ),
        NOW,
    )

    assert plan is not None
    assert plan.state.charged == {Lost.NODE_LOST: 1, Lost.EVICTION: 1}
    assert plan.state.phase == Phase.RECOVERING


def test_a_loss_has_the_cause_that_is_known_of_any_of_its_hosts() -> None:
    """Also if most of its pods went without a word: the budget is that of the cause."""
    four = snapshot(manifest(hardware={"accelerator": "gpu", "topology": "4x1"}))
    pods = [pod("0-0"), pod("0-1", phase="Failed", reason="NodeLost"), pod("0-2", deleting_at=NOW)]

    plan = losses.decide(seen(begun(hosts=four.hosts), *pods, made_of=four), NOW)

    assert plan is not None
    assert plan.state.charged == {Lost.NODE_LOST: 1}


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.STARTING])
def test_a_job_that_has_not_started_recovers_from_nothing(phase: Phase) -> None:
    """It stays Pending, and so under `startWithin`; one that starts, or runs, recovers."""
    plan = losses.decide(seen(begun(phase), pod(phase="Failed", reason="Evicted"), OTHER), NOW)

    assert plan is not None
    assert plan.state.phase == (Phase.PENDING if phase == Phase.PENDING else Phase.RECOVERING)


def test_what_a_slice_loses_soon_after_is_the_same_loss() -> None:
    """Each of its hosts once: one that is lost again is lost anew, and so is one that outlives the loss for long."""
    loss = Loss(NOW - 60, frozenset({0}))
    state = begun(attempts={"0-0": 1, "0-1": 0}, charged={"nodeLost": 1}, last_loss={"0": loss})
    evicted: dict[str, Any] = {"phase": "Failed", "reason": "Evicted"}

    same = losses.decide(seen(state, pod(attempt=1), pod("0-1", **evicted)), NOW)
    gone = losses.decide(seen(state, pod(attempt=1)), NOW)
    again = losses.decide(seen(state, pod(attempt=1, **evicted), pod("0-1")), NOW)
    late = losses.decide(seen(state, pod(attempt=1), pod("0-1", **evicted)), NOW + 300)

    for plan in (same, gone):
        assert plan is not None
        assert plan.state.charged == {"nodeLost": 1}
        assert plan.state.last_loss == {"0": Loss(NOW - 60, frozenset({0, 1}))}
        assert (plan.state.reason, plan.state.not_before) == ("PodReplaced", NOW)
    assert again is not None
    assert (again.state.charged, again.state.last_loss) == (
        {"nodeLost": 1, "eviction": 1},
        {"0": replace(loss, at=NOW, cause="eviction")},
    )
    assert late is not None
    assert late.state.charged == {"nodeLost": 1, "eviction": 1}


def _of_slices(number: int) -> tuple[Snapshot, dict[str, Any]]:
    """What a job of this many slices is made of, each of one host, and what a pod shows whose node was lost."""
    made_of = snapshot(manifest(hardware={"accelerator": "tpu-v5e", "topology": "2x4", "slices": number}))
    return made_of, {"deleting_at": NOW - 1, "disruption": "DeletionByTaintManager"}


def test_what_many_slices_lose_at_once_is_one_loss() -> None:
    """One zone or switch takes them all, so it costs one loss of each cause and no wait, whatever their number."""
    made_of, gone = _of_slices(128)
    evicted = pod(made_of.hosts[-1], phase="Failed", reason="Evicted")

    plan = losses.decide(
        seen(begun(hosts=made_of.hosts), *(pod(host, **gone) for host in made_of.hosts[:-1]), evicted, made_of=made_of),
        NOW,
    )

    assert plan is not None
    assert plan.state.phase == Phase.RECOVERING
    assert plan.state.charged == plan.state.losses == {Lost.NODE_LOST: 1, Lost.EVICTION: 1}
    assert plan.state.attempts == dict.fromkeys(made_of.hosts, 1)
    assert plan.state.last_loss.keys() == {str(slice_) for slice_ in range(128)}


def test_what_other_slices_lose_soon_after_is_the_same_loss() -> None:
    """For the same cause, each host once: what is lost for another, much later, or once more is another loss."""
    made_of, gone = _of_slices(4)
    rest = pod("2-0"), pod("3-0")
    first = losses.decide(seen(begun(hosts=made_of.hosts), pod("0-0", **gone), pod("1-0"), *rest, made_of=made_of), NOW)
    assert first is not None

    def then(state: State, *pods: Pod, at: float) -> State:
        plan = losses.decide(seen(state, *pods, made_of=made_of), at)
        assert plan is not None
        return plan.state

    again = replace(first.state, pods={**first.state.pods, "0-0": "uid-0-0-1"})
    back = pod("0-0", 1)
    soon = then(again, back, pod("1-0", **gone), *rest, at=NOW + 299)
    late = then(again, back, pod("1-0", **gone), *rest, at=NOW + 301)
    other = then(again, back, pod("1-0", phase="Failed", reason="Evicted"), *rest, at=NOW + 60)
    twice = then(again, pod("0-0", 1, **gone), pod("1-0"), *rest, at=NOW + 60)
    both = then(replace(soon, pods={**soon.pods, "1-0": "uid-1-0-1"}), back, pod("1-0", 1, **gone), *rest, at=NOW + 300)

    assert soon.charged == {Lost.NODE_LOST: 1}
    assert soon.last_loss["1"] == Loss(NOW, frozenset({0}), Lost.NODE_LOST)
    assert late.charged == twice.charged == both.charged == {Lost.NODE_LOST: 2}
    assert other.charged == {Lost.NODE_LOST: 1, Lost.EVICTION: 1}


def test_only_losses_that_others_may_belong_to_are_remembered() -> None:
    """Of each slice the last, for as long: a job of many slices would have ever more in its status."""
    made_of = snapshot(manifest(hardware={"accelerator": "gpu", "topology": "1x1", "slices": 4}))
    old, recent = Loss(NOW - 301, frozenset({0})), Loss(NOW - 299, frozenset({0}))
    state = begun(hosts=made_of.hosts, last_loss={"1": old, "2": recent})

    plan = losses.decide(seen(state, *map(pod, made_of.hosts[1:]), made_of=made_of), NOW)

    assert plan is not None
    assert plan.state.last_loss == {"0": Loss(NOW, frozenset({0}), "unknown"), "2": recent}


def test_a_newer_checkpoint_fills_the_budgets() -> None:
    """What was lost before it counts no more, for the budget and for the wait; the life of the job keeps it."""
    made_of = snapshot(manifest(recovery={"restarts": {"eviction": 1}}))
    state = begun(charged={"eviction": 1, "nodeLost": 5}, losses={"eviction": 1, "nodeLost": 5}, charged_step=40)
    evicted = pod(phase="Failed", reason="Evicted"), OTHER

    plan = losses.decide(seen(state, *evicted, made_of=made_of, saved_step=50), NOW)
    same = losses.decide(seen(state, *evicted, made_of=made_of, saved_step=40), NOW)

    assert plan is not None
    assert (plan.state.charged, plan.state.charged_step) == ({"eviction": 1}, 50)
    assert plan.state.losses == {"eviction": 2, "nodeLost": 5}
    assert plan.state.not_before == NOW
    assert same is not None
    assert same.state.phase == Phase.FAILED


def test_no_checkpoint_fills_the_budgets_twice() -> None:
    """Where it is not known any more, as after a restart, it stays the one that was charged for."""
    plan = losses.decide(seen(begun(charged_step=40), pod(phase="Failed", reason="Evicted"), OTHER), NOW)

    assert plan is not None
    assert plan.state.charged_step == 40


def test_the_second_waits_twice_as_long_as_the_first() -> None:
    """The first replacement goes at once; then the wait doubles, up to five minutes."""
    waits = []
    for count in (0, 1, 2, 20):
        state = begun(charged={Lost.EVICTION: count})
        plan = losses.decide(seen(state, pod(phase="Failed", reason="Evicted"), OTHER), NOW)
        assert plan is not None
        assert plan.state.not_before is not None
        waits.append(plan.state.not_before - NOW)

    assert waits == [0.0, 1.0, 2.0, 300.0]


def test_a_budget_that_is_used_up_ends_the_job() -> None:
    """The status says which."""
    made_of = snapshot(manifest(recovery={"restarts": {"eviction": 1}}))
    observed: Observed = seen(
        begun(charged={Lost.EVICTION: 1}), pod(phase="Failed", reason="Evicted"), OTHER, made_of=made_of
    )

    plan = losses.decide(observed, NOW)

    assert plan is not None
    assert plan.state.phase == Phase.FAILED
    assert "budget of 1" in plan.state.message


def test_budgets_are_apart() -> None:
    """What one cause has used up is not another's."""
    made_of = snapshot(manifest(recovery={"restarts": {"eviction": 1}}))
    observed = seen(begun(charged={Lost.EVICTION: 1}), pod(phase="Failed", reason="NodeLost"), OTHER, made_of=made_of)

    plan = losses.decide(observed, NOW)

    assert plan is not None
    assert plan.state.phase == Phase.RECOVERING

"""Lost pods: each is charged once, to its own cause; its host gets a new number; a used up budget ends the job."""

import pytest
from tests.operator.building import NOW, begun, frozen, manifest, pod, seen

from shardwise_operator.observed import Observed
from shardwise_operator.pod import Pod
from shardwise_operator.policies import losses
from shardwise_operator.state import Phase
from shardwise_operator.words import Lost

OTHER = pod("0-1")


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
    assert plan.state.charged == {cause: 1}
    assert plan.state.attempts == {"0-0": 1, "0-1": 0}
    assert plan.state.pods == {"0-1": OTHER.uid}
    assert plan.state.phase == Phase.RECOVERING
    assert plan.steps == ()


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


def test_two_pods_at_once_are_two() -> None:
    """A node that takes two pods with it costs two."""
    gone = (pod(deleting_at=NOW, disruption="DeletionByTaintManager"), pod("0-1", phase="Failed", reason="NodeLost"))

    plan = losses.decide(seen(begun(), *gone), NOW)

    assert plan is not None
    assert plan.state.charged == {Lost.NODE_LOST: 2}
    assert plan.state.pods == {}


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
    made_of = frozen(manifest(recovery={"restarts": {"eviction": 1}}))
    observed: Observed = seen(
        begun(charged={Lost.EVICTION: 1}), pod(phase="Failed", reason="Evicted"), OTHER, made_of=made_of
    )

    plan = losses.decide(observed, NOW)

    assert plan is not None
    assert plan.state.phase == Phase.FAILED
    assert "budget of 1" in plan.state.message


def test_budgets_are_apart() -> None:
    """What one cause has used up is not another's."""
    made_of = frozen(manifest(recovery={"restarts": {"eviction": 1}}))
    observed = seen(begun(charged={Lost.EVICTION: 1}), pod(phase="Failed", reason="NodeLost"), OTHER, made_of=made_of)

    plan = losses.decide(observed, NOW)

    assert plan is not None
    assert plan.state.phase == Phase.RECOVERING

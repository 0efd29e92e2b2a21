"""Rounds: begun where the job goes with its class, each with names that no pod has had."""

from dataclasses import replace

from tests.operator.building import NOW, begun, manifest, pod, seen, snapshot

from shardwise_operator.decide.policies import new_round
from shardwise_operator.observe.state import Phase, State
from shardwise_operator.reasons import FALSE, INVALID, READY, TRUE


def test_the_first_round() -> None:
    """The status says that it has begun before anything is made."""
    plan = new_round.decide(seen(), NOW)

    assert plan is not None
    assert plan.state.round == 0
    assert plan.state.attempts == {"0-0": 0, "0-1": 0}
    assert plan.state.started_at == NOW
    assert plan.steps == ()


def test_a_round_that_runs_goes_on() -> None:
    """It is not begun again."""
    assert new_round.decide(seen(begun(), pod(), pod("0-1")), NOW) is None


def test_a_resume_is_a_new_round() -> None:
    """With new names, its own budgets and its own deadline; hosts of another topology too."""
    state = begun(Phase.SUSPENDED, pods={}, charged={"eviction": 3})
    made_of = snapshot(manifest(hardware={"accelerator": "cpu-sim", "topology": "4x2"}))

    plan = new_round.decide(seen(state, made_of=made_of), NOW)

    assert plan is not None
    assert plan.state.round == 1
    assert plan.state.attempts == {"0-0": 1, "0-1": 1, "0-2": 0, "0-3": 0}
    assert plan.state.charged == {}
    assert plan.state.started_at == NOW


def test_suspended_before_its_first_round() -> None:
    """Nothing begins."""
    plan = new_round.decide(seen(suspend=True), NOW)

    assert plan is not None
    assert plan.state.phase == Phase.SUSPENDED
    assert plan.state.round is None
    condition = plan.state.condition("Suspended")
    assert condition is not None
    assert condition.status == TRUE


def test_a_job_that_does_not_go_with_its_class_waits() -> None:
    """It says why, once, and begins when the class is there."""
    wrong = replace(seen(), desired=None, problem="expected an AcceleratorClass of this cluster")

    plan = new_round.decide(wrong, NOW)

    assert plan is not None
    assert plan.state.round is None
    assert plan.state.phase == Phase.PENDING
    condition = plan.state.condition(READY)
    assert condition is not None
    assert (condition.status, condition.reason) == (FALSE, INVALID)
    assert len(plan.events) == 1
    again = new_round.decide(replace(wrong, state=plan.state), NOW)
    assert again is not None
    assert again.events == ()
    healed = new_round.decide(seen(State()), NOW)
    assert healed is not None
    assert healed.state.round == 0

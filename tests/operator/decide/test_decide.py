"""The order of the policies, and lives of jobs told pass by pass, without a cluster."""

import pkgutil
from dataclasses import replace

from tests.operator.building import NOW, SETTINGS, begun, pod, record, seen, snapshot

from shardwise_operator.decide import maintain, policies
from shardwise_operator.decide.decide import POLICIES, decide
from shardwise_operator.decide.plan import Create, Plan, RequestStop
from shardwise_operator.observe.queueing import Queueing
from shardwise_operator.observe.state import Phase
from shardwise_operator.observe.state_fields import read_state, write_state


def _made(plan: Plan) -> list[str]:
    return [step.manifest["metadata"]["name"] for step in plan.steps if isinstance(step, Create)]


def test_every_policy_is_asked() -> None:
    """A file of `policies` that is in neither list would decide nothing, and its own tests would pass."""
    asked = [*POLICIES, *maintain._policies(SETTINGS)]
    names = {getattr(policy, "__name__", type(policy).__module__).rpartition(".")[2] for policy in asked}

    assert {module.name for module in pkgutil.iter_modules(policies.__path__)} <= names


def test_a_job_that_is_deleted_is_left_to_the_garbage_collector() -> None:
    """Nothing is written, whatever its pods do."""
    observed = seen(begun(), deleting=True)

    assert decide(observed, SETTINGS, NOW) == Plan(state=observed.state)


def test_a_job_that_may_not_begin_makes_nothing() -> None:
    """In its first pass: one that is suspended, and one whose class is not there."""
    suspended = decide(seen(suspend=True), SETTINGS, NOW)
    invalid = decide(seen(desired=None, problem="no such class"), SETTINGS, NOW)

    assert (suspended.steps, suspended.state.phase, suspended.state.round) == ((), Phase.SUSPENDED, None)
    assert (invalid.steps, invalid.state.message, invalid.state.round) == ((), "no such class", None)


def test_a_job_is_looked_at_when_the_first_of_its_times_is_up() -> None:
    """Here its deadline, and otherwise startWithin."""
    waiting = pod(), pod("0-1", phase="Pending", node=None, address=None)
    state = begun(Phase.PENDING, ran_at=NOW - 60)
    both, one = (decide(seen(state, *waiting, deadline_seconds=each), SETTINGS, NOW) for each in (100.0, None))

    assert (both.requeue_after_seconds, one.requeue_after_seconds) == (40.0, 1740.0)


def test_a_resume_costs_nothing_while_the_saved_pods_are_still_there() -> None:
    """They say that the run was saved, which was asked for then; the new round begins uncharged."""
    ended = pod(phase="Failed", record=record(80)), pod("0-1", phase="Failed", record=record(80))

    plan = decide(seen(begun(Phase.SUSPENDED), *ended), SETTINGS, NOW)

    assert (plan.state.phase, plan.state.round, plan.state.charged) == (Phase.PENDING, 1, {})


def test_a_run_that_has_ended_has_ended() -> None:
    """It is complete even where a suspend, a deadline or a lost pod comes at the same time."""
    pods = pod(phase="Succeeded", record=record(0)), pod("0-1", phase="Failed", reason="Evicted")

    plan = decide(seen(begun(), *pods, suspend=True, deadline_seconds=1.0), SETTINGS, NOW)

    assert plan.state.phase == Phase.COMPLETE


def test_a_suspended_job_loses_no_pod() -> None:
    """Pods that go because of the suspend are not charged."""
    pods = pod(), pod("0-1", deleting_at=NOW)

    plan = decide(seen(begun(), *pods, suspend=True), SETTINGS, NOW)

    assert plan.state.charged == {}
    assert plan.steps == (RequestStop("10.0.0.1"),)


def test_a_charge_is_written_before_it_is_carried_out() -> None:
    """The pass that charges a lost pod makes none; the next one makes one, and charges nothing."""
    lost = pod("0-1", phase="Failed", reason="Evicted")
    first = decide(seen(begun(), pod(), lost), SETTINGS, NOW)
    second = decide(seen(first.state, pod(), lost), SETTINGS, NOW)

    assert first.steps == ()
    assert "job-0-1-1" in _made(second)
    assert second.state.charged == first.state.charged


def test_a_first_round_begins_with_its_pods() -> None:
    """Their names are known without the status: one pass makes all that it needs, and looks again as of a round."""
    first = decide(seen(), SETTINGS, NOW)
    next_one = decide(seen(first.state), SETTINGS, NOW)

    assert _made(first) == _made(next_one)
    assert {"job-shardwise-0", "job-shardwise", "job-0-0-0", "job-0-1-0"} <= set(_made(first))
    assert (first.state.round, first.state.attempts) == (0, {"0-0": 0, "0-1": 0})
    assert (first.state.started_at, first.state.phase) == (NOW, Phase.PENDING)


def test_other_rounds_are_written_before_their_pods_are_made() -> None:
    """Names that go on count on the status; so do a plan, a queue and a gang."""
    queued = Queueing(queue="team")
    firsts = [
        decide(seen(begun(Phase.SUSPENDED, pods={})), SETTINGS, NOW),
        decide(seen(preflight=True), SETTINGS, NOW),
        decide(seen(queueing=queued), SETTINGS, NOW),
        decide(seen(), replace(SETTINGS, gang_scheduling=True), NOW),
        decide(seen(None, pod()), SETTINGS, NOW),
    ]

    assert [first.steps for first in firsts] == [()] * 5
    assert [first.state.round for first in firsts] == [1, 0, 0, 0, 0]
    assert {"job-0-0-1", "job-0-1-1"} <= set(_made(decide(seen(firsts[0].state), SETTINGS, NOW)))


def test_a_round_that_was_not_written_is_taken_over() -> None:
    """As it was made, before anything else is decided: also of a job that is to be suspended by now."""
    left = seen(None, pod(), snapshot=snapshot(), desired=None)
    plan, suspended = (decide(replace(left, suspend=suspend), SETTINGS, NOW) for suspend in (False, True))

    assert plan == suspended
    assert plan.steps == ()
    assert (plan.state.round, plan.state.attempts) == (0, {"0-0": 0, "0-1": 0})
    assert decide(seen(plan.state, pod(), suspend=True), SETTINGS, NOW).state.phase == Phase.SUSPENDING


def test_a_restarted_operator_decides_the_same() -> None:
    """All that a decision needs is in the objects: the state survives being written and read, to the second."""
    state = decide(seen(begun(), pod(), pod("0-1", phase="Failed")), SETTINGS, NOW).state

    again = read_state(write_state(state, generation=3))

    assert again == state
    observed = seen(state, pod())
    assert decide(replace(observed, state=again), SETTINGS, NOW) == decide(observed, SETTINGS, NOW)

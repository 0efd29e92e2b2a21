"""The deadline: a save is asked for, and the job has failed when its pods have ended."""

from dataclasses import replace

from tests.operator.building import NOW, SETTINGS, begun, pod, seen

from shardwise_operator.decide.decide import decide
from shardwise_operator.decide.phase import with_phase
from shardwise_operator.decide.plan import Delete, RequestStop
from shardwise_operator.decide.policies import deadline
from shardwise_operator.observe.state import Phase


def test_before_it_nothing_happens() -> None:
    """The round ran a minute ago."""
    observed = seen(begun(), pod(), pod("0-1"), deadline_seconds=100.0)

    assert deadline.decide(observed, NOW) is None
    assert deadline.wake(observed, NOW) == 40.0
    assert deadline.decide(seen(begun(), pod()), NOW) is None


def test_queue_time_is_not_run_time() -> None:
    """It counts from when all pods ran, by the last one's kubelet, and goes on when they are lost."""
    waiting = pod("0-1", phase="Pending", node=None)
    running = pod(started_at=NOW - 40), pod("0-1", started_at=NOW - 10)
    pending = with_phase(seen(begun(Phase.PENDING), pod(started_at=NOW - 40), waiting), NOW)
    started = with_phase(seen(begun(Phase.PENDING), *running), NOW)
    recovering = with_phase(seen(started, pod(started_at=NOW), waiting), NOW)

    assert deadline.decide(seen(begun(Phase.PENDING), waiting, deadline_seconds=1.0), NOW) is None
    assert (pending.ran_at, started.ran_at, recovering.ran_at) == (None, NOW - 10, NOW - 10)
    assert deadline.wake(seen(recovering, deadline_seconds=60.0), NOW) == 50.0


def test_a_save_first() -> None:
    """No pod is deleted while it may be under way."""
    plan = deadline.decide(seen(begun(), pod(), pod("0-1"), deadline_seconds=60.0), NOW)

    assert plan is not None
    assert plan.steps == (RequestStop("10.0.0.1"),)
    assert plan.state.stop_asked_at == NOW
    assert plan.state.reason == "DeadlineExceeded"
    assert plan.requeue_after_seconds == 2.0


def test_the_grace_period_counts_from_the_first_request() -> None:
    """It is asked for again, as host 0 may not have heard it."""
    observed = seen(begun(stop_asked_at=NOW - 100), pod(), pod("0-1"), deadline_seconds=60.0)
    plan = deadline.decide(observed, NOW)

    assert plan is not None
    assert (plan.state, plan.steps) == (observed.state, (RequestStop("10.0.0.1"),))


def test_patience_has_an_end() -> None:
    """After the grace period the pods go."""
    plan = deadline.decide(seen(begun(stop_asked_at=NOW - 121), pod(), deadline_seconds=60.0), NOW)

    assert plan is not None
    assert [type(step) for step in plan.steps] == [Delete]


def test_a_deadline_that_is_made_longer_begins_anew() -> None:
    """Host 0 has not taken the request: when the later one passes, it is asked for a save before any pod goes."""
    ran = seen(begun(sealed_round=0), pod(), pod("0-1"), deadline_seconds=60.0)

    asked = decide(ran, SETTINGS, NOW)
    longer = decide(replace(ran, state=asked.state, deadline_seconds=7200.0), SETTINGS, NOW + 1)
    late = decide(replace(ran, state=longer.state, deadline_seconds=7200.0), SETTINGS, NOW + 7140)

    assert asked.state.stop_asked_at == NOW
    assert longer.state.stop_asked_at is None
    assert (late.state.stop_asked_at, late.steps) == (NOW + 7140, (RequestStop("10.0.0.1"),))


def test_then_it_has_failed() -> None:
    """When no pod can do anything any more."""
    plan = deadline.decide(seen(begun(Phase.PENDING, pods={}, ran_at=NOW - 60), deadline_seconds=60.0), NOW)

    assert plan is not None
    assert plan.state.phase == Phase.FAILED
    assert plan.state.reason == "DeadlineExceeded"
    assert plan.state.message == "not complete 60 s after its pods first ran"


def test_a_pod_that_cannot_be_ended_does_not_hold_it_up() -> None:
    """The job has failed all the same, and says which pod is left."""
    left = pod("0-1", deleting_at=NOW - 31)

    plan = deadline.decide(seen(begun(stop_asked_at=NOW - 200), left, deadline_seconds=60.0), NOW)

    assert plan is not None
    assert plan.state.phase == Phase.FAILED
    assert plan.state.message.endswith("still there, for their nodes cannot end them: job-0-1-0 on node-0-1")

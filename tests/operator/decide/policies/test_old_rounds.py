"""What earlier rounds were made of goes with their last pod."""

from tests.operator.building import NOW, begun, pod, seen

from shardwise_operator.decide.plan import Delete, Plan
from shardwise_operator.decide.policies import old_rounds
from shardwise_operator.observe.pod import Pod
from shardwise_operator.runtime.kinds import CONFIG_MAPS, GANGS, NETWORK_POLICIES

CHILDREN = {
    (NETWORK_POLICIES, "job-shardwise"): "policy",
    **{(CONFIG_MAPS, f"job-shardwise-{number}"): f"map-{number}" for number in (0, 1, 2, 10)},
    (GANGS, "job-shardwise-1"): "gang-1",
    (GANGS, "job-shardwise-10"): "gang-10",
    (CONFIG_MAPS, "job-shardwise-of-somebody"): "theirs",
}


def _plan(*pods: Pod) -> Plan:
    return old_rounds.decide(seen(begun(round=10), *pods, children=CHILDREN), NOW)


def test_they_go_once_no_pod_is_left() -> None:
    """A pod mounts its round's ConfigMap, so that one stays with it; so do this round's, and whatever is another's."""
    plan = _plan(pod(round=2, deleting_at=NOW), pod("0-1", round=10))

    assert plan.steps == (
        Delete(CONFIG_MAPS, "job-shardwise-0", "map-0", may_stay=True),
        Delete(CONFIG_MAPS, "job-shardwise-1", "map-1", may_stay=True),
        Delete(GANGS, "job-shardwise-1", "gang-1", may_stay=True),
    )


def test_a_job_in_its_first_round_has_none() -> None:
    """So most passes decide nothing here."""
    assert old_rounds.decide(seen(begun(), pod(), children=CHILDREN), NOW).steps == ()


def test_a_round_whose_pods_are_not_made_yet_keeps_its_own() -> None:
    """They are about to be made of it."""
    assert "map-10" not in [step.uid for step in _plan().steps if isinstance(step, Delete)]

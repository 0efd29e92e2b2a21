"""What protects a run for as long as its host 0 is there."""

from tests.operator.building import NOW, UID, begun, pod, seen

from shardwise_operator.decide.plan import Patch
from shardwise_operator.decide.policies import network_policy
from shardwise_operator.observe.observed import Guard, Observed
from shardwise_operator.runtime.kinds import NETWORK_POLICIES


def _patch(observed: Observed) -> Patch:
    plan = network_policy.decide(observed, NOW)
    assert plan is not None
    (patch,) = plan.steps
    assert isinstance(patch, Patch)
    return patch


def test_the_network_policy_outlives_the_job_by_host_0() -> None:
    """Pods of a deleted job save for a while, and nobody else may reach them then: the policy has two owners."""
    observed = seen(begun(), pod(), guard=Guard("uid-policy", frozenset({UID})))

    patch = _patch(observed)

    assert (patch.kind, patch.name, patch.uid) == (NETWORK_POLICIES, "job-shardwise", "uid-policy")
    job, leader = patch.patch["metadata"]["ownerReferences"]
    assert (job["uid"], job["controller"]) == (UID, True)
    assert leader == {"apiVersion": "v1", "kind": "Pod", "name": "job-0-0-0", "uid": "uid-0-0-0"}


def test_it_is_done_once_for_each_host_0() -> None:
    """A successor takes the place of the one before; the others own nothing."""
    guard = Guard("uid-policy", frozenset({UID, "uid-0-0-0"}))

    assert network_policy.decide(seen(begun(), pod(), guard=guard), NOW) is None
    again = begun(attempts={"0-0": 1, "0-1": 0}, pods={"0-0": "uid-0-0-1"})
    patch = _patch(seen(again, pod(attempt=1), guard=guard))
    assert [each["uid"] for each in patch.patch["metadata"]["ownerReferences"]] == [UID, "uid-0-0-1"]


def test_without_a_host_0_nothing_is_patched() -> None:
    """The policy follows none that has ended or has no address yet."""
    guard = Guard("uid-policy", frozenset({UID}))

    assert network_policy.decide(seen(begun(), pod(address=None), guard=guard), NOW) is None
    assert network_policy.decide(seen(begun(), pod(phase="Failed"), guard=guard), NOW) is None

"""Gangs: all pods of a round that look for a node are placed at once or not at all, and a replaced one joins them."""

from dataclasses import replace
from typing import Any

from tests.operator.building import NOW, SETTINGS, admitted, begun, manifest, pod, seen, snapshot

from shardwise_operator.decide.plan import Create, Plan
from shardwise_operator.decide.policies.creation import Creation
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Phase
from shardwise_operator.observe.workload import Admission
from shardwise_operator.runtime.kinds import GANGS, NETWORK_POLICIES, PODS, Kind

GANG = "job-shardwise-0"
HAS_GANG = {(GANGS, GANG): "uid-gang"}
REPLACED = begun(attempts={"0-0": 0, "0-1": 1}, pods={"0-0": "uid-0-0-0"})
ENDED = pod("0-1", phase="Failed", exit_code=1)


def _plan(observed: Observed, *, gangs: bool = True) -> Plan:
    return Creation(replace(SETTINGS, gang_scheduling=gangs)).decide(observed, NOW)


def _made(plan: Plan, kind: Kind) -> list[dict[str, Any]]:
    return [dict(step.manifest) for step in plan.steps if isinstance(step, Create) and step.kind == kind]


def _gangs(plan: Plan) -> list[str | None]:
    return [each["spec"].get("workloadRef", {}).get("name") for each in _made(plan, PODS)]


def test_the_pods_of_a_round_begin_as_a_gang() -> None:
    """Which is there before them, for all of them."""
    plan = _plan(seen(begun(Phase.PENDING, pods={})))
    (gang,) = _made(plan, GANGS)
    kinds = [step.kind for step in plan.steps if isinstance(step, Create)]

    assert gang["metadata"]["name"] == GANG
    assert gang["spec"]["podGroups"] == [{"name": "hosts", "policy": {"gang": {"minCount": 2}}}]
    assert [each["spec"]["workloadRef"] for each in _made(plan, PODS)] == [{"name": GANG, "podGroup": "hosts"}] * 2
    assert kinds.index(GANGS) < kinds.index(PODS)


def test_without_gangs_nobody_waits_for_others() -> None:
    """As before, and while an earlier pod of another host still ends."""
    state = begun(Phase.PENDING, pods={}, attempts={"0-0": 1, "0-1": 1})
    plan = _plan(seen(state, pod("0-1", deleting_at=NOW)), gangs=False)

    assert (_gangs(plan), _made(plan, GANGS)) == ([None], [])


def test_a_gang_waits_for_the_end_of_the_pods_before_it() -> None:
    """The scheduler would count them, and place one of the new ones alone."""
    state = begun(Phase.PENDING, pods={}, attempts={"0-0": 1, "0-1": 1})
    ending, over = (_plan(seen(state, pod("0-1", **how))) for how in ({"deleting_at": NOW}, {"phase": "Failed"}))

    assert (_gangs(ending), _made(ending, GANGS)) == ([], [])
    assert _gangs(over) == [GANG, GANG]


def test_what_held_a_place_for_a_slice_is_no_pod_of_the_gang() -> None:
    """The status still has its UID: the new pods wait for the end of those before all the same."""
    state = begun(Phase.PENDING, pods={"1-0": "uid-1-0-0"}, attempts={"0-0": 1, "0-1": 1, "1-0": 0}, slices=1)
    ending = _plan(seen(state, pod("0-1", deleting_at=NOW), slice_counts=(2, 1)))

    assert (_gangs(ending), _made(ending, GANGS)) == ([], [])


def test_a_replaced_pod_joins_its_gang() -> None:
    """Also where the pass that made the gang ended before its last pod."""
    plan = _plan(seen(REPLACED, pod(), ENDED, children=HAS_GANG))

    assert (_gangs(plan), _made(plan, GANGS)) == ([GANG], [])


def test_a_round_that_began_without_gangs_goes_on_without() -> None:
    """A gang of one new pod would never be whole; nor is one left by an operator that makes none any more."""
    later, no_more = _plan(seen(REPLACED, pod(), ENDED)), _plan(seen(REPLACED, pod(), ENDED), gangs=False)

    assert (_gangs(later), _made(later, GANGS)) == ([None], [])
    assert _gangs(no_more) == [None]


def test_places_that_a_queue_has_chosen_are_not_avoided() -> None:
    """It chooses others for lost pods; the slice's place and the gang stay. Without a choice the lost place is."""
    state = begun(pods={"0-0": "uid-0-0-0"}, attempts={"0-0": 0, "0-1": 1}, avoid={"0-1": "bad"})
    chosen = replace(admitted(), admission=Admission(domains=({"rack": "a"}, {"rack": "b"})))
    (by_queue,), (by_scheduler,) = (
        _made(_plan(seen(state, pod(), ENDED, queueing=each, children=HAS_GANG)), PODS) for each in (chosen, admitted())
    )

    assert "bad" not in str(by_queue["spec"])
    assert by_queue["spec"]["nodeSelector"]["rack"] == "b"
    assert by_queue["spec"]["workloadRef"]["name"] == GANG
    assert "bad" in str(by_scheduler["spec"])


def test_a_namespace_may_have_one_network_policy_for_all() -> None:
    """Then no job makes its own, and needs no right to."""
    observed = seen(begun(Phase.PENDING, pods={}))
    without = Creation(replace(SETTINGS, job_network_policies=False)).decide(observed, NOW)

    assert len(_made(_plan(observed), NETWORK_POLICIES)) == 1
    assert _made(without, NETWORK_POLICIES) == []
    assert len(_made(without, PODS)) == 2


def test_of_slices_with_a_place_the_first_hosts_are_the_gang() -> None:
    """All slices have a place, or none; the others follow, behind a gate that a gang would never see open."""
    made_of = snapshot(manifest(hardware={"accelerator": "tpu-v5p", "topology": "2x2x2", "slices": 2}))
    plan = _plan(seen(begun(Phase.PENDING, hosts=made_of.hosts, pods={}), made_of=made_of))
    (gang,) = _made(plan, GANGS)

    assert gang["spec"]["podGroups"][0]["policy"] == {"gang": {"minCount": 2}}
    assert _gangs(plan) == [GANG, None, GANG, None]
    assert ["schedulingGates" in each["spec"] for each in _made(plan, PODS)] == [False, True, False, True]

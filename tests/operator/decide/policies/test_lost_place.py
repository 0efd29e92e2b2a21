"""A slice whose place is gone is relocated; a place that the job's author has chosen is not ours to leave."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import NOW, admitted, begun, manifest, pod, seen, snapshot

from shardwise.protocol.pods import SLICE_GATE
from shardwise_operator.decide.policies import lost_place
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Phase
from shardwise_operator.observe.workload import Admission

POOL = "cloud.google.com/gke-nodepool"
HARDWARE = {"accelerator": "tpu-v5p", "topology": "2x2x2", "slices": 2}
MADE_OF = snapshot(manifest(hardware=HARDWARE))
WAITING: dict[str, Any] = {"phase": "Pending", "node": None, "address": None}


def _seen(*, gone: set[int], **fields: Any) -> Observed:
    """The first host of slice 0 waits for a node of its place, the second behind its gate; slice 1 runs."""
    pods = [
        pod("0-0", **{"selector": {POOL: "a"}, **WAITING, **fields}),
        pod("0-1", gates=(SLICE_GATE,), **WAITING),
        pod("1-0"),
        pod("1-1", selector={POOL: "b"}),
    ]
    state = begun(Phase.RECOVERING, hosts=MADE_OF.hosts, not_before=NOW - 600)
    return seen(state, *pods, made_of=MADE_OF, gone_places=frozenset(gone))


def test_a_place_that_is_there_is_waited_for() -> None:
    """And looked for again, for its end is no event."""
    observed = _seen(gone=set())

    assert [(waiting.key, place) for waiting, place in observed.settling()] == [("0-0", "a")]
    assert lost_place.decide(observed, NOW) is None
    assert lost_place.wake(observed, NOW) == 30.0


def test_a_slice_without_a_place_is_relocated() -> None:
    """All of its hosts, at nobody's charge; startWithin counts from now. The other slice stays."""
    plan = lost_place.decide(_seen(gone={0}), NOW)

    assert plan is not None
    assert plan.state.attempts == {"0-0": 1, "0-1": 1, "1-0": 0, "1-1": 0}
    assert set(plan.state.pods) == {"1-0", "1-1"}
    assert (plan.state.charged, plan.state.not_before) == ({}, NOW)
    assert plan.steps == ()


def test_a_backoff_goes_on() -> None:
    """A slice that is relocated is no reason to try sooner."""
    observed = _seen(gone={0})
    waiting = replace(observed, state=replace(observed.state, not_before=NOW + 100))
    plan = lost_place.decide(waiting, NOW)

    assert plan is not None
    assert plan.state.not_before == NOW + 100


@pytest.mark.parametrize(
    "fields",
    [{"node": "node-0"}, {"selector": {}}, {"gates": (SLICE_GATE,)}, {"deleting_at": NOW}, {"phase": "Failed"}],
)
def test_who_does_not_wait_for_a_place(fields: dict[str, Any]) -> None:
    """A pod with a node, one that may go anywhere, one behind its gate, one that goes, one that has ended."""
    observed = _seen(gone=set(), **fields)

    assert list(observed.settling()) == []
    assert lost_place.wake(observed, NOW) is None


def test_the_author_s_own_choice_stays() -> None:
    """A pool that the job names may be empty and grow: leaving it would go round in a circle."""
    job = manifest(hardware=HARDWARE)
    job["spec"]["pod"]["template"]["spec"]["nodeSelector"] = {POOL: "a"}
    observed = seen(begun(hosts=MADE_OF.hosts), pod("0-0", selector={POOL: "a"}, **WAITING), made_of=snapshot(job))

    assert list(observed.settling()) == []


@pytest.mark.parametrize(
    "admission",
    [Admission(node_selector={POOL: "a"}), Admission(domains=({POOL: "a"},) * 4)],
    ids=["of its flavor or a check", "of the topology that Kueue has chosen"],
)
def test_the_choice_of_the_job_s_queue_stays(admission: Admission) -> None:
    """Its pool may begin empty and grow for the pods: one that is made anew would have to go to the same place."""
    observed = replace(_seen(gone=set()), queueing=replace(admitted(), admission=admission))

    assert list(observed.settling()) == []
    assert lost_place.wake(observed, NOW) is None

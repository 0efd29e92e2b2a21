"""A host that is to leave its node, where no other takes it, goes back after a while."""

from typing import Any

import pytest
from tests.operator.building import NOW, begun, pod, seen

from shardwise_operator.decide.policies import avoided_nodes
from shardwise_operator.observe.observed import Observed

LOOKING: dict[str, Any] = {
    "phase": "Pending",
    "node": None,
    "address": None,
    "unschedulable": "0/3 nodes",
    "unschedulable_since": NOW - 30,
}


def _seen(avoid: dict[str, str], **fields: Any) -> Observed:
    return seen(begun(avoid=avoid), pod(), pod("0-1", **{**LOOKING, **fields}))


def test_it_looks_for_another_node_first() -> None:
    """For two minutes, which time alone ends."""
    observed = _seen({"0-1": "bad"})

    assert avoided_nodes.decide(observed, NOW) is None
    assert avoided_nodes.wake(observed, NOW) == 90.0


def test_then_it_may_go_back() -> None:
    """With a new pod, which avoids nothing; what other hosts avoid stays."""
    plan = avoided_nodes.decide(_seen({"0-1": "bad", "0-0": "worse"}, unschedulable_since=NOW - 120), NOW)

    assert plan is not None
    assert plan.state.attempts == {"0-0": 0, "0-1": 1}
    assert set(plan.state.pods) == {"0-0"}
    assert plan.state.avoid == {"0-0": "worse"}
    assert plan.state.charged == {}


@pytest.mark.parametrize(
    ("avoid", "fields"),
    [
        ({}, {}),
        ({"0": "pool"}, {}),
        ({"0-1": "bad"}, {"unschedulable_since": None}),
        ({"0-1": "bad"}, {"deleting_at": NOW}),
    ],
)
def test_who_does_not_go_back(avoid: dict[str, str], fields: dict[str, Any]) -> None:
    """One that avoids nothing, a slice that only would rather, one that has a node, one that goes."""
    observed = _seen(avoid, **fields)

    assert avoided_nodes.decide(observed, NOW + 3600) is None
    assert avoided_nodes.wake(observed, NOW) is None

"""Slices that are back are taken in: when, and what is asked of host 0."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import NOW, begun, manifest, pod, record, seen, snapshot

from shardwise_operator.decide.plan import RequestStop
from shardwise_operator.decide.policies import more_slices, outcome
from shardwise_operator.observe.node import Node
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Growth, State

BACK = ("1-0", "1-1")


def observed(*, state: State | None = None, placeholders: dict[str, Any] | None = None, **fields: Any) -> Observed:
    """A round of one slice of two for twenty minutes, whose other slice has been back for two."""
    hosts = ("0-0", "0-1")
    made_of = snapshot(manifest(hardware={"accelerator": "cpu-sim", "topology": "2x2", "slices": 1}))
    held = {"phase": "Running", "started_at": NOW - 120.0, **(placeholders or {})}
    pods = fields.pop("pods", [pod(host) for host in hosts])
    return seen(
        state or begun(hosts=(*hosts, *BACK), slices=1, started_at=NOW - 1200.0),
        *pods,
        *(pod(host, **held) for host in BACK),
        made_of=made_of,
        slice_counts=(2, 1),
        **fields,
    )


def test_host_0_is_asked_once_the_status_says_why() -> None:
    """A pass later, and again until the run has ended; later than its grace period not as often."""
    decided = more_slices.decide(observed(), NOW)
    assert (decided.state.growth.asked_at, decided.steps) == (NOW, ())

    asking = observed(state=decided.state)
    assert more_slices.decide(asking, NOW).steps == (RequestStop("10.0.0.1"),)
    assert more_slices.wake(asking, NOW) == 2.0
    assert more_slices.wake(asking, NOW + asking.grace_seconds) == 30.0


def test_a_round_lasts_for_as_long_as_a_lost_host_is_waited_for() -> None:
    """And what is back for some seconds: others of its kind may follow."""
    young = observed(state=begun(hosts=("0-0", "0-1", *BACK), slices=1, started_at=NOW - 400.0))
    assert more_slices.wake(young, NOW) == 200.0
    assert more_slices.decide(young, NOW).state.growth.asked_at is None

    assert more_slices.wake(observed(placeholders={"started_at": NOW - 10.0}), NOW) == 20.0
    assert more_slices.wake(observed(placeholders={"phase": "Pending"}), NOW) is None


@pytest.mark.parametrize("lost", [{"deleting_at": NOW + 30}, {"phase": "Pending"}, {"phase": "Failed"}], ids=str)
def test_a_lost_host_comes_first(lost: dict[str, Any]) -> None:
    """The run is not asked to save while one of its hosts goes."""
    assert more_slices.wake(observed(pods=[pod(), pod("0-1", **lost)]), NOW) is None


def test_a_slice_whose_node_is_about_to_go_is_not_back() -> None:
    """It would be lost again at once."""
    leaving = {"node-1-1": Node(labels={}, leaving=True)}

    assert more_slices.wake(observed(nodes=leaving), NOW) is None


@pytest.mark.parametrize(("there", "slices", "words"), [(True, None, "2 of 2 slices"), (False, 1, "1 of 2 slices")])
def test_what_was_asked_for_costs_nothing(there: bool, slices: int | None, words: str) -> None:  # noqa: FBT001  a row
    """Whatever has come between: the next round has the slices that there are by then."""
    asked = replace(
        begun(hosts=("0-0", "0-1", *BACK), slices=1), reason="PodReplaced", growth=Growth(asked_at=NOW - 60.0)
    )
    saved = [pod(host, phase="Succeeded", record=record(80)) for host in ("0-0", "0-1")]
    plan = outcome.decide(observed(state=asked, pods=saved, placeholders={} if there else {"phase": "Pending"}), NOW)

    assert plan is not None
    assert (plan.state.round, plan.state.slices, plan.state.charged) == (1, slices, {})
    assert plan.state.growth == Growth(begun=there)
    assert [(event.reason, event.type) for event in plan.events] == [("SlicesBack", "Normal")]
    assert plan.state.message.endswith(words)

"""A notice on a node: a save while there is time, shared by those that come together; taken back with the notice."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import NOW, begun, pod, seen

from shardwise.protocol.run_status import RunSummary
from shardwise_operator.decide.policies import losses, node_maintenance
from shardwise_operator.observe.node import LEAVING_TAINT, Node, read_node
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.poll import Poll
from shardwise_operator.reasons import Lost

GOES, STAYS = Node(labels={}, leaving=True), Node(labels={})


def _seen(*, phase: str = "running", heard_at: float = NOW, state: Any = None, **nodes: Node) -> Observed:
    """A job of two hosts that runs; `nodes` is by host, as h0_1."""
    poll = Poll(heard_at=heard_at, fresh_seconds=8.0, status=RunSummary(phase=phase))
    known = {f"node-{host[1:].replace('_', '-')}": node for host, node in nodes.items()}
    return seen(state or begun(), pod(), pod("0-1"), nodes=known, poll=poll)


@pytest.mark.parametrize(
    ("raw", "leaving"),
    [
        ({"metadata": {}}, False),
        ({"metadata": {}, "spec": {"taints": [{"key": "google.com/tpu", "effect": "NoSchedule"}]}}, False),
        ({"metadata": {}, "spec": {"taints": [{"key": LEAVING_TAINT, "effect": "NoSchedule"}]}}, True),
        ({"metadata": {"labels": {"cloud.google.com/active-node-maintenance": "ONGOING"}}}, True),
        ({"metadata": {"labels": {"cloud.google.com/scheduled-maintenance-time": "1800000000"}}}, False),
    ],
)
def test_what_a_notice_is(raw: dict[str, Any], *, leaving: bool) -> None:
    """GKE's taint, or its label while the maintenance goes on; not one that is only scheduled."""
    assert read_node(raw).leaving == leaving


@pytest.mark.parametrize(
    ("observed", "hosts"),
    [
        (_seen(), None),
        (_seen(h0_1=STAYS), None),
        (_seen(h0_1=GOES), {"0-1": "node-0-1"}),
        (_seen(h0_0=GOES, h0_1=GOES), {"0-0": "node-0-0", "0-1": "node-0-1"}),
        (_seen(h0_1=GOES, phase="starting"), None),
        (_seen(h0_1=GOES, heard_at=NOW - 60), None),
        (_seen(h0_1=GOES, state=begun(leaving={"0-1": "node-0-1"})), None),
        (_seen(h0_1=GOES, state=begun(leaving={"0-1": "node-before"})), {"0-1": "node-0-1"}),
        (_seen(h0_1=GOES, state=begun(save_asked_at=NOW - 10)), None),
        (_seen(h0_1=GOES, state=begun(save_asked_at=NOW - 61)), {"0-1": "node-0-1"}),
    ],
)
def test_when_a_save_is_asked_for(observed: Observed, hosts: dict[str, str] | None) -> None:
    """Once for each notice, of a run that takes steps; what comes within a minute of a save waits that long."""
    request = node_maintenance.save_request(observed, NOW)

    assert (request and (request.address, request.leaving)) == (("10.0.0.1", hosts) if hosts else None)


def test_a_save_that_waits_is_looked_at_again() -> None:
    """Nothing may change until then; and one that host 0 did not take is asked for again."""
    observed = _seen(h0_1=GOES, state=begun(save_asked_at=NOW - 10))

    assert node_maintenance.wake(observed, NOW) == 50.0
    assert node_maintenance.wake(_seen(h0_1=GOES), NOW) == 5.0
    assert node_maintenance.wake(_seen(state=begun(save_asked_at=NOW - 10)), NOW) is None


def test_a_notice_may_be_taken_back() -> None:
    """Then the node's next end is no maintenance's. A node that nobody hears of any more has gone as announced."""
    state = begun(leaving={"0-0": "node-0-0", "0-1": "node-0-1"})

    assert node_maintenance.leaving(_seen(h0_0=STAYS, state=state)) == {"0-1": "node-0-1"}
    assert node_maintenance.decide(_seen(h0_0=STAYS, state=state), NOW).state.leaving == {"0-1": "node-0-1"}


def test_a_notice_that_holds_is_remembered() -> None:
    """Else a save would be asked for again every minute, for as long as the node is about to go."""
    state = begun(leaving={"0-1": "node-0-1"})

    assert node_maintenance.decide(_seen(h0_1=GOES, state=state), NOW).state == state


def test_without_host_0_nobody_can_be_asked() -> None:
    """Though its last word still counts: its pod has just gone."""
    observed = replace(_seen(h0_1=GOES), pods=(pod("0-1"),))

    assert node_maintenance.decide(observed, NOW).steps == ()
    assert node_maintenance.wake(observed, NOW) == 5.0


def test_a_host_that_has_left_its_node_has_no_notice() -> None:
    """Its next pod is elsewhere, and what ends that is no maintenance."""
    moved = pod("0-1", 1, node="node-new", phase="Failed", exit_reason="Error")
    state = begun(attempts={"0-0": 0, "0-1": 1}, pods={"0-1": moved.uid}, leaving={"0-1": "node-0-1"})

    assert node_maintenance.leaving(seen(state, moved)) == {}
    plan = losses.decide(seen(state, moved), NOW)
    assert plan is not None
    assert plan.state.charged == {Lost.UNKNOWN: 1}


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"phase": "Failed", "disruption": "DeletionByPodGC"}, Lost.MAINTENANCE),
        ({"deleting_at": NOW, "disruption": "EvictionByEvictionAPI"}, Lost.MAINTENANCE),
        ({"phase": "Failed", "exit_reason": "Error"}, Lost.MAINTENANCE),
        ({"phase": "Failed", "exit_reason": "OOMKilled"}, Lost.OUT_OF_MEMORY),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, Lost.ADMISSION),
    ],
)
@pytest.mark.parametrize("remembered", [True, False])
def test_what_is_lost_after_a_notice(fields: dict[str, Any], cause: Lost, *, remembered: bool) -> None:
    """It is a maintenance's, but for what the program or the kubelet did; also when the node is gone by then."""
    state = begun(leaving={"0-1": "node-0-1"} if remembered else {})
    nodes = {} if remembered else {"node-0-1": GOES}

    plan = losses.decide(seen(state, pod(), pod("0-1", **fields), nodes=nodes), NOW)

    assert plan is not None
    assert plan.state.charged == {cause: 1}
    assert plan.state.leaving == {}


def test_a_pod_that_is_gone_after_a_notice() -> None:
    """Without a word of it there is still the notice."""
    plan = losses.decide(seen(begun(leaving={"0-1": "node-0-1"}), pod()), NOW)

    assert plan is not None
    assert plan.state.charged == {Lost.MAINTENANCE: 1}

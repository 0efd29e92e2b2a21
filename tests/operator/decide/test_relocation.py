"""The second loss in one place: a host goes to another node, a slice with a place of its own is relocated."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import NOW, begun, manifest, pod, seen, snapshot

from shardwise_operator.decide.policies import losses
from shardwise_operator.observe.node import Node
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.state import Loss, State
from shardwise_operator.reasons import Lost

POOL = "cloud.google.com/gke-nodepool"
TWO_SLICES = snapshot(manifest(hardware={"accelerator": "tpu-v5p", "topology": "2x2x2", "slices": 2}))
CRASHED: dict[str, Any] = {"phase": "Failed", "exit_reason": "Error"}


def _placed(state: State, *lost: str) -> Observed:
    """Two slices of two hosts in the pools a and b; these hosts' pods have crashed."""
    pods = []
    for host in TWO_SLICES.hosts:
        fields = CRASHED if host in lost else {}
        pods.append(pod(host, state.attempts[host], **fields))
    nodes = {f"node-{host}": Node(labels={POOL: "ab"[int(host[0])]}) for host in TWO_SLICES.hosts}
    return seen(state, *pods, made_of=TWO_SLICES, nodes=nodes)


def _after(observed: Observed) -> State:
    plan = losses.decide(observed, NOW)
    assert plan is not None
    return plan.state


def _placed_state(**fields: Any) -> State:
    return begun(hosts=TWO_SLICES.hosts, **fields)


def test_the_first_loss_is_remembered() -> None:
    """With the node of the host where every node is as good as the next; nothing moves."""
    state = _after(seen(begun(), pod("0-1", **CRASHED), pod()))

    assert (state.lost_at, state.avoid) == ({"0-1": "node-0-1"}, {})
    assert state.attempts == {"0-0": 0, "0-1": 1}


@pytest.mark.parametrize(("node", "lost_at", "avoid"), [("bad", {}, {"0-1": "bad"}), ("other", {"0-1": "other"}, {})])
def test_the_same_host_twice_on_a_node(node: str, lost_at: dict[str, str], avoid: dict[str, str]) -> None:
    """Its next pod goes elsewhere; two losses on two nodes say nothing of either."""
    state = _after(seen(begun(lost_at={"0-1": "bad"}), pod("0-1", node=node, **CRASHED), pod()))

    assert (state.lost_at, state.avoid) == (lost_at, avoid)
    assert state.attempts == {"0-0": 0, "0-1": 1}


@pytest.mark.parametrize(
    "lost",
    [
        pod("0-1", phase="Failed", reason="Evicted"),
        pod("0-1", phase="Failed", reason="NodeShutdown"),
        pod("0-1", deleting_at=NOW + 30),
        None,
    ],
)
def test_what_somebody_asked_for_says_nothing_of_the_node(lost: Pod | None) -> None:
    """An eviction, a maintenance, a deletion, a pod that somebody has taken away."""
    state = _after(seen(begun(lost_at={"0-1": "node-0-1"}), pod(), *([lost] if lost else [])))

    assert (state.lost_at, state.avoid) == ({"0-1": "node-0-1"}, {})


def test_one_host_of_a_slice_is_replaced_alone() -> None:
    """The first time; the slice's place is remembered."""
    state = _after(_placed(_placed_state(), "0-1"))

    assert state.attempts == {"0-0": 0, "0-1": 1, "1-0": 0, "1-1": 0}
    assert state.lost_at == {"0": "a"}


def test_the_same_slice_twice_is_relocated() -> None:
    """All of its hosts get new pods, whichever was lost, and rather in another place; the other slice stays."""
    state = _after(_placed(_placed_state(lost_at={"0": "a"}), "0-1"))

    assert state.attempts == {"0-0": 1, "0-1": 1, "1-0": 0, "1-1": 0}
    assert set(state.pods) == {"1-0", "1-1"}
    assert (state.lost_at, state.avoid) == ({}, {"0": "a"})
    assert state.charged == {Lost.UNKNOWN: 1}


def test_what_goes_elsewhere_is_told() -> None:
    """Beside the loss, as an event."""
    host = losses.decide(seen(begun(lost_at={"0-1": "bad"}), pod("0-1", node="bad", **CRASHED), pod()), NOW)
    slice_ = losses.decide(_placed(_placed_state(lost_at={"0": "a"}), "0-1"), NOW)

    assert host is not None
    assert slice_ is not None
    assert host.events[1].message == "host 0-1 has lost two pods in bad, and goes elsewhere"
    assert slice_.events[1].message == "slice 0 has lost two pods in a, and goes elsewhere"


def test_two_hosts_at_once_are_one_loss() -> None:
    """No number is skipped; the place has lost one thing."""
    state = _after(_placed(_placed_state(), "1-0", "1-1"))

    assert state.attempts == {"0-0": 0, "0-1": 0, "1-0": 1, "1-1": 1}
    assert (state.lost_at, state.avoid, state.charged) == ({"1": "b"}, {}, {Lost.UNKNOWN: 1})


def test_where_every_node_is_as_good_each_node_has_lost_something() -> None:
    """Of two hosts at once, too; one that was on no node says nothing of any."""
    both = _after(seen(begun(), pod(**CRASHED), pod("0-1", **CRASHED)))
    nowhere = _after(seen(begun(), pod(), pod("0-1", node=None, **CRASHED)))

    assert (both.lost_at, both.avoid) == ({"0-0": "node-0-0", "0-1": "node-0-1"}, {})
    assert (nowhere.lost_at, nowhere.avoid) == ({}, {})


def test_a_pod_that_its_node_s_silence_has_taken_counts() -> None:
    """Though it is deleted: nobody asked for that."""
    state = _after(seen(begun(), pod(), pod("0-1", deleting_at=NOW, disruption="DeletionByTaintManager")))

    assert state.lost_at == {"0-1": "node-0-1"}


def test_of_hosts_at_once_any_that_nobody_asked_for_counts() -> None:
    """Whichever comes first: an eviction beside it does not hide what the place has lost."""
    observed = _placed(_placed_state(), "0-1")
    evicted = pod("0-0", phase="Failed", reason="Evicted")

    assert _after(replace(observed, pods=(evicted, *observed.pods[1:]))).lost_at == {"0": "a"}


def test_a_host_that_follows_is_of_the_same_loss() -> None:
    """Its slice's place has not failed twice."""
    state = _after(_placed(_placed_state(lost_at={"1": "b"}, last_loss={"1": Loss(NOW - 5, frozenset({0}))}), "1-1"))

    assert (state.lost_at, state.avoid) == ({"1": "b"}, {})


def test_a_loss_of_many_slices_counts_against_the_place_of_each() -> None:
    """Also of those that are not charged: each place has lost a slice."""
    state = _after(_placed(_placed_state(), "0-1", "1-0"))
    again = _after(_placed(_placed_state(lost_at={"0": "a", "1": "b"}), "0-1", "1-0"))

    assert (state.charged, state.lost_at, state.avoid) == ({"unknown": 1}, {"0": "a", "1": "b"}, {})
    assert (again.charged, again.avoid) == ({"unknown": 1}, {"0": "a", "1": "b"})


def test_the_node_of_a_host_that_follows_counts() -> None:
    """Where every node is as good as the next, each host's node has lost what was on it, though it is one loss."""
    follows = begun(lost_at={"0-1": "node-0-1"}, last_loss={"0": Loss(NOW - 5, frozenset({0}))})

    state = _after(seen(follows, pod(), pod("0-1", **CRASHED)))

    assert (state.charged, state.lost_at, state.avoid) == ({}, {}, {"0-1": "node-0-1"})


def test_a_pod_that_the_status_does_not_know_goes_too() -> None:
    """It was made a moment ago, for the place that is left."""
    state = _placed_state(lost_at={"0": "a"})
    known = {host: uid for host, uid in state.pods.items() if host != "0-0"}

    state = _after(_placed(_placed_state(lost_at={"0": "a"}, pods=known), "0-1"))

    assert state.attempts["0-0"] == 1


def test_a_place_that_nobody_knows_is_the_host_s_node() -> None:
    """Its nodes are not watched, and no pod says where it had to go."""
    pods = [pod("0-0"), pod("0-1", **CRASHED), pod("1-0"), pod("1-1")]

    state = _after(seen(_placed_state(), *pods, made_of=TWO_SLICES))

    assert state.lost_at == {"0-1": "node-0-1"}


def _looks(accelerator: str, topology: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how often all pods of one slice are gone through when it loses all of its hosts."""
    made_of = snapshot(manifest(hardware={"accelerator": accelerator, "topology": topology}))
    lost = [pod(host, **CRASHED) for host in made_of.hosts]
    looks, current_pods = list[Observed](), Observed.current_pods

    def counted(self: Observed) -> tuple[Pod, ...]:
        looks.append(self)
        return current_pods(self)

    with monkeypatch.context() as patched:
        patched.setattr(Observed, "current_pods", counted)
        _after(seen(begun(hosts=made_of.hosts), *lost, made_of=made_of))
    return len(looks)


@pytest.mark.parametrize(
    ("accelerator", "few", "many"),
    [pytest.param("cpu-sim", "4x1", "16x1", id="any node"), pytest.param("tpu-v5e", "4x4", "8x8", id="a place")],
)
def test_a_loss_of_many_hosts_goes_through_the_pods_no_more_often(
    accelerator: str, few: str, many: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice of thousands that goes at once keeps no other job waiting."""
    assert _looks(accelerator, many, monkeypatch) == _looks(accelerator, few, monkeypatch)

"""Places are held for slices that are away, by pods that run nothing; they never keep a host of the run out."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import NOW, SETTINGS, begun, manifest, pod, seen, snapshot

from shardwise_operator.decide.maintain import maintain
from shardwise_operator.decide.pending import pending_reason
from shardwise_operator.decide.plan import Create, Delete
from shardwise_operator.decide.policies import placeholders
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.state import Growth, State
from shardwise_operator.reasons import PLACED

HOSTS, ABSENT = ("0-0", "0-1"), ("1-0", "1-1")


def observed(*held: Pod, state: State | None = None, own: dict[str, Any] | None = None, **fields: Any) -> Observed:
    """A round of one slice of two, and what holds the place of the other."""
    made_of = snapshot(manifest(hardware={"accelerator": "cpu-sim", "topology": "2x2", "slices": 1}))
    names = (*HOSTS, *(each.key for each in held))
    state = state or replace(begun(hosts=names, slices=1), attempts=dict.fromkeys((*HOSTS, *ABSENT), 0))
    pods = [pod(host, **(own or {})) for host in HOSTS]
    return seen(state, *pods, *held, made_of=made_of, slice_counts=(2, 1), **fields)


def test_each_absent_host_has_one() -> None:
    """It asks for what the host asks for, and its command only waits; nothing runs beside it."""
    plan = placeholders.decide(observed(), NOW)

    made = [step.manifest for step in plan.steps if isinstance(step, Create)]
    assert [each["metadata"]["name"] for each in made] == ["job-1-0-0", "job-1-1-0"]
    for each in made:
        (agent,) = each["spec"]["containers"]
        assert agent["command"][-1] == "shardwise.launcher.placeholder"
        assert agent["resources"] == {} or "requests" in agent["resources"]
        assert "initContainers" not in each["spec"]
    condition = plan.state.condition("FewerSlices")
    assert condition is not None
    assert (condition.status, condition.message) == ("True", "1 of 2 slices")


@pytest.mark.parametrize("own", [{"phase": "Pending", "node": None}, {"deleting_at": NOW + 9.0}], ids=["waits", "goes"])
def test_while_a_host_of_the_round_has_no_place_none_is_held(own: dict[str, Any]) -> None:
    """Those that there are go, so that it can have their nodes."""
    held = observed(*(pod(host) for host in ABSENT), own=own)

    deleted = {step.name for step in maintain(held, SETTINGS, NOW).steps if isinstance(step, Delete)}
    assert deleted >= {"job-1-0-0", "job-1-1-0"}
    assert placeholders.wake(held, NOW) is None


@pytest.mark.parametrize(
    ("other", "given_up"),
    [
        ({"deleting_at": NOW + 9.0}, True),
        ({"phase": "Failed", "placed_at": NOW - 61.0}, True),
        ({"phase": "Failed", "placed_at": NOW - 59.0}, False),  # whatever ended it may end the next one
        ({"phase": "Pending", "node": None}, False),
    ],
    ids=["deleted", "ended", "ended just now", "waits"],
)
def test_a_slice_goes_back_as_a_whole(other: dict[str, Any], given_up: bool) -> None:  # noqa: FBT001  a row
    """Since it has its place as a whole: where one of its placeholders is lost, the others go too."""
    plan = placeholders.decide(observed(pod("1-0", placed_at=NOW - 70.0), pod("1-1", **other)), NOW)

    assert plan.state.attempts["1-0"] == plan.state.attempts["1-1"] == (1 if given_up else 0)


def test_half_a_slice_is_given_back_after_start_within() -> None:
    """Another job may lack what it holds; until then it says when."""
    half = [pod("1-0", placed_at=NOW - 1700.0), pod("1-1", phase="Pending", node=None)]

    assert placeholders.wake(observed(*half), NOW) == 100.0
    assert placeholders.decide(observed(*half), NOW).state.attempts["1-0"] == 0
    assert placeholders.decide(observed(*half), NOW + 101.0).state.attempts["1-0"] == 1


def test_nothing_is_held_for_a_while_after_it_was_of_no_use() -> None:
    """The next time comes by itself."""
    state = replace(begun(hosts=HOSTS, slices=1), growth=Growth(in_vain=1, not_before=NOW + 60.0))
    waiting = observed(state=state)

    assert placeholders.decide(waiting, NOW).steps == ()
    assert placeholders.wake(waiting, NOW) == 60.0
    assert placeholders.wanted(waiting, NOW + 60.0)


def test_a_round_whose_hosts_all_run_has_grown() -> None:
    """What was in vain before counts no longer."""
    state = replace(begun(hosts=HOSTS), growth=Growth(begun=True, in_vain=3))

    assert placeholders.decide(observed(state=state), NOW).state.growth == Growth()


def test_placeholders_that_end_keep_no_pod_of_the_run_waiting() -> None:
    """The run's pods are all placed, whatever becomes of those."""
    state = replace(begun(hosts=HOSTS, slices=1), attempts={**dict.fromkeys(HOSTS, 0), **dict.fromkeys(ABSENT, 1)})
    ending = [pod(host, deleting_at=NOW + 9.0) for host in ABSENT]

    assert pending_reason(observed(*ending, state=state), NOW) == (PLACED, "")

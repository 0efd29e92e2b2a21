"""startWithin: a round that has not come to run is given back whole, and tried again, each job at its own time."""

from dataclasses import replace
from typing import Any

from tests.operator.building import NOW, begun, manifest, pod, seen, snapshot

from shardwise_operator.decide.policies import start_timeout
from shardwise_operator.observe.node import Node
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.state import LONGEST_WAIT_SECONDS, Phase, State
from shardwise_operator.reasons import Lost

POOL = "cloud.google.com/gke-nodepool"
LATE: dict[str, Any] = {"started_at": NOW - 1801}
BOUND = pod(phase="Running")
WAITING = pod("0-1", phase="Pending", node=None, address=None)


def test_within_its_time_it_waits() -> None:
    """And knows for how long."""
    observed = seen(begun(Phase.PENDING), BOUND, WAITING)

    assert start_timeout.decide(observed, NOW) is None
    assert start_timeout.remaining_seconds(observed, NOW) == 1740.0


def test_half_a_job_is_given_back() -> None:
    """All hosts get new numbers, later; no budget pays for it."""
    plan = start_timeout.decide(seen(begun(Phase.PENDING, **LATE), BOUND, WAITING), NOW)

    assert plan is not None
    assert plan.state.attempts == {"0-0": 1, "0-1": 1}
    assert plan.state.pods == {}
    assert plan.state.charged == {}
    assert (plan.state.lost_at, plan.state.avoid) == ({}, {})
    assert "1 of 2 pods ran within startWithin" in plan.state.message
    assert plan.state.not_before is not None
    assert 5.0 <= plan.state.not_before - NOW <= 15.0


def test_time_counts_from_the_last_try() -> None:
    """A job that waits for its next try is not given back again."""
    state = begun(Phase.PENDING, **LATE, not_before=NOW + 10)

    assert start_timeout.decide(seen(state, BOUND, WAITING), NOW) is None


def test_two_jobs_wait_for_different_times() -> None:
    """So that they do not take half of each other's places again."""
    observed = seen(begun(Phase.PENDING, **LATE), BOUND, WAITING)
    times = set()
    for uid in ("one", "two", "three"):
        plan = start_timeout.decide(replace(observed, uid=uid), NOW)
        assert plan is not None
        times.add(plan.state.not_before)

    assert len(times) == 3


def test_each_try_waits_for_twice_as_long() -> None:
    """Up to a few minutes; half of it to one and a half, so that jobs that began together do not stay together."""
    state = begun(Phase.PENDING)
    for times, usual in ((0, 10.0), (1, 20.0), (4, 160.0), (5, 320.0), (9, 320.0)):
        tried = replace(state, attempts={"0-0": times, "0-1": times})
        waits = [start_timeout.retry_seconds(replace(seen(tried), uid=f"{uid}")) / usual for uid in range(100)]
        assert 0.5 <= min(waits) < 0.6
        assert 1.4 < max(waits) <= 1.5
        assert 10.0 + usual * max(waits) < LONGEST_WAIT_SECONDS, "with that for a rival"


def test_a_round_that_has_run_is_the_launcher_s_to_wait_for() -> None:
    """Its lost hosts have replaceWithin."""
    assert start_timeout.decide(seen(begun(Phase.RECOVERING, **LATE), BOUND, WAITING), NOW) is None
    assert start_timeout.decide(seen(begun(Phase.PENDING, **LATE), BOUND, pod("0-1")), NOW) is None


def test_hosts_that_wait_for_host_0_have_no_launcher() -> None:
    """Where it does not come back, the others would hold their places for ever: they have replaceWithin, too."""
    state = begun(Phase.RECOVERING, **LATE, not_before=NOW - 500)
    observed = seen(state, pod(phase="Pending", node=None, address=None), pod("0-1"))

    assert start_timeout.remaining_seconds(observed, NOW) == 100.0
    assert start_timeout.remaining_seconds(seen(state, pod("0-1")), NOW) == 100.0
    plan = start_timeout.decide(observed, NOW + 101)
    assert plan is not None
    assert (plan.state.phase, plan.state.pods, plan.state.round) == (Phase.PENDING, {}, 0)
    assert "1 of 2 pods ran within replaceWithin" in plan.state.message


def test_a_round_of_which_nothing_runs_has_no_launcher() -> None:
    """So it is given back as at its start, counted from the last loss."""
    state = begun(Phase.RECOVERING, **LATE, not_before=NOW - 1700)
    starting = pod(phase="Pending"), WAITING

    assert start_timeout.remaining_seconds(seen(state, *starting), NOW) == 100.0
    assert start_timeout.decide(seen(state, *starting), NOW + 101) is not None


def test_what_holds_nothing_is_not_given_back() -> None:
    """Time in a queue is nobody's loss; it counts from the first pod that has a node."""
    state = begun(Phase.PENDING, **LATE)
    first, second = pod(placed_at=NOW - 100), pod("0-1", phase="Pending", placed_at=NOW - 10)

    assert start_timeout.remaining_seconds(seen(state, WAITING), NOW) is None
    assert start_timeout.remaining_seconds(seen(state, first, WAITING), NOW) == 1700.0
    assert start_timeout.remaining_seconds(seen(state, first, second), NOW) == 1700.0


def test_a_job_gives_way_to_an_older_one_at_once() -> None:
    """Which has the time to take the place; the place itself is as good as before. Others' names are nobody's."""
    plan = start_timeout.decide(seen(begun(Phase.PENDING), BOUND, WAITING, older_rival="default/old"), NOW)
    other = start_timeout.decide(seen(begun(Phase.PENDING), BOUND, WAITING, older_rival="theirs/secret"), NOW)

    assert plan is not None
    assert (plan.state.pods, plan.state.attempts) == ({}, {"0-0": 1, "0-1": 1})
    assert (plan.state.avoid, plan.state.lost_at, plan.state.charged) == ({}, {}, {})
    assert plan.state.not_before is not None
    assert plan.state.not_before - NOW >= 15.0
    assert "job old is older" in plan.state.message
    assert other is not None
    assert "secret" not in other.state.message


def test_who_holds_a_part_looks_for_older_ones() -> None:
    """For no event of its own tells it of them; who holds nothing, or lacks nothing, need not."""
    lacking = pod("0-1", phase="Pending", node=None, address=None, unschedulable="no node")
    held = pod(phase="Pending", address=None)

    assert start_timeout.look_again_seconds(seen(begun(Phase.PENDING), held, lacking)) == 15.0
    assert start_timeout.look_again_seconds(seen(begun(Phase.PENDING), held, WAITING)) is None
    assert start_timeout.look_again_seconds(seen(begun(Phase.PENDING), lacking)) is None
    assert start_timeout.look_again_seconds(seen(begun(Phase.RECOVERING), held, lacking)) is None


def test_a_place_that_never_became_whole_is_left() -> None:
    """A pool with a node too few would be the emptiest again; that of a slice that was whole is as good as it was."""
    made_of = snapshot(manifest(hardware={"accelerator": "tpu-v5p", "topology": "2x2x2", "slices": 2}))
    short = pod("1-1", phase="Pending", node=None, address=None)
    nodes = {f"node-{host}": Node(labels={POOL: "ab"[int(host[0])]}) for host in made_of.hosts}
    state = begun(Phase.PENDING, hosts=made_of.hosts, **LATE)

    plan = start_timeout.decide(
        seen(state, pod("0-0"), pod("0-1"), pod("1-0"), short, made_of=made_of, nodes=nodes), NOW
    )

    assert plan is not None
    assert (plan.state.avoid, plan.state.lost_at) == ({"1": "b"}, {})


def test_a_node_on_which_a_pod_did_not_come_to_run_is_left_the_second_time() -> None:
    """Where every node is a place of its own; an image is not the node's fault."""
    slow = pod("0-1", phase="Pending", address=None, waiting="CreateContainerError")
    no_image = pod("0-1", phase="Pending", address=None, waiting="ImagePullBackOff")

    def after(pending: Pod, lost_at: dict[str, str]) -> State:
        plan = start_timeout.decide(seen(begun(Phase.PENDING, **LATE, lost_at=lost_at), BOUND, pending), NOW)
        assert plan is not None
        return plan.state

    first, second = after(slow, {}), after(slow, {"0-1": "node-0-1"})
    assert (first.lost_at, first.avoid) == ({"0-1": "node-0-1"}, {})
    assert (second.lost_at, second.avoid) == ({}, {"0-1": "node-0-1"})
    assert after(no_image, {}).lost_at == {}


def test_an_image_that_cannot_be_had_has_a_budget() -> None:
    """It is charged for each try, and ends the job."""
    stuck = pod("0-1", phase="Pending", address=None, waiting="ImagePullBackOff", waiting_message="not found")
    made_of = snapshot(manifest(recovery={"restarts": {"image": 1}}))

    first = start_timeout.decide(seen(begun(Phase.PENDING, **LATE), BOUND, stuck, made_of=made_of), NOW)
    assert first is not None
    assert first.state.charged == {Lost.IMAGE: 1}
    second = start_timeout.decide(
        seen(begun(Phase.PENDING, **LATE, charged={Lost.IMAGE: 1}), BOUND, stuck, made_of=made_of), NOW
    )

    assert second is not None
    assert second.state.phase == Phase.FAILED

"""How many slices the next round has: as many as are whole and the job can run on, or as many as now."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import NOW, begun, manifest, pod, record, seen, snapshot

from shardwise_operator.decide.slices import next_slices, with_slices
from shardwise_operator.observe.node import Node
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.queueing import Queueing
from shardwise_operator.observe.snapshot import Snapshot
from shardwise_operator.observe.workload import Admission

COUNTS = (4, 2, 1)
POOL = "cloud.google.com/gke-nodepool"
LOST: Mapping[str, Any] = {"phase": "Pending", "node": None, "address": None}


def on(slices: int) -> Snapshot:
    """What a round of so many slices of two hosts is made of."""
    return snapshot(manifest(hardware={"accelerator": "cpu-sim", "topology": "2x2", "slices": slices}))


def observed(slices: int, lost: tuple[str, ...] = (), *, least: int = 1, **fields: Any) -> Observed:
    """A round in which these hosts have no place."""
    made_of = on(slices)
    state = begun(hosts=made_of.hosts, slices=None if slices == 4 else slices)
    pods = [pod(host, **(LOST if host in lost else {})) for host in made_of.hosts]
    counts = tuple(count for count in COUNTS if count >= least)
    return seen(state, *pods, made_of=made_of, slice_counts=counts, **fields)


@pytest.mark.parametrize(
    ("lost", "slices"),
    [((), 4), (("1-1",), 2), (("0-0", "1-0"), 2), (("0-0", "0-1", "2-1", "3-1"), 1)],
    ids=["none", "one", "two", "three"],
)
def test_the_whole_slices_go_on(lost: tuple[str, ...], slices: int) -> None:
    """As many of them as the job can run on: its batch does not divide over three."""
    assert next_slices(observed(4, lost)) == slices


def test_too_few_are_no_reason_to_change() -> None:
    """The round is tried again with as many as it has."""
    assert next_slices(observed(4, ("0-0", "1-0", "2-0"), least=2)) == 4
    assert next_slices(observed(2, ("0-0",), least=2)) == 2


def test_where_a_queue_chooses_each_node_it_chooses_others_for_lost_ones() -> None:
    """The next round has all slices: those of fewer would have the nodes of the first hosts, lost or not."""
    chosen = Admission(domains=({"rack": "a"},) * 8)
    for admission, slices in ((Admission(), 2), (chosen, None)):
        queueing = Queueing(queue="team", admission=admission)
        before = observed(4, ("0-1",), queueing=queueing)
        assert with_slices(before, before.state, NOW).slices == slices


def test_of_a_job_that_asks_for_fewer_by_now_as_many_are_whole() -> None:
    """It was changed under a suspend that no operator saw: three of the four slices of its round are whole."""
    looked = replace(observed(4, ("3-1",)), slice_counts=(2, 1))

    assert next_slices(looked) == 2


def test_slices_that_ended_with_the_run_are_there() -> None:
    """Their pods have the run's own code; one that ended alone, or whose node is gone, is not there."""
    made_of = on(4)
    pods = [pod(host, phase="Failed", record=record(80)) for host in made_of.hosts[:4]]
    pods += [pod("2-0", phase="Failed", record=record(None)), pod("2-1"), pod("3-0"), pod("3-1", node="gone")]
    looked = seen(
        begun(hosts=made_of.hosts), *pods, made_of=made_of, slice_counts=COUNTS, gone_nodes=frozenset({"gone"})
    )

    assert next_slices(looked) == 2


def test_a_place_that_was_broken_is_avoided() -> None:
    """The slices of the next round may be put anywhere, and in this place one host found no node."""
    nodes = {f"node-{host}": Node(labels={POOL: f"pool-{host[0]}"}) for host in on(4).hosts}
    hardware = {"accelerator": "tpu-v5p", "topology": "2x2x2", "slices": 4}
    made_of = snapshot(manifest(hardware=hardware))
    pods = [pod(host, **(LOST if host == "1-1" else {})) for host in made_of.hosts]
    looked = seen(begun(hosts=made_of.hosts), *pods, made_of=made_of, slice_counts=COUNTS, nodes=nodes)
    state = with_slices(looked, looked.state, NOW)

    assert (state.slices, state.avoid) == (2, dict.fromkeys("0123", "pool-1"))


def test_all_of_them_is_what_every_job_begins_with() -> None:
    """A job that may not go on with fewer has nothing of it in its state; nor has one with all of its slices."""
    rigid = observed(4, ("1-1",), least=4)
    assert with_slices(rigid, rigid.state, NOW) == rigid.state

    whole = observed(4)
    assert with_slices(whole, whole.state, NOW).slices is None


def test_what_is_left_out_is_absent_and_numbered_anew() -> None:
    """A placeholder is no pod that the host has had before."""
    before = observed(4, ("3-1",))
    state = with_slices(before, before.state.renewed(before.hosts), NOW)
    after = seen(state, made_of=on(2), slice_counts=COUNTS)

    assert after.absent_hosts == ("2-0", "2-1", "3-0", "3-1")
    assert {state.attempts[host] for host in after.absent_hosts} == {1}

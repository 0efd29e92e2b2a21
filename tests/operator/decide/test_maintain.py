"""A round that is under way: what is missing is made, slices land whole, what no longer counts goes."""

from dataclasses import replace

import pytest
from tests.operator.building import NOW, SETTINGS, UID, begun, manifest, pod, seen, snapshot

from shardwise.protocol.pods import SLICE_GATE
from shardwise.protocol.run_status import RunSummary
from shardwise_operator.decide.maintain import maintain
from shardwise_operator.decide.plan import Create, Delete, Event, Patch, Plan, RequestSave
from shardwise_operator.observe.node import Node
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.pod import Pod
from shardwise_operator.observe.poll import Poll
from shardwise_operator.observe.state import Phase, State
from shardwise_operator.reasons import LEAVING
from shardwise_operator.runtime.kinds import CONFIG_MAPS, NETWORK_POLICIES, PODS

CHILDREN = {(CONFIG_MAPS, "job-shardwise-0"): "uid-0", (NETWORK_POLICIES, "job-shardwise"): "uid-policy"}


def _maintain(observed: Observed) -> Plan:
    return maintain(observed, SETTINGS, NOW)


def _settled(*pods: Pod, **fields: object) -> Observed:
    state = fields.pop("state", begun())
    return seen(state, *pods, children=CHILDREN, **fields)  # type: ignore[arg-type]


def _names(plan: Plan, kind: type) -> list[str]:
    found = []
    for step in plan.steps:
        match step:
            case Create(manifest=manifest) if kind is Create:
                found.append(manifest["metadata"]["name"])
            case Delete(name=name) if kind is Delete:
                found.append(name)
            case _:
                pass
    return found


def test_all_at_once() -> None:
    """The objects that the pods need come before them."""
    plan = _maintain(seen(begun(Phase.PENDING, pods={})))

    assert _names(plan, Create) == [
        "job-shardwise-0",
        "job-shardwise",
        f"job-shardwise-{UID[:8]}",
        "job-0-0-0",
        "job-0-1-0",
    ]


def test_nothing_to_do() -> None:
    """A job that runs costs no write."""
    assert _maintain(_settled(pod(), pod("0-1"))).steps == ()


def test_what_is_worth_an_event() -> None:
    """That the hosts do not get on, once each time: the status remembers what was said."""
    pods = pod(), pod("0-1")

    def told(state: State, phase: str) -> Plan:
        poll = Poll(heard_at=NOW, fresh_seconds=8.0, status=RunSummary(phase=phase, reason="why"))
        return _maintain(_settled(*pods, state=state, poll=poll))

    running = told(begun(Phase.STARTING), "running")
    stalled = told(running.state, "stalled")
    again = told(stalled.state, "running")

    assert [(event.type, event.reason, event.message) for event in stalled.events] == [("Warning", "Stalled", "why")]
    assert told(stalled.state, "stalled").events == again.events == running.events == ()
    assert told(again.state, "running").events == ()
    assert told(again.state, "stalled").events == stalled.events


def test_a_replacement_waits_for_its_time() -> None:
    """Backoff."""
    state = begun(attempts={"0-0": 0, "0-1": 1}, pods={"0-0": "uid-0-0-0"}, not_before=NOW + 5)
    dead = pod("0-1", phase="Failed")

    early = _maintain(_settled(pod(), dead, state=state))
    due = _maintain(_settled(pod(), dead, state=replace(state, not_before=NOW)))

    assert early.steps == ()
    assert early.requeue_after_seconds == 5.0
    assert _names(due, Create) == [f"job-shardwise-{UID[:8]}", "job-0-1-1"]


@pytest.mark.parametrize(
    ("before", "made"),
    [
        (pod("0-1"), False),
        (pod("0-1", deleting_at=NOW + 30), False),
        (pod("0-1", phase="Failed"), True),
        (pod("0-1", node="node-lost", deleting_at=NOW), True),
    ],
)
def test_no_two_pods_of_one_host(before: Pod, *, made: bool) -> None:
    """The next one is made when the last has ended for certain, or nobody can hear it."""
    state = begun(attempts={"0-0": 0, "0-1": 1}, pods={"0-0": "uid-0-0-0"})

    plan = _maintain(_settled(pod(), before, state=state, silent_nodes=frozenset({"node-lost"})))

    assert ("job-0-1-1" in _names(plan, Create)) == made


def test_pods_that_were_given_back_go() -> None:
    """What is alive and no longer counts is deleted; the last one that has ended is kept, with its log."""
    state = begun(attempts={"0-0": 2, "0-1": 1}, pods={})
    pods = [pod(phase="Failed"), pod(attempt=1, phase="Failed"), pod("0-1")]

    assert _names(_maintain(_settled(*pods, state=state)), Delete) == ["job-0-0-0", "job-0-1-0"]


def test_stuck_pods_are_forced_only_where_the_node_is_gone() -> None:
    """A node that is silent may still run them."""
    stuck = pod("0-1", deleting_at=NOW - 60)
    state = begun(attempts={"0-0": 0, "0-1": 1}, pods={"0-0": "uid-0-0-0"})

    silent = _maintain(_settled(pod(), stuck, state=state, silent_nodes=frozenset({"node-0-1"})))
    gone = _maintain(_settled(pod(), stuck, state=state, gone_nodes=frozenset({"node-0-1"})))

    assert _names(silent, Delete) == []
    (delete,) = [step for step in gone.steps if isinstance(step, Delete)]
    assert delete.grace_seconds == 0
    in_time = replace(stuck, deleting_at=NOW)
    assert _names(_maintain(_settled(pod(), in_time, state=state, gone_nodes=frozenset({"node-0-1"}))), Delete) == []


@pytest.mark.parametrize(("late", "again"), [(-30.0, 31.0), (0.0, 1.0), (10.0, 10.0), (3600.0, 300.0)])
def test_a_dead_node_is_looked_at_more_and_more_rarely(late: float, again: float) -> None:
    """Its pod stays for as long as its Node does, which may be for days."""
    stuck = pod("0-1", deleting_at=NOW - late)
    state = begun(attempts={"0-0": 0, "0-1": 1}, pods={"0-0": "uid-0-0-0", "0-1": "uid-0-1-1"})
    pods = pod(), pod("0-1", 1), stuck

    assert _maintain(_settled(*pods, state=state, silent_nodes=frozenset({"node-0-1"}))).requeue_after_seconds == again


def test_gates_open_where_host_0_is() -> None:
    """The others of its slice get its place; other slices wait for their own."""
    made_of = snapshot(manifest(hardware={"accelerator": "tpu-v5p", "topology": "2x2x2", "slices": 2}))
    pods = [
        pod("0-0"),
        pod("0-1", phase="Pending", node=None, gates=(SLICE_GATE,)),
        pod("1-0", phase="Pending", node=None),
        pod("1-1", phase="Pending", node=None, gates=(SLICE_GATE,)),
    ]
    state = begun(Phase.PENDING, hosts=made_of.hosts)

    plan = _maintain(_settled(*pods, state=state, made_of=made_of, pools={0: "pool-a"}))

    (patch,) = [step for step in plan.steps if isinstance(step, Patch)]
    assert patch.name == "job-0-1-0"
    assert patch.patch == {"spec": {"schedulingGates": [], "nodeSelector": {"cloud.google.com/gke-nodepool": "pool-a"}}}


def test_gates_of_others_stay() -> None:
    """A queue that has not admitted the pod keeps it, whatever its slice's place."""
    made_of = snapshot(manifest(hardware={"accelerator": "tpu-v5p", "topology": "2x2x2"}))
    gated = pod("0-1", phase="Pending", node=None, gates=("kueue.x-k8s.io/admission", SLICE_GATE))

    plan = _maintain(_settled(pod(), gated, state=begun(Phase.PENDING), made_of=made_of, pools={0: "pool-a"}))

    (patch,) = [step for step in plan.steps if isinstance(step, Patch)]
    assert patch.patch["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/admission"}]


def test_a_node_that_failed_twice_is_left() -> None:
    """The third pod of a host goes elsewhere, also after its wait, and when it has to be made again."""
    state = begun(attempts={"0-0": 2, "0-1": 0}, pods={"0-1": "uid-0-1-0"}, avoid={"0-0": "node-bad"})

    (*_, create) = _maintain(_settled(pod("0-1"), state=state)).steps

    assert isinstance(create, Create)
    assert "node-bad" in str(create.manifest["spec"]["affinity"])


def test_a_slice_that_is_relocated_waits_for_its_host_0() -> None:
    """Which may go anywhere, and rather not where the slice was; the old pods end meanwhile, the other slice stays."""
    made_of = snapshot(manifest(hardware={"accelerator": "tpu-v5p", "topology": "2x2x2", "slices": 2}))
    ended = pod("0-0", phase="Failed")
    state = begun(
        attempts={"0-0": 1, "0-1": 1, "1-0": 0, "1-1": 0},
        pods={"1-0": "uid-1-0-0", "1-1": "uid-1-1-0"},
        avoid={"0": "pool-a"},
    )

    plan = _maintain(_settled(ended, pod("0-1"), pod("1-0"), pod("1-1"), state=state, made_of=made_of))

    assert _names(plan, Delete) == ["job-0-1-0"]
    (create,) = [step for step in plan.steps if isinstance(step, Create) and step.kind == PODS]
    assert create.manifest["metadata"]["name"] == "job-0-0-1"
    spec = create.manifest["spec"]
    assert "cloud.google.com/gke-nodepool" not in spec["nodeSelector"]
    (rather,) = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert "pool-a" in str(rather)
    then = replace(state, pods={**state.pods, "0-0": "uid-0-0-1"})
    pods = [pod("0-0", 1, phase="Pending", node=None), pod("0-1", phase="Failed"), pod("1-0"), pod("1-1")]
    (*_, follower) = _maintain(_settled(*pods, state=then, made_of=made_of)).steps
    assert isinstance(follower, Create)
    assert follower.manifest["metadata"]["name"] == "job-0-1-1"
    assert follower.manifest["spec"]["schedulingGates"] == [{"name": "shardwise.dev/slice"}]


def test_a_notice_is_told_when_it_is_heard() -> None:
    """As an event of the request for a save, not of the pass: the status keeps it when host 0 has heard."""
    poll = Poll(heard_at=NOW, fresh_seconds=8.0, status=RunSummary(phase="running"))
    nodes = {"node-0-1": Node(labels={}, leaving=True)}

    plan = _maintain(_settled(pod(), pod("0-1"), poll=poll, nodes=nodes))

    told = Event(LEAVING, "about to be taken down, so a save is asked for: node-0-1 (host 0-1)")
    assert plan.steps == (RequestSave("10.0.0.1", {"0-1": "node-0-1"}, told),)
    assert plan.events == ()
    assert plan.state.leaving == {}
    heard = begun(leaving={"0-1": "node-0-1"})
    assert _maintain(_settled(pod(), pod("0-1"), state=heard, poll=poll, nodes=nodes)).steps == ()


def test_a_replaced_pod_is_of_the_same_image() -> None:
    """The tag may have moved since."""
    digest = "sha256:" + "a" * 64
    running = pod(image_id=f"localhost/trainer@{digest}")
    state = begun(attempts={"0-0": 0, "0-1": 1}, pods={"0-0": running.uid})
    pinned = _maintain(_settled(running, pod("0-1", phase="Failed"), state=state)).state

    (*_, create) = _maintain(_settled(running, pod("0-1", phase="Failed"), state=pinned)).steps

    assert isinstance(create, Create)
    assert create.manifest["spec"]["containers"][0]["image"] == f"localhost/trainer@{digest}"

"""Which hosts are alive: silence, replacement, and a leader that could not listen."""

from shardwise.launcher.agent.client import poll_seconds
from shardwise.launcher.leader.members import LOST_SECONDS, MISSED_SECONDS, Members, host_names
from shardwise.protocol.poll import Poll
from shardwise.protocol.report import Exit
from shardwise.protocol.run_status import StuckHost


def poll(host: int, agent: str, *, leaving: bool = False, attempt: int = 0) -> Poll:
    """Return a follower's poll."""
    address = f"10.0.0.{host}"
    return Poll(run="run", host=host, agent_id=agent, pod_attempt=attempt, address=address, leaving=leaving)


def heard(*polls: tuple[int, str, float]) -> Members:
    """Return three hosts' members after these polls."""
    members = Members(3, "own")
    for host, agent, at in polls:
        members.polled(poll(host, agent), at)
    return members


def test_silent() -> None:
    """A host is silent until its first poll, and again when nothing came for too long; the leader's own never is."""
    members = heard((1, "a", 10.0))
    assert members.silent(10.0, MISSED_SECONDS) == [2]
    members.polled(poll(2, "b"), 11.0)
    assert members.silent(11.0, MISSED_SECONDS) == []
    assert members.silent(12.5, MISSED_SECONDS) == [1]
    assert members.silent(12.5, LOST_SECONDS) == []


def test_hosts_of_a_big_run_may_miss_as_many_polls() -> None:
    """The more hosts there are, the more rarely each polls (400 a second in all), and the later it is missed."""
    assert [poll_seconds(num_hosts) for num_hosts in (2, 100, 1000)] == [0.3, 0.3, 2.5]
    few, many = Members(2, "own"), Members(1000, "own")
    for members in (few, many):
        members.polled(poll(1, "a"), 10.0)
    assert few.missing(12.5) == [1]
    assert 1 not in many.missing(17.0)
    assert 1 in many.missing(18.0)


def test_hosts_of_a_big_run_are_lost_later() -> None:
    """A host that has not missed its polls is not lost, however rarely it has to poll."""
    few, many = Members(2, "own"), Members(4096, "own")
    for members in (few, many):
        members.polled(poll(1, "a"), 10.0)
    assert few.lost(20.5) == [1]
    assert 1 not in many.missing(40.0)
    assert 1 not in many.lost(40.0)
    assert many.not_polled_since(10.0, 40.0) == [1]
    assert 1 in many.lost(55.0)


def test_hosts_that_make_steps_are_not_lost() -> None:
    """A step takes all hosts: while steps complete no host is lost, however long nothing comes from it."""
    members = heard((1, "a", 10.0), (2, "b", 10.0))
    members.stepped(25.0)
    assert members.silent(30.0, LOST_SECONDS) == [1, 2]
    assert members.lost(30.0) == []
    members.stepped(24.0)
    assert members.lost(34.9) == []
    assert members.lost(35.0) == [1, 2]


def test_an_answer_counts() -> None:
    """An answer shows that a host lives, as a poll does, but not if it comes from the agent before."""
    members = heard((1, "a", 10.0), (2, "b", 10.0))
    members.answered(1, "a", 20.0)
    members.answered(2, "before b", 20.0)
    assert members.silent_since(15.0) == [2]
    unknown = heard((1, "a", 10.0))
    unknown.answered(2, "b", 20.0)
    assert unknown.silent_since(15.0) == [1, 2]


def test_not_polled_since() -> None:
    """An answer shows that a host lives, but only a poll that it knows the leader's state. The dead are left out."""
    members = heard((1, "a", 10.0), (2, "b", 10.0))
    members.answered(1, "a", 12.0)
    assert members.not_polled_since(11.0, 13.0) == [1, 2]
    assert members.not_polled_since(11.0, 21.0) == [1]
    members.polled(poll(1, "a"), 21.0)
    assert members.not_polled_since(11.0, 21.0) == []


def test_replaced() -> None:
    """A host with another agent counts as replaced; one that is only silent does not."""
    members = heard((1, "a", 10.0), (2, "b", 10.0))
    before = members.agent_ids()
    assert before == {0: "own", 1: "a", 2: "b"}
    members.polled(poll(2, "c"), 11.0)
    assert members.replaced(before) == [2]
    assert members.replaced(members.agent_ids()) == []


def test_two_agents_of_one_host() -> None:
    """The newer agent counts, whichever polled last: a node that the cluster has lost may still run the older one."""
    members = heard((1, "a", 10.0), (2, "b", 10.0))
    members.polled(poll(2, "c", attempt=1), 11.0)
    known = members.agent_ids()
    members.polled(poll(2, "b"), 12.0)
    assert members.replaced(known) == []
    assert members.superseded(poll(2, "b"))
    assert not members.superseded(poll(2, "c", attempt=1))
    assert not members.superseded(poll(2, "d", attempt=1))  # of the same pod attempt, where pods are not counted


def test_a_pause_of_the_leader() -> None:
    """Silence during which the leader itself did not run is held against no host."""
    members = heard((1, "a", 10.0), (2, "b", 10.0))
    members.polled(poll(2, "b"), 71.0)  # it was heard again before the pause was noticed
    members.discount_pause(60.0, 71.0)
    assert members.silent(71.0, MISSED_SECONDS) == []
    assert members.silent_since(71.0) == [1, 2], "nobody is heard in advance"
    assert members.silent(74.0, MISSED_SECONDS) == [1, 2]


def test_never_polled() -> None:
    """A host that has polled once is not listed, however long ago that was."""
    assert heard((2, "b", 10.0)).never_polled() == [1]


def test_leaving() -> None:
    """A host leaves from the poll on that announces it; the agent that comes after it does not."""
    members = heard((1, "a", 10.0), (2, "b", 10.0))
    members.polled(poll(1, "a", leaving=True), 11.0)
    assert members.leaving() == [1]
    members.polled(poll(1, "c"), 12.0)
    assert members.leaving() == []


def test_what_polls_tell_of_their_hosts() -> None:
    """How a trainer ended, and that a host can start none, until the next poll says otherwise."""
    members = heard((1, "a", 10.0), (2, "b", 10.0))
    over = Exit(attempt=0, code=1, signal=None, asked=False, out_of_memory=False, log_tail="")
    members.polled(poll(1, "a").model_copy(update={"ended": over}), 11.0)
    members.polled(poll(2, "b").model_copy(update={"stuck": "process 7 does not end"}), 11.0)

    assert members.ended() == {1: over}
    assert members.stuck() == [StuckHost(host=2, address="10.0.0.2", message="process 7 does not end")]
    for host, agent in ((1, "a"), (2, "c")):
        members.polled(poll(host, agent), 12.0)
    assert (members.ended(), members.stuck()) == ({}, [])


def test_addresses() -> None:
    """Every host has the address in the poll of its newest agent."""
    assert heard((1, "a", 10.0), (2, "b", 10.0)).addresses("10.0.0.9") == ["10.0.0.9", "10.0.0.1", "10.0.0.2"]


def test_of_many_hosts_a_few_are_named() -> None:
    """A message goes into the status, the events and the log, where nobody reads a list of a thousand."""
    assert host_names([3]) == "host 3"
    assert host_names(range(10)) == ", ".join(f"host {host}" for host in range(10))
    assert host_names(range(1, 1024)) == ", ".join(f"host {host}" for host in range(1, 11)) + " and 1013 others"
    assert host_names(range(11)) == ", ".join(f"host {host}" for host in range(10)) + " and 1 other"

"""Which local checkpoint a run goes on from: the newest whose parts are all there, whoever has them."""

import json

from hypothesis import given
from hypothesis import strategies as st

from shardwise.train.local_checkpoints.resume import choose

Hosts = dict[str, int]


def has(host: int, step: int, *, hosts: int, apart: int = 1, id_: str = "a") -> dict[int, list[object]]:
    """What a host says that has its own part of a step, and the copy of the one before."""
    return {step: [id_, hosts, [host, (host - apart) % hosts]]}


def chosen(*said: dict[int, list[object]]) -> tuple[int, str, Hosts] | None:
    """What rank 0 makes of it."""
    found = json.loads(choose([json.dumps(one) for one in said]))
    return found and (found["step"], found["id"], found["hosts"])


@given(st.data())
def test_a_step_is_whole_as_long_as_no_host_is_lost_with_its_keeper(data: st.DataObject) -> None:
    """Each part comes from its own host, and that of a lost one from the host that keeps its copy."""
    hosts = data.draw(st.integers(2, 9))
    apart = data.draw(st.integers(1, hosts - 1))
    lost = data.draw(st.sets(st.integers(0, hosts - 1)))
    keeper = {host: (host + apart) % hosts for host in range(hosts)}

    found = chosen(*({} if host in lost else has(host, 8, hosts=hosts, apart=apart) for host in range(hosts)))

    if any(keeper[host] in lost for host in lost):
        assert found is None
    else:
        assert found == (8, "a", {str(h): keeper[h] if h in lost else h for h in range(hosts)})


def test_a_newer_step_that_is_not_whole_is_passed_over() -> None:
    """As after a death between two hosts' markers, or where an attempt has made a step again."""
    both = {**has(0, 8, hosts=2), **has(0, 10, hosts=2, id_="new")}
    one = {**has(1, 8, hosts=2), 10: ["old", 2, [1]]}
    assert chosen({**both, 10: ["new", 2, [0]]}, one) == (8, "a", {"0": 0, "1": 1})


def test_what_other_hosts_saved_is_not_mixed() -> None:
    """Manifests differ where saves do, and so does the cut for another number of processes."""
    assert chosen({8: ["a", 2, [0]]}, {8: ["b", 2, [1]]}) is None
    assert chosen({8: ["a", 4, [0]]}, {8: ["a", 4, [1]]}) is None
    assert chosen({}, {}) is None

"""shardwise.train.peers: messages between processes, by rank, and the name of one that sends none."""

import os
import socket
import subprocess
import sys
import time
from functools import partial
from typing import Any, ClassVar

import pytest

from shardwise.launcher.system.ports import free_port
from shardwise.protocol.errors import DataError
from shardwise.protocol.orders import Orders
from shardwise.train import peers
from shardwise.train.peers import ALONE
from shardwise.train.run_data import same_data

SCRIPT = """
import os, sys
from shardwise.protocol.errors import PeerError
from shardwise.protocol.orders import Orders
from shardwise.train.peers import Peers
rank, port = int(sys.argv[1]), sys.argv[2]
last = 2
orders = Orders(job_file="", directory="", progress="", stacks="", rank=rank, num_processes=3,
                coordinator=f"127.0.0.1:{port}", attempt=0, fork=False, step=None, deadline_seconds=None)
peers = Peers.join(orders, limit_seconds=60)
print([peers.exchange("text", f"{text} of {rank}") for text in ("first", "second", "third")], flush=True)
client, calls = peers._client, []

class Counting:
    def __getattr__(self, name):
        calls.append(name)
        return getattr(client, name)

object.__setattr__(peers, "_client", Counting())
print(peers.agree("text", str(rank), "+".join), len(calls), flush=True)
object.__setattr__(peers, "_client", client)
peers.exchange("all are done", "")
print(len(client.key_value_dir_get("shardwise/text/")), flush=True)
peers.exchange("all have looked", "")
if rank == last:
    sys.stdin.read()  # alive, and silent
    os._exit(0)
object.__setattr__(peers, "answer_seconds", 1.0)
try:
    peers.exchange("verdict", "mine")
except PeerError as error:
    print(error, flush=True)
os._exit(0)  # the other one never leaves, which JAX's own exit would wait for
"""


def test_messages_are_exchanged_and_a_silent_process_is_named() -> None:
    """Every process gets all texts of every exchange, and what rank 0 settles; rank 0 names one that stays silent.

    Old texts are removed, and each process but the first makes two requests, however many processes there are. A proxy
    for the way out, at which nobody listens here, is not asked.
    """
    port = str(free_port("127.0.0.1"))
    nobody = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    environment = {name: value for name, value in os.environ.items() if "no_" not in name} | nobody
    start = partial(subprocess.Popen, stdout=subprocess.PIPE, text=True, env=environment)
    command = [sys.executable, "-c", SCRIPT]
    with (
        start([*command, "2", port], stdin=subprocess.PIPE) as silent,
        start([*command, "1", port]) as other,
        start([*command, "0", port]) as first,
    ):
        of_first, _ = first.communicate()
        of_other, _ = other.communicate()
        of_silent, _ = silent.communicate("")

    texts = str([[f"{text} of {rank}" for rank in range(3)] for text in ("first", "second", "third")])
    kept = "3"  # of the last exchange alone
    assert of_silent.splitlines() == [texts, "0+1+2 2", kept]
    assert of_other.splitlines()[:3] == [texts, "0+1+2 2", kept]
    assert of_first.splitlines()[:3] == [texts, "0+1+2 4", kept]
    assert of_first.splitlines()[3].startswith("rank 0 waited 1 seconds for rank 2 at shardwise/verdict/1: ")


LEAVING = """
import sys, time
from shardwise.protocol.orders import Orders
from shardwise.train import peers
peers._LEAVE_SECONDS = 1
rank, port = int(sys.argv[1]), sys.argv[2]
orders = Orders(job_file="", directory="", progress="", stacks="", rank=rank, num_processes=2,
                coordinator=f"127.0.0.1:{port}", attempt=0, fork=False, step=None, deadline_seconds=None)
joined = peers.Peers.join(orders, limit_seconds=60)
if rank == 0:
    time.sleep(6)  # it removes checkpoints, and the other is at its end already
joined.leave()
print("left", flush=True)
"""


def test_a_process_may_come_to_its_end_long_after_the_others() -> None:
    """Also later than JAX waits at its shutdown, where it ends them all: each leaves well."""
    port = str(free_port("127.0.0.1"))
    start = partial(subprocess.Popen, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with (
        start([sys.executable, "-c", LEAVING, "0", port]) as first,
        start([sys.executable, "-c", LEAVING, "1", port]) as other,
    ):
        said = [process.communicate() for process in (first, other)]

    assert [(first.returncode, said[0][0]), (other.returncode, said[1][0])] == [(0, "left\n")] * 2, said


def test_a_process_before_the_coordinator_does_not_ask_jax_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries again until the port is served, or until the limit; JAX would be refused once and wait a second."""
    refused: list[float] = []
    with socket.socket() as coordinator:
        coordinator.bind(("127.0.0.1", 0))
        port = coordinator.getsockname()[1]

        def look_again(seconds: float) -> None:
            refused.append(seconds)
            if len(refused) == 3:
                coordinator.listen()

        monkeypatch.setattr("time.sleep", look_again)
        peers._wait_until_served("127.0.0.1", port, time.monotonic() + 60)
        assert len(refused) == 3
        coordinator.accept()[0].close()

    until = time.monotonic() + 0.1
    peers._wait_until_served("127.0.0.1", port, until)
    assert time.monotonic() >= until


@pytest.mark.parametrize(("rank", "done"), [(0, ["join"]), (1, ["look", "join"])])
def test_all_but_the_coordinator_wait_for_it_first(monkeypatch: pytest.MonkeyPatch, rank: int, done: list[str]) -> None:
    """The coordinator joins at once, the others when its port is served."""
    did: list[str] = []
    monkeypatch.setenv("no_grpc_proxy", "")  # as it was, afterwards
    monkeypatch.setattr(peers, "_wait_until_served", lambda *_: did.append("look"))
    monkeypatch.setattr("jax.distributed.initialize", lambda **_: did.append("join"))
    orders = Orders(
        job_file="",
        directory="",
        progress="",
        stacks="",
        rank=rank,
        num_processes=2,
        coordinator="127.0.0.1:1",
        attempt=0,
        fork=False,
        step=None,
        deadline_seconds=None,
    )
    peers.Peers.join(orders, limit_seconds=1)

    assert did == done


def test_a_single_process_exchanges_with_itself() -> None:
    """A run on one host takes the same path."""
    assert ALONE.exchange("text", "mine") == ["mine"]


def test_hosts_that_see_different_data_are_told_apart() -> None:
    """Before anything is trained fingerprints and sets are compared, and the first host that differs is named."""

    class Found:
        fingerprint = "aa"

    class Set:
        identity: ClassVar[dict[str, str]] = {"files": "cc"}

    class Three:
        said: ClassVar[list[str]] = []

        def exchange(self, _name: str, text: str) -> list[str]:
            self.said.append(text)
            return [text, text, "bb"]

    data: Any = Found()
    several: Any = Three()
    same_data(data, [], ALONE)
    with pytest.raises(DataError, match="aa on rank 0 and bb on rank 2"):
        same_data(data, [], several)
    sets: Any = [Set()]
    same_data(data, sets, ALONE)
    with pytest.raises(DataError, match=r"data\.train or evaluation\.sets: .*bb on rank 2"):
        same_data(data, sets, several)
    assert Three.said[0] == "aa" != Three.said[1]

"""What processes tell each other: everyone's word, by rank, and who it is that does not speak."""

import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from shardwise.job.errors import DataError
from shardwise.job.orders import Orders
from shardwise.train import processes
from shardwise.train.processes import ALONE
from shardwise.train.start import _same_data

SCRIPT = """
import os, sys
from shardwise.job.errors import PeerError
from shardwise.job.orders import Orders
from shardwise.train.processes import Processes
rank, port = int(sys.argv[1]), sys.argv[2]
last = 2
orders = Orders(job_file="", directory="", progress="", stacks="", rank=rank, num_processes=3,
                coordinator=f"127.0.0.1:{port}", incarnation=0, fork=False, step=None, deadline_seconds=None)
processes = Processes.join(orders, limit_seconds=60)
print([processes.exchange("word", f"{word} of {rank}") for word in ("first", "second", "third")], flush=True)
client, calls = processes._client, []

class Counting:
    def __getattr__(self, name):
        calls.append(name)
        return getattr(client, name)

object.__setattr__(processes, "_client", Counting())
print(processes.agree("word", str(rank), "+".join), len(calls), flush=True)
object.__setattr__(processes, "_client", client)
processes.exchange("all are done", "")
print(len(client.key_value_dir_get("shardwise/word/")), flush=True)
processes.exchange("all have looked", "")
if rank == last:
    sys.stdin.read()  # there, and silent
    os._exit(0)
object.__setattr__(processes, "answer_seconds", 1.0)
try:
    processes.exchange("verdict", "mine")
except PeerError as error:
    print(error, flush=True)
os._exit(0)  # the other one never leaves, which JAX's own exit would wait for
"""


def test_words_are_exchanged_and_a_silent_process_is_named() -> None:
    """All hear all, in every round, and what rank 0 makes of it; when one stops speaking rank 0 says which.

    What has been heard is removed, and each process but the first makes two requests, however many there are.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-c", SCRIPT]
    with (
        subprocess.Popen([*command, "2", port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as silent,
        subprocess.Popen([*command, "1", port], stdout=subprocess.PIPE, text=True) as other,
        subprocess.Popen([*command, "0", port], stdout=subprocess.PIPE, text=True) as first,
    ):
        said, _ = first.communicate()
        told, _ = other.communicate()
        heard, _ = silent.communicate("")

    words = str([[f"{word} of {rank}" for rank in range(3)] for word in ("first", "second", "third")])
    kept = "3"  # of the last round alone
    assert heard.splitlines() == [words, "0+1+2 2", kept]
    assert told.splitlines()[:3] == [words, "0+1+2 2", kept]
    assert said.splitlines()[:3] == [words, "0+1+2 4", kept]
    assert said.splitlines()[3].startswith("rank 0 waited 1 seconds for rank 2 at shardwise/verdict/1: ")


def test_who_comes_before_the_coordinator_does_not_ask_jax_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks again and again until somebody listens, where JAX would be refused once and wait; or until the limit."""
    refused: list[float] = []
    with socket.socket() as coordinator:
        coordinator.bind(("127.0.0.1", 0))
        port = coordinator.getsockname()[1]

        def look_again(seconds: float) -> None:
            refused.append(seconds)
            if len(refused) == 3:
                coordinator.listen()

        monkeypatch.setattr("time.sleep", look_again)
        processes._wait_until_served("127.0.0.1", port, time.monotonic() + 60)
        assert len(refused) == 3
        coordinator.accept()[0].close()

    until = time.monotonic() + 0.1
    processes._wait_until_served("127.0.0.1", port, until)
    assert time.monotonic() >= until


@pytest.mark.parametrize(("rank", "done"), [(0, ["join"]), (1, ["look", "join"])])
def test_all_but_the_coordinator_look_for_it_first(monkeypatch: pytest.MonkeyPatch, rank: int, done: list[str]) -> None:
    """Who serves the others waits for nobody; the others join when it is there."""
    did: list[str] = []
    monkeypatch.setattr(processes, "_wait_until_served", lambda *_: did.append("look"))
    monkeypatch.setattr("jax.distributed.initialize", lambda **_: did.append("join"))
    orders = Orders(
        job_file="",
        directory="",
        progress="",
        stacks="",
        rank=rank,
        num_processes=2,
        coordinator="127.0.0.1:1",
        incarnation=0,
        fork=False,
        step=None,
        deadline_seconds=None,
    )
    processes.Processes.join(orders, limit_seconds=1)

    assert did == done


def test_alone_one_hears_oneself() -> None:
    """A run on one host takes the same way."""
    assert ALONE.exchange("word", "mine") == ["mine"]


def test_hosts_that_see_different_data_are_told_apart() -> None:
    """Before anything is trained the fingerprints are compared, and the first host that differs is named."""

    class Found:
        fingerprint = "aa"

    class Three:
        def exchange(self, _name: str, text: str) -> list[str]:
            return [text, text, "bb"]

    data: Any = Found()
    several: Any = Three()
    _same_data(data, ALONE)
    with pytest.raises(DataError, match="aa on rank 0 and bb on rank 2"):
        _same_data(data, several)

"""One leader at a time: real processes, a real API server."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.api_server import ApiServer
from tests.operator.runtime.wire import Wire

from shardwise_operator.runtime.elector import EXIT_LEASE_LOST
from shardwise_operator.runtime.kinds import CONFIG_MAPS, LEASES
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.reflector import Reflector
from shardwise_operator.runtime.transport import Api

PROGRAM = Path(__file__).parent / "counting_operator.py"
LIMIT_SECONDS = 300.0  # before a test gives up; nothing is measured with it
Start = Callable[..., subprocess.Popen[bytes]]
Eventually = Callable[[Callable[[], object]], None]


@pytest.fixture
def counts(api: Api, namespace: str, metrics: Metrics) -> Iterator[list[str]]:
    """Make the counter, and return who counted, in order, as the API server tells it."""
    metadata = {"namespace": namespace, "name": "counter", "labels": {"test": "counter"}}
    api.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"count": "0"}})
    seen: list[str] = []
    reflector = Reflector(
        api,
        metrics,
        CONFIG_MAPS,
        lambda change: seen.append(change[1]["data"].get("by", "") if change[1] else ""),
        namespace=namespace,
        labels="test=counter",
    )
    reflector.start()
    yield seen
    reflector.stop()


@pytest.fixture
def start(api_server: ApiServer, namespace: str, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts an operator by its name."""
    started: list[subprocess.Popen[bytes]] = []

    def one(identity: str, kubeconfig: Path = api_server.kubeconfig) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{identity}.log").open("wb") as log:
            command = [sys.executable, str(PROGRAM), str(kubeconfig), namespace, identity]
            started.append(subprocess.Popen(command, stdout=log, stderr=log))
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.wait()


def lease(api: Api, namespace: str) -> dict[str, Any]:
    """The Lease's spec."""
    spec: dict[str, Any] = api.get(LEASES, namespace, "operator")["spec"]
    return spec


def changes_of_hand(counts: list[str]) -> list[str]:
    """Who counted, each once for each time that it began."""
    named = [by for by in counts if by]
    return [by for before, by in zip(["", *named], named, strict=False) if by != before]


def test_sigterm_hands_over_at_once(
    api: Api, namespace: str, counts: list[str], start: Start, eventually: Eventually, tmp_path: Path
) -> None:
    """The leader ends with 0 and gives the Lease back: the follower, whose cache is warm, need not wait for its end."""
    first = start("one")
    eventually(lambda: "one" in counts)
    start("two")
    eventually(lambda: "following one" in (tmp_path / "two.log").read_text())
    renewals: set[str] = set()

    def several_are_seen() -> bool:
        renewals.add(lease(api, namespace)["renewTime"])
        return len(renewals) > 3

    eventually(several_are_seen)
    assert (tmp_path / "two.log").read_text().count("following") == 1  # once for each leader, not for each renewal

    first.send_signal(signal.SIGTERM)

    assert first.wait(LIMIT_SECONDS) == 0
    assert lease(api, namespace)["holderIdentity"] in {"", "two"}
    eventually(lambda: "two" in counts)
    assert changes_of_hand(counts) == ["one", "two"]
    assert lease(api, namespace)["leaseTransitions"] == 1


def test_a_killed_leader_is_replaced(
    api: Api, namespace: str, counts: list[str], start: Start, eventually: Eventually
) -> None:
    """After `kill -9` the follower takes the Lease once it has run out, and not before."""
    first = start("one")
    eventually(lambda: "one" in counts)
    start("two")

    first.kill()
    first.wait()
    last = lease(api, namespace)
    eventually(lambda: "two" in counts)

    assert last["holderIdentity"] == "one"
    taken, renewed = (
        datetime.fromisoformat(time) for time in (lease(api, namespace)["acquireTime"], last["renewTime"])
    )
    assert (taken - renewed).total_seconds() > last["leaseDurationSeconds"]
    assert changes_of_hand(counts) == ["one", "two"]


def test_a_leader_without_a_server_ends(
    api_server: ApiServer, counts: list[str], start: Start, eventually: Eventually, tmp_path: Path
) -> None:
    """A leader that cannot renew, on connections that stay open and say nothing, ends by itself, and another leads."""
    with Wire(api_server.client.url) as wire:
        first = start("one", wire.kubeconfig(api_server.kubeconfig, tmp_path))
        eventually(lambda: "one" in counts)
        start("two")

        wire.freeze()

        assert first.wait(LIMIT_SECONDS) == EXIT_LEASE_LOST
    assert "the lease could not be renewed for 4 s" in (tmp_path / "one.log").read_text()
    eventually(lambda: "two" in counts)
    assert changes_of_hand(counts) == ["one", "two"]


def test_a_frozen_leader_writes_nothing_when_it_wakes(counts: list[str], start: Start, eventually: Eventually) -> None:
    """Stopped in the middle of its work until another leads, it ends at its first breath; no write of its own lands."""
    first = start("one")
    eventually(lambda: "one" in counts)
    start("two")

    first.send_signal(signal.SIGSTOP)
    eventually(lambda: "two" in counts)
    first.send_signal(signal.SIGCONT)

    assert first.wait(LIMIT_SECONDS) == EXIT_LEASE_LOST
    reached = len(counts)
    eventually(lambda: len(counts) > reached + 3)
    assert changes_of_hand(counts) == ["one", "two"]


def test_a_stolen_lease_ends_the_leader(
    api: Api, namespace: str, counts: list[str], start: Start, eventually: Eventually, tmp_path: Path
) -> None:
    """Whoever else writes its name into the Lease leads; the process that led ends and says who holds it."""
    first = start("one")
    eventually(lambda: "one" in counts)

    api.patch(LEASES, namespace, "operator", {"spec": {"holderIdentity": "thief"}})

    assert first.wait(LIMIT_SECONDS) == EXIT_LEASE_LOST
    assert "held by thief" in (tmp_path / "one.log").read_text()

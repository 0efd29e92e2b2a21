"""shardwise.launcher.pod with the run directory in a bucket: pods that share no volume, each with its own folder."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launcher.conftest import LIMIT_SECONDS
from tests.launcher.pods import UID
from tests.launcher.pods_apart import Apart
from tests.train.s3_server import Bucket, serving

from shardwise.protocol import pods as names
from shardwise.protocol.contract import HOST_LEFT, LOGS, METRICS, ExitCode

HELD = {"attempt": 0, "step": 7, "wait": "go"}
HELD_AGAIN = {"attempt": 1, "step": 12, "wait": "further"}


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """Return a bucket that pods find."""
    with serving() as one:
        yield one


@pytest.fixture
def pods(tmp_path: Path, bucket: Bucket) -> Iterator[Apart]:
    """Return a job without pods; after the test nothing of it may remain."""
    some = Apart(tmp_path, bucket)
    yield some
    assert some.close() == []


def test_to_the_end(pods: Apart) -> None:
    """Every pod ends with the run's exit code and a whole record; the bucket has the run directory with all logs."""
    pods.start(hosts=3)

    assert pods.codes() == [ExitCode.OK] * 3
    assert (pods.summary["status"], pods.summary["attempts"]) == ("complete", 1)
    assert [event["code"] for event in pods.events("done")] == [0]
    for host in range(3):
        record = pods.record(host)
        assert (record.code, record.host, record.attempt, record.step) == (0, host, 0, 30)
        assert (record.loss, record.checkpoint_step, record.message) == (str(1 / 30), 30, "complete")
        assert (
            pods.has(f"{LOGS}/attempt-0/host-{host}.log")
            == (pods.folder(host) / LOGS / "attempt-0" / f"host-{host}.log").read_text()
        )
    assert not (pods.directory / LOGS).exists()


@pytest.mark.parametrize("host", [0, pytest.param(1, marks=pytest.mark.long)])
def test_killed(pods: Apart, host: int) -> None:
    """A pod that is lost with its folder is replaced alone, host 0 too; what the run has used and measured goes on."""
    pods.start(faults=[HELD, HELD_AGAIN])
    before = pods.until_step(7)
    pods.until_saved(5)
    pods.kill(host)
    pods.make(host)
    pods.go_on()
    after = pods.until_step(12, attempt=1)
    pods.go_on("further")

    assert pods.codes() == [ExitCode.OK] * 2
    other = 1 - host
    assert after["hosts"][other]["agentPid"] == before["hosts"][other]["agentPid"]
    assert pods.record(other).restarts == pods.record(host).restarts == {"hostLost": 1}
    assert [event["fromStep"] for event in pods.events("running")] == [0, 5]
    lines = [json.loads(line) for line in pods.has(METRICS).splitlines()]
    assert {line["step"] for line in lines if "event" not in line} == set(range(1, 31))


def test_all_killed(pods: Apart) -> None:
    """No host has anything of the run any more, and new pods go on with it."""
    pods.start(faults=[HELD, HELD_AGAIN])
    pods.until_step(7)
    pods.until_saved(5)
    for host in (0, 1):
        pods.kill(host)
    for host in (0, 1):
        pods.make(host)
    pods.go_on("further")

    assert pods.codes() == [ExitCode.OK] * 2
    assert pods.record(1).restarts == {"hostLost": 1}
    assert [event["fromStep"] for event in pods.events("running")] == [0, 5]


def test_two_hosts_0(pods: Apart) -> None:
    """One that the cluster has lost sight of ends alone when another has taken over, and the run goes on with that."""
    pods.start(faults=[HELD, HELD_AGAIN])
    pods.until_step(7)
    first, record = pods.processes[0], (pods.roots / "0").resolve() / "termination_log"
    pods.make(0)
    assert first.wait(LIMIT_SECONDS) == ExitCode.STORAGE
    said = names.TerminationRecord.loads(record.read_text())
    assert said is not None
    assert said.code is None
    assert "another host 0 has taken over this run" in said.message
    pods.until_step(12, attempt=1)
    pods.go_on("further")

    assert pods.codes() == [ExitCode.OK] * 2
    assert [event["attempt"] for event in pods.events("attempt")] == [0, 1]


def test_the_one_before_writes_while_host_0_begins(pods: Apart) -> None:
    """Its successor begins again with what was written: no pod more is lost, and no budget charged for it."""
    pods.start(faults=[HELD, HELD_AGAIN])
    pods.until_step(7)
    first = pods.processes[0]
    pods.options |= {"outrun": True}
    pods.make(0)
    assert first.wait(LIMIT_SECONDS) == ExitCode.STORAGE
    pods.until_step(12, attempt=1)
    pods.go_on("further")

    assert pods.codes() == [ExitCode.OK] * 2
    assert pods.record(0).restarts == {"hostLost": 1}
    assert [event["attempt"] for event in pods.events("attempt")] == [0, 1]


@pytest.mark.long  # test_pod.py has the same on a volume
def test_all_asked_to_go(pods: Apart) -> None:
    """A job that is deleted is saved; made again under another uid, on other disks, it goes on from there at once.

    The last record of every host knows of the save, however slow the bucket is.
    """
    pods.options = {"copySeconds": 60.0, "writeSeconds": 0.3}
    pods.start(saveEvery=None, faults=[HELD, HELD_AGAIN | {"step": 29}])
    pods.until_step(7)
    pods.ask_to_go(0)
    pods.ask_to_go(1)
    pods.go_on()
    assert pods.codes() == [HOST_LEFT] * 2
    step = pods.record(0).checkpoint_step
    assert step == pods.record(1).checkpoint_step

    pods.run = "another-0"
    for host in range(2):
        pods.make(host)
    pods.until_step(29, attempt=1)
    pods.go_on("further")
    assert pods.codes() == [ExitCode.OK] * 2
    assert [event["fromStep"] for event in pods.events("running")] == [0, step]


@pytest.mark.long  # test_pod.py has the same on a volume
def test_suspended(pods: Apart) -> None:
    """Asked to stop, the run is saved and every pod says so; the next round goes on."""
    pods.start(saveEvery=None, faults=[HELD])
    pods.until_step(7)
    pods.ask("POST", "/stop")
    pods.go_on()
    assert pods.codes() == [ExitCode.SAVED] * 2

    pods.run = f"{UID}-1"
    for host in range(2):
        pods.make(host)
    assert pods.codes() == [ExitCode.OK] * 2
    assert pods.summary["attempts"] == 2


def test_after_the_last_word(pods: Apart) -> None:
    """A pod that comes when host 0 has gone after its last word reads it in the bucket, and repeats it."""
    pods.start()
    pods.codes()
    pods.make(1)

    assert pods.wait(1) == ExitCode.OK
    assert pods.record(1).message == "complete"


def test_log(pods: Apart) -> None:
    """A pod's log has what its own trainer says, on a host without the events of the run too."""
    pods.start(
        recovery="restarts: {failure: 1}", faults=[{"rank": 1, "step": 2, "say": json.dumps("of rank 1"), "exit": 1}]
    )
    pods.codes()

    assert pods.output.count('"of rank 1"') >= 2
    assert "the run has failed: rank 1 ended with exit code 1" in pods.output


def test_no_such_bucket(pods: Apart) -> None:
    """The job is refused, by the bucket's address and what the server said."""
    pods.variables |= {names.DIRECTORY_VARIABLE: "s3://nowhere/run"}
    pods.start(hosts=1)

    assert pods.wait(0) == ExitCode.BAD_INPUT
    assert "s3://nowhere/run cannot be used" in pods.record(0).message

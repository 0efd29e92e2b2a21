"""shardwise.launcher.pod: a job's pods as real processes that come and go, while the run goes on."""

import json
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from tests.launcher.conftest import LIMIT_SECONDS
from tests.launcher.pods import GANG, STATUS, UID, Pods

from shardwise.job.load import dump, load
from shardwise.job.own_program import job_of_command
from shardwise.launcher import pod
from shardwise.launcher.agent.client import NoLeaderError
from shardwise.protocol.contract import HOST_LEFT, JOB_FILE, ExitCode
from shardwise.protocol.errors import StorageError
from shardwise.protocol.pods import DIRECTORY_VARIABLE, RANK_VARIABLE, TerminationRecord

HELD = {"attempt": 0, "step": 7, "wait": "go"}
HELD_AGAIN = {"attempt": 1, "step": 12, "wait": "further"}


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """Return a job without pods; after the test nothing of it may remain."""
    some = Pods(tmp_path)
    yield some
    assert some.close() == []


def test_to_the_end(pods: Pods) -> None:
    """Every pod ends with the run's exit code, and its last record says how the run ended."""
    pods.start(hosts=3)

    assert pods.codes() == [ExitCode.OK] * 3
    assert pods.summary["status"] == "complete"
    for host in range(3):
        record = pods.record(host)
        assert (record.code, record.host, record.attempt, record.step) == (0, host, 0, 30)
        assert (record.loss, record.checkpoint_step, record.restarts) == (str(1 / 30), 30, {})
        assert (record.message, record.cause, record.tail) == ("complete", None, "")
        assert record.goodput["step"] > 0


def test_failed(pods: Pods) -> None:
    """The last record of every pod has the cause, the rank that explains it, its exit, its words and the restarts."""
    pods.start(recovery="restarts: {failure: 1}", faults=[{"rank": 1, "step": 2, "say": "the reason why", "exit": 3}])

    assert pods.codes() == [ExitCode.FAILURE] * 2
    record = pods.record(0)
    assert (record.code, record.cause, record.rank, record.exit) == (1, "failure", 1, "exit code 3")
    assert record.restarts == {"failure": 1}
    assert "the reason why" in record.tail
    assert "rank 1 ended with exit code 3" in record.message
    assert "delete the job and apply it again" in pods.output


def test_a_program(pods: Pods) -> None:
    """An own program runs in the pods of its job, and their last records have its steps, loss and checkpoint."""
    script = (
        "import shardwise\nshardwise.init(steps=6)\n"
        "for step in range(1, 7):\n    shardwise.report(step=step, loss=1.0 / step)\n"
        "shardwise.checkpoint.save({'n': step}, step)\n"
    )
    pods.job = dump(job_of_command([sys.executable, "-c", script], hosts=2, devices=1))
    for host in (0, 1):
        pods.make(host)

    assert pods.codes() == [ExitCode.OK] * 2
    for record in map(pods.record, (0, 1)):
        assert (record.step, record.steps, record.loss) == (6, 6, str(1 / 6))
        assert (record.checkpoint_step, record.restarts, record.message) == (6, {}, "complete")
        assert record.digest
    assert load(pods.directory / JOB_FILE).spec.program is not None


@pytest.mark.parametrize("host", [0, 1])
def test_killed(pods: Pods, host: int) -> None:
    """A pod that is lost is replaced alone, under another address, host 0 too; budgets are counted on."""
    pods.start(faults=[HELD, HELD_AGAIN])
    before = pods.until_step(7)
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


def test_two_pods_of_one_host(pods: Pods) -> None:
    """The later one is the host's, which costs one restart; one that goes on where no kubelet ends it leaves."""
    pods.start(faults=[HELD, HELD_AGAIN])
    pods.until_step(7)
    first = pods.processes[1]
    pods.make(1)
    pods.until_step(12, attempt=1)
    assert first.wait(LIMIT_SECONDS) == HOST_LEFT
    pods.go_on("further")

    assert pods.codes() == [ExitCode.OK] * 2
    assert pods.record(0).restarts == {"hostLost": 1}


@pytest.mark.parametrize("host", [0, 1])
def test_asked_to_go(pods: Pods, host: int) -> None:
    """A pod that is told to go has the run saved first; its successor goes on from that very step, nothing is lost."""
    pods.start(saveEvery=None, stepSeconds=0.05, faults=[HELD, HELD_AGAIN | {"step": 29}])
    before = pods.until_step(7)
    pods.ask_to_go(host)
    pods.go_on()
    assert pods.wait(host) == HOST_LEFT
    record = pods.record(host)
    assert record.code is None
    assert record.checkpoint_step == record.step >= 8

    pods.make(host)
    after = pods.until_step(29, attempt=1)
    pods.go_on("further")
    assert pods.codes() == [ExitCode.OK] * 2
    assert after["hosts"][1 - host]["agentPid"] == before["hosts"][1 - host]["agentPid"]
    assert [event["fromStep"] for event in pods.events("running")] == [0, record.step]
    assert pods.summary["goodput"]["lostSteps"] == 0
    assert pods.record(host).restarts == {"hostLost": 1}


def test_asked_to_go_while_trainers_meet(pods: Pods) -> None:
    """What becomes of the trainers that a leaving host's trainer has left waiting is no failure of theirs."""
    fails = {"rank": 0, "attempt": 0, "phase": "join", "wait": "words/heard-STOP", "exit": 1}
    pods.start(deaf=True, faults=[fails, {"rank": 1, "attempt": 0, "phase": "join", "wait": "never"}])
    pods.until(lambda status: [host["phase"] for host in status["hosts"]] == ["join", "join"])
    pods.ask_to_go(1)
    assert pods.wait(1) == HOST_LEFT

    pods.make(1)
    assert pods.codes() == [ExitCode.OK] * 2
    assert pods.record(0).restarts == {"hostLost": 1}
    (first, *_) = pods.events("ended")
    assert first["message"] == "host 1 leaves before the first step; rank 0 ended with exit code 1"


def test_all_asked_to_go(pods: Pods) -> None:
    """A job that is deleted saves once, and all pods end; made again under another uid, it goes on from there."""
    pods.start(saveEvery=None, faults=[HELD, HELD_AGAIN | {"step": 29}])
    pods.until_step(7)
    pods.ask_to_go(0)
    pods.ask_to_go(1)
    pods.go_on()
    assert pods.codes() == [HOST_LEFT] * 2
    step = pods.record(0).checkpoint_step

    pods.run = "another-0"
    for host in range(2):
        pods.make(host)
    pods.until_step(29, attempt=1)
    pods.go_on("further")
    assert pods.codes() == [ExitCode.OK] * 2
    assert [event["fromStep"] for event in pods.events("running")] == [0, step]


def test_suspended(pods: Pods) -> None:
    """Asked to stop, the run is saved and every pod says so; the next round goes on with fresh budgets."""
    pods.start(saveEvery=None, faults=[HELD, HELD_AGAIN | {"step": 29}])
    pods.until_step(7)
    pods.ask("POST", "/stop")
    pods.go_on()
    assert pods.codes() == [ExitCode.SAVED] * 2
    step = pods.record(1).checkpoint_step
    assert pods.record(0).code == pods.record(1).code == ExitCode.SAVED

    pods.run = f"{UID}-1"
    for host in range(2):
        pods.make(host)
    pods.until_step(29, attempt=1)
    pods.go_on("further")
    assert pods.codes() == [ExitCode.OK] * 2
    assert [event["fromStep"] for event in pods.events("running")] == [0, step]


def test_host_missing(pods: Pods) -> None:
    """A host that has no other pod within its time ends no run: the others end, and it goes on when all can be had."""
    pods.start(recovery="replaceWithin: 1s", faults=[HELD])
    pods.until_step(7)
    pods.kill(1)

    assert pods.wait(0) == ExitCode.HOSTS_MISSING
    record = pods.record(0)
    assert (record.code, record.cause, record.message) == (ExitCode.HOSTS_MISSING, None, "host 1 missing for 1 s")
    assert pods.summary["status"] == "stopped"
    pods.run = f"{UID}-1"
    pods.make(0)
    pods.make(1)
    assert pods.codes() == [ExitCode.OK] * 2
    assert pods.record(0).restarts == {"hostLost": 1}


@pytest.mark.parametrize("began", [True, False], ids=["lost", "never there"])
def test_no_leader_comes_back(pods: Pods, *, began: bool) -> None:
    """A host whose run nobody leads and nobody mends ends by itself, and the run goes on when all can be had."""
    pods.start(recovery="replaceWithin: 2s, startWithin: 3s", faults=[HELD])
    if began:
        pods.until_step(7)
    pods.kill(0)

    assert pods.wait(1) == ExitCode.HOSTS_MISSING
    record = pods.record(1)
    assert (record.code, record.cause) == (ExitCode.HOSTS_MISSING, None)
    assert record.message.startswith(f"host 0 was not heard for {4 if began else 6} s")


def test_ray_does_not_start(pods: Pods) -> None:
    """Hosts on which Ray does not start are given back: on others it may."""
    pods.options = {"refusesRay": True}
    pods.start()

    assert pods.codes() == [ExitCode.HOSTS_MISSING] * 2
    words = "Ray could not be started 5 times; the last time: host 1 did not join Ray"
    assert (pods.record(0).cause, pods.record(0).message) == (None, words)
    assert len(pods.events("sessionFailed")) == 5


def test_after_the_last_word(pods: Pods) -> None:
    """A pod that comes when host 0 has gone after its last word reads it in the run directory, and repeats it."""
    pods.start()
    pods.codes()
    pods.make(1)

    assert pods.wait(1) == ExitCode.OK
    assert pods.record(1).message == "complete"


def test_ready(pods: Pods) -> None:
    """A pod is ready while its trainer has joined the others, every pod answers, and nobody needs a token to ask."""
    pods.start(faults=[{"phase": "join", "wait": "go"}, {"phase": "step", "step": 3, "wait": "further"}])
    pods.until(lambda status: [host["phase"] for host in status["hosts"]] == ["join", "join"])
    assert [pods.ready(host) for host in range(2)] == [HTTPStatus.SERVICE_UNAVAILABLE] * 2
    pods.go_on()
    pods.until_step(3)
    assert [pods.ready(host) for host in range(2)] == [HTTPStatus.OK] * 2
    pods.go_on("further")

    assert pods.codes() == [ExitCode.OK] * 2


def test_tokens(pods: Pods) -> None:
    """The status token opens the status and no more; the gang's opens the gang and not the status."""
    pods.start(faults=[HELD])
    pods.until_step(7)
    for method, path, token in (
        ("GET", "/status", GANG),
        ("POST", "/stop", GANG),
        ("POST", "/poll", STATUS),
    ):
        with pytest.raises(NoLeaderError, match="token"):
            pods.ask(method, path, token=token)
    with pytest.raises(NoLeaderError, match="host 0"):
        pods.ask("GET", "/status", host=1)
    pods.go_on()

    assert pods.codes() == [ExitCode.OK] * 2


def test_directory_not_shared(pods: Pods, tmp_path: Path) -> None:
    """A host that sees another folder than host 0 does not find it: nothing trains, and host 0 says what it may be."""
    pods.options = {"unheardSeconds": 0.5}
    pods.start(hosts=1, recovery="startWithin: 3s")
    pods.kill(0)
    pods.job = pods.job.replace("1x2", "2x2")
    pods.make(1, directory=tmp_path / "elsewhere")
    pods.make(0)

    doubt = f"nothing was ever heard of host 1: where its pod runs, it does not find host 0 in {pods.directory}"
    pods.until(lambda status: doubt in (status["reason"] or ""))
    assert pods.wait(0) == ExitCode.HOSTS_MISSING
    assert doubt in pods.record(0).message


def test_job_refused(pods: Pods) -> None:
    """A job that the pod cannot read is refused in its last record, in the words that a person gets."""
    pods.start(hosts=1)
    pods.kill(0)
    pods.job = pods.job.replace("cpu-sim", "abacus")
    pods.make(0)

    assert pods.wait(0) == ExitCode.BAD_INPUT
    assert (pods.record(0).code, pods.record(0).cause) == (ExitCode.BAD_INPUT, "badInput")
    assert "abacus" in pods.record(0).message


def test_an_operator_of_another_contract(pods: Pods) -> None:
    """What the operator and the image agree on has changed between them: that is said, and which image would do."""
    pods.start(hosts=1)
    pods.kill(0)
    pods.contract = "7"
    pods.make(0)

    assert pods.wait(0) == ExitCode.BAD_INPUT
    assert "contract 7" in pods.record(0).message
    assert "spec.pod.image" in pods.record(0).message


def test_directory_cannot_be_made(pods: Pods, tmp_path: Path) -> None:
    """A volume that the pod may not write to ends it with words, on whatever host."""
    pods.start(hosts=1)
    pods.kill(0)
    (tmp_path / "file").touch()
    pods.make(0, directory=tmp_path / "file" / "run")

    assert pods.wait(0) == ExitCode.BAD_INPUT
    assert "file/run/logs: cannot be made (Not a directory)" in pods.record(0).message


def test_a_pod_whose_volume_is_not_well_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record has words but no code, so the run is not over: its host gets another pod."""
    log = tmp_path / "termination-log"

    def stale(_: Path) -> None:
        raise StorageError("/runs/mine: cannot be read (Stale file handle)")

    monkeypatch.setattr("shardwise.protocol.pods.TERMINATION_LOG", str(log))
    monkeypatch.setattr(pod, "_use_own_folders", stale)
    monkeypatch.setenv(RANK_VARIABLE, "3")
    monkeypatch.setenv(DIRECTORY_VARIABLE, "/runs/mine")
    with pytest.raises(SystemExit) as ended:
        pod.main()
    record = TerminationRecord.loads(log.read_text())
    assert ended.value.code == ExitCode.STORAGE
    assert record is not None
    assert (record.code, record.host, record.message) == (None, 3, "/runs/mine: cannot be read (Stale file handle)")


def test_log(pods: Pods) -> None:
    """A pod's log has what its own trainer says, and what happens to the run."""
    pods.start(
        recovery="restarts: {failure: 0}", faults=[{"rank": 1, "step": 2, "say": json.dumps("of rank 1"), "exit": 1}]
    )
    pods.codes()

    assert pods.output.count('of rank 1"\n') >= 1
    assert "the run has failed: rank 1 ended with exit code 1" in pods.output

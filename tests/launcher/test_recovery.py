"""What ends that should not: trainers, agents, the command; each is found, charged to its cause, and made good.

Only here every process, cause and budget is tried, and what each is charged: the trainers are fakes that say what they
are told to, so a case takes a second. That a run trains on exactly is for the levels above.
"""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.conftest import LIMIT_SECONDS, Run

from shardwise.protocol.contract import LOGS, METRICS, ExitCode

HELD = {"attempt": 0, "step": 7, "wait": "go"}


def agents(hosts: list[dict[str, Any]]) -> list[int]:
    """Return the agents' processes."""
    return [host["agentPid"] for host in hosts]


def kill(run: Run, host: int, process: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Kill a process of a host at step 7, see the run to its end, and return the hosts before it and after it."""
    run.start(hosts=2, faults=[HELD, HELD | {"attempt": 1, "step": 27, "wait": "further"}])
    before = run.until_step(7)
    os.kill(before[host][process], signal.SIGKILL)
    run.go_on()
    after = run.until_step(27, attempt=1)
    (run.directory / "further").touch()

    assert run.end() == ExitCode.OK
    return before, after


def events(run: Run, name: str) -> list[dict[str, Any]]:
    """Return the launcher's events of one kind."""
    lines = (run.directory / LOGS / "launcher.jsonl").read_text().splitlines()
    return [event for line in lines if (event := json.loads(line))["event"] == name]


@pytest.mark.parametrize("rank", [0, 1])
def test_trainer_killed(run: Run, rank: int) -> None:
    """All trainers start again, in place: the agents stay. The steps since the checkpoint are lost, and no more."""
    before, after = kill(run, rank, "trainerPid")

    assert agents(after) == agents(before)
    assert not {host["trainerPid"] for host in after} & {host["trainerPid"] for host in before}
    assert run.summary["restarts"] == {"failure": 1}
    assert run.summary["attempts"] == 2
    assert run.summary["goodput"]["lostSteps"] > 0
    assert [(event["cause"], event["rank"], event["exit"]) for event in events(run, "ended")] == [
        ("failure", rank, "signal SIGKILL")
    ]
    assert [event["fromStep"] for event in events(run, "running")] == [0, 5]
    first, second = events(run, "hosts")
    assert {host["host"]: host["step"] for host in first["hosts"]} == {0: 7, 1: 7}
    assert (second["attempt"], [host["host"] for host in second["hosts"]]) == (1, [0, 1])
    lines = map(json.loads, (run.directory / METRICS).read_text().splitlines())
    begun = [record["committed"] for record in lines if record.get("event") in ("started", "restored")]
    assert begun == [None, 5], "what is saved already is to be found again"


def test_trainer_stopped(run: Run) -> None:
    """A rank that stands still is named with everybody's stacks, and ended when patience is at its end."""
    run.start(
        hosts=2,
        recovery="hangAfter: 6500ms",
        stepSeconds=0.05,
        faults=[{"attempt": 0, "step": 25, "rank": 1, "signal": signal.SIGSTOP}],
    )

    stalled = run.until(lambda status: status["phase"] == "stalled")
    assert stalled["hosts"][1]["state"] == "T"
    assert run.end() == ExitCode.OK
    assert run.summary["restarts"] == {"hang": 1}
    assert [event["rank"] for event in events(run, "stalled")] == [1]
    stacks = (run.directory / events(run, "stacks")[0]["file"]).read_text()
    assert "in agree" in stacks
    assert "state T" in stacks


@pytest.mark.parametrize(
    ("code", "budget", "restarts"),
    [
        (ExitCode.NONFINITE, "restarts: {nonfinite: 1}", {"nonfinite": 1}),
        (ExitCode.OUT_OF_MEMORY, "restarts: {outOfMemory: 0}", {}),
        (ExitCode.STORAGE, "restarts: {storage: 0}", {}),
        (ExitCode.DEVICE, "restarts: {device: 1}", {"device": 1}),
        (ExitCode.BAD_INPUT, "restarts: {failure: 5}", {}),
    ],
)
def test_trainer_says_why(run: Run, code: ExitCode, budget: str, restarts: dict[str, int]) -> None:
    """An exit code is charged to its cause; when that has no budget left it is the command's, with the words."""
    run.start(hosts=2, recovery=budget, faults=[{"rank": 1, "step": 2, "say": "the reason why", "exit": code}])

    assert run.end() == code
    assert "the reason why" in run.output
    assert run.summary["restarts"] == restarts
    assert run.summary["status"] == "failed"
    assert (run.summary["rank"], run.summary["exit"]) == (1, f"exit code {code}")
    assert "the reason why" in run.summary["logTail"]


def test_crash_loop(run: Run) -> None:
    """A trainer that fails each time ends the run with its rank, its exit, its last words and the restarts used."""
    run.start(recovery="restarts: {failure: 2}, backoff: 100ms", faults=[{"step": 2, "say": "not again", "exit": 3}])

    assert run.end() == ExitCode.FAILURE
    assert run.output.splitlines()[-2].endswith("rank 0 ended with exit code 3 (restarts: failure 2)")
    assert run.output.count("not again") == 3
    assert run.summary["restarts"] == {"failure": 2}
    assert run.summary["cause"] == "failure"


@pytest.mark.parametrize("host", [0, 1])
def test_agent_killed(run: Run, host: int) -> None:
    """A host that is lost is replaced alone, the leader's too, and the run goes on; nobody else is blamed."""
    before, after = kill(run, host, "agentPid")

    assert agents(after)[1 - host] == agents(before)[1 - host]
    assert agents(after)[host] != agents(before)[host]
    assert run.summary["restarts"] == {"hostLost": 1}


@pytest.mark.parametrize("host", [0, 1])
def test_agent_stopped(run: Run, host: int) -> None:
    """An agent that stands still, the leader's too, is replaced as one that is gone."""
    run.start(hosts=2, faults=[HELD])
    os.kill(run.until_step(7)[host]["agentPid"], signal.SIGSTOP)
    run.go_on()

    assert run.end() == ExitCode.OK
    assert run.summary["restarts"] == {"hostLost": 1}


def test_agent_killed_while_its_trainer_is_stopped(run: Run) -> None:
    """A trainer that cannot hear that its agent is gone does not live on beside its successor."""
    run.start(hosts=2, faults=[HELD])
    before = run.until_step(7)
    os.kill(before[1]["trainerPid"], signal.SIGSTOP)
    os.kill(before[1]["agentPid"], signal.SIGKILL)
    run.go_on()

    assert run.end() == ExitCode.OK
    assert run.summary["restarts"] == {"hostLost": 1}


def test_way_lost(run: Run) -> None:
    """Losing the way to the hosts ends no training; what happens meanwhile is seen when it is there again."""
    run.start(hosts=2, faults=[HELD])
    before = run.until_step(7)
    scratch = Path(json.loads((run.directory / LOGS / "leader.json").read_text())["scratch"])
    (scratch / "lose-session-1").touch()
    status = run.until(lambda status: status["raySession"] == 2 and len(status["hosts"]) == 2)
    run.go_on()

    assert run.end() == ExitCode.OK
    assert [host["trainerPid"] for host in status["hosts"]] == [host["trainerPid"] for host in before]
    assert (run.summary["restarts"], run.summary["attempts"]) == ({}, 1)


def test_command_killed(run: Run) -> None:
    """Nothing of the run outlives its command, and the same command goes on from the last checkpoint."""
    run.start(hosts=2, faults=[HELD])
    run.until_step(7)
    run.command.kill()
    run.command.wait()
    assert run.remains() == [str(run.directory / LOGS / "status.json")]
    run.go_on()
    run.again()

    assert run.end() == ExitCode.OK
    assert (run.summary["restarts"], run.summary["attempts"]) == ({}, 2)
    assert [event["fromStep"] for event in events(run, "running")] == [0, 5]


def test_a_copy_of_a_live_run(run: Run, tmp_path: Path) -> None:
    """Whoever starts a copy of its directory, say to try something else, takes nothing from the run that lives."""
    (tmp_path / "copied").mkdir()
    copy = Run(tmp_path / "copied")
    run.start(faults=[HELD])
    run.until_step(7)
    shutil.copytree(run.directory, copy.directory, ignore=shutil.ignore_patterns("*.partial"), dirs_exist_ok=True)
    shutil.copy(run._job, copy._job)
    copy.again()
    assert copy.end() == ExitCode.OK
    copy._temporary.rmdir()
    run.go_on()

    assert run.end() == ExitCode.OK
    assert (run.summary["steps"], run.summary["restarts"]) == (30, {})


def test_command_killed_while_its_agent_is_stopped(run: Run) -> None:
    """What cannot hear that the command is gone is ended by the next command."""
    run.start(faults=[HELD])
    hosts = run.until_step(7)
    for pid in (hosts[0]["agentPid"], hosts[0]["trainerPid"]):
        os.kill(pid, signal.SIGSTOP)
    run.command.kill()
    run.command.wait()
    run.go_on()
    run.again()

    assert run.end() == ExitCode.OK


def test_host_missing(run: Run) -> None:
    """A host that does not come back within its time ends the run, and is named."""
    run.start(hosts=2, recovery="replaceWithin: 1s", faults=[HELD | {"rank": 0, "exit": 1}, HELD])
    hosts = run.until_step(7)
    os.kill(run.command.pid, signal.SIGSTOP)
    os.kill(hosts[1]["agentPid"], signal.SIGKILL)
    run.go_on()
    end = time.monotonic() + LIMIT_SECONDS
    while not events(run, "done"):
        assert time.monotonic() < end
        time.sleep(0.02)
    os.kill(run.command.pid, signal.SIGCONT)

    assert run.end() == ExitCode.FAILURE
    assert "host 1 missing for 1 s" in run.output
    assert run.summary["cause"] == "hostLost"

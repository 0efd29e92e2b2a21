"""A run that nothing disturbs: from the command to the end, on one host and on several, and what it says of itself."""

import os
import signal

import pytest
from tests.launcher.conftest import Run

from shardwise.launcher.agent.client import NoLeaderError
from shardwise.launcher.system.log_bound import KEPT_BYTES, LOG_BYTES
from shardwise.protocol.bounded_log import OlderPart
from shardwise.protocol.contract import LOGS, Control, ExitCode

HELD = {"step": 3, "wait": "go"}


@pytest.mark.parametrize("hosts", [1, 3])
def test_to_the_end(run: Run, hosts: int) -> None:
    """The run ends with success, every host had a trainer, and the summary says what only the launcher knows."""
    run.start(hosts=hosts)

    assert run.end() == ExitCode.OK
    assert run.summary["status"] == "complete"
    assert (run.summary["hosts"], run.summary["restarts"], run.summary["attempts"]) == (hosts, {}, 1)
    assert run.summary["goodput"]["step"] > 0
    assert run.summary["goodput"]["recovery"] == run.summary["goodput"]["lostSteps"] == 0
    assert {path.name for path in run.directory.glob("logs/attempt-0/*")} == {f"host-{n}.log" for n in range(hosts)}


def test_output_is_rank_0s(run: Run) -> None:
    """Every line of rank 0's log is printed once, and nothing of the others."""
    run.start(hosts=2, faults=[{"rank": 1, "step": 2, "say": "of rank 1"}])

    run.end()
    assert run.output.splitlines() == (run.directory / LOGS / "attempt-0" / "host-0.log").read_text().splitlines()


def test_requests(run: Run) -> None:
    """Who has the token learns how the run stands, and can ask for a save; who has not, gets nothing."""
    run.start(hosts=2, saveEvery=None, faults=[HELD])
    hosts = run.until_step(3)
    step = 'shardwise_step{job="quickstart"} 3.0'
    run.until(lambda _: step in run.text("/metrics"))  # which are told a moment after the hosts' standing
    assert '"name":"quickstart"' in run.text("/page")

    for path in ("/status", "/metrics", "/page"):
        with pytest.raises(NoLeaderError, match="token"):
            run.ask("GET", path, token="wrong")  # noqa: S106  it is none
    with pytest.raises(NoLeaderError, match="token"):
        run.ask("POST", "/save", token="")
    assert [host["host"] for host in hosts] == [0, 1]
    assert len({host["agentPid"] for host in hosts} | {host["trainerPid"] for host in hosts}) == 4
    assert {host["phase"] for host in hosts} == {"step"}
    assert run.ask("GET", "/status")["joined"] == 2

    run.ask("POST", "/save")
    run.go_on(heard=Control.SAVE)
    assert run.end() == ExitCode.OK
    assert {path.parent.name for path in run.directory.glob("checkpoints/*/COMMITTED")} == {
        "step-00000004",
        "step-00000030",
    }


def test_second_command(run: Run) -> None:
    """A directory with a live run is refused, in words, and the live run goes on."""
    run.start(faults=[HELD])
    run.until_step(3)
    first = run.command

    run.again()
    assert run.end() == ExitCode.BAD_INPUT
    assert "a live run" in run.output
    run.go_on()
    assert first.wait() == ExitCode.OK


def test_an_agent_that_cannot_be_started(run: Run) -> None:
    """Where the machine starts no other process for a host, the command says so and ends all: nobody waits for ever."""
    run.start(hosts=2, agentStarts=2, faults=[HELD])
    hosts = run.until_step(3)
    os.kill(hosts[1]["agentPid"], signal.SIGKILL)

    assert run.end() == ExitCode.FAILURE
    assert "the agent of host 1 cannot be started: [Errno 12] Cannot allocate memory" in run.output


def test_the_log_of_an_agent_is_bounded(run: Run) -> None:
    """What an agent prints for weeks does not fill the run directory."""
    run.start(hosts=2, faults=[HELD])
    run.until_step(3)
    log = run.directory / LOGS / "agent-1.log"
    with log.open("ab") as file:
        file.write(b"a line\n" * (LOG_BYTES // 7 + 1))

    run.until(lambda _: OlderPart.of(log) is not None and log.stat().st_size < 2 * KEPT_BYTES)
    run.go_on()
    assert run.end() == ExitCode.OK

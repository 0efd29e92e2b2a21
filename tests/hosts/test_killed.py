"""Whatever is killed or stands still, in whatever phase: the run goes on, and ends as if nothing had happened."""

import os
import signal
from collections.abc import Callable

from tests.cli.running import Run, Shell
from tests.hosts.conftest import agent_of

from shardwise.job.contract import Phase, Progress
from shardwise.launcher import processes

Kill = Callable[[Run, int], object]
"""What is done to the run in which incarnation; it returns when it is done."""


def in_phase(phase: Phase, rank: int, further: int = 0) -> Callable[[Run, int], Progress]:
    """Wait until a rank is in the phase, so many steps further than the incarnation began."""

    def wait(run: Run, incarnation: int) -> Progress:
        word = run.until_phase(phase, rank=rank, incarnation=incarnation)
        return run.until_phase(phase, rank=rank, step=word.step + further, incarnation=incarnation)

    return wait


def writing(rank: int) -> Callable[[Run, int], Progress]:
    """Wait until a checkpoint is half written."""

    def wait(run: Run, incarnation: int) -> Progress:
        word = run.until_phase(Phase.STEP, rank=rank, incarnation=incarnation)
        run.until_writing()
        return word

    return wait


def trainer(moment: Callable[[Run, int], Progress], number: signal.Signals = signal.SIGKILL) -> Kill:
    """Signal the trainer of the moment's rank."""
    return lambda run, incarnation: os.kill(moment(run, incarnation).pid, number)


def agent(moment: Callable[[Run, int], Progress]) -> Kill:
    """Kill the agent of the moment's rank."""
    return lambda run, incarnation: os.kill(agent_of(moment(run, incarnation).pid), signal.SIGKILL)


def host(number: int, moment: Callable[[Run, int], Progress]) -> Kill:
    """Kill every process of a host: agent, trainer, standby, Ray."""

    def kill(run: Run, incarnation: int) -> None:
        moment(run, incarnation)
        processes.end_marked(run.directory, number)

    return kill


def disturb(run: Run, *kills: Kill) -> None:
    """Do one after the other, each in the incarnation that follows the one before."""
    for incarnation, kill in enumerate(kills):
        kill(run, incarnation)


def test_trainers_killed(shell: Shell, digest: str) -> None:
    """SIGKILL of either trainer in each phase costs one restart for a failure, and no more."""
    run = shell.begin("trainers")
    disturb(
        run,
        trainer(in_phase(Phase.JOIN, rank=1)),
        trainer(in_phase(Phase.COMPILE, rank=0)),
        trainer(in_phase(Phase.STEP, rank=0, further=6)),
        trainer(in_phase(Phase.RESTORE, rank=1)),
        trainer(in_phase(Phase.STEP, rank=1, further=2)),
        trainer(in_phase(Phase.SAVE, rank=0)),
        trainer(writing(rank=1)),
    )
    summary = run.finish()

    assert summary["digest"] == digest
    assert (summary["restarts"], summary["incarnations"]) == ({"failure": 7}, 8)
    assert [event["rank"] for event in run.events("ended")] == [1, 0, 0, 1, 1, 0, 1]


def test_hosts_killed(shell: Shell, digest: str) -> None:
    """A host that is lost, also the leader's, and also with all of its processes, costs one restart for a lost host."""
    run = shell.begin("hosts")
    disturb(
        run,
        agent(in_phase(Phase.COMPILE, rank=1)),
        agent(in_phase(Phase.STEP, rank=0, further=6)),
        agent(in_phase(Phase.STEP, rank=1, further=2)),
        host(0, writing(rank=0)),
    )
    summary = run.finish()

    assert summary["digest"] == digest
    assert (summary["restarts"], summary["incarnations"]) == ({"hostLost": 4}, 5)


def test_trainers_standing_still(shell: Shell, digest: str) -> None:
    """A trainer that is stopped is told apart, ended at hangAfter, and costs one restart for a hang."""
    run = shell.begin("still", "recovery.hangAfter=45s")
    disturb(
        run,
        trainer(in_phase(Phase.STEP, rank=1, further=6), signal.SIGSTOP),
        trainer(in_phase(Phase.SAVE, rank=0), signal.SIGSTOP),
    )
    summary = run.finish()

    assert summary["digest"] == digest
    assert summary["restarts"] == {"hang": 2}
    assert [(event["cause"], event["rank"]) for event in run.events("ended")] == [("hang", 1), ("hang", 0)]
    stacks = (run.directory / run.events("stacks")[0]["file"]).read_text()
    assert "rank 0: process" in stacks
    assert "thread MainThread" in stacks
    assert "state T" in stacks


def test_command_killed(shell: Shell, digest: str) -> None:
    """Where the command itself is killed nothing of the run outlives it, and the same command goes on."""
    run = shell.begin("command")
    in_phase(Phase.STEP, rank=1, further=6)(run, 0)
    run.command.kill()
    run.command.wait()
    again = shell.begin("command")
    summary = again.finish()

    assert summary["digest"] == digest
    assert (summary["restarts"], summary["incarnations"]) == ({}, 2)
    assert again.records("restored")[0]["step"] >= 5

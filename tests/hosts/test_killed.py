"""Whatever is killed or stands still, in whatever phase: the run goes on, and ends as if nothing had happened."""

import signal

from tests.cli.running import Shell
from tests.hosts.disturbing import agent, disturb, host, in_phase, trainer, writing

from shardwise.job.contract import Phase

EVALUATED = (
    "training.data.train.0.paths=[documents.jsonl]",
    "training.data.heldOut=0.1",
    "training.evaluation={everySteps: 5, batches: 8}",
)


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


def test_trainers_standing_still(shell: Shell) -> None:
    """A trainer that is stopped, whatever its phase, is told apart and ended at hangAfter: one restart for a hang."""
    digest = shell.finish("evaluated", *EVALUATED)["digest"]
    run = shell.begin("still", *EVALUATED, "recovery.hangAfter=15s", "recovery.restarts.hang=6")
    disturb(
        run,
        trainer(in_phase(Phase.JOIN, rank=1), signal.SIGSTOP),
        trainer(in_phase(Phase.COMPILE, rank=0), signal.SIGSTOP),
        trainer(in_phase(Phase.STEP, rank=1, further=6), signal.SIGSTOP),
        trainer(in_phase(Phase.RESTORE, rank=1), signal.SIGSTOP),
        trainer(in_phase(Phase.SAVE, rank=0), signal.SIGSTOP),
        trainer(in_phase(Phase.EVALUATE, rank=1), signal.SIGSTOP),
    )
    summary = run.finish()

    assert summary["digest"] == digest
    assert summary["restarts"] == {"hang": 6}
    ranks = [1, 0, 1, 1, 0, 1]
    assert [(event["cause"], event["rank"]) for event in run.events("ended")] == [("hang", rank) for rank in ranks]
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

"""Whatever is killed or stands still, in whatever phase: the run goes on, and ends as if nothing had happened.

Only here real trainers that wait for each other in a collective lose a peer, in each phase, and the result is compared.
"""

import signal

from tests.cli.damaging import committed, damage
from tests.cli.shell import EVALUATED, Shell
from tests.hosts.disturbing import agent, disturb, host, in_phase, trainer, writing

from shardwise.protocol.contract import Phase, checkpoint_step

FILE_OF_RANK_1 = "params.position_embedding/c.1.0"
"""The second half of its columns, which the devices of rank 1 hold."""


def test_trainers_killed(shell: Shell, digest: str) -> None:
    """SIGKILL of either trainer in each phase costs one restart for a failure, and no more."""
    run = shell.begin("trainers", EVALUATED)
    disturb(
        run,
        trainer(in_phase(Phase.JOIN, rank=1)),
        trainer(in_phase(Phase.COMPILE, rank=0)),
        trainer(in_phase(Phase.STEP, rank=0, further=5)),
        trainer(in_phase(Phase.RESTORE, rank=1)),
        trainer(in_phase(Phase.SAVE, rank=0)),
        trainer(writing(rank=1)),
        trainer(in_phase(Phase.EVALUATE, rank=0)),
    )
    summary = run.finish()

    assert summary["digest"] == digest
    assert (summary["restarts"], summary["attempts"]) == ({"failure": 7}, 8)
    assert [event["rank"] for event in run.events("ended")] == [1, 0, 0, 1, 0, 1, 0]


def test_hosts_and_the_command_killed(shell: Shell, digest: str) -> None:
    """A host that is lost, also the leader's, and also with all of its processes, costs one restart for a lost host.

    Where at last the command itself is killed nothing of the run outlives it, and the same command goes on. If then a
    chunk is damaged that rank 1 alone reads, all ranks refuse that checkpoint and go on from the one before.
    """
    run = shell.begin("hosts", EVALUATED)
    disturb(
        run,
        agent(in_phase(Phase.COMPILE, rank=1)),
        agent(in_phase(Phase.JOIN, rank=0)),
        agent(in_phase(Phase.STEP, rank=0, further=5)),
        host(in_phase(Phase.RESTORE, rank=1)),
        host(writing(rank=0)),
        agent(in_phase(Phase.EVALUATE, rank=1)),
    )
    in_phase(Phase.STEP, rank=1, further=5)(run, 6)
    run.until(lambda: len(committed(run)) > 1)
    run.command.kill()
    run.until_gone()
    *_, before, newest = committed(run)
    damage(newest / "arrays" / FILE_OF_RANK_1)
    summary = shell.finish("hosts")

    assert summary["digest"] == digest
    assert (summary["restarts"], summary["attempts"]) == ({"hostLost": 6}, 8)
    assert f"checkpoint of step {checkpoint_step(newest.name)} refused: rank 1: " in run.output
    assert run.records("restored")[-1]["step"] == checkpoint_step(before.name)


def test_trainers_standing_still(shell: Shell, digest: str) -> None:
    """A trainer that is stopped, whatever its phase, is told apart and ended at hangAfter: one restart for a hang."""
    run = shell.begin("still", EVALUATED, "recovery.hangAfter=10s", "recovery.restarts.hang=6")
    disturb(
        run,
        trainer(in_phase(Phase.JOIN, rank=1), signal.SIGSTOP),
        trainer(in_phase(Phase.COMPILE, rank=0), signal.SIGSTOP),
        trainer(in_phase(Phase.STEP, rank=1, further=5), signal.SIGSTOP),
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

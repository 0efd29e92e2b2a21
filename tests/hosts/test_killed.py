"""Whatever is killed or stands still, in whatever phase: the run goes on, and ends as if nothing had happened.

Only here real trainers that wait for each other in a collective lose a peer, and the result is compared. Each phase but
`init` is hit, each kind of loss twice or more, and either rank by each kind; `make test-long` has all combinations.
"""

import signal

from tests.cli.damaging import committed, damage
from tests.cli.shell import EVALUATED, Shell
from tests.hosts.disturbing import agent, disturb, host, in_phase, trainer, writing

from shardwise.protocol.contract import Phase, checkpoint_step

FILE_OF_RANK_1 = "params.position_embedding/c.1.0"
"""The second half of its columns, which the devices of rank 1 hold."""


def test_killed_and_standing_still(shell: Shell, digest: str) -> None:
    """Each loss costs one restart for its own cause: a trainer's end, a host's, a trainer that stands still.

    A host is lost with its agent alone, whose trainer ends, and with all of its processes; also the leader's. One that
    stands still is told apart at hangAfter, and the stacks of both are kept.
    """
    run = shell.begin("killed", EVALUATED, "recovery.hangAfter=10s", "recovery.restarts.hang=2")
    disturb(
        run,
        trainer(in_phase(Phase.JOIN, rank=1)),
        agent(in_phase(Phase.COMPILE, rank=1)),
        trainer(in_phase(Phase.STEP, rank=1, further=5), signal.SIGSTOP),
        host(in_phase(Phase.RESTORE, rank=1)),
        trainer(in_phase(Phase.SAVE, rank=0), signal.SIGSTOP),
        agent(in_phase(Phase.STEP, rank=0, further=5)),
        trainer(writing(rank=1)),
        host(writing(rank=0)),
        trainer(in_phase(Phase.EVALUATE, rank=0)),
    )
    summary = run.finish()

    assert summary["digest"] == digest
    assert (summary["restarts"], summary["attempts"]) == ({"failure": 3, "hostLost": 4, "hang": 2}, 10)
    ended = [(event["cause"], event["rank"]) for event in run.events("ended")]
    assert [one for one in ended if one[0] == "failure"] == [("failure", 1), ("failure", 1), ("failure", 0)]
    assert [one for one in ended if one[0] == "hang"] == [("hang", 1), ("hang", 0)]
    stacks = (run.directory / run.events("stacks")[0]["file"]).read_text()
    assert "rank 0: process" in stacks
    assert "thread MainThread" in stacks
    assert "state T" in stacks


def test_the_command_killed(shell: Shell, digest: str) -> None:
    """Nothing of the run outlives the command, and the same command goes on.

    If a chunk is damaged meanwhile that rank 1 alone reads, all ranks refuse that checkpoint and go on from the one
    before.
    """
    run = shell.begin("command")
    in_phase(Phase.STEP, rank=1, further=5)(run, 0)
    run.until(lambda: len(committed(run)) > 1)
    run.command.kill()
    run.until_gone()
    *_, before, newest = committed(run)
    damage(newest / "arrays" / FILE_OF_RANK_1)
    summary = shell.finish("command")

    assert summary["digest"] == digest
    assert (summary["restarts"], summary["attempts"]) == ({}, 2)
    assert f"checkpoint of step {checkpoint_step(newest.name)} refused: rank 1: " in run.output
    assert run.records("restored")[-1]["step"] == checkpoint_step(before.name)

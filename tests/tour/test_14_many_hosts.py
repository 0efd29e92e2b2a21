"""Each claim of the tour of many hosts fails when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

COMMAND = """with started("run", Path(sys.executable).with_name("shardwise"), "run", "job.yaml", "--dir", run)"""
BROKEN = [
    Broken(
        idea="nobody joins",
        old="    join(f",
        new="    (lambda *_, **__: None)(f",
        claim="each process sees four devices and owns two",
    ),
    Broken(
        idea="each device holds what others of its row hold too",
        old="mesh: {{tensor: 2}}",
        new="mesh: {{tensor: 2, fsdp: false}}",
        claim="no device holds more than its share of the state",
    ),
    Broken(
        idea="each process tells of its own rows",
        old="loss=float(metrics.loss)",
        new="loss=float(rows.tokens.mean())",
        claim="every process reads the same losses",
    ),
    Broken(
        idea="no process is killed",
        old="    two.send_signal(signal.SIGKILL)\n    wait_for(lambda: False, one)\n",
        new="",
        claim="without its peer the other process ends with an error",
    ),
    Broken(
        idea="a launcher that may not start anything again",
        old=COMMAND,
        new=COMMAND[:-1] + ', "--set", "recovery.restarts.failure=0")',
        claim="the launcher starts the trainers again, once, and the run completes",
    ),
    Broken(
        idea="no checkpoint before the kill",
        old=f"""> KILL_AT and any(x.get("event") == "saved" for x in made)


run = Path(tempfile.mkdtemp(dir=folder))
{COMMAND}""",
        new=f"""> KILL_AT


run = Path(tempfile.mkdtemp(dir=folder))
{COMMAND[:-1]}, "--set", "training.checkpoint.everySteps=400")""",
        claim="it goes on from a checkpoint and not from the beginning",
    ),
    Broken(
        idea="another seed under the launcher",
        old=COMMAND,
        new=COMMAND[:-1] + ', "--set", "training.seed=1")',
        claim="killed and restarted, its losses are those of the processes by hand",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through, so that none of its claims fails, and saves a picture."""
    outcomes.assert_it_holds()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)

"""Own programs on two hosts are disturbed as the trainer is in the other tests here, and end with the same bits.

The example of equinox is disturbed where hosts share no folder (`test_in_a_bucket.py`), and in pods.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator

import pytest
from tests.cli.running import Run
from tests.hosts.disturbing import agent, beginnings, disturb, losses_by_step, trainer
from tests.hosts.programs import EXAMPLES, ProgramShell

from shardwise.cli.live import ask
from shardwise.protocol.contract import ExitCode, Phase, Progress, log_path

SCRIPT = EXAMPLES / "flax_spiral.py"
STEPS = 200
PLACES = ("2x2", "1x4", "2x2")
"""Hosts and devices of a run that is stopped, and goes on. On both the batch is split in two and the layers in two, and
a sum of two has the same bits in either order."""
COUNTS = """
import sys, time, shardwise
run = shardwise.init(save_every_seconds=None)
_, step = shardwise.checkpoint.restore(like={"n": 0})
while True:
    step += 1
    if step % 50 == 10 and run.rank == 1:
        shardwise.save_now()
    time.sleep(0.02)
    shardwise.report(step=step, loss=1.0 / step)
    if shardwise.should_save():
        print("saves", step, flush=True)
        shardwise.checkpoint.save({"n": step}, step)
    if shardwise.should_stop():
        break
"""

LATE = """
import time, jax, shardwise
run = shardwise.init(steps=1)
if run.rank == 1:
    time.sleep(35)
spread = jax.NamedSharding(run.mesh(data=None), jax.P("data"))
ones = jax.make_array_from_callback((4,), spread, lambda _: jax.numpy.ones(1))
shardwise.report(step=1, loss=jax.jit(jax.numpy.sum)(ones))
"""

EACH_ITS_OWN = """
import jax, shardwise
run = shardwise.init(steps=2)
state = {"seen": jax.numpy.zeros(3), "step": 1, "model": jax.numpy.full(4, run.rank)}
shardwise.report(step=1, loss=0.5)
shardwise.checkpoint.save(state, 1)
"""


@pytest.fixture(scope="module")
def _shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProgramShell]:
    folder, cache = tmp_path_factory.mktemp("programs"), tmp_path_factory.getbasetemp() / "cache"
    with ProgramShell(folder, cache) as made:
        yield made


@pytest.fixture
def shell(_shell: ProgramShell) -> Iterator[ProgramShell]:
    """Return the folder with the job; after the test nothing of its runs may remain."""
    yield _shell
    _shell.close()
    assert _shell.remains() == []


@pytest.fixture(scope="module")
def calm(_shell: ProgramShell) -> Run:
    """Return the run of the example that nothing disturbs, at its end."""
    run = begin(_shell, "calm")
    run.finish()
    return run


def begin(shell: ProgramShell, name: str, *changes: str) -> Run:
    """Start a run of the example, or go on with it."""
    return shell.begin(name, f"program.command=[{sys.executable}, {SCRIPT}, '{STEPS}']", *changes)


def saved(rank: int) -> Callable[[Run, int], Progress]:
    """Have the program save where it is, and wait until it has; the word of a rank."""

    def wait(run: Run, attempt: int) -> Progress:
        at = run.until_phase(Phase.STEP, rank=rank, step=20, attempt=attempt).step
        before = len(run.records("saved"))
        ask(run.directory, "POST", "/save")
        # One by the clock, of a step before, may be on its way to the disk.
        run.until(lambda: any(record["step"] >= at for record in run.records("saved")[before:]))
        return run.until_phase(Phase.STEP, rank=rank, attempt=attempt)

    return wait


def test_every_example_is_tested() -> None:
    """Those of torch and of Levanter have environments of their own, and so tests: `*_program.py` beside this."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {SCRIPT.stem, "equinox_sine", "torch_ddp"}


def test_it_learns(calm: Run) -> None:
    """It takes all of its steps, its loss comes down, and nothing is said of copies that are alike."""
    losses = [record["loss"] for record in calm.records()]
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] / 4
    assert "for itself" not in calm.output


def test_killed_and_hung(shell: ProgramShell, calm: Run) -> None:
    """Kill -9 of a process and of an agent, then SIGSTOP: all start again, from the newest checkpoint each time.

    Every step that is taken again has the same loss, and the end the same bits.
    """
    run = begin(shell, "killed", "recovery.hangAfter=8s")
    disturb(run, trainer(saved(0)), agent(saved(1)), trainer(saved(1), signal.SIGSTOP))
    summary = run.finish()

    assert summary["digest"] == calm.summary["digest"]
    assert losses_by_step(run) == losses_by_step(calm)
    assert summary["restarts"] == {"failure": 1, "hostLost": 1, "hang": 1}
    began = beginnings(run)
    assert len(began) == 4
    assert all(step >= newest for newest, step in began), "more was lost than what no checkpoint held"
    assert 20 <= began[1][1] < began[2][1] < began[3][1]
    ended = run.events("ended")[0]
    assert (ended["cause"], ended["rank"], ended["exit"]) == ("failure", 0, "signal SIGKILL")
    assert [event["rank"] for event in run.events("stalled")] == [1]


@pytest.mark.long  # tests/kubernetes/test_programs.py suspends one
def test_a_stop_loses_nothing(shell: ProgramShell, calm: Run) -> None:
    """SIGTERM: all processes save after the same step and end; the same command goes on from that very step.

    So it does with another number of hosts, to the same bits.
    """
    *before, last = PLACES
    stops = [0]
    for place in before:
        run = begin(shell, "stopped", f"hardware.topology={place}")
        assert run.stop(step=stops[-1] + 20) == ExitCode.SAVED
        assert run.summary["status"] == "stopped"
        stops.append(run.records()[-1]["step"])
        assert run.records("saved")[-1]["step"] == stops[-1] < STEPS

    again = begin(shell, "stopped", f"hardware.topology={last}")
    assert again.finish()["digest"] == calm.summary["digest"]
    assert [event["step"] for event in again.records("restored")] == stops[1:]
    assert [record["step"] for record in again.records()] == list(range(1, STEPS + 1))


def test_all_processes_agree(shell: ProgramShell) -> None:
    """What one process asks for, by save_now() or by a signal, all do after the same step; each save is done once."""
    (shell.folder / "counts.py").write_text(COUNTS)
    run = shell.begin("agree", f"program.command=[{sys.executable}, counts.py]")
    run.until_phase(Phase.STEP, step=70)
    os.kill(run.until_phase(Phase.STEP, rank=1).pid, signal.SIGTERM)
    assert run.wait() == ExitCode.SAVED

    logs = [log_path(run.directory, 0, host).read_text().splitlines() for host in (0, 1)]
    saves = [[int(line.split()[1]) for line in lines if line.startswith("saves ")] for lines in logs]
    assert saves[0] == saves[1]
    assert saves[0][:2] == [11, 61]
    assert len(saves[0]) == len(set(saves[0])) >= 3
    assert [event["step"] for event in run.records("saved")] == saves[0]
    assert run.records()[-1]["step"] == saves[0][-1]
    assert "for itself" not in run.output, "there is no array of JAX to compute twice"


def test_a_process_may_come_late_to_its_first_sum(shell: ProgramShell) -> None:
    """One loads or compiles half a minute longer than the other, which waits for it: nothing is started again."""
    (shell.folder / "late.py").write_text(LATE)
    run = shell.begin("late", f"program.command=[{sys.executable}, late.py]")
    summary = run.finish()

    assert (summary["steps"], summary["restarts"]) == (1, {})
    assert [record["loss"] for record in run.records()] == [4.0]


def test_a_model_of_each_process_is_refused(shell: ProgramShell) -> None:
    """Where each process trains a model of its own no checkpoint is made of one of them: the run ends, in words."""
    (shell.folder / "apart.py").write_text(EACH_ITS_OWN)
    run = shell.begin("apart", f"program.command=[{sys.executable}, apart.py]")

    assert run.wait() == ExitCode.BAD_INPUT
    assert "checkpoint: model of step 1 is not the same on all processes" in run.output
    assert not list(run.directory.glob("checkpoints/step-*"))

"""An own program on two hosts is disturbed as the trainer is in the other tests here, and ends with the same bits."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.running import Run
from tests.hosts.conftest import agent_of
from tests.hosts.programs import EXAMPLES, ProgramShell

from shardwise.cli.live import ask
from shardwise.protocol.contract import ExitCode, Phase, log_path

EXAMPLE = EXAMPLES / "equinox_sine.py"
STEPS = 400
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


@pytest.fixture(scope="module")
def _shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProgramShell]:
    folder, cache = tmp_path_factory.mktemp("programs"), tmp_path_factory.getbasetemp() / "cache"
    with ProgramShell(folder, cache, str(EXAMPLE), str(STEPS)) as made:
        yield made


@pytest.fixture
def shell(_shell: ProgramShell) -> Iterator[ProgramShell]:
    """Return the folder with the job; after the test nothing of its runs may remain."""
    yield _shell
    _shell.close()
    assert _shell.remains() == []


@pytest.fixture(scope="module")
def undisturbed(_shell: ProgramShell) -> Run:
    """Return the run that nothing disturbs, at its end."""
    run = _shell.begin("undisturbed")
    run.finish()
    return run


@pytest.fixture(scope="module")
def digest(undisturbed: Run) -> str:
    """Return the digest of its last state."""
    return str(undisturbed.summary["digest"])


def learned(run: Run) -> None:
    """The run has taken all of its steps, and its loss has come down."""
    losses = [record["loss"] for record in run.records()]
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] / 4


def saved(run: Run, *, attempt: int = 0) -> None:
    """Have the program save where it is, and wait until it has, and until a few more steps are done."""
    run.until_phase(Phase.STEP, step=20, attempt=attempt)
    before = len(run.records("saved"))
    ask(run.directory, "POST", "/save")
    run.until(lambda: len(run.records("saved")) > before)


def trainers(run: Run) -> list[int]:
    """The processes of the program, by rank."""
    status = run.until_status(
        lambda status: all(host["trainerPid"] for host in status["hosts"]) and not status["missing"]
    )
    return [host["trainerPid"] for host in status["hosts"]]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank(shell: ProgramShell, digest: str, rank: int) -> None:
    """Kill -9 of a process: all start again, from the newest checkpoint, and end with the same bits."""
    run = shell.begin(f"killed-{rank}")
    saved(run)
    os.kill(trainers(run)[rank], signal.SIGKILL)
    summary = run.finish()

    assert summary["digest"] == digest
    assert summary["restarts"] == {"failure": 1}
    assert [event["step"] for event in run.records("restored")][-1] >= 20
    ended = run.events("ended")
    assert [(event["cause"], event["rank"], event["exit"]) for event in ended] == [("failure", rank, "signal SIGKILL")]


def test_a_killed_agent(shell: ProgramShell, digest: str) -> None:
    """Kill -9 of an agent: its program ends with it, the agent is replaced, and the bits are the same."""
    run = shell.begin("agent")
    saved(run)
    trainer = trainers(run)[1]
    os.kill(agent_of(trainer), signal.SIGKILL)
    run.until(lambda: trainer not in run.processes())

    assert run.finish()["digest"] == digest
    assert run.summary["restarts"] == {"hostLost": 1}


def test_a_stopped_rank(shell: ProgramShell, digest: str) -> None:
    """SIGSTOP of a process: the hang is found and named, and the bits are the same."""
    run = shell.begin("stopped-rank", "recovery.hangAfter=4s")
    saved(run)
    os.kill(trainers(run)[1], signal.SIGSTOP)
    summary = run.finish()

    assert summary["digest"] == digest
    assert summary["restarts"] == {"hang": 1}
    assert [event["rank"] for event in run.events("stalled")] == [1]


def test_a_stop_loses_nothing(shell: ProgramShell, digest: str) -> None:
    """SIGTERM: all processes save after the same step and end; the same command goes on from that very step."""
    run = shell.begin("stopped")
    run.until_phase(Phase.STEP, step=20)
    assert run.send(signal.SIGTERM) == ExitCode.SAVED
    assert run.summary["status"] == "stopped"
    stopped = run.records()[-1]["step"]
    assert [event["step"] for event in run.records("saved")][-1] == stopped
    assert 20 <= stopped < STEPS

    again = shell.begin("stopped")
    assert again.finish()["digest"] == digest
    assert [event["step"] for event in again.records("restored")] == [stopped]
    assert [record["step"] for record in again.records()] == list(range(1, STEPS + 1))


def test_all_processes_agree(shell: ProgramShell) -> None:
    """What one process asks for, by save_now() or by a signal, all do after the same step; each save is done once."""
    (shell.folder / "counts.py").write_text(COUNTS)
    run = shell.begin("agree", "program.args=[]", f"program.command=[{sys.executable}, counts.py]")
    run.until_phase(Phase.STEP, step=70)
    os.kill(trainers(run)[1], signal.SIGTERM)
    assert run.wait() == ExitCode.SAVED

    logs = [log_path(run.directory, 0, host).read_text().splitlines() for host in (0, 1)]
    saves = [[int(line.split()[1]) for line in lines if line.startswith("saves ")] for lines in logs]
    assert saves[0] == saves[1]
    assert saves[0][:2] == [11, 61]
    assert len(saves[0]) == len(set(saves[0])) >= 3
    assert [event["step"] for event in run.records("saved")] == saves[0]
    assert run.records()[-1]["step"] == saves[0][-1]


def test_it_learns(undisturbed: Run) -> None:
    """The example of all tests above does what it is an example of."""
    learned(undisturbed)


OTHERS = [path for path in sorted(EXAMPLES.glob("*.py")) if path != EXAMPLE and not path.stem.startswith("torch_")]
"""`torch_program.py` beside this is for those of torch."""


@pytest.mark.parametrize("script", OTHERS, ids=lambda path: path.stem)
def test_every_other_example(shell: ProgramShell, script: Path) -> None:
    """Each example learns, and ends with the same bits when one of its processes is killed."""
    words = f"program.command=[{sys.executable}, {script}, '{STEPS}']"
    calm = shell.begin(f"calm-{script.stem}", words)
    digest = calm.finish()["digest"]
    learned(calm)

    run = shell.begin(f"killed-{script.stem}", words)
    saved(run)
    os.kill(trainers(run)[1], signal.SIGKILL)
    assert run.finish()["digest"] == digest
    assert len(run.records("restored")) == 1

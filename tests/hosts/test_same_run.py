"""However many hosts and slices its four devices are on, a job is the same run."""

import runpy
import shutil
from pathlib import Path
from signal import SIGSTOP

import pytest
from tests.cli.running import Run
from tests.cli.shell import EVALUATED, Shell
from tests.hosts.conftest import STEPS
from tests.hosts.disturbing import Kill, agent, beginnings, disturb, host, in_phase, losses_by_step, trainer

from shardwise.protocol.contract import Phase, checkpoint_name

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
SOME = 12
"""Steps of the runs that are compared: beyond them rounding adds up."""
TOLERANCE = 2e-6
"""Of float32 losses near 3: the order in which sums are added differs with the mesh."""


@pytest.fixture(scope="module")
def losses(undisturbed: Run) -> list[float]:
    """Return the losses of two hosts of two devices."""
    return _losses(undisturbed)


def _losses(run: Run) -> list[float]:
    return list(losses_by_step(run).values())[:SOME]


STILL: Kill = trainer(in_phase(Phase.EVALUATE, rank=0), SIGSTOP)
AGENT: Kill = agent(in_phase(Phase.STEP, rank=2, further=5))
HOST: Kill = host(in_phase(Phase.SAVE, rank=0))


@pytest.mark.parametrize(
    ("topology", "slices", "hosts", "kill", "charged"),
    [
        ("1x4", 1, 1, STILL, {"hang": 1}),
        pytest.param("4x1", 1, 4, AGENT, {"hostLost": 1}, marks=pytest.mark.long),
        ("1x2", 2, 2, HOST, {"hostLost": 1}),
    ],
    ids=["1x4", "4x1", "2 slices"],
)
def test_same_losses(
    shell: Shell,
    undisturbed: Run,
    losses: list[float],
    topology: str,
    slices: int,
    hosts: int,
    kill: Kill,
    charged: dict[str, int],
) -> None:
    """The initial digest is equal to that of 2x2, and so are the losses of each step but for rounding.

    A host is lost in a step or in a save, or a trainer stands still: every step that is done again comes out the same,
    bit for bit.
    """
    elsewhere = (f"hardware.topology={topology}", f"hardware.slices={slices}")
    run = shell.begin(f"{topology}-{slices}", *elsewhere, EVALUATED, "recovery.hangAfter=10s")
    disturb(run, kill)
    summary = run.finish()

    assert (summary["hosts"], summary["restarts"]) == (hosts, charged)
    assert len(run.records()) > STEPS, "no step was done again"
    assert all(began >= saved for saved, began in beginnings(run)), "more was lost than what no checkpoint held"
    assert summary["initialDigest"] == undisturbed.summary["initialDigest"]
    assert _losses(run) == pytest.approx(losses, rel=0, abs=TOLERANCE)


@pytest.mark.parametrize("topology", ["1x4", pytest.param("4x1", marks=pytest.mark.long)])
def test_checkpoint_of_two_hosts_elsewhere(shell: Shell, undisturbed: Run, topology: str) -> None:
    """What two hosts have saved is bit for bit what one and four hosts restore."""
    restored = shell.folder / f"restored-{topology}"
    name = checkpoint_name(SOME)
    shutil.copytree(undisturbed.directory / "checkpoints" / name, restored / "checkpoints" / name)
    run = shell.begin(restored.name, f"hardware.topology={topology}", _some())
    summary = run.finish()

    assert f"nothing to do: the run was complete already at step {SOME}" in run.output
    saved = {event["step"]: event["digest"] for event in undisturbed.records("saved")}
    assert summary["digest"] == saved[SOME]


def test_text_of_two_hosts(shell: Shell, undisturbed: Run) -> None:
    """A command is one process, which has not the devices of two hosts: it makes text with their model all the same."""
    made = shell.call("generate", undisturbed.directory.name, "--prompt", "1 times ", "--tokens", "8")
    assert (made.returncode, made.stdout.startswith("1 times ")) == (0, True)


def test_the_demo_s_table_of_memory(undisturbed: Run) -> None:
    """It reads what a run says of its devices: a row for each kind, with the mesh as data x tensor."""
    table = runpy.run_path(str(DEMO))["_memory_table"](undisturbed.directory)

    assert [next(iter(column.cells)) for column in table.columns[:2]] == ["2 x 2", "4 alike"]


def test_only_the_first_host_writes_what_is_written_once(undisturbed: Run) -> None:
    """Each step, start and checkpoint is recorded once, though two trainers have made it."""
    assert [record["step"] for record in undisturbed.records()] == list(range(1, STEPS + 1))
    assert [event["step"] for event in undisturbed.records("saved")] == list(range(4, STEPS + 1, 4))
    assert len(undisturbed.records("started")) == len(undisturbed.records("complete")) == 1
    assert undisturbed.output.count(f"complete: step {STEPS}") == 1


def _some() -> str:
    return f"training.steps={SOME}"

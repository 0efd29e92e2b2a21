"""However many hosts and slices its four devices are on, a job is the same run."""

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.running import Run, Shell
from tests.hosts.disturbing import disturb, in_phase, trainer

from shardwise.job.contract import METRICS, Phase

STEPS = 20
CHECKPOINT = f"step-{STEPS:08}"
FILE_OF_RANK_1 = "params.position_embedding/c.0.1"
"""The second half of its columns, which the devices of rank 1 hold."""
TOLERANCE = 2e-6
"""Of float32 losses near 3: the order in which sums are added differs with the mesh."""


@pytest.fixture(scope="module")
def losses(undisturbed: Run) -> list[float]:
    """Return the losses of two hosts of two devices."""
    return _losses(undisturbed)


def _losses(run: Run) -> list[float]:
    return list(_by_step(run).values())[:STEPS]


def _by_step(run: Run) -> dict[int, float]:
    """The loss of each step; one that was done again must have come out the same, bit for bit."""
    losses: dict[int, float] = {}
    for record in run.records():
        assert losses.setdefault(record["step"], record["loss"]) == record["loss"], record["step"]
    return losses


def _beginnings(run: Run) -> list[tuple[int, int]]:
    """For each incarnation that took steps, the newest step that was said to be saved before, and where it began."""
    saved, found = 0, []
    for record in map(json.loads, (run.directory / METRICS).read_text().splitlines()):
        match record.get("event"):
            case "saved":
                saved = record["step"]
            case "started" | "restored":
                found.append((saved, record["step"]))
    return found


@pytest.mark.parametrize(
    ("topology", "slices", "hosts"),
    [("1x4", 1, 1), ("4x1", 1, 4), ("1x2", 2, 2)],
    ids=["1x4", "4x1", "2 slices of 1x2"],
)
def test_same_losses(
    shell: Shell, undisturbed: Run, losses: list[float], topology: str, slices: int, hosts: int
) -> None:
    """The initial digest is equal to that of 2x2, and so are the losses of each step but for rounding.

    A trainer is killed in a step and one in a save: every step that is done again comes out the same, bit for bit.
    """
    run = shell.begin(f"{topology}-{slices}", f"hardware.topology={topology}", f"hardware.slices={slices}", _steps())
    disturb(
        run,
        trainer(in_phase(Phase.STEP, rank=hosts - 1, further=7)),
        trainer(in_phase(Phase.SAVE, rank=0)),
    )
    summary = run.finish()

    assert (summary["hosts"], summary["restarts"]) == (hosts, {"failure": 2})
    assert len(run.records()) > STEPS, "no step was done again"
    assert all(began >= saved for saved, began in _beginnings(run)), "more was lost than what no checkpoint held"
    assert summary["initialDigest"] == undisturbed.summary["initialDigest"]
    assert _losses(run) == pytest.approx(losses, rel=0, abs=TOLERANCE)


@pytest.mark.parametrize("topology", ["1x4", "4x1"])
def test_checkpoint_of_two_hosts_elsewhere(shell: Shell, undisturbed: Run, topology: str) -> None:
    """What two hosts have saved is bit for bit what one and four hosts restore."""
    restored = shell.folder / f"restored-{topology}"
    _copy_checkpoint(undisturbed.directory, restored)
    run = shell.begin(restored.name, f"hardware.topology={topology}", _steps())
    summary = run.finish()

    assert f"nothing to do: the run was complete already at step {STEPS}" in run.output
    saved = {event["step"]: event["digest"] for event in undisturbed.records("saved")}
    assert summary["digest"] == saved[STEPS]


def test_only_the_first_host_writes_what_is_written_once(undisturbed: Run) -> None:
    """Each step, start and checkpoint is recorded once, though two trainers have made it."""
    assert [record["step"] for record in undisturbed.records()] == list(range(1, 41))
    assert [event["step"] for event in undisturbed.records("saved")] == list(range(5, 41, 5))
    assert len(undisturbed.records("started")) == len(undisturbed.records("complete")) == 1
    assert undisturbed.output.count("complete: step 40") == 1


def test_chunk_that_one_rank_cannot_read(shell: Shell, undisturbed: Run, digest: str) -> None:
    """A damaged chunk that only rank 1 reads makes all ranks refuse that checkpoint and go on from the one before."""
    directory = shell.folder / "damaged"
    for step in (15, STEPS):
        _copy_checkpoint(undisturbed.directory, directory, step)
    _damage(directory / "checkpoints" / CHECKPOINT / "arrays" / FILE_OF_RANK_1)
    run = shell.begin("damaged")
    summary = run.finish()

    assert f"checkpoint of step {STEPS} refused: rank 1: " in run.output
    assert [event["step"] for event in run.records("restored")] == [15]
    assert (summary["restarts"], summary["digest"]) == ({}, digest)


def _steps() -> str:
    return f"training.steps={STEPS}"


def _copy_checkpoint(source: Path, target: Path, step: int = STEPS) -> None:
    name = f"step-{step:08}"
    shutil.copytree(source / "checkpoints" / name, target / "checkpoints" / name)


def _damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

"""Whether a job is the run that it finds: what is said of one that is not."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.train.conftest import run_here

from shardwise.job.identity import identity, other_order
from shardwise.job.load import load
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import RunDirectoryError
from shardwise.train.checkpoint import load_numpy
from shardwise.train.metrics import steps
from shardwise.train.resume import is_fork, note_identity
from shardwise.train.run_directory import RunDirectory

QUICKSTART = Path(__file__).parent.parent / "job" / "golden" / "quickstart.yaml"


def refusal(override: str, fingerprint: str = "f") -> str:
    """What a run of the quickstart without a checkpoint says to one with this change."""
    held = identity(load(QUICKSTART), data_fingerprint="f")
    job = load(QUICKSTART, [override])
    run: Any = SimpleNamespace(path=Path("runs/mine"), read_identity=lambda: held)
    orders: Any = SimpleNamespace(fork=False)

    with pytest.raises(RunDirectoryError) as caught:
        is_fork(run, "", None, job.metadata.name, identity(job, data_fingerprint=fingerprint), orders)
    return str(caught.value)


def test_phases_that_were_added_are_named_in_the_refusal() -> None:
    """The fingerprint, too, is another then, but no person can see in it what to undo."""
    said = refusal("training.data.phases=[{fromStep: 2, weights: {text: 2}}]", "g")
    assert "spec.training.data.phases.0.fromStep: was null, is now 2" in said


def test_a_ramp_that_was_added_is_named_in_the_refusal() -> None:
    """Whoever records a run without one records nothing of it, and every release did: the batches are others."""
    ramp_up = "training.batch.rampUp=[{untilStep: 2, sequences: 8}]"
    held, new = (identity(load(QUICKSTART, words), data_fingerprint="f") for words in ([], [ramp_up]))

    assert "spec.training.batch.rampUp.0.sequences: was null, is now 8" in refusal(ramp_up)
    assert {change.path for change in other_order(held, new)} == {
        "spec.training.batch.rampUp.0.untilStep",
        "spec.training.batch.rampUp.0.sequences",
    }


def test_a_run_without_a_checkpoint_is_told_nothing_of_one() -> None:
    """There is none to go on from: what --fork does there is said."""
    refused = refusal("training.seed=7").splitlines()
    assert refused[0] == "runs/mine holds a run that differs from this job in what a run is:"
    assert refused[-1] == (
        "It has no checkpoint to go on from: undo the change, give another --dir, or begin anew here with --fork."
    )


@pytest.mark.usefixtures("as_a_trainer")
def test_a_fork_with_another_optimizer_begins_its_state_anew(tmp_path: Path) -> None:
    """Also what both have under one path: of Lion's moment and count Adam would make steps of thousands of rates."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    (tmp_path / "logs").mkdir()
    words = ("training.model.layers=1", f"training.data.train.0.paths=[{text}]")
    rate = "training.optimizer={{name: {}, learningRate: 1e-4}}"
    assert run_here(tmp_path, *words, rate.format("lion"), "training.steps=3") == ExitCode.OK
    assert run_here(tmp_path, *words, rate.format("adam"), "training.steps=4", fork=True) == ExitCode.OK

    state = dict(load_numpy(str(tmp_path / "checkpoints"), 4, "optimizer."))
    assert [int(array) for path, array in state.items() if path.endswith("count")] == [1]


@pytest.mark.usefixtures("as_a_trainer")
def test_a_fork_of_a_run_without_a_checkpoint_begins_anew(tmp_path: Path) -> None:
    """As the refusal says."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    (tmp_path / "logs").mkdir()
    words = ("training.model.layers=1", f"training.data.train.0.paths=[{text}]", "training.steps=2")
    RunDirectory(tmp_path, 0).write_identity({"spec.training.seed": 7})
    with pytest.raises(RunDirectoryError, match="begin anew here with --fork"):
        run_here(tmp_path, *words)
    assert run_here(tmp_path, *words, fork=True) == ExitCode.OK
    assert [record["step"] for record in steps(tmp_path / "metrics.jsonl")] == [1, 2]


@pytest.mark.parametrize(
    ("starts", "counts"),
    [
        ([("a", 0, 6), ("a", 4, 8)], [0, 0]),  # a restart
        ([("a", 0, 6), ("b", 4, 8)], [0, 1]),
        ([("a", 0, 6), ("b", 4, 4), ("b", 4, 8), ("b", 6, 9)], [0, 1, 1, 1]),  # restarts of a fork
        ([("a", 0, 6), ("b", 6, 9), ("b", 6, 9)], [0, 0, 0]),  # from the last step, so that none is repeated
        ([("a", 0, 6), ("a", 4, 4), ("b", 4, 8)], [0, 0, 1]),  # the trackers have the steps 5 and 6 of the run before
        ([("a", 0, 6), ("b", 4, 8), ("a", 4, 8)], [0, 1, 2]),  # and back again
        ([("a", 0, 6), ("b", 4, 8), ("b", 2, 8), ("b", 2, 8)], [0, 1, 2, 2]),  # to before the fork
        ([("a", 0, 6), ("b", 0, 6)], [0, 1]),  # anew
    ],
)
def test_forks_that_go_back_are_counted(tmp_path: Path, starts: list[tuple[str, int, int]], counts: list[int]) -> None:
    """Each makes another run of steps that trackers have; a restart repeats steps of its own, and counts nothing."""
    run = RunDirectory(tmp_path, 0)
    run.logs.mkdir()
    found = []
    for name, first, end in starts:
        note_identity(run, {"spec.training.seed": name}, first)
        found.append(run.read_forks().count)
        with run.metrics.open("a") as file:
            file.writelines(f'{{"step": {step}, "loss": 1.0}}\n' for step in range(first + 1, end + 1))
            file.write(f'{{"event": "saved", "step": {end}}}\n')

    assert (found, run.read_identity()) == (counts, {"spec.training.seed": starts[-1][0]})

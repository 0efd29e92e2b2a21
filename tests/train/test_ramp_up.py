"""A run whose first steps have fewer sequences: which it trains on, and that it goes on as if it had not stopped."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.train.conftest import run_here

from shardwise.protocol.contract import ExitCode
from shardwise.train.metrics import steps as steps_of

pytestmark = pytest.mark.usefixtures("as_a_trainer")

RAMP = "training.batch={sequences: 16, rampUp: [{untilStep: 4, sequences: 8}]}"


def run(folder: Path, *overrides: str, step: int | None = None) -> dict[int, dict[str, float]]:
    """Train on one text, and return what is recorded of each step."""
    text = folder.parent / "text.txt"
    text.write_text("".join(f"Line {number} says {number * number}.\n" for number in range(3000)))
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    words = (f"training.data.train=[{{name: text, paths: [{text}]}}]", "training.model.layers=1", *overrides)
    assert run_here(folder, *words, step=step) == ExitCode.OK
    return {record["step"]: record for record in steps_of(folder / "metrics.jsonl")}


def digest(folder: Path) -> str:
    """The digest of the last state."""
    return str(json.loads((folder / "summary.json").read_text())["digest"])


def test_the_steps_of_a_ramp_are_those_of_a_run_of_small_batches(tmp_path: Path) -> None:
    """Their losses are those of a run of such batches, and their tokens are counted."""
    ramped = run(tmp_path / "ramped", RAMP, "training.steps=6")
    small = run(tmp_path / "small", "training.batch.sequences=8", "training.steps=4")
    large = run(tmp_path / "large", "training.batch.sequences=16", "training.steps=1")

    assert [ramped[step]["loss"] for step in range(1, 5)] == [small[step]["loss"] for step in range(1, 5)]
    assert ramped[1]["loss"] != large[1]["loss"]
    tokens = {step: record["tokensPerSecond"] * record["stepSeconds"] for step, record in ramped.items()}
    assert {step: round(count) for step, count in tokens.items()} == {**dict.fromkeys(range(1, 5), 256), 5: 512, 6: 512}


@pytest.mark.parametrize("step", [3, 4, 6])
def test_a_run_that_goes_back_ends_with_the_same_bits(tmp_path: Path, step: int) -> None:
    """Within the ramp, at its end, and behind it."""
    saves = ("training.checkpoint={everySteps: 1, keep: {last: 9}}", "training.steps=8")
    whole = run(tmp_path / "run", RAMP, *saves)
    ended = digest(tmp_path / "run")

    again = run(tmp_path / "run", RAMP, *saves, step=step)

    assert digest(tmp_path / "run") == ended
    assert {number: record["loss"] for number, record in again.items()} == {
        number: record["loss"] for number, record in whole.items()
    }


@pytest.mark.parametrize("batch", [RAMP, "training.batch.sequences=16"])
def test_a_complete_run_has_nothing_to_do(tmp_path: Path, batch: str) -> None:
    """It says so, with a ramp as without."""
    run(tmp_path / "run", batch, "training.steps=5")
    ended = digest(tmp_path / "run")

    assert [*run(tmp_path / "run", batch, "training.steps=5")] == [1, 2, 3, 4, 5]
    assert digest(tmp_path / "run") == ended


@pytest.mark.parametrize("mesh", ["{tensor: 2}", "{pipeline: 2}", "{context: 2}"])
def test_every_mesh_has_the_same_losses(tmp_path: Path, mesh: str) -> None:
    """With FSDP beside tensor, stages and context, each batch of the ramp in two microbatches, and whole."""
    words = ("training.model.layers=2", "training.steps=6")
    whole = run(tmp_path / "whole", *words, RAMP)
    parts = run(tmp_path / "parts", *words, RAMP.replace("16,", "16, microbatches: 2,"), f"training.mesh={mesh}")

    expected = [record["loss"] for record in whole.values()]
    np.testing.assert_allclose([record["loss"] for record in parts.values()], expected, rtol=2e-6)

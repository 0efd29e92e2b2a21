"""A run of two hosts that goes back from spikes of its loss can be repeated bit for bit."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.shell import Shell

_MODEL = "{layers: 2, heads: 2, embed: 64, seqLen: 32}"
_BACK = ("training.badSteps={lossSpike: rollBack, window: 32, sigmas: 5}", "recovery.restarts.nonfinite=5")


@pytest.mark.long
def test_what_was_left_out_makes_the_same_run_again(tmp_path: Path) -> None:
    """Each spike costs a restart and its batch; a fresh run of a job without those batches ends in the same state."""
    lines = "".join(f"{number % 10} green bottles hanging on the wall, " for number in range(540))
    noise = bytes(np.random.default_rng(1).integers(33, 127, 64, dtype=np.uint8)).decode()
    (tmp_path / "text.txt").write_text(lines[:15000] + noise + lines[15000:])
    with Shell(
        tmp_path,
        tmp_path / "cache",
        (
            "hardware.topology=2x2",
            f"training.model={_MODEL}",
            "training.data={train: [{name: text, paths: [text.txt]}]}",
            "training.batch.sequences=4",
            "training.optimizer.learningRate=1e-2",
            "training.steps=80",
            "training.checkpoint={everySteps: 20, keep: {last: 12}}",
        ),
    ) as shell:
        back = shell.begin("back", *_BACK)
        summary = back.finish()
        said = [json.loads(line) for line in (back.directory / "metrics.jsonl").read_text().splitlines()]
        left_out = sorted(event["batch"] for event in said if event.get("event") == "rolledBack")

        assert left_out
        assert summary["restarts"] == {"nonfinite": len(left_out)}
        again = shell.finish("again", f"training.data.leaveOut={left_out}")
        assert again["digest"] == summary["digest"]
        assert again["restarts"] == {}

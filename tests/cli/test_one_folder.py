"""Two run directories with one folder of checkpoints: one of them at a time."""

import signal
from pathlib import Path

import pytest
from tests.cli.shell import Shell

from shardwise.protocol.contract import ExitCode, Phase


def test_a_live_run_keeps_others_off_its_checkpoints(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """While one lives the other is refused, and told by whom; at its end the other goes on from what it saved."""
    changes = [f"training.checkpoint={{path: {tmp_path}/shared, everySteps: 1000000}}"]
    with Shell(tmp_path, tmp_path_factory.getbasetemp() / "cache", changes) as shell:
        live = shell.begin("live", "training.steps=1000000")
        live.until_phase(Phase.STEP, step=1)
        other = shell.begin("other", "training.steps=1000000")
        assert other.wait() == ExitCode.BAD_INPUT
        assert f"{tmp_path}/shared: the run 'quickstart' in {live.directory} lives" in other.output
        assert live.send(signal.SIGTERM) == ExitCode.SAVED
        step = live.summary["steps"]

        summary = shell.finish("other", f"training.steps={step + 2}")

    assert summary["status"] == "complete"
    assert [record["step"] for record in other.records("restored")] == [step]

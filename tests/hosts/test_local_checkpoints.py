"""What is saved on the hosts themselves: a lost trainer or host goes on from there, and lost copies cost steps alone.

Each of the two hosts has a folder of its own, as if they were two machines; a machine that is lost takes it along.
"""

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.cli.damaging import damage
from tests.cli.running import Run
from tests.cli.shell import Shell
from tests.hosts.disturbing import end_host

from shardwise.launcher.system import processes
from shardwise.protocol.contract import LOGS, METRICS

SLICES = ("hardware.topology=1x2", "hardware.slices=2")
OFTEN = "training.checkpoint={everySteps: 12, keep: {last: 12}, local: {everySteps: 2}}"


def test_a_lost_trainer_and_a_lost_host_cost_the_steps_since_the_last_local_save(shell: Shell, digest: str) -> None:
    """The run goes on from what the hosts hold, also if one of them is lost with its folder, and ends with its bits.

    A part that both have lost, or that is damaged, is no reason to end: the run goes on from the last checkpoint
    of the storage.
    """
    run = shell.begin("local", OFTEN)

    held = _until_held(run, attempt=0, beyond=2)
    os.kill(_trainer(run, 1), signal.SIGKILL)
    restored = _until_begun(run, attempt=1)
    assert restored.get("local")
    assert restored["step"] >= held

    held = _until_held(run, attempt=1, beyond=restored["step"] + 2)
    _lose(run, 1)
    restored = _until_begun(run, attempt=2)
    assert restored.get("local")
    assert restored["step"] >= held

    _until_held(run, attempt=2, beyond=14)
    _lose(run, 0, 1)
    restored = _until_begun(run, attempt=3)
    assert (restored.get("local"), restored["step"]) == (None, 12)

    _until_held(run, attempt=3, beyond=14)
    os.kill(_trainer(run, 0), signal.SIGSTOP)  # or it would save again meanwhile
    for file in _folder(run, 0).glob("step-*/arrays/params.blocks*/c.*"):
        damage(file)
    os.kill(_trainer(run, 0), signal.SIGKILL)
    restored = _until_begun(run, attempt=4)
    assert (restored.get("local"), restored["step"]) == (None, 12)
    summary = run.finish()

    assert summary["digest"] == digest
    assert summary["attempts"] == 5
    assert "going on from the local checkpoint of step" in run.output
    assert "checkpoint of step 16 refused: params.blocks" in run.output
    assert [record["step"] for record in run.records("saved")][-2:] == [24, 32]
    assert not any(record.get("event") == "localSaveFailed" for record in _since(run, 4))


@pytest.mark.long  # who keeps whose part is in tests/train/local_checkpoints
def test_a_slice_is_kept_by_another_one(shell: Shell) -> None:
    """Two slices hold the same state, and each writes half of it: what one host is left with is all of it."""
    undisturbed = shell.finish("undisturbed-slices", *SLICES, "training.steps=16")
    run = shell.begin("slices", *SLICES, OFTEN, "training.steps=16")
    held = _until_held(run, attempt=0, beyond=2)
    _lose(run, 1)
    restored = _until_begun(run, attempt=1)
    assert restored.get("local")
    assert restored["step"] >= held
    assert run.finish()["digest"] == undisturbed["digest"]


def _lose(run: Run, *hosts: int) -> None:
    """Kill all that runs on these hosts, and take their folders away: nothing there may write or start meanwhile."""
    for host in hosts:
        trainer = psutil.Process(_trainer(run, host))
        agent = trainer.parent()
        assert agent is not None
        agent.suspend()
        trainer.suspend()
        run.until(partial(processes.is_stopped, trainer.pid))
    for host in hosts:
        shutil.rmtree(_folder(run, host))
    for host in hosts:
        end_host(run, host)


def _trainer(run: Run, rank: int) -> int:
    word = run.progress(rank)
    assert word is not None
    return word.pid


def _folder(run: Run, host: int) -> Path:
    where = json.loads((run.directory / LOGS / "status.json").read_text())
    return Path(where["tokenFile"]).parent / f"local-{host}"


def _until_held(run: Run, attempt: int, beyond: int) -> int:
    """Wait until an attempt's hosts hold a local checkpoint of a later step than that; the newest one's step."""

    def held() -> list[int]:
        return [record["step"] for record in _since(run, attempt) if record.get("event") == "savedLocally"]

    run.until(lambda: max(held(), default=0) > beyond)
    return max(held())


def _until_begun(run: Run, attempt: int) -> dict[str, Any]:
    """Wait until an attempt begins its steps; its event."""
    run.until(lambda: bool(_since(run, attempt)))
    return _since(run, attempt)[0]


def _since(run: Run, attempt: int) -> list[dict[str, Any]]:
    """The records of an attempt, in lines that are whole."""
    metrics = run.directory / METRICS
    lines = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
    records = [json.loads(line) for line in lines]
    begun = (number for number, record in enumerate(records) if record.get("attempt") == attempt)
    return records[next(begun, len(records)) :]

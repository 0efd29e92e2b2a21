"""A run whose job names another folder of checkpoints than before."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.train.conftest import run_here

from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import RunDirectoryError
from shardwise.train.checkpoint import steps
from shardwise.train.metrics import records


@pytest.mark.usefixtures("as_a_trainer")
def test_a_run_does_not_begin_anew_beside_its_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused with both folders; it goes on where they were copied to, and begins anew where they are gone."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    directory, here, there = (tmp_path / name for name in ("run", "here", "there"))
    for folder in (directory / "logs", here, there):
        folder.mkdir(parents=True)

    def goes_on(num_steps: int, path: str, **asked: Any) -> ExitCode:
        words = ("training.model.layers=1", f"training.data.train.0.paths=[{text}]", f"training.checkpoint.path={path}")
        return run_here(directory, *words, f"training.steps={num_steps}", **asked)

    def began() -> list[int]:
        events = [record for record in records(directory / "metrics.jsonl") if "event" in record]
        return [event["step"] for event in events if event["event"] in ("started", "restored")]

    monkeypatch.chdir(here)
    assert goes_on(2, "ck") == ExitCode.OK
    monkeypatch.chdir(there)
    with pytest.raises(RunDirectoryError) as caught:
        goes_on(3, "ck")
    told = f"{there}/ck holds no checkpoint, and those of this run, up to step 2, are in {here}/ck. To go on from them,"
    assert str(caught.value).startswith(told)
    assert "to begin anew here, add --fork" in str(caught.value)
    monkeypatch.chdir(here)
    assert goes_on(3, "ck") == ExitCode.OK  # the refusal has changed nothing
    assert began() == [0, 2]

    shutil.copytree(here / "ck", there / "copied")
    assert goes_on(4, str(there / "copied")) == ExitCode.OK
    assert goes_on(2, str(there / "anew"), fork=True) == ExitCode.OK
    assert began() == [0, 2, 3, 0]
    assert steps(str(there / "anew")) == [2]

    shutil.rmtree(there / "anew")
    assert goes_on(1, str(there / "other")) == ExitCode.OK
    assert began() == [0, 2, 3, 0, 0]


@pytest.mark.usefixtures("as_a_trainer")
def test_fewer_steps_than_were_taken_are_refused(tmp_path: Path) -> None:
    """The run stays what it was: complete, of the steps that it took. It may go back to fewer, or be given again."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    (tmp_path / "logs").mkdir()
    words = ["training.model.layers=1", f"training.data.train.0.paths=[{text}]"]
    words += ["training.checkpoint={everySteps: 1, keep: {last: 9}}"]
    assert run_here(tmp_path, *words, "training.steps=3") == ExitCode.OK
    names = ("job.yaml", "summary.json", "metrics.jsonl")
    files = {name: (tmp_path / name).read_bytes() for name in names}
    for step, taken in ((None, 3), (2, 2)):
        with pytest.raises(RunDirectoryError, match=rf"training.steps: given 1, expected at least {taken}, which"):
            run_here(tmp_path, *words, "training.steps=1", step=step)
        assert {name: (tmp_path / name).read_bytes() for name in names} == files

    with pytest.raises(RunDirectoryError, match="holds the checkpoints of the run 'small', and this job is 'other'"):
        run_here(tmp_path, *words, "training.steps=1", "metadata.name=other")
    assert run_here(tmp_path, *words, "training.steps=3") == ExitCode.OK
    assert run_here(tmp_path, *words, "training.steps=2", step=1) == ExitCode.OK
    assert steps(str(tmp_path / "checkpoints")) == [1, 2]

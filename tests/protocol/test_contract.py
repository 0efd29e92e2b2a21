"""shardwise.protocol.contract: the numbers and the record that processes agree on."""

import json
from pathlib import Path

from shardwise.protocol import errors
from shardwise.protocol.contract import (
    Control,
    ExitCode,
    Phase,
    Progress,
    read_progress,
    write_progress,
)

RECORD = Progress(
    attempt=1,
    rank=3,
    phase=Phase.STEP,
    step=17,
    dispatched=18,
    step_seconds=0.5,
    monotonic_seconds=12.5,
    pid=42,
    seconds={"step": 8.5},
)


def test_exit_codes_are_fixed() -> None:
    """Exit codes keep their numbers: other processes and other versions read them."""
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "FAILURE": 1,
        "USAGE": 2,
        "SAVED": 80,
        "BAD_INPUT": 81,
        "NONFINITE": 82,
        "OUT_OF_MEMORY": 83,
        "STORAGE": 84,
        "DEVICE": 85,
        "PEER": 86,
        "HOSTS_MISSING": 87,
    }


def test_the_strongest_control_word_is_the_largest() -> None:
    """A maximum over processes keeps the word that asks for the most."""
    assert max(Control) is Control.STOP
    assert sorted(Control) == [Control.NONE, Control.MEASURE, Control.SAVE, Control.STOP]


def test_progress_comes_back_as_written(tmp_path: Path) -> None:
    """A record that is written and read is the same record, and no partial file stays."""
    path = tmp_path / "progress.json"
    write_progress(path, RECORD)
    assert read_progress(path) == RECORD
    assert [entry.name for entry in tmp_path.iterdir()] == ["progress.json"]
    assert json.loads(path.read_text())["phase"] == "step"


def test_progress_replaces_an_older_record(tmp_path: Path) -> None:
    """The newest record is the one that is read."""
    path = tmp_path / "progress.json"
    write_progress(path, RECORD.model_copy(update={"step": 18}))
    write_progress(path, RECORD)
    assert read_progress(path) == RECORD


def test_no_progress_yet_is_none(tmp_path: Path) -> None:
    """Before the first record there is none, which is no error."""
    assert read_progress(tmp_path / "progress.json") is None


def test_every_error_has_the_exit_code_of_its_tree() -> None:
    """A person's mistake ends with 81 or 2, no number with 82, no memory with 83, what may pass with 84 and more.

    A cluster that refuses ends with 2, since 1 would say that the job failed, as it does of a program of rewards.
    """
    codes = {error.__name__: error.exit_code for error in errors.ShardwiseError.__subclasses__()}
    assert errors.ShardwiseError.exit_code == ExitCode.FAILURE
    assert codes == {
        "JobError": ExitCode.BAD_INPUT,
        "RewardError": ExitCode.FAILURE,
        "UsageError": ExitCode.USAGE,
        "ClusterError": ExitCode.USAGE,
        "DataError": ExitCode.BAD_INPUT,
        "CheckpointError": ExitCode.BAD_INPUT,
        "CompilerError": ExitCode.BAD_INPUT,
        "StorageError": ExitCode.STORAGE,
        "DeviceError": ExitCode.DEVICE,
        "RunDirectoryError": ExitCode.BAD_INPUT,
        "PeerError": ExitCode.PEER,
        "LeaderlessError": ExitCode.HOSTS_MISSING,
        "NonFiniteError": ExitCode.NONFINITE,
        "OutOfMemoryError": ExitCode.OUT_OF_MEMORY,
    }

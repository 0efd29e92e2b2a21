"""Trackers: what TensorBoard is given, and what is said where an extra is missing."""

import builtins
from pathlib import Path
from types import ModuleType

import pytest
from tests.train.conftest import SMALL

from shardwise.job.errors import UsageError
from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.train.trackers import TensorBoard, trackers


def test_tensorboard_files_hold_the_scalars(tmp_path: Path) -> None:
    """The event file names every scalar."""
    board = TensorBoard(tmp_path)
    board.step(1, {"loss": 2.5, "gradNorm": 1.0})
    board.close()

    (written,) = tmp_path.glob("events.out.tfevents.*")
    assert {name for name in (b"loss", b"gradNorm") if name in written.read_bytes()} == {b"loss", b"gradNorm"}


def test_nothing_is_tracked_unasked(tmp_path: Path) -> None:
    """Without the field there is no tracker, and no folder."""
    assert trackers(resolve(loads(SMALL)), tmp_path) == []


def test_a_missing_extra_is_said_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for and not installed: the message names the extra, before anything is trained."""
    real = builtins.__import__

    def without_wandb(name: str, *rest: object, **named: object) -> ModuleType:
        if name == "wandb":
            raise ImportError(name)
        return real(name, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_wandb)
    job = resolve(loads(SMALL, ["training.tracking.wandbProject=mine"]))
    with pytest.raises(UsageError, match=r"shardwise\[wandb\]"):
        trackers(job, tmp_path)

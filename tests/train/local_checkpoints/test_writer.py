"""Saves into a host's own folder: the newest whole one stays, and what cannot be saved costs nothing else."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.train.checkpoint.conftest import Toy, digester

from shardwise.train.checkpoint import NO_HISTORY
from shardwise.train.local_checkpoints import LocalWriter, Neighbours, writer
from shardwise.train.local_checkpoints.folder import LocalFolder
from shardwise.train.peers import ALONE, Peers


@dataclass
class Host:
    """One host's saves of the toy state; `heard` is what they report."""

    toy: Toy
    peers: Peers = ALONE
    heard: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        near = Neighbours(LocalFolder(self.toy.root), self.peers, apart=0)
        listener = SimpleNamespace(event=self.heard.append)
        self._writer = LocalWriter(near, run="toy", attempt=0, listener=cast("Any", listener))

    def save(self, step: int) -> None:
        """Save the values of a step, and wait until that is over."""
        self._writer.save(
            step, self.toy.arrays(step), digester=digester((4, 2)), identity={"model": "toy"}, history=NO_HISTORY
        )
        self._writer.wait()

    def close(self) -> None:
        """End its threads."""
        self._writer.close()


def test_the_newest_one_stays_and_is_a_checkpoint(toy: Toy) -> None:
    """It is restored as any other, bit by bit; the one before is gone, and so is what an earlier save has left."""
    (toy.root / "step-00000009" / "arrays").mkdir(parents=True)
    host = Host(toy)
    host.save(2)
    host.save(4)
    host.close()
    assert toy.folders() == [4]
    assert toy.restored_step() == 4
    assert [(one["event"], one["step"]) for one in host.heard] == [("savedLocally", 2), ("savedLocally", 4)]


def test_a_save_that_fails_leaves_the_one_before(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported once, its files go, and of the next ones that are due more and more are left out."""
    host = Host(toy)
    host.save(1)
    tried = []

    def full(_store: Any, step: int, *_: Any, **__: Any) -> None:
        tried.append(step)
        folder: Path = toy.folder(step) / "arrays"
        folder.mkdir(parents=True)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(writer, "put", full)
        for step in range(2, 16):
            host.save(step)
    assert tried == [2, 4, 7, 12]
    assert toy.folders() == [1]
    assert host.heard[1:] == [{"event": "localSaveFailed", "step": 2, "reason": host.heard[1]["reason"]}]
    assert "the disk is full" in host.heard[1]["reason"]

    for step in range(16, 24):  # 8 are left out after the fourth failure, of which 3 were
        host.save(step)
    host.close()
    assert toy.restored_step() == 23
    assert [one["step"] for one in host.heard if one["event"] == "savedLocally"] == [1, 21, 22, 23]


@pytest.mark.parametrize("what", ["local files", "local commit"])
def test_one_ranks_failure_is_everyones(toy: Toy, what: str) -> None:
    """A step that another rank could not save is none here either, so that the one before it stays on both."""
    before = Host(toy)
    before.save(1)
    before.close()

    def exchange(name: str, text: str) -> list[str]:
        return [text, json.dumps(["the disk is full", 0]) if name == what else text]

    peers = SimpleNamespace(rank=0, count=2, exchange=exchange, agree=ALONE.agree)
    host = Host(toy, cast("Peers", peers))
    host.save(2)
    host.close()
    assert toy.folders() == [1]
    assert [one["reason"] for one in host.heard] == ["rank 1: the disk is full"]


def test_files_without_their_list_are_no_checkpoint(toy: Toy) -> None:
    """What a host has fetched in part, or was removed in part, is not gone on from."""
    host = Host(toy)
    host.save(2)
    host.close()
    (held,) = LocalFolder(toy.root).held()
    assert (held.step, held.parts and held.parts.ranks) == (2, (0,))
    (toy.folder(2) / "parts.json").unlink()
    (held,) = LocalFolder(toy.root).held()
    assert held.parts is None
    (toy.folder(2) / "COMMITTED").unlink()
    assert not list(LocalFolder(toy.root).held())

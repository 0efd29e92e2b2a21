"""shardwise.protocol.files: a small file is the old one or the new one, whenever a process or a machine dies."""

import os
from pathlib import Path

import pytest

from shardwise.protocol.files import replace_file


@pytest.mark.parametrize("durable", [True, False])
def test_what_is_to_last_is_on_the_disk_before_it_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, durable: bool
) -> None:
    """Whole, so that a loss of power leaves no part of it; what is written at every step waits for no disk."""
    path, synced = tmp_path / "file", list[tuple[str, str]]()
    path.write_text("old")

    def sync(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").read_text(), path.read_text()))

    monkeypatch.setattr(os, "fsync", sync)
    replace_file(path, "new", durable=durable)

    assert synced == ([("new", "old")] if durable else [])
    assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]

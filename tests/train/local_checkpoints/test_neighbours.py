"""Whose copies a host keeps: those of one that is not lost together with it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardwise.job.spec import Hardware
from shardwise.train.local_checkpoints import Neighbours, hosts_apart
from shardwise.train.local_checkpoints.folder import LocalFolder


@pytest.mark.parametrize(
    ("topology", "slices", "before"),
    [
        ("1x4", 1, [0]),
        ("2x2", 1, [1, 0]),
        ("4x1", 1, [3, 0, 1, 2]),
        ("2x1", 2, [2, 3, 0, 1]),
        ("2x1", 3, [4, 5, 0, 1, 2, 3]),
    ],
)
def test_each_host_keeps_one_other_of_another_slice(topology: str, slices: int, before: list[int]) -> None:
    """Each is kept once, and no slice keeps its own where there is another; a single host keeps nobody's."""
    hardware = Hardware(accelerator="cpu-sim", topology=topology, slices=slices)
    apart, folder = hosts_apart(hardware), LocalFolder(Path("unused"))
    peers = [SimpleNamespace(rank=rank, count=len(before)) for rank in range(len(before))]
    assert [Neighbours(folder, cast("Any", each), apart).before for each in peers] == before

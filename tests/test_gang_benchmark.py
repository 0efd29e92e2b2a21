"""What `make bench-gang` writes, and that its gang is one; the figures need minutes."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from benchmarks.gang import page, stage  # noqa: E402  the folder is a script's, found by path

MACHINE = {"date": "2026-01-01", "cores": 2, "processor": "any", "memory_gib": 1, "load": 0, "python": "3"}


def test_a_gang_of_stand_ins_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader hears them all, gives them their orders, and sees them step; the tables have what it took."""
    monkeypatch.setattr(stage, "LEARNT_SECONDS", 0.0)
    monkeypatch.setattr(stage, "STEADY_SECONDS", 2.0)
    gang = stage.measure(8)
    ray = {"hosts": 2, "head_seconds": 1.0, "joined_seconds": 2.5, "head_bytes": 2**20, "host_bytes": 2**21}
    table, of_ray = page.tables({"machine": MACHINE, "gangs": [gang], "ray": [ray]})

    cells = {row[0]: row[-1] for row in table.rows}
    assert (table.columns[-1], cells["said to stall, times"]) == ("8 hosts", "0")
    assert float(cells["polls a second"]) > 0
    assert of_ray.rows == [["2", "1.0", "2.5", "1", "2"]]

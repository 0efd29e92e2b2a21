"""What the leader makes of a host that cannot start its trainer, and of a volume that fails at the very end.

Whole runs are in tests/launcher and tests/hosts.
"""

import asyncio
import errno
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock, patch

import pytest
from tests.launcher.leader.test_state import state_in

from shardwise.launcher.leader.causes import Ending
from shardwise.launcher.leader.leader import Leader
from shardwise.launcher.leader.result import saved
from shardwise.launcher.ray.rpc import CallError
from shardwise.protocol import storage
from shardwise.protocol.contract import METRICS, SUMMARY, Cause, ExitCode
from shardwise.protocol.leader_record import LeaderRecord, RunResult


async def refused(times: int, reason: str) -> list[RunResult | Ending | None]:
    """Return what each of so many attempts comes to that host 2 cannot start; the state is a stand-in."""
    stop, leaving = asyncio.Event(), asyncio.Event()
    stop.set()  # it does not wait between two attempts
    events = SimpleNamespace(write=lambda *_, **__: None)
    state = SimpleNamespace(
        events=events, stop=stop, host=SimpleNamespace(leaving=leaving), over=0, end=lambda **_: None
    )

    async def end() -> None:
        """End nothing."""

    leader: Any = Leader.__new__(Leader)
    leader._state, leader._refused = state, 0
    running = SimpleNamespace(number=3, end=end)
    return [await leader._not_started(running, CallError(2, reason)) for _ in range(times)]


@pytest.mark.parametrize(
    "reason", ["OSError: [Errno 28] No space left on device: 'logs'", "[Errno 5] Input/output error"]
)
def test_storage_that_may_come_back_has_its_budget(reason: str) -> None:
    """A volume that refuses the start of a trainer costs what one costs that refuses a save, from the first time on."""
    (ending,) = asyncio.run(refused(1, reason))

    assert isinstance(ending, Ending)
    assert (ending.cause, ending.rank) == (Cause.STORAGE, 2)
    assert reason in ending.message


@pytest.mark.parametrize(
    "reason",
    ["PermissionError: [Errno 13] Permission denied: 'logs'", "ConnectionRefusedError: [Errno 111] Connection refused"],
)
def test_what_stays_ends_the_run(reason: str) -> None:
    """Another reason is tried again some times, and then the run ends with it; an agent that is away is no storage."""
    *tried, result = asyncio.run(refused(10, reason))

    assert tried == [None] * 9
    assert isinstance(result, RunResult)
    assert result.code == ExitCode.FAILURE
    assert reason in result.message


def test_a_volume_that_fails_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has ended has its result in the directory, and is not led to its end a second time."""
    monkeypatch.setattr(storage, "WAITS_SECONDS", (0.0, 0.0))
    fsync = Mock(side_effect=[OSError(errno.EIO, "no"), OSError(errno.ENOSPC, "no"), None])
    leader: Any = Leader.__new__(Leader)
    leader._state, leader._summary_before, leader.publisher = state_in(tmp_path), {}, Mock()

    with patch("os.fsync", fsync):
        assert asyncio.run(leader._end(saved("saved and stopped"))) == ExitCode.SAVED
    assert json.loads((tmp_path / SUMMARY).read_text())["status"] == "stopped"
    assert LeaderRecord.code_of(tmp_path, "one") == ExitCode.SAVED


def test_checkpoints_after_a_damaged_one_fill_the_budgets(tmp_path: Path) -> None:
    """The newest checkpoint is refused, and each newer one than that which was restored counts, also below it."""
    leader: Any = Leader.__new__(Leader)
    state = leader._state = state_in(tmp_path, ("recovery.restarts.failure=1",))
    leader._pause = AsyncMock()
    failed = Ending(cause=Cause.FAILURE, rank=0, exit=None, message="rank 0 ended with exit code 1")
    lines = [{"event": "saved", "step": 100, "durableSeconds": 0.5}]
    ended = []
    for attempt, step in enumerate((50, 58, 66, 66)):
        with (tmp_path / METRICS).open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        state.metrics.read()
        ended.append(asyncio.run(leader._restart(failed)))
        restored = {"event": "restored", "step": step, "attempt": attempt + 1}
        lines = [restored, {"event": "saved", "step": step + 8, "durableSeconds": 0.5}][: 2 if attempt < 2 else 1]

    assert ended[:3] == [None] * 3
    assert ended[3] is not None

"""shardwise.launcher.system.log_bound: a trainer's log that has grown too large, and who reads it meanwhile."""

import asyncio
import os
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from tests.launcher.agent.test_trainer import LIMIT_SECONDS, orders

from shardwise.launcher.agent.standby import Standby
from shardwise.launcher.agent.trainer import tail
from shardwise.launcher.system import log_bound, processes
from shardwise.launcher.system.lines import GrowingLog
from shardwise.launcher.system.log_bound import bounded, cut
from shardwise.protocol.bounded_log import OlderPart, whole_log
from shardwise.protocol.contract import LOGS, log_path

SMALL_BYTES = 100_000
TALKATIVE = """
import os, time
from shardwise.protocol.orders import wait_for_orders
wait_for_orders()
for first in range(0, 80_000, 100):
    os.write(1 + first // 100 % 2, b"".join(b"line %06d\\n" % number for number in range(first, first + 100)))
    time.sleep(0.002)
"""


def numbers(lines: list[str]) -> list[int]:
    """Return the numbers of the lines that a process wrote, without what was said about cuts."""
    return [int(line.removeprefix("line ")) for line in lines if line.startswith("line ")]


def written(log: Path, first: int, last: int) -> None:
    """Append the lines with these numbers."""
    with log.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(first, last + 1))


def test_who_looks_while_a_log_is_cut_reads_each_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the cut itself and the moment at which the older part is in its place, too."""
    monkeypatch.setattr(log_bound, "KEPT_BYTES", 1000)
    path = tmp_path / "log"
    log, replace, looks = GrowingLog(path), Path.replace, []

    def looked(self: Path, target: Path) -> Path:
        looks.append(log.lines())
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", looked)
    written(path, 0, 999)
    followed = log.lines()
    written(path, 1000, 1499)
    log_bound.cut(path)
    written(path, 1500, 1999)
    followed += looks[0] + log.lines()
    assert len(looks) == 1
    assert numbers(followed) == list(range(2000))


def test_a_process_that_writes_more_than_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log stays small, has the first and the last lines, all of them whole; who follows sees those between too."""
    monkeypatch.setattr(log_bound, "LOG_BYTES", SMALL_BYTES)
    monkeypatch.setattr(log_bound, "KEPT_BYTES", 1000)
    monkeypatch.setattr(log_bound, "_LOOK_SECONDS", 0.01)
    (tmp_path / LOGS).mkdir()
    processes.become_subreaper()
    followed: list[str] = []
    largest = 0

    async def run() -> str:
        nonlocal largest
        standby = await Standby(tmp_path, 0).start([sys.executable, "-c", TALKATIVE], processes.clean_environment())
        trainer = standby.give(orders(tmp_path), None)
        log = GrowingLog(log_path(tmp_path, 0, 0))
        ending = asyncio.create_task(trainer.wait())
        while not ending.done():
            followed.extend(log.lines())
            largest = max(largest, trainer.log_bytes)
            await asyncio.sleep(0.005)
        followed.extend(log.lines())
        trainer.close()
        return (await ending).log_tail

    async def within_limit() -> str:
        async with asyncio.timeout(LIMIT_SECONDS):
            return await run()

    told = asyncio.run(within_limit()).splitlines()
    log = log_path(tmp_path, 0, 0)
    older = OlderPart.of(log)
    assert older is not None
    assert older.number >= 3
    assert max(largest, older.num_bytes) < 5 * SMALL_BYTES < 80_000 * len("line 000000\n")
    assert [line for line in told if line.startswith("line")][-1] == "line 079999"
    left = whole_log(log).decode().splitlines()
    for lines in (left, followed):
        assert all(len(line) == len("line 000000") or line.startswith("[shardwise: ") for line in lines)
        seen = numbers(lines)
        assert (seen[0], seen[-1]) == (0, 79_999)
        assert all(before < after for before, after in pairwise(seen))
    assert set(numbers(left)) < set(numbers(followed))
    assert any("are left out]" in line for line in left)


@pytest.mark.parametrize("looks", [(), (5,), (40,), (5, 40), (40, 80), (5, 40, 80)], ids=str)
def test_who_follows_loses_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: tuple[int, ...]) -> None:
    """Neither of those that were cut out since the last look, nor one twice, wherever it had come to."""
    monkeypatch.setattr(log_bound, "KEPT_BYTES", 100)
    log, seen = tmp_path / "host-0.log", list[str]()
    follower = GrowingLog(log)
    for first in range(0, 120, 5):
        written(log, first, first + 4)
        if first + 5 in looks:
            seen += follower.lines()
        if first == 60:
            cut(log)
    assert numbers(seen + follower.lines()) == [*range(120)]
    assert numbers(whole_log(log).decode().splitlines()) == [*range(120)]
    assert follower.lines() == []


def test_who_did_not_look_for_two_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, at the place where lines are missing."""
    monkeypatch.setattr(log_bound, "KEPT_BYTES", 100)
    log = tmp_path / "host-0.log"
    follower = GrowingLog(log)
    written(log, 0, 30)
    follower.lines()
    for first in (31, 61):
        written(log, first, first + 29)
        cut(log)
    written(log, 91, 95)
    lines = follower.lines()
    assert numbers(lines) == [*range(61, 96)]
    assert lines[0].startswith("[shardwise: part 2 of this log")
    assert "are left out" in lines[0]


def test_half_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not joined with what is said about the cut; what follows a cut is appended, by who had the log open."""
    monkeypatch.setattr(log_bound, "KEPT_BYTES", 10)
    log = tmp_path / "host-0.log"
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, b"no end of a line\nhalf")
    cut(log)
    os.write(handle, b" a line\n")
    os.close(handle)
    assert log.read_bytes().startswith(b"no end of \n[shardwise: the log was cut here")
    lines = whole_log(log).decode().splitlines()
    assert [line for line in lines if not line.startswith("[shardwise: ")] == ["no end of a line", "half", " a line"]


def test_the_last_lines_after_a_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those that were written last, though they are in the older part by now."""
    monkeypatch.setattr(log_bound, "KEPT_BYTES", 100)
    log = tmp_path / "host-0.log"
    written(log, 0, 999)
    cut(log)
    lines = tail(log).splitlines()
    assert lines[-1].startswith("[shardwise: the log was cut here")
    assert numbers(lines) == [*range(1000 - len(lines) + 1, 1000)]
    written(log, 1000, 1999)
    assert numbers(tail(log).splitlines()) == [*range(1980, 2000)]


def test_a_full_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is as it was, nothing takes room beside it, and its trainer does not end for that."""
    monkeypatch.setattr(log_bound, "LOG_BYTES", 10)
    log, partial = tmp_path / "host-0.log", tmp_path / "host-0.log.1.partial"
    written(log, 0, 99)
    content = log.read_bytes()

    async def run() -> None:
        async with asyncio.timeout(LIMIT_SECONDS), bounded(log):
            await asyncio.sleep(0)

    partial.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        cut(log)
    assert [*tmp_path.iterdir()] == [log]
    partial.symlink_to("/dev/full")
    asyncio.run(run())
    assert [*tmp_path.iterdir()] == [log]
    assert log.read_bytes() == content

"""A trainer that the kernel kills for lack of memory, in a real control group of its own if one can be made."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwise.launcher.leader.causes import attribute
from shardwise.launcher.system import memory_events
from shardwise.protocol.contract import LOGS, Cause
from shardwise.protocol.report import Exit

LIMIT_BYTES = 192 << 20
GROUPS = (  # version 2, then version 1: the folder to make a group in, and the file of its limit
    (Path("/sys/fs/cgroup"), "memory.max"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
)
AGENT = """
import asyncio, os, sys
from pathlib import Path
group, directory, taken = sys.argv[1:]
Path(group, "cgroup.procs").write_text(str(os.getpid()))
from shardwise.protocol.orders import Orders
from shardwise.launcher.agent.standby import Standby
from shardwise.launcher.system.processes import clean_environment
async def end():
    command = [sys.executable, "-c", f"import os; os.read(0, 1000); b'x' * int({taken})"]
    standby = await Standby(Path(directory), 0).start(command, clean_environment())
    orders = Orders(job_file="", directory=directory, progress="", stacks="", rank=0, num_processes=1,
                    coordinator="", attempt=0, fork=False, step=None, deadline_seconds=None)
    trainer = standby.give(orders, None)
    ended = await trainer.wait()
    trainer.close()
    return ended
print(asyncio.run(end()).model_dump_json())
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """Return a new control group with little memory."""
    for root, limit in GROUPS:
        made = root / f"shardwise-test-{os.getpid()}"
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            if (made / limit).exists():  # without this controller the folder stays empty
                (made / limit).write_text(str(LIMIT_BYTES))
                yield made
                return
        finally:
            made.rmdir()
    pytest.skip("no control group with a limit of memory can be made here: it takes root and a writable /sys/fs/cgroup")


def ended(group: Path, directory: Path, taken_bytes: int) -> Exit:
    """Return the end of a trainer in the group that takes `taken_bytes` of memory."""
    (directory / LOGS).mkdir()
    command = [sys.executable, "-c", AGENT, str(group), str(directory), str(taken_bytes)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Exit.model_validate_json(done.stdout)


def test_killed_by_the_kernel(group: Path, tmp_path: Path) -> None:
    """SIGKILL while the kernel killed a process of the group is a lack of memory, and is reported as one."""
    found = ended(group, tmp_path, 2 * LIMIT_BYTES)
    ending = attribute({0: found}, [], None, None)

    assert (ending.cause, ending.rank) == (Cause.OUT_OF_MEMORY, 0)
    assert ending.message == "rank 0 ended with signal SIGKILL (the kernel had no memory left)"


@pytest.mark.parametrize(
    ("group", "line"),
    [("memory/some/pod/", "5:memory:/some/pod"), ("memory/", "5:memory:/some/pod"), ("memory/", "5:memory:/")],
    ids=["of this machine", "of a container", "of a container with a view of its own"],
)
def test_where_the_count_is(group: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's control group has its full name in /proc, but no name in its mount."""
    (tmp_path / group).mkdir(parents=True)
    (tmp_path / group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (tmp_path / "own").write_text(f"6:cpu:/some/pod\n{line}\n")
    monkeypatch.setattr(memory_events, "_OWN", tmp_path / "own")
    monkeypatch.setattr(memory_events, "_PLACES", ((":memory:", f"{tmp_path}/memory{{}}/memory.oom_control"),))

    assert memory_events.oom_kills() == 3


def test_a_trainer_that_fits(group: Path, tmp_path: Path) -> None:
    """In the same group a trainer that takes less memory ends with its own exit code."""
    found = ended(group, tmp_path, LIMIT_BYTES // 8)
    assert (found.code, found.out_of_memory) == (0, False)

"""Processes are found and ended by their mark and their start time, never by name; no exit code is taken away."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from shardwise.launcher.system import processes

_WAIT = "import time; time.sleep(600)"
# Starts a child that waits, prints its number, then waits or ends.
_PARENT = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {wait!r}]).pid, flush=True); {then}"

# The orphan and the child of its own read the same pipe, and end when it does.
_SUBREAPER = """
import asyncio, os, psutil, sys
from shardwise.launcher.system import processes

async def main():
    processes.become_subreaper()
    read, write = os.pipe()
    options = {"environment": os.environ, "stdin": read}
    own = await processes.start(sys.executable, "-c", "import sys; sys.stdin.read(); raise SystemExit(7)", **options)
    orphaning = "import subprocess; subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'])"
    parent = await processes.start(sys.executable, "-c", f"import sys; {orphaning}", **options)
    assert await parent.wait() == 0
    while not (orphans := [child.pid for child in psutil.Process().children() if child.pid != own.pid]):
        await asyncio.sleep(0)
    assert processes.reap_orphans() == [], "it lives"
    os.close(write)
    while not (reaped := processes.reap_orphans()):
        await asyncio.sleep(0)
    print(reaped == orphans, psutil.pid_exists(reaped[0]), await own.wait())

asyncio.run(main())
"""


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts Python code as a child with an environment of its own; ends what is left of it after the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(code: str, **variables: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", code]
        environment = {**os.environ, **variables}
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_only_what_carries_the_mark_is_ended(tmp_path: Path, start: Callable[..., "subprocess.Popen[str]"]) -> None:
    """Of processes with the mark of two hosts, of another run and with none, exactly the host's own are ended."""
    mine, spared = (start(_WAIT, **processes.mark(tmp_path, 1)) for _ in range(2))
    other_host = start(_WAIT, **processes.mark(tmp_path, 2))
    other_run = start(_WAIT, **processes.mark(tmp_path / "other", 1))
    unmarked = start(_WAIT)

    assert processes.end_marked(tmp_path, 1, except_pids=[spared.pid]) == [mine.pid]

    assert mine.wait() == -signal.SIGKILL
    assert all(process.poll() is None for process in (spared, other_host, other_run, unmarked))


def test_without_a_host_the_whole_run_is_ended(tmp_path: Path, start: Callable[..., "subprocess.Popen[str]"]) -> None:
    """The command ends what any host of its run has left, whichever name of the run directory it is given."""
    left = [start(_WAIT, **processes.mark(tmp_path, host)) for host in range(2)]
    other_run = start(_WAIT, **processes.mark(tmp_path / "other", 0))

    assert processes.end_marked(tmp_path / "x" / "..", None) == sorted(process.pid for process in left)

    assert other_run.poll() is None
    assert processes.end_marked(tmp_path, None) == []


def test_an_orphan_is_found_by_the_mark_it_inherited(
    tmp_path: Path, start: Callable[..., "subprocess.Popen[str]"]
) -> None:
    """A grandchild whose parent has ended carries the parent's mark, and is ended as the parent would be."""
    parent = start(_PARENT.format(wait=_WAIT, then="pass"), **processes.mark(tmp_path, 0))
    orphan = int(_line(parent))
    parent.wait()

    assert processes.end_marked(tmp_path, 0) == [orphan]
    assert not _lives(orphan)


def test_a_reused_number_is_not_ended(start: Callable[..., "subprocess.Popen[str]"]) -> None:
    """A process with the number of the one meant, but another start time, is a different process."""
    process = start(_WAIT)
    created = psutil.Process(process.pid).create_time()

    processes.end([processes.Identity(pid=process.pid, created=created - 1)])
    assert process.poll() is None
    processes.end([processes.Identity(pid=process.pid, created=created)])
    assert process.wait() == -signal.SIGKILL


def test_orphans_are_adopted_and_reaped_and_own_children_are_not() -> None:
    """A subreaper reaps what it has not started itself; its own children's exit codes still reach their waiters."""
    done = subprocess.run([sys.executable, "-c", _SUBREAPER], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["True", "False", "7"], done.stderr


def test_nothing_is_reaped_while_a_child_is_being_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that ends before its number is known keeps its exit code."""
    reaped: list[int] = []

    async def create(*command: str, **options: Any) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(command, **options)  # noqa: ASYNC220  asyncio would reap it itself
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222  as above
        reaped.extend(processes.reap_orphans())
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
    child = asyncio.run(processes.start(sys.executable, "-c", "raise SystemExit(5)", environment=os.environ))

    assert reaped == []
    assert cast("subprocess.Popen[bytes]", child).wait() == 5


def test_environments_for_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A trainer inherits all but Ray's variables and the marks; Ray's processes inherit only what Python needs."""
    added = {"RAY_ADDRESS": "x", "SECRET": "y", **processes.mark(tmp_path, 3)}
    for name, value in added.items():
        monkeypatch.setenv(name, value)

    assert added.keys() & processes.clean_environment().keys() == {"SECRET"}
    assert added.keys() & processes.bare_environment().keys() == set()
    assert processes.bare_environment()["PATH"] == os.environ["PATH"]


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _lives(pid: int) -> bool:
    """Return whether a process still runs; an ended one may be left for its new parent to reap."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

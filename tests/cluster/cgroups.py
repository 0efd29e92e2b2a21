"""The cgroups (version 1) of the cluster: one per node and one of the control plane. Called by the verbs.

A pod's processes are found by the cgroup of its node, so a node can be killed whole, and nothing else with it.
"""

import os
import signal
from functools import partial
from pathlib import Path

from tests.cluster.commands import wait

ROOT = "shardwise"  # below each controller
CONTROL_PLANE = f"{ROOT}/control-plane"
_MOUNT = Path("/sys/fs/cgroup")


def controllers() -> list[Path]:
    """The mounted controllers of version 1; none on a machine of version 2."""
    if (_MOUNT / "cgroup.controllers").exists():
        return []
    return [path for path in _MOUNT.iterdir() if path.is_dir() and not path.is_symlink()]


def writable() -> bool:
    """Whether cgroups can be made here."""
    found = controllers()
    return bool(found) and os.access(_MOUNT / "memory", os.W_OK)


def make(name: str) -> None:
    """Make the cgroup and those above it."""
    for controller in controllers():
        path = controller
        for part in name.split("/"):
            path = path / part
            path.mkdir(exist_ok=True)
            if controller.name == "cpuset":  # a new cpuset is empty, and an empty one takes no process
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (path / file).write_text((path.parent / file).read_text())


def procs_files(name: str) -> list[Path]:
    """The files that a process enters the cgroup by: its id is written to each."""
    return [controller / name / "cgroup.procs" for controller in controllers()]


def members(name: str) -> set[int]:
    """Every process in the cgroup and below it."""
    pids: set[int] = set()
    for file in (_MOUNT / "memory" / name).rglob("cgroup.procs"):
        try:
            pids.update(map(int, file.read_text().split()))
        except OSError:  # removed meanwhile
            continue
    return pids


def kill(name: str) -> None:
    """Kill all processes of the cgroup, those too that they start meanwhile."""

    def emptied() -> bool:
        for pid in members(name):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it was faster
                continue
        return not members(name)

    wait(f"the end of all processes in cgroup {name}", emptied, 30)


def remove(name: str) -> None:
    """Remove the cgroup and those below it; there must be no process in them."""
    for controller in controllers():
        inner = sorted((controller / name).rglob("*/"), reverse=True)
        for path in (*inner, controller / name):
            wait(f"the removal of {path}", partial(_removed, path), 20)


def _removed(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # busy for a moment after its last process has ended
        return False
    return True

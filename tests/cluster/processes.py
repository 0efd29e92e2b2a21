"""The background processes of the cluster: started in a cgroup, recorded by name, ended by record. Called by the verbs.

A record holds a process's start time beside its id, so that an id that the kernel has given to another is left alone.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.cluster.cgroups import procs_files
from tests.cluster.commands import wait
from tests.cluster.places import RUN

LOGS = RUN / "log"
_PIDS = RUN / "pids"
# The shell enters the cgroup before it becomes the program, so that no process of it is ever outside.
_ENTER = 'for file in $1; do echo $$ > "$file"; done; shift; exec "$@"'


def start(name: str, *command: str | Path, cgroup: str) -> None:
    """Start a program in the background that outlives this process; it logs to `log/NAME.log`."""
    files = " ".join(map(str, procs_files(cgroup)))
    with (LOGS / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _ENTER, "sh", files, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (_PIDS / name).write_text(f"{process.pid} {birth(process.pid)}")


def birth(pid: int) -> str | None:
    """When the process started, in ticks since boot: with its id, who it is. None where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]


def recorded() -> Iterator[tuple[str, int, bool]]:
    """Every process that was started and not ended here: its name, its id, and whether it still runs."""
    for path in sorted(_PIDS.glob("*")):
        pid, born = path.read_text().split()
        yield path.name, int(pid), birth(int(pid)) == born


def running() -> set[str]:
    """The names of the recorded processes that run."""
    return {name for name, _, alive in recorded() if alive}


def end(*names: str) -> None:
    """Kill the recorded processes of these names, and wait until they are gone."""
    for name, pid, alive in recorded():
        if name not in names:
            continue
        if alive:
            os.kill(pid, signal.SIGKILL)
            wait(f"the end of {name}", partial(_gone, pid), 20)
        (_PIDS / name).unlink()


def _gone(pid: int) -> bool:
    return birth(pid) is None


def resident_bytes(pid: int) -> int:
    """Memory of a process; a page that several share is divided among them. 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))

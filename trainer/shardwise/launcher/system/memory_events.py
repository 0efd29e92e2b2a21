"""How many processes of this host's control group the kernel has killed for lack of memory.

Compare the count from before a process started with the count after it ended. It is 0 wherever it cannot be read.
"""

from pathlib import Path

_OWN = Path("/proc/self/cgroup")
# The prefix of the group's line in /proc/self/cgroup, and the file with its count: version 2, then version 1.
_PLACES = (("0::", "/sys/fs/cgroup{}/memory.events"), (":memory:", "/sys/fs/cgroup/memory{}/memory.oom_control"))


def oom_kills() -> int:
    """Return the count of the control group that this process is in."""
    try:
        own = _OWN.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(
        _count(_events(place, line.split(mark, 1)[1])) for mark, place in _PLACES for line in own if mark in line
    )


def _events(place: str, group: str) -> Path:
    """Return the file with a group's count. In a container the mount often shows that group alone, without its name."""
    on_host = Path(place.format(group.rstrip("/")))
    return on_host if on_host.exists() else Path(place.format(""))


def _count(events: Path) -> int:
    try:
        counts = dict(line.split() for line in events.read_text(encoding="ascii").splitlines())
    except OSError:
        return 0
    return int(counts.get("oom_kill", 0))

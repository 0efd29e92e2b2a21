"""How many processes of this host's control group the kernel has ended for lack of memory.

Called when a trainer starts and when it has ended. Where the group cannot be read, nothing is claimed.
"""

from pathlib import Path

_OWN = Path("/proc/self/cgroup")
# The prefix of the group's line in /proc/self/cgroup, and where its count is: version 2, then version 1.
_PLACES = (("0::", "/sys/fs/cgroup{}/memory.events"), (":memory:", "/sys/fs/cgroup/memory{}/memory.oom_control"))


def oom_kills() -> int:
    """The count of the control group that this process is in; 0 where it cannot be read."""
    try:
        own = _OWN.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(
        _count(_events(place, line.split(mark, 1)[1])) for mark, place in _PLACES for line in own if mark in line
    )


def _events(place: str, group: str) -> Path:
    """Where a group's count is: in a container the mount often shows that group alone, under no name."""
    named = Path(place.format(group.rstrip("/")))
    return named if named.exists() else Path(place.format(""))


def _count(events: Path) -> int:
    try:
        counts = dict(line.split() for line in events.read_text(encoding="ascii").splitlines())
    except OSError:
        return 0
    return int(counts.get("oom_kill", 0))

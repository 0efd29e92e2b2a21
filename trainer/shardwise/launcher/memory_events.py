"""How many processes of this host's control group the kernel has ended for lack of memory.

Called when a trainer starts and when it has ended. Where the group cannot be read, nothing is claimed.
"""

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def oom_kills() -> int:
    """The count of the control group (version 2) that this process is in; 0 where it cannot be read."""
    try:
        entries = _OWN.read_text(encoding="ascii").splitlines()
        group = next(entry.split("::", 1)[1] for entry in entries if entry.startswith("0::"))
        events = (_ROOT / group.lstrip("/") / "memory.events").read_text(encoding="ascii")
    except (OSError, StopIteration):
        return 0
    counts = dict(line.split() for line in events.splitlines())
    return int(counts.get("oom_kill", 0))

#!/usr/bin/env python3
"""runc for a machine that lacks a capability, such as CAP_SYS_RESOURCE; a Docker of our own calls it.

A privileged container asks for every capability that the kernel knows, and runc fails ("unable to apply caps") where
the machine itself does not hold one. This asks for those that the machine holds, then becomes runc. It is started by
the path alone, so it needs the standard library and nothing of this tree.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# In the order of their numbers in linux/capability.h.
_NAMES = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
    NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE
    SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL
    SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""


def held(bounding_set: int) -> set[str]:
    """The names of the capabilities in a bounding set, as /proc/self/status has it."""
    return {f"CAP_{name}" for number, name in enumerate(_NAMES.split()) if bounding_set >> number & 1}


def bound(process: dict[str, Any], names: set[str]) -> None:
    """Take from an OCI process every capability that is not among `names`."""
    for kind, wanted in (process.get("capabilities") or {}).items():
        process["capabilities"][kind] = [name for name in wanted if name in names]


def option(arguments: Sequence[str], *names: str) -> str | None:
    """The value of an option of a command line, as `--name value` or `--name=value`; None without it."""
    for place, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else next(iter(arguments[place + 1 :]), None)
    return None


def rewrite(arguments: Sequence[str], names: set[str]) -> None:
    """Bound the process that this command line of runc creates or executes; other verbs start none."""
    if "create" in arguments or "run" in arguments:
        path = Path(option(arguments, "--bundle", "-b") or ".") / "config.json"
        content = json.loads(path.read_text())
        bound(content["process"], names)
    elif "exec" in arguments and (named := option(arguments, "--process", "-p")):
        path = Path(named)
        content = json.loads(path.read_text())
        bound(content, names)
    else:
        return
    path.write_text(json.dumps(content))


def _bounding_set() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("CapBnd:"))


if __name__ == "__main__":
    rewrite(sys.argv[1:], held(_bounding_set()))
    os.execvp("runc", ["runc", *sys.argv[1:]])  # noqa: S606  it becomes runc: same process, no shell

"""The children that a subreaper has come to because their own parent has ended: what a program has left behind.

They are found by that alone. A mark in the environment, by which all others are found (`processes.py`), is lost on a
child that was given another environment.
"""

import asyncio
import contextlib
import os
import time

import psutil

from shardwise.launcher.system import processes
from shardwise.launcher.system.processes import Identity

_WITHIN_SECONDS = 10.0
_LOOK_SECONDS = 0.01


async def end_orphans(*, sparing: str) -> None:
    """End the children that this process has neither started nor adopted, and what they have started in turn.

    What has the variable `sparing` in its environment is left alone. It tries for 10 s: a kill can wait for a disk.
    """
    until = time.monotonic() + _WITHIN_SECONDS
    # Again until there is none: whatever loses its parent by this becomes a child of this process.
    while time.monotonic() < until:
        processes.reap_orphans()
        if (own := processes.own_children()) is None:
            await asyncio.sleep(_LOOK_SECONDS)
        elif found := _orphans(own, sparing):
            await asyncio.to_thread(processes.end, found)
        else:
            break


def _orphans(own: frozenset[int], sparing: str) -> list[Identity]:
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            is_ours = child.uids().real == os.getuid() and child.status() != psutil.STATUS_ZOMBIE
            if is_ours and child.pid not in own and not _has(child, sparing):
                found.append(Identity.of(child))
    return found


def _has(process: psutil.Process, variable: str) -> bool:
    with contextlib.suppress(psutil.AccessDenied):  # one that hides what it holds, such as ssh-agent
        return variable in process.environ()
    return False

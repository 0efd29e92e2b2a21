"""`shardwise run` as it is, but that trainers do what a plan says (`trainer.py`), and that its clock may be wrong.

    python -m benchmarks.faults.disturbed command run job.yaml --dir DIR

starts agents by this module too.
"""

import mmap
import os
import struct
import sys
import time
from pathlib import Path

from benchmarks.faults.plan import CLOCK_VARIABLE

from shardwise.cli import app
from shardwise.launcher import agent_main, local
from shardwise.launcher.agent import config

MODULE = "benchmarks.faults.disturbed"
_TRAINER = "benchmarks.faults.trainer"


def take_the_wrong_clock() -> None:
    """Have this process's Python read a wall clock that is off by what a file says at that moment, if one is named."""
    if (named := os.environ.get(CLOCK_VARIABLE)) is None:
        return
    with Path(named).open("rb") as file:
        shift = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    right = time.time
    time.time = lambda: right() + float(struct.unpack_from("d", shift)[0])


def main() -> None:
    """Be an agent or the command."""
    take_the_wrong_clock()
    kind = sys.argv.pop(1)
    config.TRAINER = (sys.executable, "-m", _TRAINER)
    local.AGENT = (sys.executable, "-m", MODULE, "agent")
    {"agent": agent_main.main, "command": app.main}[kind]()


if __name__ == "__main__":
    main()

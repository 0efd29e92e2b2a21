"""`shardwise run` as the tests start it: the real command, with fake trainers and, unless it is given "ray", no Ray.

python command.py JOB DIR [ray]
"""

import errno
import json
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.text import Text

from shardwise.job.load import load
from shardwise.job.resolve import resolve
from shardwise.launcher import local
from shardwise.launcher.agent import config
from shardwise.launcher.system import processes
from shardwise.launcher.system.consoles import consoles
from shardwise.protocol.errors import ShardwiseError
from shardwise.protocol.run_status import RunStatus

HERE = Path(__file__).parent


def main() -> None:
    """Run the job."""
    job, directory, *ray = sys.argv[1:]
    local.STOPPED_SECONDS = 1.0
    config.TRAINER = (sys.executable, str(HERE / "fake_trainer.py"))
    if not ray:
        local.AGENT = (sys.executable, str(HERE / "stand_in_agent.py"))
    asked = json.loads((Path(directory) / "fake.json").read_text())
    if asked.get("lineFails"):
        patch("shardwise.launcher.output.status_line", no_line).start()
    if (hosts := asked.get("agentStarts")) is not None:
        patch("shardwise.launcher.system.processes.start", starting(hosts)).start()
    try:
        resolved, (console, errors) = resolve(load(Path(job))), consoles()
        sys.exit(local.run(resolved, Path(directory), fork=False, step=None, console=console, errors=errors))
    except ShardwiseError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


def starting(times: int) -> Callable[..., Awaitable[Process]]:
    """Return what starts a process so many times, and then has no memory for another one."""
    start, left = processes.start, iter(range(times))

    async def limited(*command: str, **options: Any) -> Process:
        if next(left, None) is None:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return await start(*command, **options)

    return limited


def no_line(status: RunStatus) -> Text:
    """Fail, in the place of the line of a status."""
    raise TypeError(f"no line of {status.name}")


if __name__ == "__main__":
    main()

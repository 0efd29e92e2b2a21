"""What an agent starts for an own program: `python -m shardwise.launcher.agent.program`. It becomes the program.

It waits for its orders as a trainer does (`shardwise.protocol.orders`), sets the program's variables and folder, and
executes it in its own place: so the program is the agent's child, in a session of its own, with the agent's log as its
output. The kernel ends it when the agent ends.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from shardwise.job.load import load_own
from shardwise.job.spec import Program
from shardwise.job.spec.program import command_of
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.orders import wait_for_orders
from shardwise.protocol.parent import default_signals, end_with
from shardwise.protocol.program import variables, without_place


def main() -> None:
    """Wait for orders, and become the program."""
    agent = os.getppid()
    orders = wait_for_orders()
    if orders is None:
        return
    job = load_own(Path(orders.job_file))
    program = job.spec.program
    assert program is not None, "agents start this for jobs with a program"
    told = variables(job.metadata.name, orders, hang_after_seconds=job.spec.recovery.hang_after.seconds)
    end_with(agent)
    _become(program, {**without_place(os.environ), "PYTHONUNBUFFERED": "1", **told, **program.env})


def _become(program: Program, environment: Mapping[str, str]) -> None:
    command = command_of(program)
    if program.module is not None:
        command[0] = sys.executable
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())  # which was the agent's socket
    if program.workdir is not None:
        with _refused("workdir", program.workdir):
            os.chdir(program.workdir)
    default_signals()
    with _refused("command", command[0]):
        os.execvpe(command[0], command, environment)  # noqa: S606  the program that the job names


@contextmanager
def _refused(field: str, given: str) -> Iterator[None]:
    """End this process with the words for a user, and the exit code of bad input, if the kernel refuses."""
    try:
        yield
    except OSError as error:
        message = f"error: spec.program.{field}: given {given!r}, which this host cannot use: {error.strerror}"
        print(message, file=sys.stderr, flush=True)  # noqa: T201  the program's log
        sys.exit(ExitCode.BAD_INPUT)


if __name__ == "__main__":
    main()

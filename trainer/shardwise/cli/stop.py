"""`shardwise stop`: have a live run save and stop, and wait until it has."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from shardwise.cli.in_cluster import Context, Namespace, job_in_cluster, one_line, readable
from shardwise.cli.live import ask
from shardwise.cli.run_directory import folder
from shardwise.cli.run_files import is_live, refuse_other_directory
from shardwise.launcher.agent.client import NoLeaderError
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import UsageError
from shardwise.protocol.job_status import JobStatus
from shardwise.protocol.leader_record import LeaderRecord

_LOOK_SECONDS = 0.1
_LEADER_SECONDS = 30.0
"""How long a live run may have no leader to be asked: host 0 may be just being replaced."""

Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the run has saved and ended.")]


def _no_url(given: str) -> Path:
    if "://" in given:
        raise UsageError(f"{given}: a run in a bucket is stopped through its cluster; name its job, tj/NAME")
    return folder(given)


Target = Annotated[
    Path, typer.Argument(help="A run directory, or tj/NAME in a cluster.", metavar="DIR|tj/NAME", parser=_no_url)
]


def command(directory: Target, *, wait: Wait = True, namespace: Namespace = None, context: Context = None) -> None:
    """Save a live run, then stop it.

    The same `run` command goes on from there; a job in a cluster is suspended, and `submit` goes on with it.
    """
    console = Console(highlight=False)
    if job := job_in_cluster(directory, namespace, context):
        job.stop()
        console.print("asked to save and stop" + (", waiting for the end" if wait else ""))
        if wait:
            _tell_job(job.wait(), console)
        return
    refuse_other_directory(directory)
    if not is_live(directory):
        raise UsageError(f"{directory}: no run is going on here, so there is nothing to stop")
    _ask(directory)
    console.print("asked to save and stop" + (", waiting for the end" if wait else ""))
    while wait and is_live(directory):
        time.sleep(_LOOK_SECONDS)
    if wait:
        _tell_end(directory, console)


def _tell_job(status: JobStatus, console: Console) -> None:
    """Say how the job has come to rest; exit with 1 if it has failed."""
    console.print(one_line(status), markup=False, soft_wrap=True)
    if status.phase == "Failed":
        Console(stderr=True, highlight=False).print(readable(status.message or ""), markup=False, soft_wrap=True)
        sys.exit(ExitCode.FAILURE)


def _tell_end(directory: Path, console: Console) -> None:
    """Say how the run has ended, which need not be as it was asked to; exit with 1 if it has failed."""
    record = LeaderRecord.read(directory)
    result = record.result if record else None
    if result and result.code in (ExitCode.OK, ExitCode.SAVED):
        console.print(result.message, markup=False, soft_wrap=True)
        return
    why = result.message if result else "its process ended without a word"
    Console(stderr=True, highlight=False).print(f"the run has failed: {why}", markup=False, soft_wrap=True)
    sys.exit(ExitCode.FAILURE)


def _ask(directory: Path) -> None:
    """Ask for the stop; if host 0 is just being replaced, ask its successor."""
    end = time.monotonic() + _LEADER_SECONDS
    while True:
        try:
            ask(directory, "POST", "/stop")
        except NoLeaderError as error:
            if not is_live(directory):
                return
            if time.monotonic() >= end:
                raise UsageError(
                    f"a live run holds {directory}, but its leader cannot be asked ({error}); "
                    "stop it on its machine, as its user"
                ) from error
            time.sleep(_LOOK_SECONDS)
        else:
            return

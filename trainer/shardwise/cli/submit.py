"""`shardwise submit`: a job into a cluster, as `kubectl apply` would, checked here first."""

import sys
from typing import Annotated

import typer
from rich.console import Console

from shardwise.cli.command import JobFile, Overrides
from shardwise.cli.in_cluster import Context, Namespace, cluster, one_line, readable
from shardwise.protocol.contract import ExitCode

Wait = Annotated[bool, typer.Option("--wait", help="Show how it goes on, until it is complete, failed or suspended.")]


def command(
    job_file: JobFile,
    overrides: Overrides = None,
    *,
    namespace: Namespace = None,
    context: Context = None,
    wait: Wait = False,
) -> None:
    """Submit a job to a cluster, or go on with one that was stopped.

    The file is checked here, then by the API server. With --wait the exit code is 1 if the job fails, 80 if it is
    suspended, and 2 if the cluster refuses to tell, or is away for five minutes. Ctrl-C ends the waiting and leaves the
    job alone.
    """
    console = Console(highlight=False)
    job = cluster(namespace, context).submit(job_file, overrides or [])
    console.print(f"tj/{job.name} submitted to namespace {job.namespace}", markup=False, soft_wrap=True)
    if not wait:
        return
    for status in job.follow():
        console.print(one_line(status), markup=False, soft_wrap=True)
    if status.phase != "Complete":
        console.print(readable(status.message or ""), markup=False, soft_wrap=True)
        sys.exit(ExitCode.SAVED if status.phase == "Suspended" else ExitCode.FAILURE)

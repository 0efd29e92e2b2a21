"""`shardwise logs`: what the trainers of a run wrote, by attempt and host, also while they write it."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from shardwise.cli.in_cluster import Context, Namespace, job_in_cluster
from shardwise.cli.run_directory import Fetched, RunWithLogsOrJob, shown
from shardwise.cli.run_files import is_live, refuse_other_directory
from shardwise.launcher.system.lines import GrowingLog
from shardwise.protocol.bounded_log import whole_log
from shardwise.protocol.contract import LOGS, log_path
from shardwise.protocol.errors import UsageError

_FOLDER = re.compile(r"attempt-(\d+)")
_LOOK_SECONDS = 0.2

Host = Annotated[int, typer.Option("--host", min=0, help="The host whose trainer wrote it.", metavar="N")]
AttemptOption = Annotated[
    int | None,
    typer.Option("--attempt", min=0, help="Which start of the processes, from 0; else the newest.", metavar="M"),
]
Follow = Annotated[
    bool,
    typer.Option("--follow", "-f", help="Go on with what is written, in later attempts too, until the run ends."),
]


def command(
    directory: RunWithLogsOrJob,
    *,
    host: Host = 0,
    attempt: AttemptOption = None,
    follow: Follow = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Print the log of one trainer process.

    The logs of processes that were killed are kept in the run directory. Of a job in a cluster the log is the newest
    pod's.
    """
    if job := job_in_cluster(directory, namespace, context):
        if attempt is not None:
            raise UsageError(f"{directory}: --attempt goes with a run directory, which has the logs of all attempts")
        for line in job.logs(host, follow=follow):
            typer.echo(line, nl=False)
        return
    refuse_other_directory(directory)
    if follow and Fetched.read(directory):
        raise UsageError(
            f"{shown(directory)}: a bucket tells of no new lines; follow the job in its cluster: tj/NAME -f"
        )
    there = _attempts(directory)
    wanted = max(there, default=0) if attempt is None else attempt
    path = log_path(directory, wanted, host)
    if not path.is_file():
        why = _missing(directory, wanted, host, there)
        # A run that has only just begun has no log yet, but will have one.
        if not (follow and attempt is None and is_live(directory)):
            raise UsageError(why)
        typer.echo(f"{why}; waiting for it, as the run is live", err=True)
    if follow:
        for text in _followed(directory, wanted, host):
            typer.echo(text, nl=False)
    else:
        typer.echo(whole_log(path).decode("utf-8", "replace"), nl=False)


def _missing(directory: Path, attempt: int, host: int, there: list[int]) -> str:
    """Return that a host has no log in an attempt, and which logs there are."""
    folder = log_path(directory, attempt, host).parent
    hosts = sorted(int(log.stem.removeprefix("host-")) for log in folder.glob("host-*.log"))
    return (
        f"{shown(directory)}: no log of host {host} in attempt {attempt}; there are "
        f"attempts {', '.join(map(str, there)) or 'none'}"
        + (f", and in this one hosts {', '.join(map(str, hosts))}" if hosts else "")
    )


def _followed(directory: Path, attempt: int, host: int) -> Iterator[str]:
    """Yield a host's log from this attempt on as it grows, with a line before each later attempt."""
    file = GrowingLog(log_path(directory, attempt, host))
    while True:
        # In this order: an attempt's last lines are read after it is known that another one, or the end, has come.
        live, later = is_live(directory), [number for number in _attempts(directory) if number > attempt]
        yield from (f"{line}\n" for line in file.lines())
        if later:
            yield from _rest(file)
            attempt = min(later)
            file = GrowingLog(log_path(directory, attempt, host))
            yield f"==> attempt {attempt} <==\n"
        elif live:
            time.sleep(_LOOK_SECONDS)
        else:
            yield from _rest(file)
            return


def _rest(file: GrowingLog) -> Iterator[str]:
    """Yield the line that a killed process did not complete."""
    if rest := file.rest():
        yield f"{rest}\n"


def _attempts(directory: Path) -> list[int]:
    matches = (_FOLDER.fullmatch(folder.name) for folder in (directory / LOGS).glob("attempt-*"))
    return sorted(int(match[1]) for match in matches if match)

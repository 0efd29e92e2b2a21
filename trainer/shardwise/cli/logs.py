"""`shardwise logs`: what the trainers of a run wrote, by attempt and host."""

import re
from pathlib import Path
from typing import Annotated

import typer

from shardwise.cli.command import RunDir
from shardwise.cli.run_files import refuse_other_directory
from shardwise.protocol.contract import LOGS, log_path
from shardwise.protocol.errors import UsageError

_FOLDER = re.compile(r"attempt-(\d+)")

Host = Annotated[int, typer.Option("--host", min=0, help="The host whose trainer wrote it.", metavar="N")]
AttemptOption = Annotated[
    int | None,
    typer.Option("--attempt", min=0, help="Which start of the processes, from 0; else the newest.", metavar="M"),
]


def command(directory: RunDir, *, host: Host = 0, attempt: AttemptOption = None) -> None:
    """Print the log of one trainer process.

    The logs of processes that were killed are kept.
    """
    refuse_other_directory(directory)
    there = _attempts(directory)
    wanted = max(there, default=0) if attempt is None else attempt
    path = log_path(directory, wanted, host)
    if not path.is_file():
        hosts = sorted(int(log.stem.removeprefix("host-")) for log in path.parent.glob("host-*.log"))
        raise UsageError(
            f"{directory}: no log of host {host} in attempt {wanted}; there are "
            f"attempts {', '.join(map(str, there)) or 'none'}"
            + (f", and in this one hosts {', '.join(map(str, hosts))}" if hosts else "")
        )
    typer.echo(path.read_text(encoding="utf-8", errors="replace"), nl=False)


def _attempts(directory: Path) -> list[int]:
    matches = (_FOLDER.fullmatch(folder.name) for folder in (directory / LOGS).glob("attempt-*"))
    return sorted(int(match[1]) for match in matches if match)

"""`shardwise page`: a run as one HTML file, made from its directory, whose cluster may be gone. No JAX."""

from pathlib import Path
from typing import Annotated

import typer

from shardwise.cli.run_directory import Fetched, RunDirWithLogs
from shardwise.cli.run_files import committed_steps, refuse_other_directory, status_of
from shardwise.page.gather import gather
from shardwise.page.render import render
from shardwise.protocol.contract import PAGE
from shardwise.protocol.errors import UsageError
from shardwise.protocol.files import replace_file

Out = Annotated[
    Path | None,
    typer.Option(
        "--out", help=f"The file to write, - for the output; else DIR/{PAGE}, or of a URL ./{PAGE}.", metavar="FILE"
    ),
]
_OUTPUT = Path("-")


def command(directory: RunDirWithLogs, *, out: Out = None) -> None:
    """Write a run as one HTML page, from its directory alone.

    It shows curves, goodput, attempts, hosts, checkpoints and logs; of a live run as they are at this moment.
    """
    refuse_other_directory(directory)
    status, live = status_of(directory)
    fetched = Fetched.read(directory)
    document = gather(
        directory,
        url=fetched.url if fetched else None,
        status=status,
        live=live,
        checkpoints=lambda root: committed_steps(root)[0],
    )
    text = render(document)
    if out == _OUTPUT:
        typer.echo(text, nl=False)
        return
    path = out or (Path(PAGE) if fetched else directory / PAGE)
    try:
        if path.exists() and not path.is_file():  # a pipe or a device, whose place a file would take
            path.write_text(text, encoding="utf-8")
        else:
            replace_file(path.resolve(), text, durable=False)  # a link stays one
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}); give another place with --out") from error
    typer.echo(f"{path}  {len(text.encode()) / 1024:.0f} KiB; open it in a browser")

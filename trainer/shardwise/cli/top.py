"""`shardwise top`: a run in the terminal, anew every second or two, until it ends. No JAX, and nothing is changed."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from shardwise.cli.run_directory import RunDir
from shardwise.cli.run_files import is_live, refuse_other_directory, status_of
from shardwise.cli.screen import Size, screen
from shardwise.page.curves import Metrics
from shardwise.page.gather import gather
from shardwise.protocol.contract import METRICS

Every = Annotated[
    float, typer.Option("--every", min=0.1, max=3600, help="Seconds between two looks at the run.", metavar="SECONDS")
]


def command(directory: RunDir, *, every: Every = 2.0) -> None:
    """Watch a run in the terminal: loss, speed, goodput, hosts.

    It ends with the run, or with Ctrl-C, which leaves the run alone. Into a pipe the screen is printed once.
    """
    refuse_other_directory(directory)
    console = Console(highlight=False)
    metrics = Metrics(directory / METRICS)
    if console.is_terminal and is_live(directory):
        try:
            _watch(directory, metrics, console, every)
        except KeyboardInterrupt:
            return
    console.print(_look(directory, metrics, console))


def _watch(directory: Path, metrics: Metrics, console: Console, every: float) -> None:
    """Show the run on a screen of its own until it has ended; what was on the terminal before is there afterwards."""
    with Live(console=console, screen=True, auto_refresh=False) as shown:
        while is_live(directory):
            shown.update(_look(directory, metrics, console), refresh=True)
            time.sleep(every)


def _look(directory: Path, metrics: Metrics, console: Console) -> RenderableType:
    """Return the run as it is now. Checkpoints in a bucket are not listed: what the run itself has noted is enough.

    Nor are logs, which no part of the screen shows.
    """
    status, live = status_of(directory)
    document = gather(directory, status=status, live=live, metrics=metrics, logs=False)
    return screen(document, live, Size(console.width, console.height))

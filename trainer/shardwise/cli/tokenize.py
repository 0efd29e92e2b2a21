"""`shardwise tokenize`: turn text into token stores that any number of jobs train on.

Tasks of Ray do the work. What is there already is not made again, so a command that was killed is given again.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from shardwise.cli.command import of_trainer, trainer_imports
from shardwise.job.document import read_document
from shardwise.job.load import check
from shardwise.job.spec.data import Data
from shardwise.job.validate import validate_as
from shardwise.protocol.eta import megabytes

if TYPE_CHECKING:  # both import numpy
    from shardwise.train.data.store_builder import Built, Run

_LINES = 10  # for each thing that is done, where no bar can be shown

DataFile = Annotated[
    Path, typer.Argument(help="A file with the data section of a job, or a whole job file.", metavar="DATA.YAML")
]
To = Annotated[
    str,
    typer.Option("--to", help="Where the stores are made: a folder that all hosts see, gs:// or s3://.", metavar="DIR"),
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes at once; left out, one for each core.", metavar="N")
]
RayAddress = Annotated[
    str | None,
    typer.Option("--ray-address", help="Use the hosts of this Ray cluster, not this machine.", metavar="HOST:PORT"),
]


def command(data_file: DataFile, to: To = "tokens", workers: Workers = None, *, ray_address: RayAddress = None) -> None:
    """Tokenise text once for many jobs.

    Each source becomes a store, whose folder stands for the source's paths in a job. A store that is there is not made
    again; a command that was killed goes on where it was when it is given again, and several at once share the work.
    """
    data = _data(data_file)
    with trainer_imports():
        from shardwise.train.data.store_builder import build

    console = Console(highlight=False, soft_wrap=True)
    with _runner(workers, ray_address) as run, _Shown(console) as shown:
        stores = build(data, to, run=run, progress=shown)
    for store in stores:
        console.print(escape(_summary(store)))
    console.print("in a job, each of them stands for the paths of its source:")
    for store in stores:
        console.print(escape(f"  - {{name: {store.name}, paths: [{store.url}]}}"))


def _data(path: Path) -> Data:
    document = read_document(path)
    if "apiVersion" in document.data:
        return of_trainer(check(document)).spec.training.data
    return validate_as(Data, document)


@contextmanager
def _runner(workers: int | None, ray_address: str | None) -> "Iterator[Run]":
    with trainer_imports():
        from shardwise.launcher.ray.private import LONGEST_SOCKET_ALONE
        from shardwise.launcher.ray.tasks import tasks_here, tasks_of_cluster
        from shardwise.launcher.scratch import scratch_folder

    cores = workers or len(os.sched_getaffinity(0))
    with ExitStack() as stack:
        if ray_address is not None:
            yield stack.enter_context(tasks_of_cluster(ray_address, workers))
        elif cores == 1:
            yield map  # Ray would only start a second process
        else:
            scratch = stack.enter_context(scratch_folder(LONGEST_SOCKET_ALONE))
            yield stack.enter_context(tasks_here(cores, scratch))


def _summary(store: "Built") -> str:
    parts = store.index.parts
    documents = sum(part.train_documents + part.held_out_documents for part in parts)
    tokens = sum(part.train_tokens + part.held_out_tokens for part in parts)
    made = f"{store.num_made:,} of them made now" if store.num_made else "all of them there already"
    removed = store.index.num_removed
    without = "" if removed is None else f", without {removed:,} that repeat earlier ones"
    return f"{store.name}: {documents:,} documents{without}, {tokens:,} tokens in {len(parts):,} parts, {made}"


class _Shown:
    """Progress on the terminal: a bar, or a line for each tenth where it is no terminal."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"))
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self._console = console
        self._doing = ""
        self._bar: TaskID | None = None
        self._began_seconds = 0.0
        self._tenths = 0

    def __enter__(self) -> Self:
        """Show the bars."""
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the bars as they are."""
        self._bars.stop()

    def __call__(self, doing: str, before_bytes: int, done_bytes: int, of_bytes: int) -> None:
        """Show how far it is: `before_bytes` were done by an earlier command."""
        if doing != self._doing:
            self._doing, self._began_seconds, self._tenths = doing, time.monotonic(), 0
            self._bar = self._bars.add_task(doing, total=of_bytes, words="")
        assert self._bar is not None
        seconds = time.monotonic() - self._began_seconds
        words = megabytes(done_bytes, of_bytes, (done_bytes - before_bytes) / seconds if seconds > 0 else None)
        self._bars.update(self._bar, completed=done_bytes, words=words)
        tenths = _LINES * done_bytes // max(1, of_bytes)
        if not self._console.is_terminal and (tenths > self._tenths or done_bytes == before_bytes):
            self._tenths = tenths
            self._console.print(escape(f"{doing}: {words}"))

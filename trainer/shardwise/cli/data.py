"""`shardwise data`: which sequences a step of a run is trained on, and what is written in them. No JAX."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shardwise.cli.command import Json, trainer_imports
from shardwise.cli.run_directory import RunDir
from shardwise.cli.run_files import job_of
from shardwise.job.spec import Training
from shardwise.protocol.cache import cache_directory
from shardwise.protocol.errors import UsageError

if TYPE_CHECKING:  # it imports numpy
    from shardwise.train.data.dataset import Dataset

_SHOWN_CHARS = 60

Of = Annotated[int, typer.Option("--step", min=1, help="The step, counted from 1.", metavar="N")]


def command(directory: RunDir, *, step: Of, as_json: Json = False) -> None:
    """Show the sequences that a step of a run is trained on.

    Each has its source, its number there, which the source's leaveOut takes, and the beginning of its text; --json has
    all of it.
    """
    training = job_of(directory).spec.training
    if step > training.steps:
        raise UsageError(f"--step: given {step}, expected 1 to {training.steps}, the steps of the run")
    console = Console(highlight=False, soft_wrap=True)
    errors = Console(stderr=True, highlight=False, soft_wrap=True, style="dim")
    with trainer_imports():
        from shardwise.train.data.dataset import Reading, prepare
        from shardwise.train.data.opening import Watch

    reading = Reading.of(training)
    watch = Watch(report=lambda line: errors.print(line, markup=False))
    data = prepare(training.data, reading, cache_root=cache_directory(), watch=watch)
    number, part = _batch(directory, training, step)
    rows = list(_rows(data, range(reading.sizes.before(part), reading.sizes.before(part + 1))))
    if as_json:
        typer.echo(json.dumps({"step": step, "batch": number, "sequences": rows}, ensure_ascii=False, indent=2))
        return
    console.print(_table(step, number, rows))


def _batch(directory: Path, training: Training, step: int) -> tuple[int, int]:
    """Return the number that leaveOut takes, and which part of all batches is the step's: the same, without updates."""
    from shardwise.train.data.order import batch_number
    from shardwise.train.run_directory import RunDirectory

    left_out = RunDirectory(directory, 0).read_left_out()
    group, at = divmod(step - 1, training.updates)
    number = batch_number(group, {*training.data.leave_out, *left_out})
    return number, number * training.updates + at


def _rows(data: "Dataset", samples: range) -> Iterator[dict[str, Any]]:
    import numpy as np

    sources, sequences = data.train.locate(np.asarray(samples))
    for row, (source, sequence) in enumerate(zip(sources.tolist(), sequences.tolist(), strict=True)):
        tokens, num_targets = data.train.read(source, sequence)
        yield {
            "row": row,
            "source": data.sources[source].name,
            "sequence": sequence,
            "targets": num_targets,
            "text": data.tokenizer.decode(tokens.tolist()),
        }


def _table(step: int, batch: int, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=f"step {step}, batch {batch}", title_justify="left")
    for column in ("row", "source", "sequence", "targets", "text"):
        table.add_column(column, justify="left" if column in ("source", "text") else "right", overflow="fold")
    for row in rows:
        text = repr(row["text"][:_SHOWN_CHARS])
        table.add_row(str(row["row"]), escape(row["source"]), str(row["sequence"]), str(row["targets"]), escape(text))
    return table

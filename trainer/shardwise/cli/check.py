"""`shardwise check`: is a job file right, what does it ask for, and what may it contain.

Reads the job file and nothing else: no data, no JAX.
"""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shardwise.cli.command import Overrides
from shardwise.job.adapter_sizes import adapter_parameters
from shardwise.job.batch_sizes import BatchSizes
from shardwise.job.device_words import slices_words
from shardwise.job.explain import FieldRow, rows
from shardwise.job.load import dump, load
from shardwise.job.resolve import resolve
from shardwise.job.sizes import num_parameters, num_parameters_of_a_token
from shardwise.job.spec import Model, Training, TrainingJob
from shardwise.job.spec.program import command_of
from shardwise.job.topology import mesh_shape, num_devices, num_hosts
from shardwise.protocol.errors import UsageError

JobFile = Annotated[
    Path | None, typer.Argument(help="The job file; may be left out with --explain.", metavar="JOB.YAML")
]
Explain = Annotated[
    bool, typer.Option("--explain", help="List every field of a job file: type, range, unit, default, meaning.")
]
Resolved = Annotated[
    bool, typer.Option("--resolved", help="Print the job with every default written out, as a run keeps it.")
]


def command(
    job_file: JobFile = None, overrides: Overrides = None, *, explain: Explain = False, resolved: Resolved = False
) -> None:
    """Check a job file, and say what it asks for.

    Every mistake is named with its place, what was given and what is expected. Nothing is started and no data is read.
    """
    console = Console(highlight=False)
    job = None if job_file is None else resolve(load(job_file, overrides or []))
    if job is None and not explain:
        raise UsageError("check: no job file was given; expected one, or --explain: shardwise check job.yaml")
    if explain:
        console.print(_reference(rows()))
    elif job is not None and resolved:
        typer.echo(dump(job), nl=False)
    elif job is not None:
        console.print("[bold green]ok[/]")
        console.print(_summary(job))


def _summary(job: TrainingJob) -> Table:
    """Yield what the job asks for, a line each."""
    hardware = job.spec.hardware
    table = Table.grid(padding=(0, 2))
    table.add_row("job", escape(job.metadata.name))
    hosts = f" on {count} hosts" if (count := num_hosts(hardware)) > 1 else ""
    table.add_row("devices", f"{num_devices(hardware)}{hosts} ({slices_words(hardware)})")
    if job.spec.program:
        table.add_row("program", escape(shlex.join(command_of(job.spec.program))))
    else:
        _add_training(table, job)
    return table


def _add_training(table: Table, job: TrainingJob) -> None:
    training, mesh = job.spec.training, mesh_shape(job)
    assert mesh is not None, "the rules have passed the mesh"
    tokens = training.batch.sequences * (training.model.seq_len or 0)
    table.add_row("mesh", mesh.words)
    table.add_row("model", _model_size(training.model) + _adapters(training))
    table.add_row("a step", f"{training.batch.sequences:,} sequences x {training.model.seq_len:,} = {tokens:,} tokens")
    for part in training.batch.ramp_up:
        table.add_row("", f"{part.sequences:,} sequences up to step {part.until_step:,}")
    sizes = BatchSizes.of(training.batch.sequences, training.batch.ramp_up)
    all_tokens = sizes.before(training.steps) * (training.model.seq_len or 0)
    table.add_row("steps", f"{training.steps:,} ({all_tokens:,} tokens)")


def _model_size(model: Model) -> str:
    if model.vocab_size is not None:
        one = num_parameters_of_a_token(model, model.vocab_size)
        of_a_token = f", {one:,} for each token" if model.experts else ""
        return f"{num_parameters(model, model.vocab_size):,} parameters{of_a_token}"
    without = num_parameters(model, 0)
    each = num_parameters(model, 1) - without
    return f"{without:,} parameters, and {each:,} for each token of the tokenizer's file"


def _adapters(training: Training) -> str:
    count = adapter_parameters(training.model, training.lora)
    return "" if count is None else f"; {count:,} in adapters, which are trained"


def _reference(fields: list[FieldRow]) -> Table:
    """Print two columns, because a path takes half of an 80-column terminal; a line between sections."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("field", no_wrap=True, style="bold")
    table.add_column("meaning\ntype, range (unit); default", overflow="fold")
    for field, after in zip(fields, [*fields[1:], None], strict=True):
        last = after is None or _section(after) != _section(field)
        table.add_row(field.path, escape(f"{field.description}\n{_takes(field)}"), end_section=last)
    return table


def _section(field: FieldRow) -> str:
    return field.path.rpartition(".")[0]


def _takes(field: FieldRow) -> str:
    bounds = f" {field.range}" if field.range else ""
    unit = f" ({field.unit})" if field.unit and field.unit != field.type else ""
    default = "required" if field.default == "required" else f"default: {field.default}"
    return f"{field.type}{bounds}{unit}; {default}"

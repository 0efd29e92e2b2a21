"""`shardwise evaluate`: the loss of a run's checkpoint on text, set by set and each to its last token.

Reads the run's job and the parameters of one checkpoint. Results go to standard output, what the command is doing to
standard error.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from shardwise.cli.command import Average, Json, Overrides, Step, check_average, trainer_imports
from shardwise.cli.fallback_job import on_this_machine
from shardwise.cli.run_directory import RunDir
from shardwise.cli.run_files import is_live, job_of, report_refused, root_of
from shardwise.job import environment
from shardwise.job.spec import Training, TrainingJob
from shardwise.job.topology import mesh_shape
from shardwise.protocol.cache import cache_directory
from shardwise.protocol.errors import NonFiniteError, UsageError

_FORMATS = {
    "loss": "{:.4f}",
    "perplexity": "{:,.3f}",
    "accuracy": "{:.2%}",
    "accuracyNorm": "{:.2%}",
    "tokens": "{:,.0f}",
    "pairs": "{:,.0f}",
    "answers": "{:,.0f}",
    "questions": "{:,.0f}",
    "reward": "{:.4f}",
    "completionTokens": "{:,.1f}",
    "cutCompletions": "{:.2%}",
    "prompts": "{:,.0f}",
}

_PAIRS = ("pairs of answers", "pairs", "preferences")

if TYPE_CHECKING:  # all import JAX
    from shardwise.cli.saved_model import Model
    from shardwise.train.data.evaluation_sets import Evaluated
    from shardwise.train.evaluation import Rewarded


def command(
    directory: RunDir,
    *,
    step: Step = None,
    average: Average = False,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Measure loss, perplexity and accuracy of a run's model.

    The sets are the job's held-out documents and its training.evaluation.sets, or those that --set gives; all of each
    is read. Of a run that learns preferences it is loss and accuracy over its pairs or answers, and of sets with
    questions: true how many are answered right. Prompts of a run that learns from rewards are completed and rewarded as
    the run does. The model runs on the GPUs or TPU chips that the run's job names where this machine has them, or else
    on the processor.
    """
    asked = job_of(directory, overrides or ())
    check_average(asked, asked=average)
    training = asked.spec.training
    if not training.data.held_out and not training.evaluation.sets:
        raise UsageError(
            f"{directory}: its job has neither data.heldOut nor training.evaluation.sets; name {_named(training)}"
        )
    console = Console(stderr=True, highlight=False, soft_wrap=True, style="dim")
    job = _in_batches(asked, on_this_machine(asked, live=is_live(directory), tell=console.print))
    environment.apply(job)
    console.print("loading the model ...")
    with trainer_imports():
        from shardwise.cli.saved_model import load_model, load_with_reference
        from shardwise.train.origin import AVERAGES, PARAMS

    sets = list(_sets(job, console))
    load = load_with_reference if training.learns_preferences and training.has_reference else load_model
    part = AVERAGES if average else PARAMS
    model = load(job, root_of(job, directory), step=step, report=partial(report_refused, console), part=part)
    console.print(f"checkpoint of step {model.step}; compiling ...")
    with _rewarding(job, model, sets, training, console) as rewarded:
        results = dict(_results(model, sets, rewarded, console))
    if as_json:
        typer.echo(json.dumps({"step": model.step, "sets": results}, indent=2))
    else:
        for table in _tables(model.step, results):
            Console(highlight=False).print(table)


def _named(training: Training) -> str:
    """Return what can be evaluated on, and how it is named."""
    if training.learns_preferences:
        source = training.data.train[0]
        what, name, kind = ("answers", "answers", "labels") if source.labels else _PAIRS
        one = f"{{name: {name}, paths: [{name}.jsonl], chatTemplate: {source.chat_template}, {kind}: true}}"
    else:
        what, one = "text", "{name: books, paths: [books.txt]}"
    return f"{what} to evaluate on: --set 'training.evaluation.sets=[{one}]'"


def _in_batches(asked: TrainingJob, here: TrainingJob) -> TrainingJob:
    """Return the job with as many sequences on each device at once as a microbatch of the run has, in one piece."""
    training = here.spec.training
    there, mesh = mesh_shape(asked), training.mesh.model_copy(update={"context": 1})
    training = training.model_copy(update={"mesh": mesh})
    here = here.with_spec(training=training)
    shape, batch = mesh_shape(here), asked.spec.training.batch
    assert there is not None
    assert shape is not None, "the job was checked, and each device is one of data, tensor and replica"
    rows = batch.sequences // (there.data * there.replica * batch.microbatches)
    small = batch.model_copy(update={"sequences": rows * shape.data * shape.replica, "microbatches": 1})
    training = training.model_copy(update={"batch": small})
    return here.with_spec(training=training)


def _sets(job: TrainingJob, console: Console) -> "Iterator[Evaluated]":
    from shardwise.train.data.evaluation_sets import open_held_out, open_sets
    from shardwise.train.data.opening import Watch

    training = job.spec.training
    assert training.model.seq_len is not None, "the job is resolved"
    given: dict[str, Any] = {
        "seq_len": training.model.seq_len,
        "cache_root": cache_directory(),
        "watch": Watch(report=partial(console.print, markup=False), beat=lambda: None),
    }
    completion = training.reinforcement.max_tokens if training.reinforcement else 0
    if training.data.held_out > 0:
        yield open_held_out(training.data, completion_tokens=completion, **given)
    packs = training.model.position == "rotary"
    sets = training.evaluation.sets
    yield from open_sets(sets, training.data, most=None, packs=packs, completion_tokens=completion, **given)


@contextmanager
def _rewarding(
    job: TrainingJob, model: "Model", sets: "list[Evaluated]", run: Training, console: Console
) -> "Iterator[Rewarded | None]":
    """Yield what rewards completions of prompts; None if there are no prompts."""
    if not any(one.has_prompts for one in sets):
        yield None
        return
    from shardwise.cli.evaluated_prompts import rewarding

    with rewarding(job, model.program, sets, run, console) as rewarded:
        yield rewarded


def _results(
    model: "Model", sets: "list[Evaluated]", rewarded: "Rewarded | None", console: Console
) -> Iterator[tuple[str, dict[str, float]]]:
    from shardwise.train.evaluation import Evaluator, Programs, asked_for
    from shardwise.train.loader import Loader

    program, size = model.program, model.program.training.batch.sequences
    loader = partial(Loader, layout=program.layout, sequences=size, seq_len=program.config.seq_len)
    programs = Programs(**{name: lower(program).compile() for name, lower in asked_for(program.training).items()})
    for one in sets:
        if one.has_prompts:
            assert rewarded is not None, "there are prompts"
            yield one.name, rewarded(model.params, one)
            continue
        with _progress(console, one.name, one.num_batches(size)) as advance:
            means = Evaluator(programs, model.params, loader, advance, program.training.has_unmatched).means(one)
        if not math.isfinite(means["loss"]):
            raise NonFiniteError(
                f"{one.name}: the loss is not a number, so the parameters of step {model.step} are not; give another "
                "checkpoint with --step"
            )
        if "questions" in means:
            yield one.name, means
        elif one.is_judged:
            counted = "answers" if program.training.has_unmatched else "pairs"
            yield one.name, {"loss": means["loss"], "accuracy": means["accuracy"], counted: means["tokens"]}
        else:
            yield one.name, {"loss": means["loss"], "perplexity": _perplexity(means["loss"]), **means}


@contextmanager
def _progress(console: Console, name: str, num_batches: int) -> "Iterator[Any]":
    """Yield what counts a batch: on a terminal as a bar, else a line says how many there are."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    if not console.is_terminal:
        console.print(f"evaluating {name}: {num_batches:,} batches", markup=False)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        bar = bars.add_task(f"evaluating {name}", total=num_batches)
        yield partial(bars.advance, bar)


def _perplexity(loss: float) -> float:
    """Return e to the loss, as far as a float can hold it."""
    return math.exp(min(loss, 700.0))


def _tables(step: int, results: Mapping[str, Mapping[str, float]]) -> Iterator[Table]:
    """Yield a table of the sets of text, and one each of those of pairs or answers, of questions, and of prompts."""
    kinds = ("prompts", "questions", "pairs", "answers", "tokens")  # of questions there are tokens, too
    for kind in reversed(kinds):
        found = {
            name: values for name, values in results.items() if next(each for each in kinds if each in values) == kind
        }
        if found:
            yield _table(f"step {step}, means over {kind}", found, list(next(iter(found.values()))))


def _table(title: str, results: Mapping[str, Mapping[str, float]], columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("set", *columns):
        table.add_column(column, justify="left" if column == "set" else "right")
    for name, found in results.items():
        table.add_row(name, *(_FORMATS[column].format(found[column]) for column in columns))
    return table

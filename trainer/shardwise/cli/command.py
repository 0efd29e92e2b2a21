"""What commands share: arguments and options, and the boundary to those that train or read weights, which need JAX."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from shardwise.job.spec import TrainingJob
from shardwise.protocol.errors import UsageError

JobFile = Annotated[Path, typer.Argument(help="The job file.", metavar="JOB.YAML")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change a field of the job, e.g. training.steps=500. Give it as often as you like. A key with dots is "
        "quoted: --set 'metadata.labels.\"a.b/c\"=d'.",
        metavar="PATH=VALUE",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead; null is what is not known.")]
Step = Annotated[
    int | None,
    typer.Option("--step", min=0, help="The checkpoint of this step instead of the newest usable one.", metavar="N"),
]

Average = Annotated[
    bool,
    typer.Option("--average", help="The average of the weights (optimizer.average) in the place of the last ones."),
]


def of_trainer(job: TrainingJob) -> TrainingJob:
    """Return the job if the trainer runs it; UsageError if an own program does, of whose models nothing is known."""
    if job.spec.training_if_any is None:
        raise UsageError(
            f"{job.metadata.name}: this job runs an own program (spec.program); this command works on models of the "
            "trainer, which have a training section"
        )
    return job


def check_average(job: TrainingJob, *, asked: bool) -> None:
    """Refuse --average for a job that keeps none."""
    if asked and job.spec.training.optimizer.average is None:
        raise UsageError(
            f"--average: {job.metadata.name} keeps no average of its weights; expected training.optimizer.average in "
            "its job, such as {decay: 0.999}; without --average the last weights are taken"
        )


@contextmanager
def trainer_imports(extras: str = "train") -> Iterator[None]:
    """Import the trainer inside this block: if its libraries are not installed, raise an error that says so.

    Raises:
        UsageError: a library of these extras is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "shardwise":
            raise
        raise UsageError(
            f"this command trains or reads weights and needs {error.name}, which is not installed; "
            f'install the trainer: pip install "shardwise[{extras}]"'
        ) from error

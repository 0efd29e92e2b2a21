"""`shardwise run`: train a job in a run directory on this machine, or go on with what is there.

The launcher does the work: hosts of `cpu-sim` are simulated here, one host of GPUs or TPU chips is this machine. This
process imports neither JAX nor Ray.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from shardwise.cli.command import JobFile, Overrides, trainer_imports
from shardwise.job.load import load
from shardwise.job.resolve import resolve

Directory = Annotated[
    Path, typer.Option("--dir", help="The run directory; made if needed. A run that is there goes on.", metavar="DIR")
]
Fork = Annotated[
    bool,
    typer.Option("--fork", help="Go on from the newest checkpoint as a new run, though what the run is has changed."),
]
StartStep = Annotated[
    int | None,
    typer.Option(
        "--step", min=0, help="Start from the checkpoint of this step instead of the newest usable one.", metavar="N"
    ),
]


def command(
    job_file: JobFile, directory: Directory, overrides: Overrides = None, *, fork: Fork = False, step: StartStep = None
) -> None:
    """Train a job here, or go on with the run that is in --dir.

    Devices of cpu-sim are simulated, on any number of hosts. Of GPUs and TPUs a job has one host here, with all the
    devices that JAX finds. A host or a process that dies is replaced, and the run goes on. SIGTERM, Ctrl-C or
    `shardwise stop` saves, then stops; the same command goes on from there.
    """
    job = resolve(load(job_file, overrides or []))
    with trainer_imports():
        from shardwise.launcher.local import run
        from shardwise.launcher.machine import refuse_elsewhere

        if find_spec("jax") is None:  # the trainers import it, this process does not
            raise ModuleNotFoundError(name="jax")

    refuse_elsewhere(job)
    sys.exit(run(job, directory, fork=fork, step=step, console=Console(), errors=Console(stderr=True)))

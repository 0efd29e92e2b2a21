"""`shardwise run`: run a job in a run directory on this machine, or go on with what is there.

The launcher does the work: hosts of `cpu-sim` are simulated here, one host of GPUs or TPU chips is this machine. This
process imports neither JAX nor Ray.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from shardwise.cli.command import Overrides, trainer_imports
from shardwise.job.load import load
from shardwise.job.own_program import job_of_command
from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob
from shardwise.protocol.cache import refuse_unusable_cache
from shardwise.protocol.errors import UsageError

_AFTER_DASHES = "shardwise.after-dashes"
What = Annotated[
    list[str],
    typer.Argument(help="The job file; or -- and an own program with its words.", metavar="JOB.YAML | COMMAND..."),
]
Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        help="The run directory; made if needed. A run that is there goes on. Else runs/NAME, by the job or program.",
        metavar="DIR",
    ),
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
Hosts = Annotated[int | None, typer.Option("--hosts", min=1, help="Simulated hosts of a command; else 1.", metavar="N")]
Devices = Annotated[
    int | None, typer.Option("--devices", min=1, help="Simulated devices of each of them; else 1.", metavar="N")
]


class Command(TyperCommand):
    """The command that remembers whether its last word came right after `--`, of which typer itself tells nothing."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Note it down for `command`."""
        ctx.meta[_AFTER_DASHES] = args[-2:-1] == ["--"]
        return super().parse_args(ctx, args)


def command(
    context: typer.Context,
    what: What,
    directory: Directory = None,
    overrides: Overrides = None,
    *,
    fork: Fork = False,
    step: StartStep = None,
    hosts: Hosts = None,
    devices: Devices = None,
) -> None:
    """Run a job or program here, or go on with what is in --dir.

    Devices of cpu-sim are simulated, on any number of hosts. Of GPUs and TPUs a job has one host here, with all the
    devices that JAX finds. A host or a process that dies is replaced, and the run goes on. SIGTERM, Ctrl-C, a closed
    terminal or `shardwise stop` saves, then stops; the same command goes on from there. Under `nohup` a closed terminal
    does not stop it.
    """
    if hosts is not None or devices is not None or _is_program(what, after_dashes=context.meta[_AFTER_DASHES]):
        _refuse_job_file(what)
        if overrides:
            raise UsageError("run: --set changes a job file, and a command has none")
        job = job_of_command(what, hosts=hosts or 1, devices=devices or 1)
    else:
        job = resolve(load(Path(what[0]), overrides or []))
    _refuse_start(job, fork=fork, step=step)
    with trainer_imports():
        from shardwise.launcher.local import run
        from shardwise.launcher.machine import refuse_elsewhere
        from shardwise.launcher.system.consoles import consoles

        if find_spec("jax") is None:  # the trainers import it, this process does not
            raise ModuleNotFoundError(name="jax")

    refuse_elsewhere(job)
    refuse_unusable_cache(trainer=job.spec.training_if_any is not None)
    console, errors = consoles()
    if directory is None:
        directory = Path("runs") / job.metadata.name
        console.print(f"run directory {directory}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(run(job, directory, fork=fork, step=step, console=console, errors=errors))


def _is_program(what: list[str], *, after_dashes: bool) -> bool:
    """Return whether these are the words of a program; a single one may be a job file."""
    file, *words = what
    return bool(words) or (not _named_like_a_job(file) and (after_dashes or _can_be_executed(file)))


def _named_like_a_job(file: str) -> bool:
    return Path(file).suffix in {".yaml", ".yml"} and not _can_be_executed(file)


def _can_be_executed(file: str) -> bool:
    return Path(file).is_file() and os.access(file, os.X_OK)


def _refuse_job_file(command: list[str]) -> None:
    """Refuse a command that begins with a job file: what follows it was meant to change the job."""
    file, *words = command
    if not _named_like_a_job(file):
        return
    if not words:
        raise UsageError(
            f"run: given --hosts or --devices with the job file {file}, which says itself how many there are; "
            "expected a change of it, such as --set hardware.topology=2x4"
        )
    change = words[0] if "=" in words[0] else "training.steps=500"
    raise UsageError(
        f"run: given {' '.join(words)} after the job file {file}, expected nothing; "
        f"a field of the job is changed by --set {change}"
    )


def _refuse_start(job: TrainingJob, *, fork: bool, step: int | None) -> None:
    if job.spec.program and (fork or step is not None):
        given = "--fork" if fork else "--step"
        raise UsageError(f"run: {given} is for jobs of the trainer; what an own program starts from is its own affair")

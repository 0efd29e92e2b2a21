"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

JobFile = Annotated[Path, typer.Argument(help="The job file.", metavar="JOB.YAML")]
RunDir = Annotated[Path, typer.Argument(help="A run directory.", metavar="DIR")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change a field of the job, e.g. training.steps=500. Give it as often as you like.",
        metavar="PATH=VALUE",
    ),
]
Step = Annotated[
    int | None,
    typer.Option("--step", min=0, help="The checkpoint of this step instead of the newest usable one.", metavar="N"),
]

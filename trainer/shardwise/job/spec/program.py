"""The `program` section: a person's own program in place of the trainer."""

from typing import Annotated

from pydantic import Field

from shardwise.job.spec.base import Grammar, MarkKey, PathText
from shardwise.protocol.strict_model import StrictModel

_Word = Annotated[str, Field(max_length=32768)]

VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
MODULE = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"


class Program(StrictModel):
    """What every host runs: a Python module, or a command."""

    module: Annotated[str | None, Grammar("names joined by '.', such as my_package.train")] = Field(
        None, min_length=1, max_length=256, pattern=MODULE, description="Python module, as python -m takes it."
    )
    command: tuple[_Word, ...] = Field(
        (), strict=False, max_length=256, description="Program and its first words, without a shell."
    )
    args: tuple[_Word, ...] = Field(
        (), strict=False, max_length=256, description="Words that follow the module or the command."
    )
    env: dict[MarkKey, _Word] = Field(
        default_factory=dict, max_length=128, description="Variables of the program's processes."
    )
    workdir: PathText | None = Field(
        None, description="Folder that it starts in; left out, the one you are in; in a pod the image's."
    )


def command_of(program: Program) -> list[str]:
    """Return what a person would type to run it."""
    start = [*program.command] if program.module is None else ["python", "-m", program.module]
    return [*start, *program.args]

"""Every error that Shardwise raises for a user to read, and the exit code that each one ends a process with.

    ShardwiseError                 1   the root: catch this to catch them all
    |-- JobError                  81   the job file: a list of problems, each with its place
    |-- UsageError                 2   the command line: an unknown option, folder or command
    |-- ClusterError               2   a cluster that cannot be reached, or refuses what was asked of it
    |-- DataError                 81   training data, tokenizer or weights that cannot be read or do not fit
    |-- CheckpointError           81   a checkpoint that is damaged, missing, or from another format
    |-- RunDirectoryError         81   a run directory that is in use, not writable, or holds another run
    |-- StorageError              84   storage that does not answer, is full, or has lost what was asked of it
    |   `-- TakenOverError        84   another host 0 keeps the run directory by now
    |-- DeviceError               85   devices that are not those that the job asks for, or that have failed
    |-- PeerError                 86   another process of the run is gone, or did not answer in time
    |-- LeaderlessError           87   a host of a cluster whose run has no leader any more
    |-- CompilerError             81   a program that cannot be compiled as the job asks
    |-- RewardError                1   a program of rewards that has ended, or does not answer in time
    |-- NonFiniteError            82   a loss or gradient that is not a number, or a spike of the loss
    `-- OutOfMemoryError          83   a device or the host has no memory left

The texts say what was given, what was expected, and what to do. Nothing here reads a file or prints.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from shardwise.protocol.contract import ExitCode
from shardwise.protocol.text import writable


class ShardwiseError(Exception):
    """An error whose text is meant for the user, shown without a traceback."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILURE

    def __init_subclass__(cls, exit_code: ExitCode) -> None:
        """Give each kind of error its own exit code."""
        cls.exit_code = exit_code


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One mistake in a job file.

    `path` is dotted from the root ("spec.training.steps", list items by index, "" for the whole file); `given` is the
    value as YAML would show it ("" if something is missing); `expected` and `hint` are for people; `where` is
    "file:line" or the override that brought the value ("" for a default).
    """

    path: str
    expected: str
    given: str = ""
    hint: str = ""
    where: str = ""

    def __str__(self) -> str:
        """Return one line: `where  path: given X, expected Y; hint`."""
        place = "  ".join(part for part in (self.where, self.path) if part)
        given = f"given {self.given}, " if self.given else ""
        hint = f"; {self.hint}" if self.hint else ""
        text = f"{place}: {given}expected {self.expected}{hint}"
        # YAML can write half of a surrogate pair, which no terminal can show.
        return writable(text)


class JobError(ShardwiseError, exit_code=ExitCode.BAD_INPUT):
    """The job file is refused; `problems` holds every mistake found, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        """Return all problems, one a line, under a count if there are several."""
        lines = [str(problem) for problem in self.problems]
        if len(lines) == 1:
            return lines[0]
        return "\n".join([f"{len(lines)} mistakes in the job:", *(f"  {line}" for line in lines)])


class UsageError(ShardwiseError, exit_code=ExitCode.USAGE):
    """The command was called in a way it cannot serve."""


class ClusterError(ShardwiseError, exit_code=ExitCode.USAGE):
    """A cluster could not be reached, or refused what was asked of it, which says nothing of how a job ended."""


class DataError(ShardwiseError, exit_code=ExitCode.BAD_INPUT):
    """Training data, a tokenizer or published weights cannot be read, or do not fit the job."""


class CheckpointError(ShardwiseError, exit_code=ExitCode.BAD_INPUT):
    """A checkpoint is damaged, missing, or in a format that this version does not know."""


class RunDirectoryError(ShardwiseError, exit_code=ExitCode.BAD_INPUT):
    """A run directory is in use by a live run, cannot be written, or holds a different run."""


class StorageError(ShardwiseError, exit_code=ExitCode.STORAGE):
    """Storage does not do what it did before, though the job has not changed: another start may help."""


class TakenOverError(StorageError, exit_code=ExitCode.STORAGE):
    """Another process writes the files of a run directory by now: this one ends, and the run goes on without it."""


class DeviceError(ShardwiseError, exit_code=ExitCode.DEVICE):
    """JAX finds other devices than the job asks for, or one of them has failed: another start may help."""


class CompilerError(ShardwiseError, exit_code=ExitCode.BAD_INPUT):
    """XLA refuses an option, or a program for the hardware that the job names."""


class PeerError(ShardwiseError, exit_code=ExitCode.PEER):
    """Another process of the run is gone, or did not answer in time."""


class LeaderlessError(ShardwiseError, exit_code=ExitCode.HOSTS_MISSING):
    """A host of a run in a cluster has heard nothing of host 0 for longer than a successor may take."""


class RewardError(ShardwiseError, exit_code=ExitCode.FAILURE):
    """The program that says what completions are worth has ended, or did not answer in time."""


class NonFiniteError(ShardwiseError, exit_code=ExitCode.NONFINITE):
    """The loss or the gradient norm is not a number, or the loss is a spike (`training.badSteps`)."""


class OutOfMemoryError(ShardwiseError, exit_code=ExitCode.OUT_OF_MEMORY):
    """A device or the host has no memory left for the program or its data."""

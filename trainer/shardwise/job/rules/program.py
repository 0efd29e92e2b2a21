"""Rules on an own program: a job has one or the other of training and program, and a program has one way to start."""

import re
from collections.abc import Iterator

from shardwise.job.document import wrong
from shardwise.job.spec import TrainingJob
from shardwise.job.spec.program import VARIABLE
from shardwise.protocol.errors import Problem
from shardwise.protocol.program import OWN_PREFIXES, OWN_VARIABLES
from shardwise.protocol.text import any_of

_PATH = "spec.program"
ONE_OF_BOTH = "either training or program"
ONE_START = "either module or command"
NOT_PLANNED = "nothing: a plan compiles the trainer's step, and a program has its own"
NAMES = "names of letters, digits and '_', no digit first"
NOT_OURS = f"names that do not begin with {any_of(OWN_PREFIXES)}, and none of {any_of(OWN_VARIABLES)}"


def one_of_both(job: TrainingJob) -> Iterator[Problem]:
    """Require that a job either trains by the trainer or runs a program."""
    if (job.spec.training_if_any is None) == (job.spec.program is None):
        given = "nothing" if job.spec.program is None else "both"
        hint = "training is the trainer's config, program starts an own one" if job.spec.program is None else ""
        yield Problem(path="spec", given=given, expected=ONE_OF_BOTH, hint=hint)


def one_start(job: TrainingJob) -> Iterator[Problem]:
    """Require a module or a command, and not both."""
    program = job.spec.program
    if program and (program.module is None) == (program.command == ()):
        yield Problem(path=_PATH, given="nothing" if program.module is None else "both", expected=ONE_START)


def variables_are_its_own(job: TrainingJob) -> Iterator[Problem]:
    """Refuse variables by which Shardwise tells a program something."""
    for name in job.spec.program.env if job.spec.program else ():
        if not re.fullmatch(VARIABLE, name):
            yield wrong(f"{_PATH}.env", name, NAMES)
        if name.startswith(OWN_PREFIXES) or name in OWN_VARIABLES:
            yield wrong(f"{_PATH}.env", name, NOT_OURS, "Shardwise sets these itself")


def nothing_to_plan(job: TrainingJob) -> Iterator[Problem]:
    """Refuse a preflight of a program: only the trainer's step can be compiled without running anything."""
    if job.spec.program and job.spec.preflight:
        yield wrong("spec.preflight", job.spec.preflight, NOT_PLANNED, "take it out")


RULES = (one_of_both, one_start, variables_are_its_own, nothing_to_plan)

"""Rules on the compiler's options: each once, none that breaks a promise, and no pair that gives wrong numbers."""

from collections.abc import Iterator

from shardwise.job.accelerators import xla_flags
from shardwise.job.document import shown
from shardwise.job.flags import refusals, repeated
from shardwise.job.spec import TrainingJob
from shardwise.protocol.errors import Problem

_PATH = "spec.training.xlaFlags"


def xla_flags_are_safe(job: TrainingJob) -> Iterator[Problem]:
    """The job's options, with those of its class, give right numbers; `class_rules` checks a class alone."""
    if not job.spec.training.xla_flags:
        return
    for flag, reason in refusals(xla_flags(job)):
        yield Problem(path=_PATH, given=shown(flag), expected="options without it", hint=reason)


def xla_flags_are_given_once(job: TrainingJob) -> Iterator[Problem]:
    """An option has one value in a job: what a run is does not depend on an order."""
    for name in repeated(job.spec.training.xla_flags):
        yield Problem(path=_PATH, given=f"{name} more than once", expected="each option once")


RULES = (xla_flags_are_safe, xla_flags_are_given_once)

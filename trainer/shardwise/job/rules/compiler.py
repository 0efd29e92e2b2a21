"""Rules on the compiler's options: none that breaks a promise, and no pair that is known to give wrong numbers."""

from collections.abc import Iterator

from shardwise.job.accelerators import xla_flags
from shardwise.job.document import shown
from shardwise.job.errors import Problem
from shardwise.job.flags import refusals
from shardwise.job.spec import TrainingJob


def xla_flags_are_safe(job: TrainingJob) -> Iterator[Problem]:
    """The job's options, with those of its class, give right numbers; what a class has wrong its own rules say."""
    if not job.spec.training.xla_flags:
        return
    for flag, reason in refusals(xla_flags(job)):
        yield Problem(
            path="spec.training.xlaFlags", given=shown(flag), expected="options without it", hint=reason
        )


RULES = (xla_flags_are_safe,)

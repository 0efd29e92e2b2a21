"""The rules across fields: each is a small pure function from a resolved job to the problems it finds.

`load` runs them all before anything starts, so that a person sees every mistake at once. A rule that cannot be judged
because an earlier one failed (no devices known, no sizes) finds nothing. What one field may hold is in `job/spec`.
"""

from collections.abc import Callable, Iterator

from shardwise.job.rules import (
    conflicts,
    evaluation,
    hardware,
    model,
    pod,
    preferences,
    program,
    recovery,
    reinforcement,
    training,
)
from shardwise.job.spec import TrainingJob
from shardwise.protocol.errors import Problem

Rule = Callable[[TrainingJob], Iterator[Problem]]

RULES: tuple[Rule, ...] = (
    *program.RULES,
    *hardware.RULES,
    conflicts.values_go_together,
    *model.RULES,
    *training.RULES,
    *evaluation.RULES,
    *preferences.RULES,
    *reinforcement.RULES,
    *recovery.RULES,
    pod.pods_are_sound,
)
_OF_ANY_JOB: frozenset[Rule] = frozenset(
    (*program.RULES, *hardware.OF_ANY_JOB, recovery.fewest_slices_are_some, pod.pods_are_sound)
)


def problems(job: TrainingJob) -> list[Problem]:
    """Return every problem of a resolved job, in the order of the rules."""
    trains = job.spec.training_if_any is not None
    return [problem for rule in RULES if trains or rule in _OF_ANY_JOB for problem in rule(job)]

"""The rules across fields: each is a small pure function from a resolved job to the problems it finds.

`load` runs them all before anything starts, so that a person sees every mistake at once. A rule that cannot be judged
because an earlier one failed (no devices known, no sizes) finds nothing. What one field may hold is in `job/spec`.
"""

from collections.abc import Callable, Iterator

from shardwise.job.rules import conflicts, hardware, model, pod, training
from shardwise.job.spec import TrainingJob
from shardwise.protocol.errors import Problem

RULES: tuple[Callable[[TrainingJob], Iterator[Problem]], ...] = (
    *hardware.RULES,
    conflicts.values_go_together,
    *model.RULES,
    *training.RULES,
    pod.pods_are_sound,
)


def problems(job: TrainingJob) -> list[Problem]:
    """Return every problem of a resolved job, in the order of the rules."""
    return [problem for rule in RULES for problem in rule(job)]

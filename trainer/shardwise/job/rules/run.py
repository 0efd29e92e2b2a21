"""Rules on what happens between steps."""

from collections.abc import Iterator

from shardwise.job.document import shown
from shardwise.job.spec import TrainingJob
from shardwise.job.topology import multiples_near
from shardwise.protocol.errors import Problem


def kept_checkpoints_are_made(job: TrainingJob) -> Iterator[Problem]:
    """A checkpoint can only be kept for good at a step at which one is made."""
    checkpoint = job.spec.training.checkpoint
    kept, made = checkpoint.keep.every_steps, checkpoint.every_steps
    if kept is None or (made is not None and kept % made == 0):
        return
    expected = "checkpoint.everySteps beside it" if made is None else f"a multiple of checkpoint.everySteps {made}"
    hint = "" if made is None else f"take {' or '.join(map(str, multiples_near(kept, made)))}"
    yield Problem(path="spec.training.checkpoint.keep.everySteps", given=shown(kept), expected=expected, hint=hint)


def traced_steps_are_made(job: TrainingJob) -> Iterator[Problem]:
    """A trace begins before it ends, within the run."""
    training = job.spec.training
    if training.profile is None:
        return
    first, last = training.profile.steps
    if not first <= last <= training.steps:
        yield Problem(
            path="spec.training.profile.steps",
            given=f"[{first}, {last}]",
            expected=f"a first step and a last one, between 1 and the run's {training.steps}",
            hint="[10, 12] traces three steps once the first ones are over",
        )


RULES = (kept_checkpoints_are_made, traced_steps_are_made)

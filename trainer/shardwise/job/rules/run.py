"""Rules on what happens between steps: checkpoints and evaluations."""

from collections.abc import Iterator

from shardwise.job.document import shown
from shardwise.job.errors import Problem
from shardwise.job.spec import TrainingJob
from shardwise.job.words import multiples_near


def kept_checkpoints_are_made(job: TrainingJob) -> Iterator[Problem]:
    """A checkpoint can only be kept for good at a step at which one is made."""
    checkpoint = job.spec.training.checkpoint
    kept, made = checkpoint.keep.every_steps, checkpoint.every_steps
    if kept is None or (made is not None and kept % made == 0):
        return
    expected = "checkpoint.everySteps beside it" if made is None else f"a multiple of checkpoint.everySteps {made}"
    hint = "" if made is None else f"take {' or '.join(map(str, multiples_near(kept, made)))}"
    yield Problem(path="spec.training.checkpoint.keep.everySteps", given=shown(kept), expected=expected, hint=hint)


def evaluation_has_text(job: TrainingJob) -> Iterator[Problem]:
    """Evaluation reads documents that training does not."""
    every_steps = job.spec.training.evaluation.every_steps
    if every_steps is not None and job.spec.training.data.held_out == 0:
        yield Problem(
            path="spec.training.evaluation.everySteps",
            given=shown(every_steps),
            expected="documents to evaluate on, and data.heldOut is 0",
            hint="set data.heldOut, such as 0.01, or take everySteps out",
        )


RULES = (kept_checkpoints_are_made, evaluation_has_text)

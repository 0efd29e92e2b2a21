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


def going_back_is_a_restart(job: TrainingJob) -> Iterator[Problem]:
    """Who goes back to a checkpoint starts again, which is what the budget is of."""
    bad_steps, budget = job.spec.training.bad_steps, job.spec.recovery.restarts.nonfinite
    for name, then in (("nonFinite", bad_steps.non_finite), ("lossSpike", bad_steps.loss_spike)):
        if then == "rollBack" and budget == 0:
            yield Problem(
                path=f"spec.training.badSteps.{name}",
                given="rollBack",
                expected="restarts to go back by, and recovery.restarts.nonfinite is 0",
                hint="set recovery.restarts.nonfinite, such as 10, or take skip",
            )


RULES = (kept_checkpoints_are_made, evaluation_has_text, going_back_is_a_restart)

"""Rules on the optimizer: only its own fields are set, and its schedule fits the run."""

from collections.abc import Iterator

from shardwise.job.document import shown
from shardwise.job.presets import OWNERS
from shardwise.job.spec import Optimizer, TrainingJob
from shardwise.protocol.errors import Problem

_PATH = "spec.training.optimizer"


def fields_belong_to_optimizer(job: TrainingJob) -> Iterator[Problem]:
    """A setting that the update rule does not use is a mistake, not a wish to be ignored."""
    optimizer = job.spec.training.optimizer
    for name, owners in OWNERS.items():
        value = getattr(optimizer, name)
        if value is not None and optimizer.name not in owners:
            yield Problem(
                path=f"{_PATH}.{Optimizer.model_fields[name].alias}",
                given=shown(value),
                expected=f"nothing: {optimizer.name} has no such setting",
                hint=f"{' and '.join(owners)} {'has' if len(owners) == 1 else 'have'} it",
            )


def warmup_ends(job: TrainingJob) -> Iterator[Problem]:
    """The rate reaches its height before the run is over."""
    training = job.spec.training
    warmup = training.optimizer.schedule.warmup_steps
    if warmup >= training.steps:
        yield Problem(
            path=f"{_PATH}.schedule.warmupSteps",
            given=shown(warmup),
            expected=f"fewer than the run's {training.steps} steps",
        )


def decay_has_room(job: TrainingJob) -> Iterator[Problem]:
    """A rate that stays level needs to know when its fall begins, and the fall has room after the warm-up."""
    training = job.spec.training
    schedule = training.optimizer.schedule
    path, room = f"{_PATH}.schedule.decaySteps", training.steps - schedule.warmup_steps
    if schedule.kind != "warmup-stable-decay":
        return
    if schedule.decay_steps is None:
        yield Problem(
            path=path,
            given="nothing",
            expected="the number of last steps in which the rate falls, for kind: warmup-stable-decay",
            hint=f"a tenth of the run is usual: decaySteps: {max(1, training.steps // 10)}",
        )
    elif schedule.decay_steps > room > 0:
        yield Problem(
            path=path,
            given=shown(schedule.decay_steps),
            expected=f"at most the {room} steps after the warm-up",
        )


RULES = (fields_belong_to_optimizer, warmup_ends, decay_has_room)

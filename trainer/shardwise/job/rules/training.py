"""Rules on how a job trains: its batch and sources, optimizer, checkpoints, and options of the compiler."""

from collections.abc import Iterator

from shardwise.job.accelerators import xla_flags
from shardwise.job.document import wrong
from shardwise.job.flags import refusals, repeated
from shardwise.job.presets import OWNERS
from shardwise.job.spec import Optimizer, TrainingJob
from shardwise.job.topology import divisors, mesh_shape, multiples_near
from shardwise.protocol.errors import Problem
from shardwise.protocol.text import any_of

_PATH = "spec.training"


def batch_divides(job: TrainingJob) -> Iterator[Problem]:
    """Each device gets the same whole number of sequences in each microbatch."""
    mesh, batch = mesh_shape(job), job.spec.training.batch
    if mesh is None:
        return
    ways = mesh.replica * mesh.data
    if batch.sequences % (ways * batch.microbatches) == 0:
        return
    share, rest = divmod(batch.sequences, ways)
    fits = "" if rest else f"; or microbatches {any_of(divisors(share))} with {batch.sequences} sequences"
    expected = f"a multiple of data {mesh.data} x replica {mesh.replica} x microbatches {batch.microbatches}"
    hint = f"take {_multiples(batch.sequences, ways * batch.microbatches)}{fits}"
    yield wrong(f"{_PATH}.batch.sequences", batch.sequences, expected, hint)


def microbatches_fill_pipeline(job: TrainingJob) -> Iterator[Problem]:
    """As many microbatches go through the stages together as there are stages."""
    stages, microbatches = job.spec.training.mesh.pipeline, job.spec.training.batch.microbatches
    if microbatches % stages:
        hint = f"take {_multiples(microbatches, stages)}; more make the pipeline's bubble smaller"
        yield wrong(f"{_PATH}.batch.microbatches", microbatches, f"a multiple of pipeline {stages}", hint)


def source_names_are_unique(job: TrainingJob) -> Iterator[Problem]:
    """Metrics and messages tell sources apart by name."""
    names = [source.name for source in job.spec.training.data.train]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield wrong(f"{_PATH}.data.train.{index}.name", name, "a name that no other source has")


def fields_belong_to_optimizer(job: TrainingJob) -> Iterator[Problem]:
    """A setting that the update rule does not use is a mistake, not a wish to be ignored."""
    optimizer = job.spec.training.optimizer
    for name, owners in OWNERS.items():
        value = getattr(optimizer, name)
        if value is not None and optimizer.name not in owners:
            path = f"{_PATH}.optimizer.{Optimizer.model_fields[name].alias}"
            hint = f"{' and '.join(owners)} {'has' if len(owners) == 1 else 'have'} it"
            yield wrong(path, value, f"nothing: {optimizer.name} has no such setting", hint)


def warmup_ends(job: TrainingJob) -> Iterator[Problem]:
    """The rate reaches its height before the run is over."""
    steps, warmup = job.spec.training.steps, job.spec.training.optimizer.schedule.warmup_steps
    if warmup >= steps:
        yield wrong(f"{_PATH}.optimizer.schedule.warmupSteps", warmup, f"fewer than the run's {steps} steps")


def decay_has_room(job: TrainingJob) -> Iterator[Problem]:
    """A rate that stays level needs to know when its fall begins, and the fall has room after the warm-up."""
    steps, schedule = job.spec.training.steps, job.spec.training.optimizer.schedule
    path, room = f"{_PATH}.optimizer.schedule.decaySteps", steps - schedule.warmup_steps
    if schedule.kind != "warmup-stable-decay":
        return
    if schedule.decay_steps is None:
        yield Problem(
            path=path,
            given="nothing",
            expected="the number of last steps in which the rate falls, for kind: warmup-stable-decay",
            hint=f"a tenth of the run is usual: decaySteps: {max(1, steps // 10)}",
        )
    elif schedule.decay_steps > room > 0:
        yield wrong(path, schedule.decay_steps, f"at most the {room} steps after the warm-up")


def kept_checkpoints_are_made(job: TrainingJob) -> Iterator[Problem]:
    """A checkpoint can only be kept for good at a step at which one is made."""
    checkpoint = job.spec.training.checkpoint
    kept, made = checkpoint.keep.every_steps, checkpoint.every_steps
    if kept is None or (made is not None and kept % made == 0):
        return
    expected = "checkpoint.everySteps beside it" if made is None else f"a multiple of checkpoint.everySteps {made}"
    yield wrong(f"{_PATH}.checkpoint.keep.everySteps", kept, expected, f"take {_multiples(kept, made)}" if made else "")


def traced_steps_are_made(job: TrainingJob) -> Iterator[Problem]:
    """A trace begins before it ends, within the run."""
    training = job.spec.training
    if training.profile is None:
        return
    first, last = training.profile.steps
    if not first <= last <= training.steps:
        expected = f"a first step and a last one, between 1 and the run's {training.steps}"
        hint = "[10, 12] traces three steps once the first ones are over"
        yield Problem(path=f"{_PATH}.profile.steps", given=f"[{first}, {last}]", expected=expected, hint=hint)


def xla_flags_are_safe(job: TrainingJob) -> Iterator[Problem]:
    """The job's options, with those of its class, give right numbers; `class_rules` checks a class alone."""
    if job.spec.training.xla_flags:
        for flag, reason in refusals(xla_flags(job)):
            yield wrong(f"{_PATH}.xlaFlags", flag, "options without it", reason)


def xla_flags_are_given_once(job: TrainingJob) -> Iterator[Problem]:
    """An option has one value in a job: what a run is does not depend on an order."""
    for name in repeated(job.spec.training.xla_flags):
        yield Problem(path=f"{_PATH}.xlaFlags", given=f"{name} more than once", expected="each option once")


def _multiples(number: int, step: int) -> str:
    return " or ".join(map(str, multiples_near(number, step)))


RULES = (
    batch_divides,
    microbatches_fill_pipeline,
    source_names_are_unique,
    fields_belong_to_optimizer,
    warmup_ends,
    decay_has_room,
    kept_checkpoints_are_made,
    traced_steps_are_made,
    xla_flags_are_safe,
    xla_flags_are_given_once,
)

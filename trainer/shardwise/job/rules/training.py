"""Rules on how a job trains: its batch and sources, optimizer, checkpoints, and options of the compiler."""

from collections.abc import Iterator

from shardwise.job.accelerators import xla_flags
from shardwise.job.document import wrong
from shardwise.job.flags import refusals, repeated
from shardwise.job.optimizer_values import OWNERS
from shardwise.job.spec import Optimizer, TrainingJob
from shardwise.job.spec.data import EvaluationSet, Source
from shardwise.job.topology import divisors, mesh_shape, multiples_near
from shardwise.protocol.errors import Problem
from shardwise.protocol.text import any_of

_PATH = "spec.training"


def batch_divides(job: TrainingJob) -> Iterator[Problem]:
    """Require that each device gets the same whole number of sequences in each microbatch, of a ramp too."""
    mesh, batch = mesh_shape(job), job.spec.training.batch
    if mesh is None:
        return
    ways = mesh.replica * mesh.data
    expected = f"a multiple of data {mesh.data} x replica {mesh.replica} x microbatches {batch.microbatches}"
    parts = [("sequences", batch.sequences)]
    parts += [(f"rampUp.{index}.sequences", part.sequences) for index, part in enumerate(batch.ramp_up)]
    for path, sequences in parts:
        if sequences % (ways * batch.microbatches) == 0:
            continue
        share, rest = divmod(sequences, ways)
        fits = (
            "" if rest or batch.ramp_up else f"; or microbatches {any_of(divisors(share))} with {sequences} sequences"
        )
        hint = f"take {_multiples(sequences, ways * batch.microbatches)}{fits}"
        yield wrong(f"{_PATH}.batch.{path}", sequences, expected, hint)


def batch_grows(job: TrainingJob) -> Iterator[Problem]:
    """Require that each part of a ramp ends after the one before it, within the run, and has more sequences."""
    steps, batch = job.spec.training.steps, job.spec.training.batch
    step = sequences = 0
    for index, part in enumerate(batch.ramp_up):
        path = f"{_PATH}.batch.rampUp.{index}"
        if not step < part.until_step < steps:
            yield wrong(f"{path}.untilStep", part.until_step, f"a step after {step}, before the run's {steps}")
        if not sequences < part.sequences < batch.sequences:
            expected = f"more than {sequences}, and fewer than the {batch.sequences} of the steps after the ramp"
            yield wrong(f"{path}.sequences", part.sequences, expected)
        step, sequences = part.until_step, part.sequences


def microbatches_fill_pipeline(job: TrainingJob) -> Iterator[Problem]:
    """Require microbatches in a multiple of the stages, since as many as these go through together."""
    stages, microbatches = job.spec.training.mesh.pipeline, job.spec.training.batch.microbatches
    if microbatches % stages:
        hint = f"take {_multiples(microbatches, stages)}; more make the pipeline's bubble smaller"
        yield wrong(f"{_PATH}.batch.microbatches", microbatches, f"a multiple of pipeline {stages}", hint)


def source_names_are_unique(job: TrainingJob) -> Iterator[Problem]:
    """Require a name of its own for each source, by which metrics and messages tell them apart."""
    names = [source.name for source in job.spec.training.data.train]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield wrong(f"{_PATH}.data.train.{index}.name", name, "a name that no other source has")


def conversations_stay_apart(job: TrainingJob) -> Iterator[Problem]:
    """Require that a conversation is read whole and sees no other one, and that its text is in no field."""
    data, sets = job.spec.training.data, job.spec.training.evaluation.sets
    named: list[tuple[str, Source | EvaluationSet]] = [
        (f"data.train.{index}", source) for index, source in enumerate(data.train)
    ]
    named += [(f"evaluation.sets.{index}", one) for index, one in enumerate(sets) if not one.questions]
    for place, source in named:
        if source.chat_template is None:
            continue
        if data.attend_across != "document":
            expected = "no chatTemplate with data.attendAcross: stream: conversations would see each other"
            hint = "set data.attendAcross: document"
            yield wrong(f"{_PATH}.{place}.chatTemplate", source.chat_template, expected, hint)
        if source.text_field != "text":
            expected = "no textField with chatTemplate, which reads messages"
            yield wrong(f"{_PATH}.{place}.textField", source.text_field, expected, "take it out")


def sources_have_a_share(job: TrainingJob) -> Iterator[Problem]:
    """Require that a source has a weight or epochs, and is used at some step."""
    data = job.spec.training.data
    for index, source in enumerate(data.train):
        path = f"{_PATH}.data.train.{index}.weight"
        if source.epochs and source.weight is not None:
            yield wrong(path, source.weight, "nothing with epochs", "take one of them out")
        elif not (source.epochs or source.weight or any(phase.weights.get(source.name) for phase in data.phases)):
            yield wrong(path, 0.0, "above 0, here or in data.phases", "take the source out if it is not to be used")


def first_steps_have_a_source(job: TrainingJob) -> Iterator[Problem]:
    """Require a weight above 0 before the first of the phases, unless all sources have epochs."""
    data = job.spec.training.data
    weights = [source.weight for source in data.train if not source.epochs]
    if data.phases and weights and not any(weights):
        expected = "one weight above 0 before the first of data.phases"
        yield Problem(path=f"{_PATH}.data.train", given="no weight above 0", expected=expected)


def phases_follow_each_other(job: TrainingJob) -> Iterator[Problem]:
    """Require that phases begin one after the other within the run, and give weights to sources that there are."""
    training = job.spec.training
    names = {source.name: source for source in training.data.train}
    before = 0
    for index, phase in enumerate(training.data.phases):
        path = f"{_PATH}.data.phases.{index}"
        if not before < phase.from_step < training.steps:
            expected = f"a step after {before}, before the run's {training.steps}"
            yield wrong(f"{path}.fromStep", phase.from_step, expected)
        before = phase.from_step
        for name, weight in phase.weights.items():
            if name not in names:
                yield wrong(f"{path}.weights.{name}", weight, f"the name of a source: {any_of(names)}")
            elif names[name].epochs:
                yield wrong(
                    f"{path}.weights.{name}", weight, "no weight of a source with epochs", "take one of them out"
                )
        if not any(phase.weights.values()):
            yield Problem(path=f"{path}.weights", given="no weight above 0", expected="one")


def fields_belong_to_optimizer(job: TrainingJob) -> Iterator[Problem]:
    """Refuse a setting that the update rule does not use, instead of ignoring it."""
    optimizer = job.spec.training.optimizer
    for name, owners in OWNERS.items():
        value = getattr(optimizer, name)
        if value is not None and optimizer.name not in owners:
            path = f"{_PATH}.optimizer.{Optimizer.model_fields[name].alias}"
            hint = f"{' and '.join(owners)} {'has' if len(owners) == 1 else 'have'} it"
            yield wrong(path, value, f"nothing: {optimizer.name} has no such setting", hint)


def groups_decay_only_with_decay(job: TrainingJob) -> Iterator[Problem]:
    """Refuse weight decay of a group of parameters with adam, which has no decoupled one."""
    optimizer = job.spec.training.optimizer
    for index, group in enumerate(optimizer.groups):
        if group.weight_decay is not None and optimizer.name not in OWNERS["weight_decay"]:
            path = f"{_PATH}.optimizer.groups.{index}.weightDecay"
            yield wrong(path, group.weight_decay, f"nothing: {optimizer.name} has no such setting", "adamw has it")


def adapters_have_weights(job: TrainingJob) -> Iterator[Problem]:
    """Require weights that adapters are for, at a step that stays the same."""
    training = job.spec.training
    if training.lora is None:
        return
    if training.start_from is None:
        hint = "shardwise import makes a checkpoint of published weights"
        yield Problem(
            path=f"{_PATH}.startFrom", given="nothing", expected="path and step of weights, with lora", hint=hint
        )
    elif training.start_from.step is None:
        hint = "each start reads these weights again; imported ones are step 0"
        yield Problem(path=f"{_PATH}.startFrom.step", given="nothing", expected="a step, with lora", hint=hint)


def warmup_ends(job: TrainingJob) -> Iterator[Problem]:
    """Require that the rate reaches its height before the run is over."""
    steps, warmup = job.spec.training.steps, job.spec.training.optimizer.schedule.warmup_steps
    if warmup >= steps:
        yield wrong(f"{_PATH}.optimizer.schedule.warmupSteps", warmup, f"fewer than the run's {steps} steps")


def decay_has_room(job: TrainingJob) -> Iterator[Problem]:
    """Require the length of the fall of a rate that stays level, and room for it after the warm-up."""
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
    """Require that checkpoints are kept for good only at steps at which one is made."""
    checkpoint = job.spec.training.checkpoint
    kept, made = checkpoint.keep.every_steps, checkpoint.every_steps
    if kept is None or (made is not None and kept % made == 0):
        return
    expected = "checkpoint.everySteps beside it" if made is None else f"a multiple of checkpoint.everySteps {made}"
    yield wrong(f"{_PATH}.checkpoint.keep.everySteps", kept, expected, f"take {_multiples(kept, made)}" if made else "")


def traced_steps_are_made(job: TrainingJob) -> Iterator[Problem]:
    """Require that a trace begins before it ends, within the run."""
    training = job.spec.training
    if training.profile is None:
        return
    first, last = training.profile.steps
    if not first <= last <= training.steps:
        expected = f"a first step and a last one, between 1 and the run's {training.steps}"
        hint = "[10, 12] traces three steps once the first ones are over"
        yield Problem(path=f"{_PATH}.profile.steps", given=f"[{first}, {last}]", expected=expected, hint=hint)


def xla_flags_are_safe(job: TrainingJob) -> Iterator[Problem]:
    """Refuse options of job and class that together give wrong numbers; `class_rules` checks a class alone."""
    if job.spec.training.xla_flags:
        for flag, reason in refusals(xla_flags(job)):
            yield wrong(f"{_PATH}.xlaFlags", flag, "options without it", reason)


def xla_flags_are_given_once(job: TrainingJob) -> Iterator[Problem]:
    """Require one value of each option, so that what a run is depends on no order."""
    for name in repeated(job.spec.training.xla_flags):
        yield Problem(path=f"{_PATH}.xlaFlags", given=f"{name} more than once", expected="each option once")


def _multiples(number: int, step: int) -> str:
    return " or ".join(map(str, multiples_near(number, step)))


RULES = (
    batch_divides,
    batch_grows,
    microbatches_fill_pipeline,
    source_names_are_unique,
    conversations_stay_apart,
    sources_have_a_share,
    first_steps_have_a_source,
    phases_follow_each_other,
    fields_belong_to_optimizer,
    groups_decay_only_with_decay,
    adapters_have_weights,
    warmup_ends,
    decay_has_room,
    kept_checkpoints_are_made,
    traced_steps_are_made,
    xla_flags_are_safe,
    xla_flags_are_given_once,
)

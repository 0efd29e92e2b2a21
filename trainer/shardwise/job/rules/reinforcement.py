"""Rules on learning from rewards: prompts, how many of them a step has, and what says what a completion is worth."""

import re
from collections.abc import Iterator

from shardwise.job.document import wrong
from shardwise.job.spec import TrainingJob
from shardwise.job.spec.data import EvaluationSet, Source
from shardwise.job.topology import multiples_near
from shardwise.protocol.errors import Problem
from shardwise.protocol.text import any_of

_PATH = "spec.training"
_SECTION = f"{_PATH}.reinforcement"


def prompts_are_completed(job: TrainingJob) -> Iterator[Problem]:
    """Require that all sources are prompts where they are completed, and that nothing is elsewhere."""
    training = job.spec.training
    for index, source in enumerate(training.data.train):
        if source.prompts != (training.reinforcement is not None):
            expected = "true with training.reinforcement, and false without"
            yield wrong(f"{_PATH}.data.train.{index}.prompts", source.prompts, expected)
    for index, one in enumerate(training.evaluation.sets):
        path = f"{_PATH}.evaluation.sets.{index}"
        if one.prompts and training.reinforcement is None:
            yield wrong(f"{path}.prompts", True, "false without training.reinforcement, which says what is worth what")
        if one.prompts and one.questions:
            yield wrong(f"{path}.questions", True, "false with prompts", "take one of the two out")


def prompts_have_no_answers(job: TrainingJob) -> Iterator[Problem]:
    """Require of sources and sets of prompts nothing that says what else a line is, and one end of all completions."""
    data, sets = job.spec.training.data, job.spec.training.evaluation.sets
    named: list[tuple[str, Source | EvaluationSet]] = [
        (f"{_PATH}.data.train.{index}", source) for index, source in enumerate(data.train)
    ]
    named += [(f"{_PATH}.evaluation.sets.{index}", one) for index, one in enumerate(sets)]
    first = data.train[0].chat_template
    for path, source in named:
        if not source.prompts:
            continue
        for name in ("preferences", "labels"):
            if getattr(source, name):
                yield wrong(f"{path}.{name}", True, "false with prompts", "take one of the two out")
        if source.text_field != "text":
            expected = "no textField with prompts, which reads prompt"
            yield wrong(f"{path}.textField", source.text_field, expected, "take it out")
        if source.chat_template != first:
            expected = f"{first or 'none'}, as the first source has it: completions all end alike"
            yield wrong(f"{path}.chatTemplate", source.chat_template or "none", expected)


def prompts_fill_a_step(job: TrainingJob) -> Iterator[Problem]:
    """Require whole prompts in each step, always as many."""
    training = job.spec.training
    if training.reinforcement is None:
        return
    sequences, samples = training.batch.sequences, training.reinforcement.samples
    if sequences % samples:
        hint = f"take {any_of(multiples_near(sequences, samples))}"
        yield wrong(f"{_PATH}.batch.sequences", sequences, f"a multiple of reinforcement.samples {samples}", hint)
    for index, part in enumerate(training.batch.ramp_up):
        path = f"{_PATH}.batch.rampUp.{index}.sequences"
        yield wrong(path, part.sequences, "no rampUp with reinforcement", "take it out")


def groups_of_steps_are_whole(job: TrainingJob) -> Iterator[Problem]:
    """Require that a run ends, and saves, where it needs no completions that were made before."""
    training = job.spec.training
    if not training.clips:
        return
    updates, checkpoint, begins = training.updates, training.checkpoint, training.start_from
    if begins and begins.restore == "all" and begins.step is None:
        yield Problem(
            path=f"{_PATH}.startFrom.step", given="none", expected=f"a multiple of reinforcement.updates {updates}"
        )
    given: dict[str, int | None] = {
        "startFrom.step": begins.step if begins and begins.restore == "all" else None,
        "steps": training.steps,
        "checkpoint.everySteps": checkpoint.every_steps,
        "checkpoint.local.everySteps": checkpoint.local.every_steps if checkpoint.local else None,
    }
    for name, value in given.items():
        if value is not None and value % updates:
            hint = f"take {any_of(multiples_near(value, updates))}"
            yield wrong(f"{_PATH}.{name}", value, f"a multiple of reinforcement.updates {updates}", hint)


def completions_fit(job: TrainingJob) -> Iterator[Problem]:
    """Require room for a prompt before the longest completion."""
    training = job.spec.training
    seq_len = training.model.seq_len
    if training.reinforcement is None or seq_len is None or training.reinforcement.max_tokens < seq_len:
        return
    expected = f"fewer than model.seqLen {seq_len}, which has room for the prompt too"
    yield wrong(f"{_SECTION}.maxTokens", training.reinforcement.max_tokens, expected)


def rewards_have_one_source(job: TrainingJob) -> Iterator[Problem]:
    """Require a pattern or a program, and that the pattern is one."""
    section = job.spec.training.reinforcement
    if section is None:
        return
    reward = section.reward
    if (reward.pattern is None) == (not reward.command):
        given = "neither" if reward.pattern is None else "both"
        yield Problem(path=f"{_SECTION}.reward", given=given, expected="a pattern or a command")
    if reward.pattern is None:
        return
    try:
        groups = re.compile(reward.pattern).groups
    except re.error as error:
        yield wrong(f"{_SECTION}.reward.pattern", reward.pattern, f"a regular expression of Python: {error}")
        return
    if groups == 0:
        hint = "such as '#### (.+)'"
        yield wrong(f"{_SECTION}.reward.pattern", reward.pattern, "a group in parentheses that has the answer", hint)


def divergence_has_a_reference(job: TrainingJob) -> Iterator[Problem]:
    """Require weights at a step that stays the same, if completions are compared with theirs."""
    training = job.spec.training
    if training.reinforcement is None or not training.has_reference or training.lora is not None:
        return
    path, given, asked = f"{_SECTION}.klWeight", training.reinforcement.kl_weight, training.start_from
    if asked is None or asked.step is None:
        expected = "0, or startFrom with a step beside it: weights that the model is compared with, read at each start"
        yield wrong(path, given, expected, "imported weights are step 0")
    elif asked.restore == "all":
        yield wrong(f"{_PATH}.startFrom.restore", "all", "weights with klWeight, which compares with those")


RULES = (
    prompts_are_completed,
    prompts_have_no_answers,
    prompts_fill_a_step,
    groups_of_steps_are_whole,
    completions_fit,
    rewards_have_one_source,
    divergence_has_a_reference,
)

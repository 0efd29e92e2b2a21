"""Rules on pairs of answers, of which one was chosen and one was rejected."""

from collections.abc import Iterator

from shardwise.job.document import wrong
from shardwise.job.spec import TrainingJob
from shardwise.job.spec.data import EvaluationSet, Source
from shardwise.protocol.errors import Problem

_PATH = "spec.training"


def sources_are_all_pairs_or_none(job: TrainingJob) -> Iterator[Problem]:
    """Require of all sources and sets that they are for one and the same loss, and that a template writes pairs."""
    training = job.spec.training
    for place, one in _places(job):
        path = f"{_PATH}.{place}.preferences"
        if one.preferences != training.learns_preferences:
            yield wrong(path, one.preferences, "true for all sources and evaluation sets, or for none")
        if one.preferences and one.chat_template is None:
            yield wrong(path, True, "a chatTemplate beside it, which writes the answers", "set chatTemplate: chatml")


def preferences_have_a_reference(job: TrainingJob) -> Iterator[Problem]:
    """Require adapters: what the model was without them is what the loss compares with."""
    training = job.spec.training
    place = next((place for place, one in _places(job) if one.preferences), None)
    if place is not None and training.lora is None:
        expected = "lora, whose model without adapters the answers are compared with"
        yield wrong(f"{_PATH}.{place}.preferences", True, expected, "set lora: {rank: 16}, and startFrom")
    if place is not None and training.loss.z_loss:
        yield wrong(f"{_PATH}.loss.zLoss", training.loss.z_loss, "0 with preferences, whose loss is DPO's alone")


def _places(job: TrainingJob) -> Iterator[tuple[str, Source | EvaluationSet]]:
    for index, source in enumerate(job.spec.training.data.train):
        yield f"data.train.{index}", source
    for index, one in enumerate(job.spec.training.evaluation.sets):
        yield f"evaluation.sets.{index}", one


RULES = (sources_are_all_pairs_or_none, preferences_have_a_reference)

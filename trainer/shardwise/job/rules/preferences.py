"""Rules on answers that are good or bad: pairs, of which one was chosen and one was rejected, or one by one."""

from collections.abc import Iterator

from shardwise.job.document import wrong
from shardwise.job.spec import TrainingJob
from shardwise.job.spec.data import EvaluationSet, Source
from shardwise.protocol.errors import Problem

_PATH = "spec.training"


def sources_are_all_pairs_or_none(job: TrainingJob) -> Iterator[Problem]:
    """Require of all sources that they are for one and the same loss, and that a template writes answers.

    A set may be of answers where the sources are; it may be of text everywhere.
    """
    training = job.spec.training
    for place, one in _places(job):
        path = f"{_PATH}.{place}.{_said_by(one)}"
        if one.is_judged and not training.learns_preferences:
            yield wrong(path, True, f"no {_said_by(one)} beside sources of text, whose loss is another")
        if training.learns_preferences and isinstance(one, Source) and not one.is_judged:
            yield wrong(path, False, "true for all sources, or for none")
        if one.is_judged and one.chat_template is None:
            yield wrong(path, True, "a chatTemplate beside it, which writes the answers", "set chatTemplate: chatml")
        if one.labels and one.preferences:
            yield wrong(path, True, "labels or preferences, which are lines of two kinds", "take one of the two out")
        if one.labels and training.loss.preferences != "kto":
            expected = "loss.preferences: kto with labels: the other losses are of pairs"
            yield wrong(path, True, expected, "set loss.preferences: kto")


def preferences_have_their_loss(job: TrainingJob) -> Iterator[Problem]:
    """Require the loss of pairs alone, and weights at a step that stays the same if answers are compared with them."""
    training = job.spec.training
    place = next((f"{place}.{_said_by(one)}" for place, one in _places(job) if one.is_judged), None)
    if place is None:
        for name, given, usual in (
            ("preferences", training.loss.preferences, "dpo"),
            ("labelSmoothing", training.loss.label_smoothing, 0),
            ("chosenWeight", training.loss.chosen_weight, 0),
        ):
            if given != usual:
                yield wrong(f"{_PATH}.loss.{name}", given, f"{usual} without preferences, of whose loss it is a part")
        return
    asked = training.start_from
    compares = training.loss.compares and training.lora is None  # adapters have a rule of their own
    if compares and (asked is None or asked.step is None):
        expected = "startFrom with a step beside it: weights that the model is compared with, read again at each start"
        hint = "imported weights are step 0; loss.preferences: simpo or orpo compares with none"
        yield wrong(f"{_PATH}.{place}", True, expected, hint)
    if compares and asked and asked.restore == "all":
        yield wrong(f"{_PATH}.startFrom.restore", "all", "weights with preferences, which compare with those")
    if training.loss.z_loss:
        yield wrong(f"{_PATH}.loss.zLoss", training.loss.z_loss, "0 with preferences, whose loss has no such term")


def weights_are_of_kto(job: TrainingJob) -> Iterator[Problem]:
    """Require the usual weights of good and bad answers of every loss but the one that has them."""
    loss = job.spec.training.loss
    for name, given in (("goodWeight", loss.good_weight), ("badWeight", loss.bad_weight)):
        if given != 1 and loss.preferences != "kto":
            expected = f"1 with preferences: {loss.preferences}; it is a part of the loss of kto alone"
            yield wrong(f"{_PATH}.loss.{name}", given, expected)


def _said_by(one: Source | EvaluationSet) -> str:
    """Return the field by which answers are good or bad."""
    return "labels" if one.labels else "preferences"


def _places(job: TrainingJob) -> Iterator[tuple[str, Source | EvaluationSet]]:
    """Yield all sources and sets but those of questions, which have no loss that a job chooses."""
    for index, source in enumerate(job.spec.training.data.train):
        yield f"data.train.{index}", source
    for index, one in enumerate(job.spec.training.evaluation.sets):
        if not one.questions:
            yield f"evaluation.sets.{index}", one


RULES = (sources_are_all_pairs_or_none, preferences_have_their_loss, weights_are_of_kto)

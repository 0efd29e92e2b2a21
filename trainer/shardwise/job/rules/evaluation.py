"""Rules on what a run is evaluated on."""

from collections.abc import Iterator

from shardwise.job.document import wrong
from shardwise.job.spec import TrainingJob
from shardwise.protocol.errors import Problem

_PATH = "spec.training"


def evaluation_set_names_are_unique(job: TrainingJob) -> Iterator[Problem]:
    """Require a name of its own for each set, by which curves and messages tell them apart."""
    names = [one.name for one in job.spec.training.evaluation.sets]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield wrong(f"{_PATH}.evaluation.sets.{index}.name", name, "a name that no other set has")


def questions_are_lines_of_their_own(job: TrainingJob) -> Iterator[Problem]:
    """Require of a set of questions nothing that says what else a line is."""
    for index, one in enumerate(job.spec.training.evaluation.sets):
        path = f"{_PATH}.evaluation.sets.{index}"
        if one.questions and one.is_judged:
            name = "labels" if one.labels else "preferences"
            yield wrong(f"{path}.{name}", True, f"no {name} with questions", "take one of the two out")
        if one.questions and one.text_field != "text":
            expected = "no textField with questions, which reads prompt, choices and answer"
            yield wrong(f"{path}.textField", one.text_field, expected, "take it out")


def evaluation_has_documents(job: TrainingJob) -> Iterator[Problem]:
    """Require something to read for each evaluation that is due."""
    training = job.spec.training
    evaluation = training.evaluation
    if evaluation.every_steps is not None and not training.data.held_out and not evaluation.sets:
        expected = "documents to evaluate on, and there are neither data.heldOut nor evaluation.sets"
        hint = "set data.heldOut, such as 0.01, or name sets, or take everySteps out"
        yield wrong(f"{_PATH}.evaluation.everySteps", evaluation.every_steps, expected, hint)


RULES = (evaluation_set_names_are_unique, questions_are_lines_of_their_own, evaluation_has_documents)

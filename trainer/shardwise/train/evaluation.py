"""The loss on text that is not trained on, the answers to questions, and the rewards of completions of prompts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax.stages import Compiled

from shardwise.job.spec import Training
from shardwise.protocol.evaluated import of_average
from shardwise.train.data.evaluation_sets import Evaluated
from shardwise.train.data.questions import QuestionSet
from shardwise.train.loader import Loader
from shardwise.train.state import Program, State, averaged, parameters, without_copies
from shardwise.train.step import lower_evaluation, lower_evaluation_of_text, lower_token_losses
from shardwise.train.work import Work, told_of

Lower = Callable[..., jax.stages.Lowered]
Rewarded = Callable[[State, Evaluated], dict[str, float]]
"""What finds the means over a set of prompts, with these parameters."""


class Programs(NamedTuple):
    """What evaluates sets, compiled; None if no set asks for it."""

    text: Compiled | None = None
    """`lower_evaluation`, of sets of what the job learns: text, or answers that are good or bad."""
    beside: Compiled | None = None
    """`lower_evaluation_of_text`, of sets of text beside answers or completions."""
    questions: Compiled | None = None
    """`lower_token_losses`."""


def asked_for(training: Training) -> dict[str, Lower]:
    """Return what lowers the programs that a job's sets ask for, by the fields of `Programs`."""
    sets, learns = training.evaluation.sets, training.learns_preferences
    texts = [one for one in sets if not (one.questions or one.prompts)]
    completes = training.reinforcement is not None
    is_due = {
        "text": not completes and (training.data.held_out > 0 or any(one.is_judged == learns for one in texts)),
        "beside": any(completes or one.is_judged != learns for one in texts),
        "questions": any(one.questions for one in sets),
    }
    lower = {"text": lower_evaluation, "beside": lower_evaluation_of_text, "questions": lower_token_losses}
    return {name: lower[name] for name, due in is_due.items() if due}


@told_of(Work.EVALUATION)
def means_of_sets(
    evaluator: Callable[..., "Evaluator"], program: Program, state: State, sets: Sequence[Evaluated]
) -> dict[str, dict[str, float]]:
    """Return the means over each set by its name, and by `of_average` those with the average of the weights, if any.

    `evaluator` makes an `Evaluator` of parameters and of whether it `compares`.
    """
    of = partial(evaluator, compares=program.training.has_unmatched)
    found = {one.name: of(params=parameters(state)).means(one) for one in sets}
    mean = averaged(program, state)
    if mean is None:
        return found
    return found | {of_average(one.name): of(params=mean).means(one) for one in sets}


@dataclass(frozen=True)
class Evaluator:
    """Evaluates parameters on sets."""

    programs: Programs
    params: State
    loader: Callable[..., Loader]
    """Of rows, and whether it `compares`."""
    beat: Callable[[], None]
    """Is called after each batch."""
    compares: bool = False
    """Whether the loss looks at prompts with answers to others, too."""
    rewarded: Rewarded | None = None
    """Of a run that learns from rewards."""

    def means(self, one: Evaluated) -> dict[str, float]:
        """Return the means over a set, as many batches of it as are to be evaluated.

        `loss` and `accuracy` are over the targets that count, and `tokens` is their number; of questions see
        `QuestionSet.means`, of prompts `Completions.means`.
        """
        if one.has_prompts:
            assert self.rewarded is not None, "a rule wants it"
            return self.rewarded(self.params, one)
        loader = self.loader(one.sequences.rows, compares=self.compares and one.is_judged)
        program, params = self.programs.text, self.params
        if isinstance(one.sequences, QuestionSet):
            program, params = self.programs.questions, without_copies(params)
        elif self.programs.beside is not None and not one.is_judged:
            program, params = self.programs.beside, without_copies(params)
        assert program is not None, "asked for"
        found = []
        for batch in loader.ahead(0, one.num_batches(loader.num_sequences)):
            found.append(jax.device_get(program(params, batch)))
            self.beat()
        if isinstance(one.sequences, QuestionSet):
            return one.sequences.means(np.concatenate(found))
        weight = sum(float(s.weight) for s in found)
        loss = sum(float(s.cross_entropy) for s in found) / weight
        return {"loss": loss, "accuracy": sum(float(s.correct) for s in found) / weight, "tokens": weight}

"""The rules on learning from rewards in CEL: those of `shardwise.job.rules.reinforcement`."""

from functools import partial

from shardwise_operator.api.cel import Rule, has_size, of_preset
from shardwise_operator.api.preference_rules import JUDGED, NO_SETS

_TRAINING = "spec.training"
_of_training = partial(Rule, at=_TRAINING)
_LEARNS = "has(self.reinforcement)"
_UPDATES = "self.?reinforcement.?updates.orValue(1)"
_PROMPTS = "source.?prompts.orValue(false)"

REINFORCEMENT_RULES = (
    _of_training(
        holds=f"self.data.train.all(source, {_PROMPTS} == {_LEARNS})",
        message="expected prompts: true of all sources with training.reinforcement, and of none without",
        field=".data.train",
    ),
    Rule(
        at=f"{_TRAINING}.data.train.*",
        holds="!self.?prompts.orValue(false) || (!self.?preferences.orValue(false) && !self.?labels.orValue(false) "
        "&& self.?textField.orValue('text') == 'text')",
        message="expected no preferences, labels or textField with prompts, which reads prompt",
        field=".prompts",
    ),
    Rule(
        at=f"{_TRAINING}.data",
        holds=f"!self.train.exists(source, {_PROMPTS}) || self.train.all(source, "
        "source.?chatTemplate.orValue('') == self.train[0].?chatTemplate.orValue(''))",
        message="expected one chatTemplate of all sources with prompts: completions all end alike",
        field=".train",
    ),
    _of_training(
        holds=f"{NO_SETS} || self.evaluation.sets.all(source, !{_PROMPTS} || ({_LEARNS} && !{JUDGED} "
        "&& !source.?questions.orValue(false) && source.?textField.orValue('text') == 'text' "
        "&& source.?chatTemplate.orValue('') == self.data.train[0].?chatTemplate.orValue('')))",
        message="expected prompts in sets only with training.reinforcement and with the sources' chatTemplate, and no "
        "questions, preferences, labels or textField beside them",
        field=".evaluation.sets",
    ),
    _of_training(
        holds=f"!{_LEARNS} || self.batch.sequences % self.reinforcement.samples == 0",
        message="expected a multiple of reinforcement.samples",
        field=".batch.sequences",
    ),
    _of_training(
        holds=f"{_UPDATES} == 1 || (self.steps % {_UPDATES} == 0 "
        f"&& self.?checkpoint.?everySteps.orValue(0) % {_UPDATES} == 0 "
        f"&& self.?checkpoint.?local.?everySteps.orValue(0) % {_UPDATES} == 0 "
        "&& (self.?startFrom.?restore.orValue('weights') == 'weights' "
        f"|| self.?startFrom.?step.orValue(1) % {_UPDATES} == 0))",
        message="expected steps, checkpoint.everySteps, checkpoint.local.everySteps and, with restore: all, "
        "startFrom.step that are multiples of reinforcement.updates",
        field=".reinforcement.updates",
    ),
    _of_training(
        holds=f"!{_LEARNS} || !has(self.batch.rampUp) || self.batch.rampUp.size() == 0",
        message="expected no rampUp with reinforcement",
        field=".batch.rampUp",
    ),
    _of_training(
        holds=f"!{_LEARNS} || !{has_size('self.model', 'seqLen')} "
        f"|| self.reinforcement.maxTokens < {of_preset('self.model', 'seq_len', 'seqLen')}",
        message="expected fewer than model.seqLen, which has room for the prompt too",
        field=".reinforcement.maxTokens",
    ),
    Rule(
        at=f"{_TRAINING}.reinforcement.reward",
        holds="has(self.pattern) != (has(self.command) && self.command.size() > 0)",
        message="expected a pattern or a command",
    ),
    _of_training(
        holds=f"!{_LEARNS} || self.reinforcement.?klWeight.orValue(0.0) == 0.0 || has(self.lora) "
        "|| (has(self.startFrom) && has(self.startFrom.step) "
        "&& self.startFrom.?restore.orValue('weights') == 'weights')",
        message="expected 0, or startFrom with a step and without restore: all, whose weights it is compared with",
        field=".reinforcement.klWeight",
    ),
)

"""The rules of answers that are good or bad, in CEL: those of `shardwise.job.rules.preferences`."""

from functools import partial

from shardwise_operator.api.cel import Rule

_of_training = partial(Rule, at="spec.training")
NO_SETS = "!has(self.evaluation) || !has(self.evaluation.sets)"
_LABELS = "source.?labels.orValue(false)"
JUDGED = f"(source.?preferences.orValue(false) || {_LABELS})"
"""Whether a source or a set is of such answers."""
_LOSS = "self.?loss.?preferences.orValue('dpo')"

PREFERENCE_RULES = (
    _of_training(
        holds=f"!self.data.train.exists(source, {JUDGED}) || (self.?loss.?zLoss.orValue(0.0) == 0.0 "
        f"&& self.data.train.all(source, {JUDGED} && has(source.chatTemplate)))",
        message="expected no loss.zLoss with preferences, and a chatTemplate and preferences of all sources",
        field=".data.train",
    ),
    *(
        _of_training(
            holds=f"{there}{sources}.all(source, !{_LABELS} || "
            f"({_LOSS} == 'kto' && !source.?preferences.orValue(false)))",
            message="expected loss.preferences: kto with labels, and no preferences beside them",
            field=field,
        )
        for sources, there, field in (
            ("self.data.train", "", ".data.train"),
            ("self.evaluation.sets", f"{NO_SETS} || ", ".evaluation.sets"),
        )
    ),
    _of_training(
        holds=f"{NO_SETS} || !self.evaluation.sets.exists(source, {JUDGED}) "
        f"|| self.data.train.exists(source, {JUDGED})",
        message="expected no preferences and no labels of a set beside sources of text, whose loss is another",
        field=".evaluation.sets",
    ),
    *(
        _of_training(
            holds=f"self.?loss.?{name}.orValue(1.0) == 1.0 || {_LOSS} == 'kto'",
            message="expected 1: it is a part of the loss of kto alone",
            field=f".loss.{name}",
        )
        for name in ("goodWeight", "badWeight")
    ),
    _of_training(
        holds=f"!self.data.train.exists(source, {JUDGED}) || {_LOSS} in "
        "['simpo', 'orpo'] || (has(self.startFrom) && has(self.startFrom.step) "
        "&& self.startFrom.?restore.orValue('weights') == 'weights')",
        message="expected startFrom with a step and without restore: all with preferences, which compare answers with "
        "those of its weights; loss.preferences: simpo or orpo compares with none",
        field=".data.train",
    ),
    *(
        _of_training(
            holds=f"self.?loss.?{name}.orValue({usual}) == {usual} || self.data.train.exists(source, {JUDGED})",
            message="expected it left out without preferences, of whose loss it is a part",
            field=f".loss.{name}",
        )
        for name, usual in (("preferences", "'dpo'"), ("labelSmoothing", "0.0"), ("chosenWeight", "0.0"))
    ),
)

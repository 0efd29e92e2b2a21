"""The rules across fields of what is trained, in CEL: `shardwise.job.rules`, as far as the API server can judge them.

Each hangs at the smallest group that holds its fields, so that its message has the closest path; `job_policy.py` holds
jobs against them. What depends on the accelerator class is in `accelerator_policy.py`; bounds of durations and of keys
are left to the operator, which checks every job with the models again.
"""

import json
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import takewhile

from pydantic.fields import FieldInfo

from shardwise.job.fields import kind_of, named_fields
from shardwise.job.optimizer_values import OPTIMIZERS, OWNERS
from shardwise.job.presets import NO_PRESET, PRESETS
from shardwise.job.rules.conflicts import CONFLICTS, Fact
from shardwise.job.spec import JobSpec, Model, Optimizer
from shardwise.protocol.strict_model import StrictModel
from shardwise_operator.api.cel import Rule, flag_rules, quoted
from shardwise_operator.api.data_rules import DATA_RULES
from shardwise_operator.api.mesh_rules import MESH_RULES
from shardwise_operator.api.model_rules import MODEL_RULES
from shardwise_operator.api.preference_rules import JUDGED, NO_SETS, PREFERENCE_RULES
from shardwise_operator.api.reinforcement_rules import REINFORCEMENT_RULES

_TRAINING = "spec.training"
_of_training = partial(Rule, at=_TRAINING)
_SCHEDULE = "self.optimizer.?schedule"
_WARMUP = f"{_SCHEDULE}.?warmupSteps.orValue(0)"
_WSD = f"{_SCHEDULE}.?kind.orValue('constant') == 'warmup-stable-decay'"
_DECAY = f"{_SCHEDULE}.?decaySteps"


_TRAINING_RULES = (
    _of_training(
        holds="self.model.?attention.orValue('auto') != 'cudnn' "
        "|| self.?precision.?compute.orValue('float32') != 'float32'",
        message="expected precision.compute: bfloat16 with attention: cudnn; or set attention: auto",
        field=".precision.compute",
    ),
    Rule(
        at=f"{_TRAINING}.optimizer",
        holds="!has(self.groups) || self.?name.orValue('adamw') != 'adam' "
        "|| !self.groups.exists(group, has(group.weightDecay))",
        message="expected groups without weightDecay with name: adam, which has none; adamw has it",
        field=".groups",
    ),
    *(
        _of_training(
            holds=f"{there}{sources}.all(source, "
            "!has(source.chatTemplate) || !has(source.textField) || source.textField == 'text')",
            message="expected no textField with chatTemplate, which reads messages",
            field=field,
        )
        for sources, there, field in (
            ("self.data.train", "", ".data.train"),
            ("self.evaluation.sets", f"{NO_SETS} || ", ".evaluation.sets"),
        )
    ),
    *(
        _of_training(
            holds=f"self.data.?attendAcross.orValue('stream') == 'document' || {there}"
            f"!{sources}.exists(source, has(source.chatTemplate){alone})",
            message="expected data.attendAcross: document with chatTemplate: conversations would see each other",
            field=".data.attendAcross",
        )
        for sources, there, alone in (
            ("self.data.train", "", ""),
            ("self.evaluation.sets", f"{NO_SETS} || ", " && !source.?questions.orValue(false)"),
        )
    ),
    _of_training(
        holds=f"{NO_SETS} || self.evaluation.sets.all(source, !source.?questions.orValue(false) "
        f"|| (!{JUDGED} && source.?textField.orValue('text') == 'text'))",
        message="expected no preferences, labels or textField with questions, which reads prompt, choices and answer",
        field=".evaluation.sets",
    ),
    *PREFERENCE_RULES,
    _of_training(
        holds="!has(self.lora) || (has(self.startFrom) && has(self.startFrom.step))",
        message="expected startFrom with a step with lora: the weights that adapters are for are read at each start",
        field=".startFrom",
    ),
    _of_training(
        holds=f"{_WARMUP} < self.steps",
        message="expected fewer warmupSteps than training.steps",
        field=".optimizer.schedule.warmupSteps",
    ),
    _of_training(
        holds=f"!({_WSD}) || {_DECAY}.hasValue()",
        message="expected decaySteps, the number of last steps in which the rate falls, for kind: warmup-stable-decay; "
        "a tenth of training.steps is usual",
        field=".optimizer.schedule",
    ),
    _of_training(
        holds=f"!({_WSD}) || {_DECAY}.orValue(0) <= self.steps - {_WARMUP} || self.steps <= {_WARMUP}",
        message="expected at most the steps that are left after the warm-up",
        field=".optimizer.schedule.decaySteps",
    ),
    Rule(
        at=_TRAINING,
        holds="!has(self.profile) || self.profile.steps.size() != 2 "
        "|| (self.profile.steps[0] <= self.profile.steps[1] && self.profile.steps[1] <= self.steps)",
        message="expected a first step and a last one that are steps of the run, such as [10, 12]",
        field=".profile.steps",
    ),
    _of_training(
        holds="!has(self.evaluation) || !has(self.evaluation.everySteps) || self.data.?heldOut.orValue(0.0) > 0.0 "
        "|| (has(self.evaluation.sets) && self.evaluation.sets.size() > 0)",
        message="expected documents to evaluate on, and there are neither data.heldOut nor evaluation.sets; "
        "set data.heldOut, such as 0.01, or name sets, or take everySteps out",
        field=".evaluation.everySteps",
    ),
    Rule(
        at=f"{_TRAINING}.checkpoint",
        holds="!self.?keep.?everySteps.hasValue() "
        "|| (has(self.everySteps) && self.keep.everySteps % self.everySteps == 0)",
        message="expected a multiple of checkpoint.everySteps, which must be there beside it",
        field=".keep.everySteps",
    ),
)


def _optimizer_rules() -> Iterable[Rule]:
    """Yield rules against settings that the update rule does not use."""
    for name, owners in OWNERS.items():
        alias = Optimizer.model_fields[name].alias
        if len(owners) < len(OPTIMIZERS):
            yield Rule(
                at=f"{_TRAINING}.optimizer",
                holds=f"!has(self.{alias}) || self.?name.orValue('adamw') in {quoted(owners)}",
                message=f"expected no {alias} with this optimizer; it is for {' and '.join(owners)}",
                field=f".{alias}",
            )


def _conflict_rules() -> Iterable[Rule]:
    """Yield the table of `shardwise.job.rules.conflicts`, each row at the smallest group that holds its fields."""
    for conflict in CONFLICTS:
        paths = [fact.path.split(".") for fact in conflict.facts]
        shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*(path[:-1] for path in paths), strict=False))
        depth = len(list(shared))
        yield Rule(
            at=".".join(["spec", *paths[0][:depth]]),
            holds=f"!({' && '.join(_fact(fact, depth) for fact in conflict.facts)})",
            message=f"expected {conflict.expected}" + (f"; {conflict.hint}" if conflict.hint else ""),
            field="." + ".".join(paths[0][depth:]),
        )


def _fact(fact: Fact, depth: int) -> str:
    """Return a fact in CEL, seen from the group that is the first `depth` parts of its path."""
    *groups, (name, field) = _fields(fact.path)
    assert not field.is_required(), "the field has a default, or counts as left out"
    around = "self"
    for part, group in groups[depth:]:
        # What lies below an optional group is looked up as an optional too.
        is_optional = "?" in around or not group.is_required()
        around += f".?{part}" if is_optional else f".{part}"
    if fact.is_ == "set":
        return f"{around}.?{name}.hasValue()"
    return f"{around}.?{name}.orValue({_default(field, name, fact, around)}) {fact.is_} {_literal(fact.value)}"


def _fields(path: str) -> Iterator[tuple[str, FieldInfo]]:
    """Yield each part of a path below `spec`, with its field."""
    group: type[StrictModel] | None = JobSpec
    for part in path.split("."):
        assert group is not None
        field = named_fields(group)[part]
        yield part, field
        group = kind_of(field).model


def _default(field: FieldInfo, alias: str, fact: Fact, around: str) -> str:
    """Return what a field that is left out counts as; without a default, a value of which the fact does not hold."""
    name = next((name for name in NO_PRESET if Model.model_fields[name].alias == alias), None)
    if name is not None:
        usual = NO_PRESET[name]
        others = {preset: sizes[name] for preset, sizes in PRESETS.items() if sizes[name] != usual}
        (other,) = set(others.values())
        return f"{around}.?preset.orValue('') in {quoted(others)} ? {_literal(other)} : {_literal(usual)}"
    if field.default is not None:
        return _literal(field.default)
    return "''" if isinstance(fact.value, str) else _literal(fact.value)


def _literal(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


JOB_RULES: tuple[Rule, ...] = (
    *MODEL_RULES,
    *MESH_RULES,
    *_TRAINING_RULES,
    *DATA_RULES,
    *REINFORCEMENT_RULES,
    *_conflict_rules(),
    *flag_rules(f"{_TRAINING}.xlaFlags", "self"),
    *_optimizer_rules(),
)

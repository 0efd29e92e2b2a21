"""Values that do not go together, as data: each row is a rule here and, by the operator's `job_rules`, one in CEL.

A rule fits if it compares single fields with constants. Rules that calculate are functions in the files beside this.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from shardwise.job.document import wrong
from shardwise.job.fields import values_at
from shardwise.job.presets import BYTE_TOKENIZER, BYTE_VOCAB_SIZE
from shardwise.job.spec import TrainingJob
from shardwise.protocol.errors import Problem
from shardwise.protocol.strict_model import StrictModel

_COMPARISONS = {"==": operator.eq, ">": operator.gt, "<": operator.lt}


class Fact(NamedTuple):
    """A field, by its path below `spec`, compared with a constant; without a value no comparison holds."""

    path: str
    is_: Literal["==", ">", "<", "set"]
    value: str | bool | float = True

    def holds(self, spec: StrictModel) -> bool:
        """Return whether it is so in a resolved spec."""
        given = next((value for _, value in values_at(spec, self.path)), None)  # of a group that is there
        return given is not None and (self.is_ == "set" or bool(_COMPARISONS[self.is_](given, self.value)))


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """Facts that must not hold together. The first one's field is blamed; `expected` and `hint` are the message."""

    facts: tuple[Fact, ...]
    expected: str
    hint: str = ""


CONFLICTS = (
    Conflict(
        facts=(Fact("training.mesh.pipelineRounds", ">", 1), Fact("training.mesh.pipeline", "==", 1)),
        expected="1 with pipeline: 1, which has no stages to go round",
    ),
    Conflict(
        facts=(Fact("training.mesh.pipelineRounds", ">", 1), Fact("training.model.remat", "==", "none")),
        expected="1 with remat: none, which would keep a copy of the weights for every visit of a stage",
        hint="set model.remat: dots or full",
    ),
    Conflict(
        facts=(Fact("training.model.remat", "==", "offload"), Fact("training.mesh.pipeline", ">", 1)),
        expected="full, dots or none with a pipeline, whose stages keep the inputs of all microbatches on the devices",
        hint="set model.remat: full",
    ),
    Conflict(
        facts=(
            Fact("training.mesh.dataInner", ">", 1),
            Fact("training.mesh.fsdp", "==", False),
            Fact("training.mesh.expert", "==", 1),
        ),
        expected="1 with fsdp: false, which gathers nothing",
        hint="leave it out for what suits the accelerator",
    ),
    *(
        Conflict(
            facts=(Fact(f"training.model.{name}", "set"), Fact("training.model.position", "==", "learned")),
            expected=f"no {name} with position: learned",
            hint="take it out, or set position: rotary",
        )
        for name in ("rotaryDim", "rotaryPairs", "ropeTheta", "localRopeTheta", "ropeScaling")
    ),
    *(
        Conflict(
            facts=(fact, Fact("training.model.latent", "set")),
            expected=f"{expected} with latent",
        )
        for fact, expected in (
            (Fact("training.model.position", "==", "learned"), "rotary"),
            (Fact("training.model.attentionBias", "==", True), "false"),
            (Fact("training.model.qkNorm", "==", True), "false"),
            (Fact("training.model.slidingWindow", "set"), "no slidingWindow"),
            (Fact("training.model.rotaryPattern", "set"), "no rotaryPattern"),
        )
    ),
    Conflict(
        facts=(Fact("training.model.headBias", "==", True), Fact("training.model.tiedHead", "==", True)),
        expected="false with tiedHead: true",
        hint="a head that is the token table has no bias; set tiedHead: false for one",
    ),
    Conflict(
        facts=(
            Fact("training.model.vocabSize", "<", BYTE_VOCAB_SIZE),
            Fact("training.data.tokenizer", "==", BYTE_TOKENIZER),
        ),
        expected=f"at least {BYTE_VOCAB_SIZE}, the size of the byte tokenizer",
    ),
    Conflict(
        facts=(Fact("training.model.dropout.attention", ">", 0.0),),
        expected="0: the attention kernels never hold the weights that would be dropped",
        hint="dropout.embed and dropout.residual are there",
    ),
    Conflict(
        facts=(
            Fact("training.optimizer.schedule.decaySteps", "set"),
            Fact("training.optimizer.schedule.kind", "==", "constant"),
        ),
        expected="no decaySteps with kind: constant",
        hint="take kind: cosine, linear or warmup-stable-decay for a fall",
    ),
    Conflict(
        facts=(Fact("training.model.experts.biasRate", ">", 0.0), Fact("training.lora", "set")),
        expected="0 with lora, beside which the model stays as it is",
        hint="leave it out",
    ),
    Conflict(
        facts=(Fact("training.startFrom.restore", "==", "all"), Fact("training.lora", "set")),
        expected="weights with lora, whose adapters begin anew",
    ),
    *(
        Conflict(
            facts=(Fact("training.loss.labelSmoothing", ">", 0), Fact("training.loss.preferences", "==", kind)),
            expected=f"0 with preferences: {kind}, which {why}",
        )
        for kind, why in (
            ("ipo", "pulls no pair apart without end"),
            ("simpo", "has no such term"),
            ("orpo", "has no such term"),
            ("kto", "has no such term"),
        )
    ),
    *(
        Conflict(
            facts=(Fact("training.loss.margin", ">", 0), Fact("training.loss.preferences", "==", kind)),
            expected=f"0 with preferences: {kind}; it is a part of the loss of simpo alone",
        )
        for kind in ("dpo", "ipo", "orpo", "kto")
    ),
    Conflict(
        facts=(Fact("training.loss.chosenWeight", ">", 0), Fact("training.loss.preferences", "==", "kto")),
        expected="0 with preferences: kto, which has no such term",
    ),
    Conflict(
        facts=(Fact("training.loss.chosenWeight", "==", 0.0), Fact("training.loss.preferences", "==", "orpo")),
        expected="above 0 with preferences: orpo, whose loss is first of all the chosen answer's cross entropy",
        hint="1 is as it was published",
    ),
    Conflict(
        facts=(Fact("training.optimizer.name", "==", "muon"), Fact("training.lora", "set")),
        expected="another optimizer with lora: muon is for whole matrices",
        hint="set name: adamw",
    ),
    *(
        Conflict(facts=(fact, Fact("training.reinforcement", "set")), expected=f"{expected} with reinforcement{why}")
        for fact, expected, why in (
            (Fact("training.mesh.pipeline", ">", 1), "1", ": a pipeline makes no completions"),
            (Fact("training.mesh.context", ">", 1), "1", ": completions are made of whole sequences"),
            (Fact("training.loss.zLoss", ">", 0), "0", ", whose loss has no such term"),
            (Fact("training.model.dropout.embed", ">", 0.0), "0", ": completions are made without dropout"),
            (Fact("training.model.dropout.residual", ">", 0.0), "0", ": completions are made without dropout"),
        )
    ),
    *(
        Conflict(
            facts=(Fact("training.precision.products", "==", form), fact),
            expected=f"compute with {given}",
            hint=hint,
        )
        for form in ("float8", "int8")
        for fact, given, hint in (
            (
                Fact("training.precision.compute", "==", "float32"),
                "compute: float32, of which 8 bits would keep little",
                "set precision.compute: bfloat16",
            ),
            (Fact("training.model.experts", "set"), "experts, whose products are in the compute format", ""),
            (Fact("training.reinforcement", "set"), "reinforcement, whose completions nothing rounds to 8 bits", ""),
        )
    ),
    *(
        Conflict(
            facts=(Fact(f"training.badSteps.{name}", "==", "rollBack"), Fact("recovery.restarts.nonfinite", "==", 0)),
            expected="restarts to go back by, and recovery.restarts.nonfinite is 0",
            hint="set recovery.restarts.nonfinite, such as 10, or take skip",
        )
        for name in ("nonFinite", "lossSpike")
    ),
)


def values_go_together(job: TrainingJob) -> Iterator[Problem]:
    """Refuse every row of the table that holds as a whole."""
    for conflict in CONFLICTS:
        if all(fact.holds(job.spec) for fact in conflict.facts):
            ((path, given),) = values_at(job.spec, conflict.facts[0].path)
            yield wrong(f"spec.{path}", given, conflict.expected, conflict.hint)

"""The rules across fields of what is trained, in CEL: `shardwise.job.rules`, as far as the API server can judge them.

Each hangs at the smallest group that holds its fields, where it costs least and its message has the closest path.  What
depends on the accelerator class is in `policy.py`; bounds of durations and of keys are left to the operator, which
checks every job with the models again.
"""

from collections.abc import Iterable

from shardwise.job.flags import REFUSED
from shardwise.job.kernels import CUDNN_HEAD_MOST, CUDNN_HEAD_STEP, SPLASH_POSITIONS
from shardwise.job.presets import BYTE_VOCAB_SIZE, OPTIMIZERS, VOCAB_MULTIPLE
from shardwise.job.spec import Optimizer
from shardwise_operator.api.cel import Rule, has_size, listed, of_preset, once, quoted, without

_MODEL = "spec.training.model"
_HEADS = of_preset("self", "heads", "heads")
_EMBED = of_preset("self", "embed", "embed")
_POSITIONS = of_preset("self", "seq_len", "seqLen")
_KNOWN = has_size("self", "heads", "embed")
_HEAD = f"{_EMBED} / {_HEADS}"
_IS_GPTJ = "self.?preset.orValue('') == 'gptj-6b'"

_MODEL_RULES = (
    Rule(
        at=_MODEL,
        holds=has_size("self", "layers", "heads", "embed", "seqLen"),
        message="expected a preset, or layers, heads, embed and seqLen; for a small model write preset: tiny",
    ),
    Rule(
        at=_MODEL,
        holds=f"!{_KNOWN} || {_EMBED} % {_HEADS} == 0",
        message="'expected a number of heads that divides embed, such as' + " + listed(_EMBED),
        shows=True,
        field=".heads",
    ),
    Rule(
        at=_MODEL,
        holds=f"!has(self.rotaryDim) || self.?position.orValue({_IS_GPTJ} ? 'rotary' : 'learned') == 'rotary'",
        message="expected no rotaryDim with position: learned; take it out, or set position: rotary",
        field=".rotaryDim",
    ),
    Rule(
        at=_MODEL,
        holds=f"!has(self.rotaryDim) || !{_KNOWN} "
        f"|| (self.rotaryDim % 2 == 0 && self.rotaryDim <= {_EMBED} / {_HEADS})",
        message="expected an even number up to the head size (embed / heads)",
        field=".rotaryDim",
    ),
    Rule(
        at=_MODEL,
        holds=f"!(self.?tiedHead.orValue(!({_IS_GPTJ})) && self.?headBias.orValue({_IS_GPTJ}))",
        message="expected headBias: false with tiedHead: true; a head that is the token table has no bias",
        field=".headBias",
    ),
    Rule(
        at=_MODEL,
        holds=f"self.?attention.orValue('auto') != 'splash' || !{has_size('self', 'seqLen')} "
        f"|| {_POSITIONS} % {SPLASH_POSITIONS} == 0",
        message=f"expected a multiple of {SPLASH_POSITIONS} with attention: splash; or set attention: auto",
        field=".seqLen",
    ),
    Rule(
        at=_MODEL,
        holds=f"self.?attention.orValue('auto') != 'cudnn' || !{_KNOWN} "
        f"|| ({_HEAD} % {CUDNN_HEAD_STEP} == 0 && {_HEAD} <= {CUDNN_HEAD_MOST})",
        message=f"expected heads of a multiple of {CUDNN_HEAD_STEP} up to {CUDNN_HEAD_MOST} values (embed / heads) "
        "with attention: cudnn; or set attention: auto",
        field=".heads",
    ),
    Rule(
        at=f"{_MODEL}.dropout",
        holds="!has(self.attention) || self.attention == 0.0",
        message="expected 0: the attention kernels never hold the weights that would be dropped; "
        "embed and residual are there",
        field=".attention",
    ),
)

_TRAINING = "spec.training"
_BYTE = "self.data.?tokenizer.orValue('byte') == 'byte'"
_TENSOR = "self.?mesh.?tensor.orValue(1)"
_MODEL_HEADS = of_preset("self.model", "heads", "heads")
_MLP = f"self.model.?mlp.orValue(4 * {of_preset('self.model', 'embed', 'embed')})"
_ROWS = (
    f"((self.model.?vocabSize.orValue({BYTE_VOCAB_SIZE}) + {VOCAB_MULTIPLE - 1}) / {VOCAB_MULTIPLE} * {VOCAB_MULTIPLE})"
)
_SCHEDULE = "self.optimizer.?schedule"
_WARMUP = f"{_SCHEDULE}.?warmupSteps.orValue(0)"
_WSD = f"{_SCHEDULE}.?kind.orValue('constant') == 'warmup-stable-decay'"
_DECAY = f"{_SCHEDULE}.?decaySteps"

_TRAINING_RULES = (
    Rule(
        at=f"{_TRAINING}.mesh",
        holds="!has(self.context) || self.context == 1",
        message="expected 1: splitting a sequence over devices is not supported yet; take more tensor ways",
        field=".context",
    ),
    Rule(
        at=f"{_TRAINING}.mesh",
        holds="!has(self.pipeline) || self.pipeline == 1",
        message="expected 1: splitting the layers over devices is not supported yet; fsdp and tensor split every layer",
        field=".pipeline",
    ),
    Rule(
        at=f"{_TRAINING}.mesh",
        holds="self.?dataInner.orValue(1) == 1 || self.?fsdp.orValue(true)",
        message="expected 1 with fsdp: false, which gathers nothing; leave it out for what suits the accelerator",
        field=".dataInner",
    ),
    Rule(
        at=_TRAINING,
        holds=f"!({_BYTE}) || self.model.?vocabSize.orValue({BYTE_VOCAB_SIZE}) >= {BYTE_VOCAB_SIZE}",
        message=f"expected at least {BYTE_VOCAB_SIZE}, the size of the byte tokenizer",
        field=".model.vocabSize",
    ),
    Rule(
        at=_TRAINING,
        holds=f"!{has_size('self.model', 'heads')} || {_MODEL_HEADS} % {_TENSOR} == 0",
        message="'expected a tensor that divides heads, such as' + " + listed(_MODEL_HEADS),
        shows=True,
        field=".mesh.tensor",
    ),
    Rule(
        at=_TRAINING,
        holds=f"!(has(self.model.mlp) || {has_size('self.model', 'embed')}) || {_MLP} % {_TENSOR} == 0",
        message="'expected a tensor that divides mlp, such as' + " + listed(_MLP),
        shows=True,
        field=".mesh.tensor",
    ),
    Rule(
        at=_TRAINING,
        holds=f"!(has(self.model.vocabSize) || {_BYTE}) || {_ROWS} % {_TENSOR} == 0",
        message="'expected a tensor that divides the vocabulary rows, padded to 128, such as' + " + listed(_ROWS),
        shows=True,
        field=".mesh.tensor",
    ),
    Rule(
        at=_TRAINING,
        holds="self.model.?attention.orValue('auto') != 'cudnn' "
        "|| self.?precision.?compute.orValue('float32') != 'float32'",
        message="expected precision.compute: bfloat16 with attention: cudnn; or set attention: auto",
        field=".precision.compute",
    ),
    Rule(
        at=_TRAINING,
        holds=f"{_WARMUP} < self.steps",
        message="expected fewer warmupSteps than training.steps",
        field=".optimizer.schedule.warmupSteps",
    ),
    Rule(
        at=f"{_TRAINING}.optimizer.schedule",
        holds="!has(self.decaySteps) || self.?kind.orValue('constant') != 'constant'",
        message="expected no decaySteps with kind: constant; take kind: cosine, linear or warmup-stable-decay",
        field=".decaySteps",
    ),
    Rule(
        at=_TRAINING,
        holds=f"!({_WSD}) || {_DECAY}.hasValue()",
        message="expected decaySteps, the number of last steps in which the rate falls, for kind: warmup-stable-decay; "
        "a tenth of training.steps is usual",
        field=".optimizer.schedule",
    ),
    Rule(
        at=_TRAINING,
        holds=f"!({_WSD}) || {_DECAY}.orValue(0) <= self.steps - {_WARMUP} || self.steps <= {_WARMUP}",
        message="expected at most the steps that are left after the warm-up",
        field=".optimizer.schedule.decaySteps",
    ),
    Rule(
        at=f"{_TRAINING}.checkpoint",
        holds="!self.?keep.?everySteps.hasValue() "
        "|| (has(self.everySteps) && self.keep.everySteps % self.everySteps == 0)",
        message="expected a multiple of checkpoint.everySteps, which must be there beside it",
        field=".keep.everySteps",
    ),
    Rule(
        at=_TRAINING,
        holds="!self.?evaluation.?everySteps.hasValue() || self.data.?heldOut.orValue(0.0) > 0.0",
        message="expected documents to evaluate on, and data.heldOut is 0; set data.heldOut, such as 0.01",
        field=".evaluation.everySteps",
    ),
    *(
        Rule(
            at="spec",
            holds=f"self.training.?badSteps.?{name}.orValue('stop') != 'rollBack' "
            "|| self.?recovery.?restarts.?nonfinite.orValue(0) > 0",
            message="expected restarts to go back by, and recovery.restarts.nonfinite is 0; set it, such as 10",
            field=f".training.badSteps.{name}",
        )
        for name in ("nonFinite", "lossSpike")
    ),
)


_FLAG_RULES = (
    Rule(at=f"{_TRAINING}.xlaFlags", holds=once("self"), message="expected each option once"),
    *(
        Rule(
            at=f"{_TRAINING}.xlaFlags",
            holds=without("self", name),
            message=f"expected options without --{name}; {reason}",
        )
        for name, reason in REFUSED.items()
    ),
)


def _optimizer_rules() -> Iterable[Rule]:
    """A setting that the update rule does not use is a mistake."""
    for name in ("beta1", "beta2", "epsilon", "weight_decay", "momentum", "adam_learning_rate"):
        alias = Optimizer.model_fields[name].alias
        owners = [
            each for each, own in OPTIMIZERS.items() if name in own or (each, name) == ("muon", "adam_learning_rate")
        ]
        if len(owners) < len(OPTIMIZERS):
            yield Rule(
                at=f"{_TRAINING}.optimizer",
                holds=f"!has(self.{alias}) || self.?name.orValue('adamw') in {quoted(owners)}",
                message=f"expected no {alias} with this optimizer; it is for {' and '.join(owners)}",
                field=f".{alias}",
            )


JOB_RULES: tuple[Rule, ...] = (*_MODEL_RULES, *_TRAINING_RULES, *_FLAG_RULES, *_optimizer_rules())

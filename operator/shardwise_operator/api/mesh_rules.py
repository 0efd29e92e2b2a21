"""The rules of a mesh that a job decides by itself, in CEL: what it splits, it splits evenly.

What depends on the devices is in `accelerator_policy.py`.
"""

from functools import partial

from shardwise.job.kernels import SPLASH_POSITIONS
from shardwise.job.presets import BYTE_VOCAB_SIZE, PRESETS, VOCAB_MULTIPLE
from shardwise_operator.api.cel import Rule, has_size, listed, of_preset, preset_or

_of_training = partial(Rule, at="spec.training")
_BYTE = "self.data.?tokenizer.orValue('byte') == 'byte'"
_TENSOR = "self.?mesh.?tensor.orValue(1)"
_MODEL_HEADS = of_preset("self.model", "heads", "heads")
_MODEL_KV_HEADS = preset_or("self.model", "kv_heads", "kvHeads", _MODEL_HEADS)
_MLP = preset_or("self.model", "mlp", "mlp", f"4 * {of_preset('self.model', 'embed', 'embed')}")
_ROWS = (
    f"((self.model.?vocabSize.orValue({BYTE_VOCAB_SIZE}) + {VOCAB_MULTIPLE - 1}) / {VOCAB_MULTIPLE} * {VOCAB_MULTIPLE})"
)
_HAS_LAYERS = has_size("self.model", "layers")
_PIPELINE = "self.?mesh.?pipeline.orValue(1)"
_CONTEXT = "self.?mesh.?context.orValue(1)"
_POSITIONS = of_preset("self.model", "seq_len", "seqLen")
_RAMP_UP = "self.batch.?rampUp.orValue([])"
_RISES = (
    f"{_RAMP_UP}.map(part, part.{{0}}).isSorted() && "
    f"{_RAMP_UP}.all(part, {_RAMP_UP}.exists_one(other, other.{{0}} == part.{{0}}))"
)
_EXPERT = "self.?mesh.?expert.orValue(1)"
_PRESET_EXPERTS = ", ".join(
    f"'{preset}': {sizes['experts'].count}" for preset, sizes in PRESETS.items() if "experts" in sizes
)
_EXPERTS = f"self.model.?experts.?count.orValue({{{_PRESET_EXPERTS}}}[?self.model.?preset.orValue('')].orValue(0))"
_PRESET_DENSE = ", ".join(
    f"'{preset}': {sizes['experts'].dense_blocks or 0}" for preset, sizes in PRESETS.items() if "experts" in sizes
)
_DENSE = f"self.model.?experts.?denseBlocks.orValue({{{_PRESET_DENSE}}}[?self.model.?preset.orValue('')].orValue(0))"
# Those that a pipeline splits: the first blocks of a mixture are of another kind.
_LAYERS = f"({of_preset('self.model', 'layers', 'layers')} - {_DENSE})"
_LAYERS_OF_STAGE = f"{_LAYERS} / {_PIPELINE}"
# What tensor divides: its name, whether it is known here, and it.
_DIVIDED = (
    ("heads", has_size("self.model", "heads"), _MODEL_HEADS),
    ("kvHeads", f"({has_size('self.model', 'heads')} && {_MODEL_KV_HEADS} != {_MODEL_HEADS})", _MODEL_KV_HEADS),
    ("mlp", f"(has(self.model.mlp) || {has_size('self.model', 'embed')})", _MLP),
    (f"the vocabulary rows, padded to {VOCAB_MULTIPLE}", f"(has(self.model.vocabSize) || {_BYTE})", _ROWS),
)
_DIVIDED_OR_0 = tuple(f"{known} ? {number} : 0" for _, known, number in _DIVIDED)

MESH_RULES: tuple[Rule, ...] = (
    *(
        _of_training(
            holds=f"!{known} || {number} % {_TENSOR} == 0",
            message=listed(f"expected a tensor that divides {what}; these fit the model:", *_DIVIDED_OR_0),
            shows=True,
            field=".mesh.tensor",
        )
        for what, known, number in _DIVIDED
    ),
    _of_training(
        holds=f"!{_HAS_LAYERS} || {_LAYERS} % {_PIPELINE} == 0",
        message=listed("expected a pipeline that divides layers, such as", _LAYERS),
        shows=True,
        field=".mesh.pipeline",
    ),
    _of_training(
        holds=f"!{_HAS_LAYERS} || {_LAYERS} % {_PIPELINE} != 0 "
        f"|| {_LAYERS_OF_STAGE} % self.?mesh.?pipelineRounds.orValue(1) == 0",
        message=listed("expected pipelineRounds that divide the layers of a stage, such as", _LAYERS_OF_STAGE),
        shows=True,
        field=".mesh.pipelineRounds",
    ),
    _of_training(
        holds=f"{_EXPERT} == 1 || {_EXPERTS} > 0",
        message="expected 1 without model.experts, which it splits",
        field=".mesh.expert",
    ),
    _of_training(
        holds=f"{_EXPERTS} % {_EXPERT} == 0",
        message=listed("expected an expert that divides model.experts.count, such as", _EXPERTS),
        shows=True,
        field=".mesh.expert",
    ),
    Rule(
        at="spec.training.mesh",
        holds="self.?expert.orValue(1) == 1 || !has(self.dataInner) || self.dataInner == self.expert",
        message="expected the same as expert, since the experts are split over the same devices; leave it out",
        field=".dataInner",
    ),
    _of_training(
        holds=f"{_CONTEXT} == 1 || !{has_size('self.model', 'seqLen')} || {_POSITIONS} % (2 * {_CONTEXT}) == 0",
        message="expected a context of which twice as many divide seqLen",
        field=".mesh.context",
    ),
    _of_training(
        holds=f"self.model.?attention.orValue('auto') != 'cudnn' || {_CONTEXT} == 1",
        message="expected 1 with attention: cudnn, which takes whole sequences; or set attention: auto",
        field=".mesh.context",
    ),
    _of_training(
        holds=f"self.model.?attention.orValue('auto') != 'splash' || {_CONTEXT} == 1 "
        f"|| !{has_size('self.model', 'seqLen')} || {_POSITIONS} % ({2 * SPLASH_POSITIONS} * {_CONTEXT}) == 0",
        message=f"expected a multiple of {2 * SPLASH_POSITIONS} times mesh.context with attention: splash; "
        "or set attention: auto",
        field=".model.seqLen",
    ),
    _of_training(
        holds=f"self.batch.?microbatches.orValue(1) % {_PIPELINE} == 0",
        message="expected a multiple of mesh.pipeline; more make the pipeline's bubble smaller",
        field=".batch.microbatches",
    ),
    _of_training(
        holds=f"{_RISES.format('untilStep')} && {_RAMP_UP}.all(part, part.untilStep < self.steps)",
        message="expected steps that ascend, before the run's last step",
        field=".batch.rampUp",
    ),
    _of_training(
        holds=f"{_RISES.format('sequences')} && {_RAMP_UP}.all(part, part.sequences < self.batch.sequences)",
        message="expected sequences that ascend, fewer than batch.sequences",
        field=".batch.rampUp",
    ),
)

"""The rules across fields of the model, in CEL: the part of `job_rules.py` that looks at `training.model` alone."""

import json
from functools import partial

from shardwise.job.kernels import CUDNN_HEAD_MOST, CUDNN_HEAD_STEP, SPLASH_POSITIONS
from shardwise.job.presets import PRESETS
from shardwise.job.sizes import GATED
from shardwise.job.spec import Experts
from shardwise.protocol.text import any_of
from shardwise_operator.api.cel import Rule, has_size, listed, of_preset, preset_or, quoted
from shardwise_operator.api.latent_rules import LATENT_RULES
from shardwise_operator.api.scaling_rules import SCALING_RULES

_of_model = partial(Rule, at="spec.training.model")
_HEADS = of_preset("self", "heads", "heads")
_EMBED = of_preset("self", "embed", "embed")
_POSITIONS = of_preset("self", "seq_len", "seqLen")
_KNOWN = has_size("self", "heads", "embed")
_HEAD = preset_or("self", "head_size", "headSize", f"{_EMBED} / {_HEADS}")
_KV_HEADS = preset_or("self", "kv_heads", "kvHeads", _HEADS)
_WINDOWED = quoted(preset for preset, fields in PRESETS.items() if "sliding_window" in fields)
_HAS_WINDOW = f"has(self.slidingWindow) || self.?preset.orValue('') in {_WINDOWED}"

_TURNED = quoted(
    preset for preset, fields in PRESETS.items() if fields.get("position") == "rotary" and "rotary_dim" not in fields
)
_TURNED_VALUES = preset_or("self", "rotary_dim", "rotaryDim", "0")
_TURNED_IN_PART = quoted(preset for preset, fields in PRESETS.items() if "rotary_dim" in fields)
_IS_ROTARY = (
    f"has(self.position) ? self.position == 'rotary' && !(self.?preset.orValue('') in {_TURNED_IN_PART}) : "
    f"self.?preset.orValue('') in {_TURNED}"
)
_LEARNED = quoted(preset for preset, fields in PRESETS.items() if fields["position"] == "learned")
_BARE = quoted(preset for preset, fields in PRESETS.items() if not fields["pre_norm"])
_POST_NORMED = quoted(preset for preset, fields in PRESETS.items() if fields["post_norm"])
_IN_TURN = quoted(preset for preset, fields in PRESETS.items() if fields["block"] == "sequential")
_QK_NORMED = quoted(preset for preset, fields in PRESETS.items() if fields["qk_norm"])
_OVER_ALL_HEADS = quoted(preset for preset, fields in PRESETS.items() if fields["qk_norm_over"] == "all-heads")
_HAS_PRE_NORM = f"(has(self.preNorm) ? self.preNorm : !(self.?preset.orValue('') in {_BARE}))"
_HAS_QK_NORM = f"(has(self.qkNorm) ? self.qkNorm : self.?preset.orValue('') in {_QK_NORMED})"
_NORMS_HEADS_APART = (
    f"(has(self.qkNormOver) ? self.qkNormOver == 'head' : !(self.?preset.orValue('') in {_OVER_ALL_HEADS}))"
)
_GATED = quoted(preset for preset, fields in PRESETS.items() if fields["activation"] in GATED)
_SINKING = quoted(preset for preset, fields in PRESETS.items() if fields["attention_sinks"])
_CAPPED = quoted(preset for preset, fields in PRESETS.items() if "attention_softcap" in fields)

_SIZED = quoted(preset for preset, fields in PRESETS.items() if "head_size" in fields)
_SIZED_HEADS = f"has(self.headSize) || self.?preset.orValue('') in {_SIZED}"

_MIXTURES = {preset: fields["experts"] for preset, fields in PRESETS.items() if "experts" in fields}
_MIXTURE_PRESETS = quoted(_MIXTURES)
_SHARED_PRESETS = quoted(preset for preset, experts in _MIXTURES.items() if experts.shared)
_NUMBERED = f"self.?preset.orValue('') in {_MIXTURE_PRESETS} || (has(self.experts.count) && has(self.experts.perToken))"


def _of_experts(name: str) -> str:
    """Return a number of the experts, or else the preset's; one of the two must be given."""
    alias = Experts.model_fields[name].alias
    table = ", ".join(f"'{preset}': {getattr(experts, name)}" for preset, experts in _MIXTURES.items())
    return f"(has(self.experts.{alias}) ? self.experts.{alias} : {{{table}}}[self.preset])"


_BIASED = quoted(preset for preset, experts in _MIXTURES.items() if experts.pick_bias)


def _of_router(name: str, usual: str) -> str:
    """Return a field that says how experts are chosen, or else the preset's, or else what is usual."""
    alias = Experts.model_fields[name].alias
    given = {preset: json.dumps(getattr(experts, name)) for preset, experts in _MIXTURES.items()}
    table = ", ".join(f"'{preset}': {value}" for preset, value in given.items() if value != "null")
    return f"self.experts.?{alias}.orValue({{{table}}}[?self.?preset.orValue('')].orValue({usual}))"


_DENSE = _of_router("dense_blocks", "0")
_DENSE_WIDTHS = quoted(preset for preset, experts in _MIXTURES.items() if experts.dense_mlp)
_HAS_DENSE_WIDTH = f"(has(self.experts.denseMlp) || self.?preset.orValue('') in {_DENSE_WIDTHS})"
_GROUPS, _CHOSEN = _of_router("groups", "1"), _of_router("groups_per_token", "1")
_IS_GROUPED = f"has(self.experts) && ({_NUMBERED}) && {_of_experts('count')} % {_GROUPS} == 0"

MODEL_RULES: tuple[Rule, ...] = (
    _of_model(
        holds=has_size("self", "layers", "heads", "embed", "seqLen"),
        message="expected a preset, or layers, heads, embed and seqLen; for a small model write preset: tiny",
    ),
    _of_model(
        holds=f"!{_KNOWN} || {_SIZED_HEADS} || {_EMBED} % {_HEADS} == 0",
        message=listed("expected a number of heads that divides embed, such as", _EMBED),
        shows=True,
        field=".heads",
    ),
    _of_model(
        holds=f"!{has_size('self', 'heads')} || {_HEADS} % {_KV_HEADS} == 0",
        message=listed("expected a number of kvHeads that divides heads, such as", _HEADS),
        shows=True,
        field=".kvHeads",
    ),
    *(
        _of_model(
            holds=f"!has(self.{name}) || {_HAS_WINDOW}",
            message=f"expected no {name} without slidingWindow, the tokens that such a block sees",
            field=f".{name}",
        )
        for name in ("slidingWindowPattern", "localRopeTheta")
    ),
    _of_model(
        holds="!has(self.rotaryPattern) || (has(self.position) ? self.position == 'rotary' : "
        f"has(self.preset) && !(self.preset in {_LEARNED}))",
        message="expected no rotaryPattern with position: learned",
        field=".rotaryPattern",
    ),
    _of_model(
        holds=f"{_HAS_PRE_NORM} || (has(self.postNorm) ? self.postNorm : self.?preset.orValue('') in {_POST_NORMED})",
        message="expected true with preNorm: false",
        field=".postNorm",
    ),
    _of_model(
        holds=f"{_HAS_PRE_NORM} || (has(self.block) ? self.block == 'sequential' : "
        f"!has(self.preset) || self.preset in {_IN_TURN})",
        message="expected sequential with preNorm: false",
        field=".block",
    ),
    _of_model(
        holds=f"{_HAS_QK_NORM} || {_NORMS_HEADS_APART}",
        message="expected head without qkNorm",
        field=".qkNormOver",
    ),
    _of_model(
        holds="!has(self.experts) || "
        f"(has(self.activation) ? self.activation in {quoted(GATED)} : self.?preset.orValue('') in {_GATED})",
        message=f"expected {any_of(GATED)} with experts",
        field=".activation",
    ),
    _of_model(
        holds=f"!has(self.experts) || {_NUMBERED}",
        message="expected count and perToken, or a preset that has experts",
        field=".experts",
    ),
    _of_model(
        holds=f"!has(self.experts) || !({_NUMBERED}) || {_of_experts('per_token')} <= {_of_experts('count')}",
        message="expected at most the experts that there are",
        field=".experts.perToken",
    ),
    _of_model(
        holds="!has(self.experts) || !self.experts.?sharedGate.orValue(false) || has(self.experts.shared) "
        f"|| self.?preset.orValue('') in {_SHARED_PRESETS}",
        message="expected shared beside sharedGate, the width of the MLP whose gate it is",
        field=".experts.sharedGate",
    ),
    *LATENT_RULES,
    _of_model(
        holds="!has(self.experts) || !has(self.experts.biasRate) "
        f"|| (has(self.experts.pickBias) ? self.experts.pickBias : self.?preset.orValue('') in {_BIASED})",
        message="expected no biasRate without pickBias: true, of which it is the rate",
        field=".experts.biasRate",
    ),
    _of_model(
        holds=f"!has(self.experts) || !({_NUMBERED}) || {_of_experts('count')} % {_GROUPS} == 0",
        message="expected a number of groups that divides count",
        field=".experts.groups",
    ),
    _of_model(
        holds=f"!({_IS_GROUPED}) || ({_CHOSEN} <= {_GROUPS} && ({_GROUPS} == 1 "
        f"|| {_of_experts('per_token')} <= {_CHOSEN} * ({_of_experts('count')} / {_GROUPS})))",
        message="expected at most the groups that there are, and so many that they have perToken experts together",
        field=".experts.groupsPerToken",
    ),
    _of_model(
        holds=f"!({_IS_GROUPED}) || {_GROUPS} == 1 || {_GROUPS} < {_of_experts('count')} "
        f"|| {_of_router('group_score', json.dumps('two-best'))} == 'best'",
        message="expected best with one expert in each group",
        field=".experts.groupScore",
    ),
    _of_model(
        holds=f"!has(self.experts) || ({_DENSE} > 0 ? {_HAS_DENSE_WIDTH} : !has(self.experts.denseMlp))",
        message="expected denseMlp, the width of an MLP, with denseBlocks, and nothing without them",
        field=".experts.denseMlp",
    ),
    _of_model(
        holds=f"!has(self.experts) || !{has_size('self', 'layers')} "
        f"|| {_DENSE} < {of_preset('self', 'layers', 'layers')}",
        message="expected fewer denseBlocks than layers, so that one has experts",
        field=".experts.denseBlocks",
    ),
    *SCALING_RULES,
    _of_model(
        holds=f"self.?position.orValue('rotary') == 'learned' || !{_KNOWN} "
        f"|| ({_TURNED_VALUES} % 2 == 0 && {_TURNED_VALUES} <= {_HEAD})",
        message="expected an even number up to the head size (headSize, or embed / heads)",
        field=".rotaryDim",
    ),
    _of_model(
        holds=f"has(self.rotaryDim) || !{_KNOWN} || !({_IS_ROTARY}) || {_HEAD} % 2 == 0",
        message="expected heads of an even size for rotary positions (headSize, or embed / heads)",
    ),
    _of_model(
        holds=f"self.?attention.orValue('auto') != 'splash' || !{has_size('self', 'seqLen')} "
        f"|| {_POSITIONS} % {SPLASH_POSITIONS} == 0",
        message=f"expected a multiple of {SPLASH_POSITIONS} with attention: splash; or set attention: auto",
        field=".seqLen",
    ),
    _of_model(
        holds="self.?attention.orValue('auto') != 'cudnn' "
        f"|| !(has(self.attentionSoftcap) || self.?preset.orValue('') in {_CAPPED})",
        message="expected none with attention: cudnn; or set attention: auto",
        field=".attentionSoftcap",
    ),
    _of_model(
        holds="self.?attention.orValue('auto') != 'cudnn' "
        f"|| (has(self.attentionSinks) ? !self.attentionSinks : !(self.?preset.orValue('') in {_SINKING}))",
        message="expected false with attention: cudnn; or set attention: auto",
        field=".attentionSinks",
    ),
    _of_model(
        holds=f"self.?attention.orValue('auto') != 'cudnn' || !{_KNOWN} "
        f"|| ({_HEAD} % {CUDNN_HEAD_STEP} == 0 && {_HEAD} <= {CUDNN_HEAD_MOST})",
        message=f"expected heads of a multiple of {CUDNN_HEAD_STEP} up to {CUDNN_HEAD_MOST} values (embed / heads) "
        "with attention: cudnn; or set attention: auto",
        field=".heads",
    ),
)

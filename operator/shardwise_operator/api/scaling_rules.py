"""The rules of stretched positions, in CEL: the part of `model_rules.py` that looks at `training.model.ropeScaling`."""

from functools import partial

from shardwise_operator.api.cel import Rule

_of_scaling = partial(Rule, at="spec.training.model.ropeScaling")
_SHORT, _LONG = (f"size(self.?{name}.orValue([]))" for name in ("shortFactors", "longFactors"))

SCALING_RULES: tuple[Rule, ...] = (
    _of_scaling(
        holds="self.kind != 'linear' || !has(self.originalSeqLen)",
        message="expected no originalSeqLen with kind: linear",
        field=".originalSeqLen",
    ),
    _of_scaling(
        holds="self.kind in ['yarn', 'longrope'] || !has(self.attentionFactor)",
        message="expected attentionFactor with kind: yarn or longrope only",
        field=".attentionFactor",
    ),
    _of_scaling(
        holds="self.kind == 'yarn' || self.?truncate.orValue(true)",
        message="expected true with another kind than yarn",
        field=".truncate",
    ),
    _of_scaling(
        holds=f"self.kind == 'longrope' ? {_SHORT} > 0 && {_SHORT} == {_LONG} : {_SHORT} + {_LONG} == 0",
        message="expected a number for each pair in shortFactors and longFactors with kind: longrope, and none without",
        field=".longFactors",
    ),
    _of_scaling(
        holds="self.?highFrequencyFactor.orValue(4.0) > self.?lowFrequencyFactor.orValue(1.0)",
        message="expected more than lowFrequencyFactor",
        field=".highFrequencyFactor",
    ),
    _of_scaling(
        holds="self.?betaFast.orValue(32.0) > self.?betaSlow.orValue(1.0)",
        message="expected more than betaSlow",
        field=".betaFast",
    ),
)

"""The rules of latent attention, in CEL: the part of `model_rules.py` that looks at `training.model.latent`."""

from functools import partial

from shardwise.job.presets import PRESETS
from shardwise_operator.api.cel import Rule, has_size, of_preset, preset_or, quoted

_of_model = partial(Rule, at="spec.training.model")
_HEADS = of_preset("self", "heads", "heads")
_HEAD = preset_or("self", "head_size", "headSize", f"{of_preset('self', 'embed', 'embed')} / {_HEADS}")
_KV_HEADS = preset_or("self", "kv_heads", "kvHeads", _HEADS)
_TURNED = preset_or("self", "rotary_dim", "rotaryDim", _HEAD)
_PRESETS = quoted(preset for preset, fields in PRESETS.items() if "latent" in fields)

LATENT_RULES: tuple[Rule, ...] = (
    _of_model(
        holds=f"!has(self.latent) || has(self.latent.kvRank) || self.?preset.orValue('') in {_PRESETS}",
        message="expected kvRank, or a preset that has latent",
        field=".latent",
    ),
    _of_model(
        holds=f"!has(self.latent) || !{has_size('self', 'heads', 'embed')} || {_TURNED} != {_HEAD}",
        message="expected less than headSize with latent, which makes the rest of a key",
        field=".rotaryDim",
    ),
    _of_model(
        holds=f"!has(self.latent) || !{has_size('self', 'heads')} || {_KV_HEADS} == {_HEADS}",
        message="expected as many as heads with latent; leave it out",
        field=".kvHeads",
    ),
    _of_model(
        holds="!has(self.latent) || !self.?attentionOutBias.orValue(false)",
        message="expected false with latent",
        field=".attentionOutBias",
    ),
)

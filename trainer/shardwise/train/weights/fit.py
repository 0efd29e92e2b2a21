"""How published weights meet a job file: the section that fits them, and what in a given job does not."""

from collections.abc import Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from shardwise.job.load import as_data
from shardwise.job.presets import ROTARY
from shardwise.protocol.errors import DataError
from shardwise.train.config import GptConfig

# The fields of `GptConfig` that make a model what it is, with their keys in a job's `model` section.
MODEL_KEYS: Mapping[str, str] = {
    "num_layers": "layers",
    "num_heads": "heads",
    "num_kv_heads": "kvHeads",
    "head_size": "headSize",
    "embed_size": "embed",
    "mlp_size": "mlp",
    "seq_len": "seqLen",
    "vocab_size": "vocabSize",
    "block": "block",
    "norm": "norm",
    "pre_norm": "preNorm",
    "post_norm": "postNorm",
    "qk_norm": "qkNorm",
    "qk_norm_over": "qkNormOver",
    "activation": "activation",
    "position": "position",
    "rotary_dim": "rotaryDim",
    "rotary_pairs": "rotaryPairs",
    "rope_theta": "ropeTheta",
    "local_rope_theta": "localRopeTheta",
    "rope_scaling": "ropeScaling",
    "rotary_pattern": "rotaryPattern",
    "tied_head": "tiedHead",
    "head_bias": "headBias",
    "attention_bias": "attentionBias",
    "attention_out_bias": "attentionOutBias",
    "attention_sinks": "attentionSinks",
    "mlp_bias": "mlpBias",
    "num_experts": "experts.count",
    "experts_per_token": "experts.perToken",
    "expert_score": "experts.score",
    "experts_share_one": "experts.shareOne",
    "share_factor": "experts.shareFactor",
    "pick_bias": "experts.pickBias",
    "expert_groups": "experts.groups",
    "groups_per_token": "experts.groupsPerToken",
    "group_score": "experts.groupScore",
    "shared_size": "experts.shared",
    "shared_gate": "experts.sharedGate",
    "kv_rank": "latent.kvRank",
    "q_rank": "latent.qRank",
    "value_size": "latent.valueSize",
    "latent_epsilon": "latent.normEpsilon",
    "num_dense_blocks": "experts.denseBlocks",
    "dense_mlp_size": "experts.denseMlp",
    "router_bias": "experts.routerBias",
    "query_pre_attn_scalar": "queryPreAttnScalar",
    "attention_softcap": "attentionSoftcap",
    "logit_softcap": "logitSoftcap",
    "sliding_window": "slidingWindow",
    "sliding_window_pattern": "slidingWindowPattern",
    "scale_embedding": "scaleEmbedding",
    "embedding_factor": "embeddingFactor",
    "residual_factor": "residualFactor",
    "logit_divisor": "logitDivisor",
    "scale_by_inverse_layer": "scaleByInverseLayer",
    "norm_epsilon": "normEpsilon",
}
_WIDTHS = frozenset({"shared_size", "dense_mlp_size", "q_rank"})
_ROTARY_KEYS = frozenset(to_camel(name) for name in ROTARY)


def model_section(config: GptConfig) -> dict[str, Any]:
    """Return the `model` section of a job file that weights of this config fit."""
    left_out = _ROTARY_KEYS if config.position != "rotary" else frozenset()
    held = ["", *(["experts"] if config.num_experts else ()), *(["latent"] if config.is_latent else ())]
    section: dict[str, Any] = {}
    for field, key in MODEL_KEYS.items():
        inside, _, name = key.rpartition(".")
        if key not in left_out and inside in held:
            value = getattr(config, field)
            if field not in _WIDTHS or value:  # of nothing there is no width
                (section.setdefault(inside, {}) if inside else section)[name] = value
    if config.pick_bias:
        section["experts"]["biasRate"] = 0.0  # fine-tuning keeps what was trained
    scaling = config.rope_scaling
    if scaling is not None:
        section["ropeScaling"] = as_data(scaling)
    return {key: value for key, value in section.items() if value is not None}


def free_keys(config: GptConfig) -> frozenset[str]:
    """Return the keys of the `model` section that may differ without changing what these weights compute."""
    return frozenset({"seqLen"}) if config.position == "rotary" else frozenset()


def check_fits(job: GptConfig, weights: GptConfig) -> None:
    """Refuse a job whose model computes something else than the weights' model: DataError naming the fields."""
    free = free_keys(weights)
    pairs = {
        key: (getattr(job, field), getattr(weights, field)) for field, key in MODEL_KEYS.items() if key not in free
    }
    wrong = [
        f"training.model.{key}: the job has {ours}, the weights have {theirs}"
        for key, (ours, theirs) in pairs.items()
        if ours != theirs
    ]
    if wrong:
        raise DataError("\n  ".join(["the weights do not fit the job; change the job to what they have:", *wrong]))

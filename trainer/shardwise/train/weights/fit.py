"""How published weights meet a job file: the section that fits them, and what in a given job does not."""

from collections.abc import Mapping
from typing import Any

from shardwise.protocol.errors import DataError
from shardwise.train.config import GptConfig

# The fields of `GptConfig` that make a model what it is, with their keys in a job's `model` section.
MODEL_KEYS: Mapping[str, str] = {
    "num_layers": "layers",
    "num_heads": "heads",
    "embed_size": "embed",
    "mlp_size": "mlp",
    "seq_len": "seqLen",
    "vocab_size": "vocabSize",
    "block": "block",
    "position": "position",
    "rotary_dim": "rotaryDim",
    "tied_head": "tiedHead",
    "head_bias": "headBias",
    "attention_bias": "attentionBias",
    "scale_by_inverse_layer": "scaleByInverseLayer",
    "norm_epsilon": "normEpsilon",
}


def model_section(config: GptConfig) -> dict[str, Any]:
    """Return the `model` section of a job file that weights of this config fit."""
    section = {key: getattr(config, field) for field, key in MODEL_KEYS.items()}
    return {key: value for key, value in section.items() if key != "rotaryDim" or config.position == "rotary"}


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

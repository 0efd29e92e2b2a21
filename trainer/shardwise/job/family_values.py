"""Families of models: the values of `training.model` that the members of one share; sizes are their presets' own.

Keys are attribute names of the model in `job/spec`.
"""

from collections.abc import Mapping
from typing import Any

EXPERTS: Mapping[str, Any] = {
    "score": "softmax",
    "share_one": True,
    "share_factor": 1.0,
    "pick_bias": False,
    "groups": 1,
    "groups_per_token": 1,
    "group_score": "two-best",
    "shared_gate": False,
    "router_bias": False,
    "dense_blocks": 0,
    "balance": 0.01,
}
"""What a mixture of experts does unless it is told: Mixtral's."""
BIAS_RATE = 0.001
"""That of DeepSeek-V3, in all but the last part of its training."""

GPT2 = {
    "block": "sequential",
    "position": "learned",
    "tied_head": True,
    "head_bias": False,
    "attention_bias": True,
    "attention_sinks": False,
    "norm": "layer",
    "pre_norm": True,
    "post_norm": False,
    "qk_norm": False,
    "qk_norm_over": "head",
    "activation": "gelu",
    "rotary_pairs": "interleaved",
    "rope_theta": 10_000.0,
    "mlp_bias": True,
    "scale_embedding": False,
    "embedding_factor": 1.0,
    "residual_factor": 1.0,
    "logit_divisor": 1.0,
    "norm_epsilon": 1e-5,
}
GPTJ = GPT2 | {
    "block": "parallel",
    "position": "rotary",
    "tied_head": False,
    "head_bias": True,
    "attention_bias": False,
    "attention_out_bias": False,
}
NEOX = GPT2 | {
    "block": "parallel-two-norms",
    "position": "rotary",
    "rotary_pairs": "half",
    "tied_head": False,
    "activation": "gelu-exact",
}
LLAMA = GPT2 | {
    "norm": "rms",
    "activation": "swiglu",
    "position": "rotary",
    "rotary_pairs": "half",
    "tied_head": False,
    "attention_bias": False,
    "mlp_bias": False,
}
LLAMA3 = LLAMA | {"rope_theta": 500_000.0}
MISTRAL = LLAMA | {"sliding_window": 4096}
QWEN2 = LLAMA | {"attention_bias": True, "attention_out_bias": False, "rope_theta": 1e6, "norm_epsilon": 1e-6}
QWEN3 = LLAMA | {"qk_norm": True, "head_size": 128, "rope_theta": 1e6, "norm_epsilon": 1e-6}
GPT_OSS = LLAMA | {
    "attention_bias": True,
    "attention_sinks": True,
    "mlp_bias": True,
    "activation": "swiglu-clamped",
    "head_size": 64,
    "sliding_window": 128,
    "sliding_window_pattern": 2,
    "rope_theta": 150_000.0,
}
GRANITE3 = LLAMA | {
    "tied_head": True,
    "rope_theta": 1e7,
    "embedding_factor": 12.0,
    "residual_factor": 0.22,
}
SMOLLM3 = LLAMA | {"tied_head": True, "rope_theta": 5e6, "norm_epsilon": 1e-6, "rotary_pattern": 4}
DEEPSEEK = LLAMA | {"head_size": 192, "rotary_dim": 64, "rotary_pairs": "interleaved", "norm_epsilon": 1e-6}
OLMO2 = LLAMA | {
    "pre_norm": False,
    "post_norm": True,
    "qk_norm": True,
    "qk_norm_over": "all-heads",
    "rope_theta": 500_000.0,
    "norm_epsilon": 1e-6,
}
OLMO3 = OLMO2 | {"local_rope_theta": 500_000.0, "sliding_window": 4096, "sliding_window_pattern": 4}
GLM45 = LLAMA | {
    "head_size": 128,
    "attention_bias": True,
    "attention_out_bias": False,
    "rotary_dim": 64,
    "rope_theta": 1e6,
}
DOTS1 = LLAMA | {"qk_norm": True, "head_size": 128, "rope_theta": 1e7}
GEMMA2 = LLAMA | {
    "norm": "rms-unit-offset",
    "post_norm": True,
    "activation": "geglu",
    "tied_head": True,
    "scale_embedding": True,
    "norm_epsilon": 1e-6,
    "attention_softcap": 50.0,
    "logit_softcap": 30.0,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
}
GEMMA3 = {name: value for name, value in GEMMA2.items() if not name.endswith("softcap")} | {
    "qk_norm": True,
    "rope_theta": 1e6,
    "local_rope_theta": 10_000.0,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
}

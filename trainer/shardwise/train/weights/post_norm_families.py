"""The families with norms after attention and MLP: OLMo, which has no others in a block, and Gemma.

Sources: the published files, and the config.json of Hugging Face's transformers; Gemma Team (2024, 2025) and OLMo Team
(2025) for what they compute.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.train.weights.family import Family, Key
from shardwise.train.weights.llama_parts import (
    ATTENTION_BIAS,
    COMMON,
    HEAD_DIM,
    KEYS,
    NO_PADDING,
    ROPE,
    SILU,
    TIED,
    keys,
    rows,
)
from shardwise.train.weights.parts import choice, choices, flag, norm_rows

_OLMO: Mapping[str, Any] = {
    **COMMON,
    "rows": rows(
        *norm_rows("layers.{}.post_attention_layernorm", "blocks.attention_post_norm"),
        *norm_rows("layers.{}.post_feedforward_layernorm", "blocks.mlp_post_norm"),
    ),
}

_OLMO_CHOICES: Mapping[str, Any] = {
    "pre_norm": False,
    "post_norm": True,
    "qk_norm": True,
    "qk_norm_over": "all-heads",
}
_OLMO_KEYS = (*keys(epsilon=1e-5), HEAD_DIM, SILU, ATTENTION_BIAS, TIED)

OLMO2 = Family(
    **_OLMO,
    name="olmo2",
    title="OLMo 2",
    architecture="Olmo2ForCausalLM",
    choices=choices(**_OLMO_CHOICES),
    keys=_OLMO_KEYS,
    written=NO_PADDING,
)

OLMO3 = Family(
    **{**_OLMO, "rope": {**ROPE, "local": "rope_parameters.sliding_attention.rope_theta"}},
    name="olmo3",
    title="OLMo 3",
    architecture="Olmo3ForCausalLM",
    choices=choices("sliding_window", "sliding_window_pattern", "local_rope_theta", **_OLMO_CHOICES),
    keys=_OLMO_KEYS,
    written=NO_PADDING,
    rope_theta=500_000.0,
    local_rope_theta=500_000.0,
    nests_rope=True,
    windows="pattern",
    window_pattern=4,
)

_GEMMA: Mapping[str, Any] = {
    **COMMON,
    "rows": rows(
        *norm_rows("layers.{}.post_attention_layernorm", "blocks.attention_post_norm"),
        *norm_rows("layers.{}.pre_feedforward_layernorm", "blocks.mlp_norm"),
        *norm_rows("layers.{}.post_feedforward_layernorm", "blocks.mlp_post_norm"),
    ),
    "windows": "pattern",
}
_GEMMA_FREE = (
    "sliding_window",
    "sliding_window_pattern",
    "query_pre_attn_scalar",
    "logit_softcap",
)
_GEMMA_CHOICES: Mapping[str, Any] = {"norm": "rms-unit-offset", "post_norm": True, "scale_embedding": True}
_GEMMA_KEYS: tuple[Key, ...] = (
    *KEYS,
    Key(name="head_dim", field="head_size", kind="count", default=256),
    choice("hidden_activation", "activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh": "geglu"}),
    flag("tie_word_embeddings", "tied_head", default=True),
    ATTENTION_BIAS,
    Key(name="query_pre_attn_scalar", field="query_pre_attn_scalar", kind="positive", default=256.0),
)

GEMMA2 = Family(
    **_GEMMA,
    name="gemma2",
    title="Gemma 2",
    architecture="Gemma2ForCausalLM",
    choices=choices(*_GEMMA_FREE, "attention_softcap", **_GEMMA_CHOICES),
    keys=(
        *_GEMMA_KEYS,
        Key(name="attn_logit_softcapping", field="attention_softcap", kind="cap", default=50.0),
        Key(name="final_logit_softcapping", field="logit_softcap", kind="cap", default=30.0),
    ),
    window_pattern=2,
)

GEMMA3 = Family(
    **{**_GEMMA, "rope": {**ROPE, "local": "rope_local_base_freq"}},
    name="gemma3_text",
    title="Gemma 3",
    architecture="Gemma3ForCausalLM",
    choices=choices(*_GEMMA_FREE, "local_rope_theta", **_GEMMA_CHOICES, qk_norm=True),
    keys=(
        *_GEMMA_KEYS,
        Key(name="final_logit_softcapping", field="logit_softcap", kind="cap"),
    ),
    # transformers reads the cap of attention and does not apply it.
    fixed={"use_bidirectional_attention": (False, None), "attn_logit_softcapping": (None,)},
    rope_theta=1e6,
    window_pattern=6,
)

"""The families with RMS norm before attention and MLP, and gated MLPs: Llama, Granite, SmolLM3, Mistral, Phi and Qwen.

Sources: the published files, and the config.json of Hugging Face's transformers; Touvron et al. (2023), Jiang et al.
(2023), Abdin et al. (2024), Qwen Team (2024, 2025), IBM (2024) and Hugging Face (2025) for what they compute.
"""

from shardwise.train.weights.family import Family, Key, Same
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
)
from shardwise.train.weights.parts import choices, flag

LLAMA = Family(
    **COMMON,
    name="llama",
    title="Llama",
    architecture="LlamaForCausalLM",
    choices=choices("mlp_bias"),
    keys=(*KEYS, HEAD_DIM, SILU, ATTENTION_BIAS, flag("mlp_bias", "mlp_bias", default=False), TIED),
)

GRANITE = Family(
    **COMMON,
    name="granite",
    title="Granite",
    architecture="GraniteForCausalLM",
    choices=choices("mlp_bias", "query_pre_attn_scalar", "embedding_factor", "residual_factor", "logit_divisor"),
    keys=(
        *KEYS,
        *(HEAD_DIM, SILU, ATTENTION_BIAS, TIED),
        flag("mlp_bias", "mlp_bias", default=False),
        Key(name="attention_multiplier", field="query_pre_attn_scalar", kind="root", default=1.0),
        Key(name="embedding_multiplier", field="embedding_factor", kind="positive", default=1.0),
        Key(name="residual_multiplier", field="residual_factor", kind="positive", default=1.0),
        Key(name="logits_scaling", field="logit_divisor", kind="positive", default=1.0),
    ),
)

SMOLLM3 = Family(
    **COMMON,
    name="smollm3",
    title="SmolLM3",
    architecture="SmolLM3ForCausalLM",
    choices=choices("mlp_bias", "rotary_pattern"),
    keys=(
        *keys(kv_heads=4),
        *(HEAD_DIM, SILU, ATTENTION_BIAS),
        flag("mlp_bias", "mlp_bias", default=False),
        flag("tie_word_embeddings", "tied_head", default=True),
    ),
    written=NO_PADDING,
    rope_theta=2e6,
    rotary_pattern=4,
)

MISTRAL = Family(
    **COMMON,
    name="mistral",
    title="Mistral",
    architecture="MistralForCausalLM",
    choices=choices("sliding_window", attention_bias=False),
    keys=(*KEYS, HEAD_DIM, SILU, TIED),
    windows="every",
)


PHI3 = Family(
    **{**COMMON, "mark": "layers.0.self_attn.qkv_proj.weight", "rope": {**ROPE, "share": "partial_rotary_factor"}},
    name="phi3",
    title="Phi 3",
    architecture="Phi3ForCausalLM",
    choices=choices("sliding_window", "rotary_dim", attention_bias=False, embed_size=Same("joined_heads")),
    keys=(
        *keys(width=("mlp.down_proj", 1), epsilon=1e-5),
        SILU,
        TIED,
    ),
    fixed={"attention_bias": (False,)},
    windows="every",
    usual_window=None,
    written=NO_PADDING,
    stretches=("longrope",),
    joined={
        "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    },
)

QWEN2 = Family(
    **COMMON,
    name="qwen2",
    title="Qwen 2.5",
    architecture="Qwen2ForCausalLM",
    choices=choices(attention_bias=True, attention_out_bias=False),
    keys=(*KEYS, HEAD_DIM, SILU, TIED),
)

QWEN3 = Family(
    **COMMON,
    name="qwen3",
    title="Qwen 3",
    architecture="Qwen3ForCausalLM",
    choices=choices(qk_norm=True),
    keys=(
        *KEYS,
        Key(name="head_dim", field="head_size", kind="count", default=128),
        SILU,
        ATTENTION_BIAS,
        TIED,
    ),
)

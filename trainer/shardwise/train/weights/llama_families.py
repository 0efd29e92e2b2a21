"""The families with RMS norm before attention and MLP, and gated MLPs: Llama, SmolLM3, Mistral, Mixtral and Qwen.

Sources: the published files, and the config.json of Hugging Face's transformers; Touvron et al. (2023), Jiang et al.
(2023), Qwen Team (2024, 2025) and Hugging Face (2025) for what they compute.
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
    SILU,
    TIED,
    keys,
    rows,
)
from shardwise.train.weights.parts import choices, flag, norm_rows, row

LLAMA = Family(
    **COMMON,
    name="llama",
    title="Llama",
    architecture="LlamaForCausalLM",
    choices=choices("mlp_bias"),
    keys=(*KEYS, HEAD_DIM, SILU, ATTENTION_BIAS, flag("mlp_bias", "mlp_bias", default=False), TIED),
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


def _mixture(layer: str, gate: str, up: str, down: str) -> Mapping[str, Any]:
    """Return what such models have in common with the others, and the names of their experts in a layer's part."""
    ours = ((gate, "gate", "mlp embed"), (up, "up", "mlp embed"), (down, "down", "embed mlp"))
    experts = (
        row(f"layers.{{}}.{layer}.gate.weight", "blocks.mlp.router.weight", "routes embed"),
        *(
            row(f"layers.{{}}.{layer}.experts.{{}}.{name}.weight", f"blocks.mlp.{of}.weight", axes)
            for name, of, axes in ours
        ),
    )
    norm = norm_rows("layers.{}.post_attention_layernorm", "blocks.mlp_norm")
    return {**COMMON, "rows": rows(*norm, mlp=experts), "has_experts": True}


MIXTRAL = Family(
    **_mixture("block_sparse_moe", "w1", "w3", "w2"),
    name="mixtral",
    title="Mixtral",
    architecture="MixtralForCausalLM",
    choices=choices("sliding_window", attention_bias=False, experts_share_one=True),
    keys=(
        *keys(gate="block_sparse_moe.experts.0.w1", epsilon=1e-5),
        HEAD_DIM,
        SILU,
        TIED,
        Key(
            name="num_local_experts",
            field="num_experts",
            kind="count",
            shape=("layers.0.block_sparse_moe.gate.weight", 0),
        ),
        Key(name="num_experts_per_tok", field="experts_per_token", kind="count", default=2),
        Key(name="router_aux_loss_coef", field="balance", kind="written"),
    ),
    windows="every",
    usual_window=None,
    rope_theta=1e6,
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

QWEN3_MOE = Family(
    **_mixture("mlp", "gate_proj", "up_proj", "down_proj"),
    name="qwen3_moe",
    title="Qwen 3 with experts",
    architecture="Qwen3MoeForCausalLM",
    choices=choices(qk_norm=True),
    keys=(
        *keys(mlp="moe_intermediate_size", gate="mlp.experts.0.gate_proj"),
        HEAD_DIM,
        SILU,
        ATTENTION_BIAS,
        TIED,
        Key(name="num_experts", field="num_experts", kind="count", shape=("layers.0.mlp.gate.weight", 0)),
        Key(name="num_experts_per_tok", field="experts_per_token", kind="count", default=8),
        flag("norm_topk_prob", "experts_share_one", default=False),
        Key(name="router_aux_loss_coef", field="balance", kind="written"),
    ),
    # Dense layers among the others are not computed.
    fixed={"decoder_sparse_step": (1,), "mlp_only_layers": ([], None)},
)

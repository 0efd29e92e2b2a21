"""The families with latent attention: DeepSeek-V2 and V3, whose mixtures have experts that every token goes through.

Sources: the published files, and the config.json of Hugging Face's transformers; DeepSeek-AI, "DeepSeek-V2" (2024) and
"DeepSeek-V3" (2024), and Moonshot AI, "Moonlight" (2025), which is of V3's kind, for what they compute.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.train.weights.family import Family, Key, Same
from shardwise.train.weights.latent_keys import EPSILON
from shardwise.train.weights.llama_parts import COMMON, SILU, TIED, keys, rows
from shardwise.train.weights.parts import choice, choices, flag, norm_rows, row

_ATTENTION = "layers.{}.self_attn."
_OURS = "blocks.attention."
_MLP = "layers.{}.mlp."
_COMMON: Mapping[str, Any] = {
    **COMMON,
    "mark": "layers.0.self_attn.kv_a_proj_with_mqa.weight",
    "has_experts": True,
    "has_latent": True,
    "rows": rows(
        *norm_rows("layers.{}.post_attention_layernorm", "blocks.mlp_norm"),
        row(f"{_ATTENTION}q_a_proj.weight", f"{_OURS}q_a.weight", "q_down embed"),
        row(f"{_ATTENTION}q_a_layernorm.weight", f"{_OURS}q_norm.weight", "q_latent"),
        row(f"{_ATTENTION}q_b_proj.weight", f"{_OURS}q_b.weight", "(heads head_size) q_latent"),
        row(f"{_ATTENTION}kv_a_proj_with_mqa.weight", f"{_OURS}kv_a.weight", "kv_down embed"),
        row(f"{_ATTENTION}kv_a_layernorm.weight", f"{_OURS}kv_norm.weight", "kv_latent"),
        row(f"{_ATTENTION}kv_b_proj.weight", f"{_OURS}kv_b.weight", "(heads key_value) kv_latent"),
        row(f"{_ATTENTION}o_proj.weight", f"{_OURS}out.weight", "embed (heads value_size)"),
        mlp=(
            row(f"{_MLP}gate.weight", "blocks.mlp.router.weight", "routes embed"),
            row(f"{_MLP}gate.e_score_correction_bias", "blocks.mlp.pick_bias", "routes"),
            row(f"{_MLP}experts.{{}}.gate_proj.weight", "blocks.mlp.gate.weight", "mlp embed"),
            row(f"{_MLP}experts.{{}}.up_proj.weight", "blocks.mlp.up.weight", "mlp embed"),
            row(f"{_MLP}experts.{{}}.down_proj.weight", "blocks.mlp.down.weight", "embed mlp"),
            row(f"{_MLP}shared_experts.gate_proj.weight", "blocks.mlp.shared.gate.weight", "shared embed"),
            row(f"{_MLP}shared_experts.up_proj.weight", "blocks.mlp.shared.up.weight", "shared embed"),
            row(f"{_MLP}shared_experts.down_proj.weight", "blocks.mlp.shared.down.weight", "embed shared"),
        ),
    ),
}
_FREE = ("shared_size", "share_factor", "kv_rank", "q_rank", "value_size", "query_pre_attn_scalar", "rotary_dim")
_KEYS = (
    *keys(mlp="moe_intermediate_size", width=("mlp.experts.0.gate_proj", 0)),
    *(SILU, TIED),
    Key(name="n_routed_experts", field="num_experts", kind="count", shape=("layers.0.mlp.gate.weight", 0)),
    Key(name="routed_scaling_factor", field="share_factor", kind="factor", default=1.0),
    Key(name="aux_loss_alpha", field="balance", kind="written"),
)

DEEPSEEK_V2 = Family(
    **_COMMON,
    name="deepseek_v2",
    title="DeepSeek-V2",
    architecture="DeepseekV2ForCausalLM",
    choices=choices(
        *_FREE,
        rotary_pairs="interleaved",
        attention_bias=False,
        num_kv_heads=Same("num_heads"),
        latent_epsilon=EPSILON,
        experts_share_one=False,
    ),
    keys=(
        *_KEYS,
        Key(name="n_shared_experts", field="shared_size", kind="count", default=2, times="mlp_size"),
        Key(name="num_experts_per_tok", field="experts_per_token", kind="count", default=6),
    ),
    fixed={
        "first_k_dense_replace": (0,),
        "moe_layer_freq": (1,),
        "topk_method": ("greedy",),
        "scoring_func": ("softmax",),
        "norm_topk_prob": (False,),
        "attention_bias": (False,),
        "mlp_bias": (False,),
    },
)

DEEPSEEK_V3 = Family(
    **_COMMON,
    name="deepseek_v3",
    title="DeepSeek-V3",
    architecture="DeepseekV3ForCausalLM",
    choices=choices(
        *(*_FREE, "expert_groups", "rotary_pairs"),
        attention_bias=False,
        num_kv_heads=Same("num_heads"),
        latent_epsilon=EPSILON,
        expert_score="sigmoid",
        pick_bias=True,
        group_score="two-best",
    ),
    keys=(
        *_KEYS,
        Key(name="n_shared_experts", field="shared_size", kind="count", default=1, times="mlp_size"),
        Key(name="num_experts_per_tok", field="experts_per_token", kind="count", default=8),
        Key(name="n_group", field="expert_groups", kind="count", default=8),
        Key(name="topk_group", field="groups_per_token", kind="count", default=4),
        flag("norm_topk_prob", "experts_share_one", default=True),
        choice("rope_interleave", "rotary_pairs", True, {True: "interleaved", False: "half"}),
    ),
    fixed={
        "first_k_dense_replace": (0,),
        "moe_layer_freq": (1,),
        "topk_method": ("noaux_tc",),
        "scoring_func": ("sigmoid",),
        "attention_bias": (False,),
    },
)

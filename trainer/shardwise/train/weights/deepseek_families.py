"""The families with latent attention: DeepSeek-V2 and V3, whose mixtures have experts that every token goes through.

Sources: the published files, and the config.json of Hugging Face's transformers; DeepSeek-AI, "DeepSeek-V2" (2024) and
"DeepSeek-V3" (2024), and Moonshot AI, "Moonlight" (2025), which is of V3's kind, for what they compute.

V3's files have a layer more than its config.json counts, by which it was trained to predict one more token. It is not
read, as transformers does not read it, and an export says that there is none.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.train.weights.biased_mixture_families import mlp_rows
from shardwise.train.weights.family import Family, Key, Same
from shardwise.train.weights.latent_keys import EPSILON
from shardwise.train.weights.llama_parts import SILU, TIED, keys
from shardwise.train.weights.mixture_families import mixture
from shardwise.train.weights.parts import choice, choices, flag, row

_ATTENTION, _OURS = "layers.{}.self_attn", "blocks.attention"
_COMMON: Mapping[str, Any] = {
    **mixture(
        "mlp",
        *("gate_proj", "up_proj", "down_proj"),
        beside=(
            row(f"{_ATTENTION}.q_a_proj.weight", f"{_OURS}.q_a.weight", "q_down embed"),
            row(f"{_ATTENTION}.q_a_layernorm.weight", f"{_OURS}.q_norm.weight", "q_latent"),
            row(f"{_ATTENTION}.q_b_proj.weight", f"{_OURS}.q_b.weight", "(heads head_size) q_latent"),
            row(f"{_ATTENTION}.kv_a_proj_with_mqa.weight", f"{_OURS}.kv_a.weight", "kv_down embed"),
            row(f"{_ATTENTION}.kv_a_layernorm.weight", f"{_OURS}.kv_norm.weight", "kv_latent"),
            row(f"{_ATTENTION}.kv_b_proj.weight", f"{_OURS}.kv_b.weight", "(heads key_value) kv_latent"),
            row(f"{_ATTENTION}.o_proj.weight", f"{_OURS}.out.weight", "embed (heads value_size)"),
            row("layers.{}.mlp.gate.e_score_correction_bias", "blocks.mlp.pick_bias", "routes"),
            *mlp_rows("layers.{}.mlp.shared_experts", "blocks.mlp.shared", "shared"),
            *mlp_rows("layers.{}.mlp", "dense_blocks.mlp", "dense_mlp"),
        ),
    ),
    "mark": "layers.0.self_attn.kv_a_proj_with_mqa.weight",
    "has_latent": True,
}
_OF_BOTH: Mapping[str, Any] = {
    "attention_bias": False,
    "num_kv_heads": Same("num_heads"),
    "latent_epsilon": EPSILON,
}
_BY_BEST = ("group_score", "best")
"""V2's groups, of which the greedy choice knows nothing, whatever numbers of them its config.json has."""
_FREE = (
    *("kv_rank", "q_rank", "value_size", "rotary_dim", "query_pre_attn_scalar"),
    *("shared_size", "share_factor", "num_dense_blocks"),
)


def _keys(*, width: int, dense: int, count: int, shared: int, per_token: int, factor: float) -> tuple[Key, ...]:
    """Return the keys that both have, with transformers' defaults. No tensor tells widths: see `GLM4_MOE`."""
    return (
        *keys(mlp="moe_intermediate_size", width=None),
        *(SILU, TIED),
        Key(name="intermediate_size", field="dense_mlp_size", kind="count", default=width, may_be_none=True),
        Key(name="first_k_dense_replace", field="num_dense_blocks", kind="count", default=dense, may_be_none=True),
        Key(name="n_routed_experts", field="num_experts", kind="count", default=count),
        Key(name="n_shared_experts", field="shared_size", kind="count", default=shared, times="mlp_size"),
        Key(name="num_experts_per_tok", field="experts_per_token", kind="count", default=per_token),
        Key(name="routed_scaling_factor", field="share_factor", kind="factor", default=factor),
        Key(name="aux_loss_alpha", field="balance", kind="written"),
    )


DEEPSEEK_V2 = Family(
    **_COMMON,
    name="deepseek_v2",
    title="DeepSeek-V2",
    architecture="DeepseekV2ForCausalLM",
    choices=choices(*_FREE, "expert_groups", **_OF_BOTH, rotary_pairs="interleaved", experts_share_one=False),
    keys=(
        *_keys(width=11008, dense=0, count=64, shared=2, per_token=6, factor=1.0),
        choice("topk_method", "group_score", "greedy", {"greedy": "two-best", "group_limited_greedy": "best"}),
        Key(name="n_group", field="expert_groups", kind="count", default=1, only_with=_BY_BEST),
        Key(name="topk_group", field="groups_per_token", kind="count", default=1, only_with=_BY_BEST),
    ),
    fixed={
        "moe_layer_freq": (1,),
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
        **_OF_BOTH,
        expert_score="sigmoid",
        pick_bias=True,
        group_score="two-best",
    ),
    keys=(
        *_keys(width=18432, dense=3, count=256, shared=1, per_token=8, factor=2.5),
        Key(name="n_group", field="expert_groups", kind="count", default=8),
        Key(name="topk_group", field="groups_per_token", kind="count", default=4),
        flag("norm_topk_prob", "experts_share_one", default=True),
        choice("rope_interleave", "rotary_pairs", True, {True: "interleaved", False: "half"}),
    ),
    fixed={
        "moe_layer_freq": (1,),
        "topk_method": ("noaux_tc",),
        "scoring_func": ("sigmoid",),
        "attention_bias": (False,),
    },
    written={"num_nextn_predict_layers": 0},
    further_layers="num_nextn_predict_layers",
)

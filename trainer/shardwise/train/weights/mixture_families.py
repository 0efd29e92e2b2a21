"""The families whose MLPs are mixtures of experts: Mixtral and Qwen.

Sources: the published files, and the config.json of Hugging Face's transformers; Jiang et al. (2024) and Qwen Team
(2024, 2025) for what they compute.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.train.weights.family import Family, Key
from shardwise.train.weights.llama_parts import ATTENTION_BIAS, COMMON, HEAD_DIM, SILU, TIED, keys, rows
from shardwise.train.weights.parts import choices, flag, norm_rows, row
from shardwise.train.weights.tensors import Row

_BALANCE = Key(name="router_aux_loss_coef", field="balance", kind="written")
_COUNT = Key(name="num_experts", field="num_experts", kind="count", shape=("layers.0.mlp.gate.weight", 0))
_SHARE_ONE = flag("norm_topk_prob", "experts_share_one", default=False)
_QWEN_KEYS = keys(mlp="moe_intermediate_size", width=("mlp.experts.0.gate_proj", 0))
# Dense layers among the others are not computed.
_ALL_HAVE_EXPERTS: Mapping[str, tuple[Any, ...]] = {"decoder_sparse_step": (1,), "mlp_only_layers": ([], None)}


def mixture(layer: str, gate: str, up: str, down: str, beside: tuple[Row, ...] = ()) -> Mapping[str, Any]:
    """Return what such models have in common with the others, and the names of their experts in a layer's part.

    `beside` are the rows of what is there beside experts and router.
    """
    ours = ((gate, "gate", "mlp embed"), (up, "up", "mlp embed"), (down, "down", "embed mlp"))
    experts = (
        row(f"layers.{{}}.{layer}.gate.weight", "blocks.mlp.router.weight", "routes embed"),
        *(
            row(f"layers.{{}}.{layer}.experts.{{}}.{name}.weight", f"blocks.mlp.{of}.weight", axes)
            for name, of, axes in ours
        ),
    )
    norm = norm_rows("layers.{}.post_attention_layernorm", "blocks.mlp_norm")
    return {**COMMON, "rows": rows(*norm, mlp=(*experts, *beside)), "has_experts": True}


MIXTRAL = Family(
    **mixture("block_sparse_moe", "w1", "w3", "w2"),
    name="mixtral",
    title="Mixtral",
    architecture="MixtralForCausalLM",
    choices=choices("sliding_window", attention_bias=False, experts_share_one=True),
    keys=(
        *keys(width=("block_sparse_moe.experts.0.w1", 0), epsilon=1e-5),
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
        _BALANCE,
    ),
    windows="every",
    usual_window=None,
    rope_theta=1e6,
)

_SHARED = "layers.{}.mlp.shared_expert"
QWEN2_MOE = Family(
    **mixture(
        "mlp",
        *("gate_proj", "up_proj", "down_proj"),
        beside=(
            row(f"{_SHARED}.gate_proj.weight", "blocks.mlp.shared.gate.weight", "shared embed"),
            row(f"{_SHARED}.up_proj.weight", "blocks.mlp.shared.up.weight", "shared embed"),
            row(f"{_SHARED}.down_proj.weight", "blocks.mlp.shared.down.weight", "embed shared"),
            row(f"{_SHARED}_gate.weight", "blocks.mlp.shared_gate.weight", "gates embed"),
        ),
    ),
    name="qwen2_moe",
    title="Qwen 2 with experts",
    architecture="Qwen2MoeForCausalLM",
    choices=choices("shared_size", attention_bias=True, attention_out_bias=False, shared_gate=True),
    keys=(
        *_QWEN_KEYS,
        HEAD_DIM,
        SILU,
        TIED,
        Key(
            name="shared_expert_intermediate_size",
            field="shared_size",
            kind="count",
            shape=("layers.0.mlp.shared_expert.gate_proj.weight", 0),
        ),
        _COUNT,
        Key(name="num_experts_per_tok", field="experts_per_token", kind="count", default=4),
        _SHARE_ONE,
        _BALANCE,
    ),
    fixed={**_ALL_HAVE_EXPERTS, "qkv_bias": (True,)},
)

QWEN3_MOE = Family(
    **mixture("mlp", "gate_proj", "up_proj", "down_proj"),
    name="qwen3_moe",
    title="Qwen 3 with experts",
    architecture="Qwen3MoeForCausalLM",
    choices=choices(qk_norm=True),
    keys=(
        *_QWEN_KEYS,
        HEAD_DIM,
        SILU,
        ATTENTION_BIAS,
        TIED,
        _COUNT,
        Key(name="num_experts_per_tok", field="experts_per_token", kind="count", default=8),
        _SHARE_ONE,
        _BALANCE,
    ),
    fixed=_ALL_HAVE_EXPERTS,
)

"""The families whose mixtures are of DeepSeek-V3's kind, but not their attention: GLM-4.5 and dots.llm1.

Sources: the published files, and the config.json of Hugging Face's transformers; GLM-4.5 Team, "GLM-4.5" (2025) and
rednote-hilab, "dots.llm1 Technical Report" (2025) for what they compute.

GLM's files have a layer more than its config.json counts, by which it was trained to predict one more token. It is not
read, as transformers does not read it, and an export says that there is none.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.train.weights.family import Family, Key
from shardwise.train.weights.llama_parts import ATTENTION_BIAS, HEAD_DIM, ROPE, SILU, TIED, keys
from shardwise.train.weights.mixture_families import mixture
from shardwise.train.weights.parts import choices, flag, row
from shardwise.train.weights.tensors import Row


def mlp_rows(name: str, path: str, inside: str) -> tuple[Row, ...]:
    """Return the rows of a gated MLP without biases."""
    axes = {"gate": f"{inside} embed", "up": f"{inside} embed", "down": f"embed {inside}"}
    return tuple(row(f"{name}.{part}_proj.weight", f"{path}.{part}.weight", of) for part, of in axes.items())


_MIXTURE: Mapping[str, Any] = mixture(
    "mlp",
    *("gate_proj", "up_proj", "down_proj"),
    beside=(
        row("layers.{}.mlp.gate.e_score_correction_bias", "blocks.mlp.pick_bias", "routes"),
        *mlp_rows("layers.{}.mlp.shared_experts", "blocks.mlp.shared", "shared"),
        *mlp_rows("layers.{}.mlp", "dense_blocks.mlp", "dense_mlp"),
    ),
)
_FREE = ("shared_size", "share_factor", "expert_groups", "num_dense_blocks")
_OF_V3: Mapping[str, Any] = {"expert_score": "sigmoid", "pick_bias": True, "group_score": "two-best"}


def _keys(*, epsilon: float, count: int, per_token: int, dense: int, share_one: bool) -> tuple[Key, ...]:
    """Return the keys that both have. No tensor tells the widths: the first layer may be of either kind."""
    return (
        *keys(mlp="moe_intermediate_size", width=None, epsilon=epsilon),
        *(HEAD_DIM, SILU, ATTENTION_BIAS, TIED),
        Key(name="intermediate_size", field="dense_mlp_size", kind="count", default=10944, may_be_none=True),
        Key(name="first_k_dense_replace", field="num_dense_blocks", kind="count", default=dense, may_be_none=True),
        Key(name="n_shared_experts", field="shared_size", kind="count", default=1, times="mlp_size"),
        Key(name="n_routed_experts", field="num_experts", kind="count", default=count),
        Key(name="num_experts_per_tok", field="experts_per_token", kind="count", default=per_token),
        Key(name="n_group", field="expert_groups", kind="count", default=1),
        Key(name="topk_group", field="groups_per_token", kind="count", default=1),
        Key(name="routed_scaling_factor", field="share_factor", kind="factor", default=1.0),
        flag("norm_topk_prob", "experts_share_one", default=share_one),
    )


DOTS1 = Family(
    **_MIXTURE,
    name="dots1",
    title="dots.llm1",
    architecture="Dots1ForCausalLM",
    choices=choices(*_FREE, **_OF_V3, qk_norm=True),
    keys=_keys(epsilon=1e-6, count=0, per_token=0, dense=0, share_one=False),
    written={"sliding_window": None},
)

GLM4_MOE = Family(
    **{**_MIXTURE, "rope": {**ROPE, "share": "partial_rotary_factor"}},
    name="glm4_moe",
    title="GLM-4.5",
    architecture="Glm4MoeForCausalLM",
    choices=choices(*_FREE, "qk_norm", "rotary_dim", **_OF_V3, attention_out_bias=False),
    keys=(
        *_keys(epsilon=1e-5, count=128, per_token=8, dense=1, share_one=True),
        flag("use_qk_norm", "qk_norm", default=False),
    ),
    written={"num_nextn_predict_layers": 0},
    rope_share=0.5,
    further_layers="num_nextn_predict_layers",
)

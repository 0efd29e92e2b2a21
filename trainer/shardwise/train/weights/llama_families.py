"""The families with RMS norm and gated MLPs: Llama, Mistral, Mixtral, Qwen and Gemma.

Sources: the published files, and the config.json of Hugging Face's transformers; Touvron et al. (2023), Jiang et al.
(2023), Qwen Team (2024, 2025) and Gemma Team (2024, 2025) for what they compute.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.train.weights.family import Family, Key, RopeKey
from shardwise.train.weights.parts import (
    choice,
    choices,
    flag,
    linear_rows,
    norm_keys,
    norm_rows,
    projection_rows,
    row,
    sizes,
)
from shardwise.train.weights.tensors import Row


def _keys(*, mlp: str = "intermediate_size", gate: str = "mlp.gate_proj", epsilon: float = 1e-6) -> tuple[Key, ...]:
    """Return the keys that the families share, with the name of the MLP's width and the tensor that tells it."""
    return (
        *sizes(
            {
                "embed_size": "hidden_size",
                "num_layers": "num_hidden_layers",
                "mlp_size": mlp,
                "seq_len": "max_position_embeddings",
            },
            {
                "vocab_size": ("embed_tokens.weight", 0),
                "embed_size": ("embed_tokens.weight", 1),
                "mlp_size": (f"layers.0.{gate}.weight", 0),
            },
        ),
        Key(name="num_key_value_heads", field="num_kv_heads", kind="count"),
        *norm_keys("rms_norm_eps", epsilon),
    )


_KEYS = _keys()
_HEAD_DIM = Key(name="head_dim", field="head_size", kind="count")
_SILU = choice("hidden_act", "activation", "silu", {"silu": "swiglu"})
_ATTENTION_BIAS = flag("attention_bias", "attention_bias", default=False)
_TIED = flag("tie_word_embeddings", "tied_head", default=False)
_ROPE: Mapping[RopeKey, str] = {"theta": "rope_theta", "scaling": "rope_scaling"}


_MLP = (
    *linear_rows("layers.{}.mlp.gate_proj", "blocks.mlp.gate", "mlp embed", "mlp"),
    *linear_rows("layers.{}.mlp.up_proj", "blocks.mlp.up", "mlp embed", "mlp"),
    *linear_rows("layers.{}.mlp.down_proj", "blocks.mlp.down", "embed mlp", "embed"),
)


def _rows(*norms: Row, mlp: tuple[Row, ...] = _MLP) -> tuple[Row, ...]:
    return (
        row("embed_tokens.weight", "token_embedding", "vocab embed"),
        *norm_rows("layers.{}.input_layernorm", "blocks.norm"),
        *projection_rows("layers.{}.self_attn"),
        *linear_rows("layers.{}.self_attn.o_proj", "blocks.attention.out", "embed (heads head_size)", "embed"),
        *norm_rows("layers.{}.self_attn.q_norm", "blocks.attention.q_norm", "head_size"),
        *norm_rows("layers.{}.self_attn.k_norm", "blocks.attention.k_norm", "head_size"),
        *norms,
        *mlp,
        *norm_rows("norm", "norm"),
        row("lm_head.weight", "head", "vocab embed"),
    )


_COMMON: Mapping[str, Any] = {
    "prefix": "model.",
    "mark": "layers.0.self_attn.q_proj.weight",
    "table": "embed_tokens.weight",
    "head": "lm_head.weight",
    "rope": _ROPE,
    "rows": _rows(*norm_rows("layers.{}.post_attention_layernorm", "blocks.mlp_norm")),
}

LLAMA = Family(
    **_COMMON,
    name="llama",
    title="Llama",
    architecture="LlamaForCausalLM",
    choices=choices("mlp_bias"),
    keys=(*_KEYS, _HEAD_DIM, _SILU, _ATTENTION_BIAS, flag("mlp_bias", "mlp_bias", default=False), _TIED),
)

MISTRAL = Family(
    **_COMMON,
    name="mistral",
    title="Mistral",
    architecture="MistralForCausalLM",
    choices=choices("sliding_window", attention_bias=False),
    keys=(*_KEYS, _HEAD_DIM, _SILU, _TIED),
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
    return {**_COMMON, "rows": _rows(*norm, mlp=experts), "has_experts": True}


MIXTRAL = Family(
    **_mixture("block_sparse_moe", "w1", "w3", "w2"),
    name="mixtral",
    title="Mixtral",
    architecture="MixtralForCausalLM",
    choices=choices("sliding_window", attention_bias=False, experts_share_one=True),
    keys=(
        *_keys(gate="block_sparse_moe.experts.0.w1", epsilon=1e-5),
        _HEAD_DIM,
        _SILU,
        _TIED,
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
    **_COMMON,
    name="qwen2",
    title="Qwen 2.5",
    architecture="Qwen2ForCausalLM",
    choices=choices(attention_bias=True, attention_out_bias=False),
    keys=(*_KEYS, _HEAD_DIM, _SILU, _TIED),
)

QWEN3 = Family(
    **_COMMON,
    name="qwen3",
    title="Qwen 3",
    architecture="Qwen3ForCausalLM",
    choices=choices(qk_norm=True),
    keys=(
        *_KEYS,
        Key(name="head_dim", field="head_size", kind="count", default=128),
        _SILU,
        _ATTENTION_BIAS,
        _TIED,
    ),
)

QWEN3_MOE = Family(
    **_mixture("mlp", "gate_proj", "up_proj", "down_proj"),
    name="qwen3_moe",
    title="Qwen 3 with experts",
    architecture="Qwen3MoeForCausalLM",
    choices=choices(qk_norm=True),
    keys=(
        *_keys(mlp="moe_intermediate_size", gate="mlp.experts.0.gate_proj"),
        _HEAD_DIM,
        _SILU,
        _ATTENTION_BIAS,
        _TIED,
        Key(name="num_experts", field="num_experts", kind="count", shape=("layers.0.mlp.gate.weight", 0)),
        Key(name="num_experts_per_tok", field="experts_per_token", kind="count", default=8),
        flag("norm_topk_prob", "experts_share_one", default=False),
        Key(name="router_aux_loss_coef", field="balance", kind="written"),
    ),
    # Dense layers among the others are not computed.
    fixed={"decoder_sparse_step": (1,), "mlp_only_layers": ([], None)},
)

_GEMMA: Mapping[str, Any] = {
    **_COMMON,
    "rows": _rows(
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
    *_KEYS,
    Key(name="head_dim", field="head_size", kind="count", default=256),
    choice("hidden_activation", "activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh": "geglu"}),
    flag("tie_word_embeddings", "tied_head", default=True),
    _ATTENTION_BIAS,
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
    **{**_GEMMA, "rope": {**_ROPE, "local": "rope_local_base_freq"}},
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

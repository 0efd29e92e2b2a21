"""gpt-oss: a mixture whose experts and router have biases, and heads with sinks; its experts are published in 4 bits.

Sources: the published files, and the config.json of Hugging Face's transformers; OpenAI, "gpt-oss-120b & gpt-oss-20b
Model Card" (2025) for what it computes.
"""

from shardwise.train.weights.family import Family, Key
from shardwise.train.weights.llama_parts import COMMON, TIED, rows
from shardwise.train.weights.parts import choice, choices, flag, linear_rows, norm_keys, norm_rows, row, sizes

_LAYER = "layers.{}.mlp.experts.{}"
_EXPERTS = (
    *linear_rows("layers.{}.mlp.router", "blocks.mlp.router", "routes embed", "routes"),
    *linear_rows(f"{_LAYER}.gate_proj", "blocks.mlp.gate", "embed mlp", "mlp"),
    *linear_rows(f"{_LAYER}.up_proj", "blocks.mlp.up", "embed mlp", "mlp"),
    *linear_rows(f"{_LAYER}.down_proj", "blocks.mlp.down", "mlp embed", "embed"),
    row("layers.{}.self_attn.sinks", "blocks.attention.sinks", "heads"),
)

GPT_OSS = Family(
    **{
        **COMMON,
        "mark": "layers.0.self_attn.sinks",
        "rows": rows(*norm_rows("layers.{}.post_attention_layernorm", "blocks.mlp_norm"), mlp=_EXPERTS),
    },
    name="gpt_oss",
    title="gpt-oss",
    architecture="GptOssForCausalLM",
    has_experts=True,
    choices=choices(
        "sliding_window",
        "sliding_window_pattern",
        attention_sinks=True,
        mlp_bias=True,
        router_bias=True,
        experts_share_one=True,
    ),
    keys=(
        *sizes(
            {"embed_size": "hidden_size", "num_layers": "num_hidden_layers", "seq_len": "max_position_embeddings"},
            {"vocab_size": ("embed_tokens.weight", 0), "embed_size": ("embed_tokens.weight", 1)},
        ),
        Key(name="intermediate_size", field="mlp_size", kind="count", default=2880),
        Key(name="num_key_value_heads", field="num_kv_heads", kind="count", default=8),
        Key(name="head_dim", field="head_size", kind="count", default=64),
        *norm_keys("rms_norm_eps", 1e-5),
        choice("hidden_act", "activation", "silu", {"silu": "swiglu-clamped"}),
        flag("attention_bias", "attention_bias", default=True),
        TIED,
        Key(name="num_local_experts", field="num_experts", kind="count", shape=("layers.0.mlp.router.weight", 0)),
        Key(name="num_experts_per_tok", field="experts_per_token", kind="count", default=4),
        Key(name="router_aux_loss_coef", field="balance", kind="written"),
    ),
    fixed={"swiglu_limit": (7.0,), "swiglu_alpha": (1.702,)},
    windows="pattern",
    usual_window=128,
    window_pattern=2,
    rope_theta=150_000.0,
    usual_scaling={
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    stacked={
        "gate_up_proj": ("gate_proj.weight", "up_proj.weight"),
        "gate_up_proj_bias": ("gate_proj.bias", "up_proj.bias"),
        "down_proj": ("down_proj.weight",),
        "down_proj_bias": ("down_proj.bias",),
    },
    quantizations=("mxfp4",),
)

"""What the families with RMS norm and gated MLPs have in common: keys of config.json, and names of tensors."""

from collections.abc import Mapping
from typing import Any

from shardwise.train.weights.family import Key, RopeKey
from shardwise.train.weights.parts import choice, flag, linear_rows, norm_keys, norm_rows, projection_rows, row, sizes
from shardwise.train.weights.tensors import Row


def keys(
    *,
    mlp: str = "intermediate_size",
    width: tuple[str, int] | None = ("mlp.gate_proj", 0),
    epsilon: float = 1e-6,
    kv_heads: int | None = None,
) -> tuple[Key, ...]:
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
                **({} if width is None else {"mlp_size": (f"layers.0.{width[0]}.weight", width[1])}),
            },
        ),
        Key(name="num_key_value_heads", field="num_kv_heads", kind="count", default=kv_heads),
        *norm_keys("rms_norm_eps", epsilon),
    )


KEYS = keys()
HEAD_DIM = Key(name="head_dim", field="head_size", kind="count")
SILU = choice("hidden_act", "activation", "silu", {"silu": "swiglu"})
ATTENTION_BIAS = flag("attention_bias", "attention_bias", default=False)
TIED = flag("tie_word_embeddings", "tied_head", default=False)
NO_PADDING: Mapping[str, Any] = {"pad_token_id": None}
"""Where the token that transformers fills rows with by default may be none of a small model."""
ROPE: Mapping[RopeKey, str] = {"theta": "rope_theta", "scaling": "rope_scaling"}


_MLP = (
    *linear_rows("layers.{}.mlp.gate_proj", "blocks.mlp.gate", "mlp embed", "mlp"),
    *linear_rows("layers.{}.mlp.up_proj", "blocks.mlp.up", "mlp embed", "mlp"),
    *linear_rows("layers.{}.mlp.down_proj", "blocks.mlp.down", "embed mlp", "embed"),
)


def rows(*norms: Row, mlp: tuple[Row, ...] = _MLP) -> tuple[Row, ...]:
    """Return the rows that the families share, with those of a block's further norms and of its MLP."""
    return (
        row("embed_tokens.weight", "token_embedding", "vocab embed"),
        *norm_rows("layers.{}.input_layernorm", "blocks.norm"),
        *projection_rows("layers.{}.self_attn"),
        *linear_rows("layers.{}.self_attn.o_proj", "blocks.attention.out", "embed (heads head_size)", "embed"),
        *(
            one
            for axes in ("head_size", "(heads head_size)", "(kv_heads head_size)")
            for part in ("q_norm", "k_norm")
            for one in norm_rows(f"layers.{{}}.self_attn.{part}", f"blocks.attention.{part}", axes)
        ),
        *norms,
        *mlp,
        *norm_rows("norm", "norm"),
        row("lm_head.weight", "head", "vocab embed"),
    )


COMMON: Mapping[str, Any] = {
    "prefix": "model.",
    "mark": "layers.0.self_attn.q_proj.weight",
    "table": "embed_tokens.weight",
    "head": "lm_head.weight",
    "rope": ROPE,
    "rows": rows(*norm_rows("layers.{}.post_attention_layernorm", "blocks.mlp_norm")),
}

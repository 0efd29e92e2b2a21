"""What the values of the families are made of: rows for kinds of layers, keys for kinds of fields, usual choices."""

from collections.abc import Mapping
from typing import Any

from shardwise.train.weights.family import Key, Same
from shardwise.train.weights.tensors import Row

TANH_GELUS: Mapping[str, str] = dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu")  # the same form
_DEFAULT_POSITIONS = 2048

# What most families do, so that each says in what it differs.
_USUAL: Mapping[str, Any] = {
    "block": "sequential",
    "norm": "rms",
    "pre_norm": True,
    "post_norm": False,
    "qk_norm": False,
    "qk_norm_over": "head",
    "position": "rotary",
    "rotary_dim": Same("head_size"),
    "rotary_pairs": "half",
    "local_rope_theta": None,
    "rotary_pattern": None,
    "head_bias": False,
    "mlp_bias": False,
    "attention_out_bias": Same("attention_bias"),
    "attention_sinks": False,
    "query_pre_attn_scalar": Same("head_size"),
    "attention_softcap": None,
    "logit_softcap": None,
    "sliding_window": None,
    "sliding_window_pattern": None,
    "kv_rank": 0,
    "q_rank": 0,
    "value_size": Same("head_size"),
    "expert_score": "softmax",
    "share_factor": 1.0,
    "pick_bias": False,
    "expert_groups": 1,
    "num_dense_blocks": 0,
    "shared_size": 0,
    "shared_gate": False,
    "router_bias": False,
    "scale_embedding": False,
    "embedding_factor": 1.0,
    "residual_factor": 1.0,
    "logit_divisor": 1.0,
    "scale_by_inverse_layer": False,
}
# What the older families share beside that.
GPT: Mapping[str, Any] = {
    "norm": "layer",
    "mlp_bias": True,
    "num_kv_heads": Same("num_heads"),
    "embed_size": Same("joined_heads"),
}
# Where rotary positions are the first paper's.
PLAIN_ROPE: Mapping[str, Any] = {"rotary_pairs": "interleaved", "rope_theta": 10_000.0, "rope_scaling": None}


def choices(*free: str, **values: Any) -> dict[str, Any]:
    """Return the usual choices with these values, without the fields that differ from model to model."""
    return {name: value for name, value in {**_USUAL, **values}.items() if name not in free}


# ---- keys of config.json


def sizes(names: Mapping[str, str], shapes: Mapping[str, tuple[str, int]]) -> tuple[Key, ...]:
    """Return the keys of the sizes: their names by field, and the tensors that tell them."""
    return tuple(
        Key(
            name=name,
            field=field,
            kind="count",
            shape=shapes.get(field),
            default=_DEFAULT_POSITIONS if field == "seq_len" else None,
        )
        for field, name in {"vocab_size": "vocab_size", **names}.items()
    )


def norm_keys(epsilon: str, default: float) -> tuple[Key, Key]:
    """Return the key of the norms' epsilon, and that of the initial weights."""
    return (
        Key(name=epsilon, field="norm_epsilon", kind="share", default=default),
        Key(name="initializer_range", field="init_std", kind="share", default=0.02),
    )


def flag(name: str, field: str, *, default: bool) -> Key:
    """Return the key of a field that is true or false."""
    return Key(name=name, field=field, kind="flag", default=default)


def choice(name: str, field: str, default: Any, values: Mapping[Any, Any]) -> Key:
    """Return the key of a field with a few values; `values` has ours by theirs."""
    return Key(name=name, field=field, kind="choice", default=default, values=values)


# ---- rows


def row(name: str, path: str, axes: str, part: int = 0) -> Row:
    """Return a single tensor's row."""
    return Row(name=name, path=path, axes=axes, part=part)


def norm_rows(name: str, path: str, axes: str = "embed") -> tuple[Row, Row]:
    """Return the rows of a norm's gains and biases."""
    return row(f"{name}.weight", f"{path}.weight", axes), row(f"{name}.bias", f"{path}.bias", axes)


def linear_rows(name: str, path: str, weight: str, bias: str) -> tuple[Row, Row]:
    """Return the rows of a linear layer's weight and bias."""
    return row(f"{name}.weight", f"{path}.weight", weight), row(f"{name}.bias", f"{path}.bias", bias)


def projection_rows(name: str) -> tuple[Row, ...]:
    """Return the rows of query, key and value as tensors of their own, in models with shared heads and without."""
    path, heads, kv_heads = "blocks.attention", "(heads head_size)", "(kv_heads head_size)"
    joined = [(letter, f"{path}.qkv", heads, part) for part, letter in enumerate("qkv")]
    shared = [("q", f"{path}.q", heads, 0), ("k", f"{path}.kv", kv_heads, 0), ("v", f"{path}.kv", kv_heads, 1)]
    return tuple(
        row(f"{name}.{letter}_proj.{kind}", f"{of}.{kind}", axes, part)
        for letter, of, bias, part in (*joined, *shared)
        for kind, axes in (("weight", f"{bias} embed"), ("bias", bias))
    )

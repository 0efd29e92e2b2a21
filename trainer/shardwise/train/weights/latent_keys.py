"""The keys of latent attention in a config.json: sizes of a head's parts, narrow vectors, and what YaRN sharpens.

A head's query and key are `qk_nope_head_dim` values that no position turns and then `qk_rope_head_dim` that are turned;
together they are our head size. Where positions are stretched by YaRN, DeepSeek's models multiply scores by the square
of m = 0.1 mscale_all_dim ln(factor) + 1, which is a part of our divisor, and queries and keys by the same of `mscale`
over it, which is our attention factor.
"""

import math
from collections.abc import Mapping
from typing import Any

from shardwise.protocol.errors import DataError
from shardwise.train.config import GptConfig
from shardwise.train.weights.family import Family
from shardwise.train.weights.key_values import real, refused, section, whole
from shardwise.train.weights.tensors import Shape

EPSILON = 1e-6
"""Of the norms of narrow vectors in every published model, whatever its other norms have."""
_RANK, _Q_RANK, _APART, _TURNED, _VALUE = (
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)
_MSCALE, _MSCALE_ALL = "mscale", "mscale_all_dim"
_BESIDE = ("rope_parameters", "rope_scaling")


def read_latent(
    family: Family, published: Mapping[str, Any], shapes: Mapping[str, Shape]
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the fields of latent attention, and the config.json without the keys that no other model has.

    Raises:
        DataError: a key that is missing, or that contradicts the tensors.
    """
    rank, apart, turned, value = (_needed(family, published, name) for name in (_RANK, _APART, _TURNED, _VALUE))
    q_rank = whole(family, published, _Q_RANK, 0)
    head_size, heads = apart + turned, _needed(family, published, family.heads_key)
    expected = {
        "kv_a_proj_with_mqa": rank + turned,
        "kv_b_proj": heads * (apart + value),
        "q_a_proj" if q_rank else "q_proj": q_rank or heads * head_size,
    }
    for part, size in expected.items():
        name = f"layers.0.self_attn.{part}.weight"
        found = shapes[name][0] if name in shapes else 0
        if found != size:
            raise DataError(
                f"{name}: {found} rows, expected {size} by {_RANK}, {_Q_RANK}, {_APART}, {_TURNED} and {_VALUE} in "
                "config.json; put the weights in a folder with their own config.json"
            )
    fields = {"kv_rank": rank, "q_rank": q_rank, "value_size": value, "head_size": head_size, "rotary_dim": turned}
    sharper, plain = _without_gains(family, published)
    return {**fields, "query_pre_attn_scalar": _divisor(head_size, sharper)}, plain


def latent_keys(config: GptConfig, rope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a model's latent attention, and those of its rotary positions with what they say of it."""
    sizes = {
        _RANK: config.kv_rank,
        _Q_RANK: config.q_rank or None,
        _APART: config.head_size - config.rotary_dim,
        _TURNED: config.rotary_dim,
        _VALUE: config.value_size,
    }
    scaling = config.rope_scaling
    if scaling is None or config.query_pre_attn_scalar == config.head_size:
        return {**rope, **sizes}
    assert scaling.attention_factor is not None, "the config is resolved"
    stretch, gain = math.log(scaling.factor) / 10, (config.head_size / config.query_pre_attn_scalar) ** 0.25
    exact = (gain - 1) / stretch
    rounded = (float(f"{exact:.{digits}g}") for digits in range(1, 17))
    wanted = config.query_pre_attn_scalar
    of_all = next((x for x in rounded if _divisor(config.head_size, x * stretch + 1) == wanted), exact)
    of_rope = of_all if scaling.attention_factor == 1 else (scaling.attention_factor * gain - 1) / stretch
    # The attention factor is there too, and counts; a gain below 1 is none of a number above 0.
    gains = {_MSCALE_ALL: of_all} | ({_MSCALE: of_rope} if of_rope > 0 else {})
    return {**rope, "rope_scaling": {**rope["rope_scaling"], **gains}, **sizes}


def _divisor(head_size: int, gain: float) -> float:
    """Return of what scores are divided by the root, to 12 digits, so that few digits of a gain give it again."""
    return float(head_size) if gain == 1 else float(f"{head_size / gain**4:.12g}")


def _without_gains(family: Family, published: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    """Return by what scores are sharpened, its root, and the config.json with an attention factor in its place."""
    plain, sharper = dict(published), 1.0
    for name in _BESIDE:
        given = section(family, name, published.get(name))
        if given.get("rope_type", given.get("type")) != "yarn":
            continue
        rest = {key: value for key, value in given.items() if key not in (_MSCALE, _MSCALE_ALL)}
        of_rope, of_all = (given.get(key) or 0 for key in (_MSCALE, _MSCALE_ALL))
        if of_all:
            factor = real(family, f"{name}.factor", given.get("factor"), least=1.0, most=1e6)
            gains = [
                0.1 * real(family, f"{name}.{key}", value) * math.log(factor) + 1
                for key, value in ((_MSCALE, of_rope or of_all), (_MSCALE_ALL, of_all))
            ]
            sharper = gains[1]
            if of_rope and rest.get("attention_factor") is None:
                rest["attention_factor"] = gains[0] / gains[1]
        plain[name] = rest
    return sharper, plain


def _needed(family: Family, published: Mapping[str, Any], name: str) -> int:
    value = whole(family, published, name, 0)
    if not value:
        raise refused(family, name, "missing", "a whole number from 1")
    return value

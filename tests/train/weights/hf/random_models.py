"""Random small models of every family, each from a seed: sizes that divide nothing, and keys that are left out.

What both sides have in common; it needs numpy alone.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

Fields = dict[str, Any]

PROMPT = 6
"""Tokens that greedy generation begins with."""
_SCALINGS = ("default", "linear", "llama3", "yarn")
_TANH_GELUS = ("gelu_new", "gelu_pytorch_tanh")


def random_model(seed: int) -> tuple[str, Fields]:
    """Return the `model_type` and fields of transformers' config; the families take turns."""
    draw = Random(seed)
    family = tuple(_FAMILIES)[seed % len(_FAMILIES)]
    return family, _FAMILIES[family](draw)


def as_written(config: Mapping[str, Any], defaults: Mapping[str, Any], seed: int) -> Fields:
    """Return a config.json that says the same: keys at their defaults left out, rotary positions in the older form.

    That of OLMo 3 has no other base than the default one.
    """
    draw = Random(seed)
    kept = {key: value for key, value in config.items() if defaults.get(key, ...) != value or draw.random() < 0.5}
    rope = kept.get("rope_parameters")
    has_other_base = rope is not None and any(
        part["rope_theta"] != 5e5 for part in rope.values() if isinstance(part, dict)
    )
    if rope is None or draw.random() < 0.5 or (config["model_type"] == "olmo3" and has_other_base):
        return {**kept, "model_type": config["model_type"]}
    del kept["rope_parameters"]
    full = dict(rope.get("full_attention", rope))
    kept["rope_theta" if config["model_type"] != "gpt_neox" else "rotary_emb_base"] = full.pop("rope_theta")
    if "partial_rotary_factor" in full:
        share = "partial_rotary_factor" if config["model_type"] == "glm4_moe" else "rotary_pct"
        kept[share] = full.pop("partial_rotary_factor")
    if "sliding_attention" in rope and config["model_type"] != "olmo3":
        kept["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    if full.get("rope_type") != "default" or config["model_type"] == "gpt_oss":  # which is stretched by default
        kept["rope_scaling"] = full
    return {**kept, "model_type": config["model_type"]}


def num_files(seed: int) -> int:
    """Return over how many files the tensors are spread."""
    return Random(seed).choice((1, 1, 3))


def rounding(logits: NDArray[np.float32]) -> float:
    """Return by how much logits in float32 may differ."""
    return 1e-5 * max(1.0, float(np.abs(logits).max()))


def _gpt2(draw: Random) -> Fields:
    heads, head_size = draw.randint(1, 7), draw.randint(1, 17)
    return {
        **_old_names(draw, heads * head_size, heads),
        "n_inner": draw.choice((None, draw.randint(1, 130))),
        "scale_attn_by_inverse_layer_idx": draw.random() < 0.3,
        "reorder_and_upcast_attn": draw.random() < 0.3,
    }


def _gptj(draw: Random) -> Fields:
    heads, head_size = draw.randint(1, 7), draw.randint(2, 17)
    rotary_dim = 2 * draw.randint(1, head_size // 2)
    return {**_old_names(draw, heads * head_size, heads), "rotary_dim": rotary_dim}


def _old_names(draw: Random, width: int, heads: int) -> Fields:
    return {
        "vocab_size": _vocab_size(draw),
        "n_embd": width,
        "n_layer": draw.randint(1, 4),
        "n_head": heads,
        "n_positions": draw.randint(9, 40),
        "activation_function": draw.choice(_TANH_GELUS),
        "layer_norm_epsilon": draw.choice((1e-5, 1e-6, 1e-3)),
    }


def _neox(draw: Random) -> Fields:
    heads, head_size = draw.randint(1, 6), 2 * draw.randint(2, 9)
    share = draw.choice([pairs * 2 / head_size for pairs in range(1, head_size // 2 + 1)])
    fields = {
        **_sizes(draw, heads * head_size, heads),
        "hidden_act": draw.choice(("gelu", *_TANH_GELUS)),
        "use_parallel_residual": draw.random() < 0.5,
        "layer_norm_eps": draw.choice((1e-5, 1e-3)),
        "attention_bias": draw.random() < 0.7,
        "tie_word_embeddings": draw.random() < 0.3,
    }
    exact = int(head_size * share) % 2 == 0  # their product is cut off
    rope = {**_rope(draw, fields["max_position_embeddings"]), "partial_rotary_factor": share if exact else 1.0}
    return {**fields, "rope_parameters": rope}


def _llama(draw: Random) -> Fields:
    fields = _of_heads(draw)
    rope = _rope(draw, fields["max_position_embeddings"])
    biases = {"attention_bias": draw.random() < 0.4, "mlp_bias": draw.random() < 0.4}
    return {**fields, **biases, **_tied(draw), "rope_parameters": rope}


def _mistral(draw: Random) -> Fields:
    fields = _of_heads(draw)
    positions = fields["max_position_embeddings"]
    window = draw.choice((None, 2, draw.randint(2, positions), positions + 3))  # transformers' cache of 1 keeps all
    return {**fields, **_tied(draw), "sliding_window": window, "rope_parameters": _rope(draw, positions)}


def _phi3(draw: Random) -> Fields:
    heads, head_size = draw.randint(1, 6), 2 * draw.randint(1, 8)
    fields = {**_sizes(draw, heads * head_size, heads), "num_key_value_heads": _shared(draw, heads)}
    positions = fields["max_position_embeddings"]
    window = draw.choice((None, 2, draw.randint(2, positions), positions + 3))
    pairs = draw.randint(1, head_size // 2)
    exact = int(head_size * (pairs * 2 / head_size)) == 2 * pairs  # their product is cut off
    rope: Fields = {"rope_type": "default", "rope_theta": draw.choice((100.0, 1e4, 2.5e5))}
    if exact:
        rope["partial_rotary_factor"] = pairs * 2 / head_size
    if draw.random() < 0.6:
        # Below the prompt, or of all positions: between them transformers turns keys of one text by both.
        original = draw.choice((PROMPT - 2, positions))
        count = pairs if exact else head_size // 2
        factors = {f"{kind}_factor": [draw.uniform(0.5, 9) for _ in range(count)] for kind in ("short", "long")}
        rope |= {"rope_type": "longrope", "original_max_position_embeddings": original, **factors}
        rope |= draw.choice(({}, {"factor": 4.0}, {"factor": 2.0, "attention_factor": 1.3}))
        fields["original_max_position_embeddings"] = original
    return {**fields, **_tied(draw), "sliding_window": window, "rope_parameters": rope}


def _mixtral(draw: Random) -> Fields:
    fields = _mistral(draw)
    count = draw.randint(2, 7)
    return {**fields, "num_local_experts": count, "num_experts_per_tok": draw.randint(1, count)}


def _qwen3_moe(draw: Random) -> Fields:
    return {**_qwen3(draw), **_experts(draw)}


def _qwen2_moe(draw: Random) -> Fields:
    return {**_qwen2(draw), **_experts(draw), "shared_expert_intermediate_size": draw.randint(1, 60)}


def _deepseek_v2(draw: Random) -> Fields:
    heads = draw.randint(1, 7)
    fields = _sizes(draw, heads * draw.randint(1, 15), heads)
    rope = _rope(draw, fields["max_position_embeddings"])
    if rope["rope_type"] == "yarn" and draw.random() < 0.7:
        gain = draw.choice((0.707, 1.0, draw.uniform(0.1, 2)))
        rope |= {"mscale": draw.choice((gain, 1.3)), "mscale_all_dim": gain}
    return {
        **fields,
        **_tied(draw),
        "num_key_value_heads": heads,
        "kv_lora_rank": 2 * draw.randint(1, 20),  # transformers 5.23 computes no odd one, nor odd heads
        "q_lora_rank": draw.choice((None, draw.randint(1, 40))),
        "qk_nope_head_dim": 2 * draw.randint(1, 7),
        "qk_rope_head_dim": 2 * draw.randint(1, 7),
        "v_head_dim": draw.randint(1, 20),
        **_limited(draw),
        "topk_method": draw.choice(("greedy", "group_limited_greedy")),
        "moe_intermediate_size": draw.randint(1, 60),
        "n_shared_experts": draw.randint(1, 3),
        "first_k_dense_replace": draw.randint(0, fields["num_hidden_layers"] - 1),
        "routed_scaling_factor": draw.choice((1.0, 2.446, draw.uniform(0.5, 3))),
        "rope_parameters": rope,
    }


def _deepseek_v3(draw: Random) -> Fields:
    fields = _deepseek_v2(draw)
    del fields["topk_method"]
    return {**fields, "rope_interleave": draw.random() < 0.7, "norm_topk_prob": draw.random() < 0.6}


def _limited(draw: Random) -> Fields:
    """Return experts that are chosen from a few groups."""
    groups, of_one = draw.randint(1, 3), draw.randint(2, 4)
    chosen = draw.randint(1, groups)
    return {
        "n_routed_experts": groups * of_one,
        "n_group": groups,
        "topk_group": chosen,
        "num_experts_per_tok": draw.randint(1, chosen * of_one),
    }


def _experts(draw: Random) -> Fields:
    count = draw.randint(2, 7)
    return {
        "num_experts": count,
        "num_experts_per_tok": draw.randint(1, count),
        "moe_intermediate_size": draw.randint(1, 60),
        "norm_topk_prob": draw.random() < 0.5,
    }


def _dots1(draw: Random) -> Fields:
    fields = _qwen3(draw)
    groups = draw.choice((1, 1, 2, 3))
    return {
        **fields,
        "n_routed_experts": groups * draw.randint(2, 4),
        "num_experts_per_tok": draw.randint(1, 2),
        "moe_intermediate_size": draw.randint(1, 60),
        "n_shared_experts": draw.randint(1, 3),
        "n_group": groups,
        "topk_group": draw.randint(1, groups),
        "first_k_dense_replace": draw.randint(0, fields["num_hidden_layers"] - 1),
        "norm_topk_prob": draw.random() < 0.5,
        "routed_scaling_factor": draw.choice((1.0, 2.5, draw.uniform(0.5, 4))),
    }


def _glm4_moe(draw: Random) -> Fields:
    fields = _dots1(draw)
    pairs = fields["head_dim"] // 2
    share = draw.choice([turned / pairs for turned in range(1, pairs + 1)])
    exact = int(fields["head_dim"] * share) % 2 == 0  # their product is cut off
    rope = {**fields["rope_parameters"], "partial_rotary_factor": share if exact else 1.0}
    return {**fields, "use_qk_norm": draw.random() < 0.5, "rope_parameters": rope}


def _qwen2(draw: Random) -> Fields:
    heads, head_size = draw.randint(1, 6), 2 * draw.randint(1, 8)
    fields = {**_sizes(draw, heads * head_size, heads), "num_key_value_heads": _shared(draw, heads)}
    if draw.random() < 0.3:
        fields["head_dim"] = 2 * draw.randint(1, 8)  # of no published model, but it is read
    return {**fields, **_tied(draw), "rope_parameters": _rope(draw, fields["max_position_embeddings"])}


def _qwen3(draw: Random) -> Fields:
    fields = {**_of_heads(draw), "attention_bias": draw.random() < 0.4}
    return {**fields, **_tied(draw), "rope_parameters": _rope(draw, fields["max_position_embeddings"])}


def _gpt_oss(draw: Random) -> Fields:
    fields, count = _of_heads(draw), draw.randint(2, 7)
    window = draw.randint(2, fields["max_position_embeddings"] + 3)  # transformers' cache of 1 keeps all
    rope = _rope(draw, fields["max_position_embeddings"])
    mixture = {"num_local_experts": count, "num_experts_per_tok": draw.randint(1, count)}
    bias = {"attention_bias": draw.random() < 0.7}
    types = _types(draw, fields["num_hidden_layers"]) if draw.random() < 0.5 else {}
    return {**fields, **_tied(draw), **mixture, **bias, **types, "sliding_window": window, "rope_parameters": rope}


def _granite(draw: Random) -> Fields:
    return {
        **_llama(draw),
        "attention_multiplier": draw.choice((1.0, 0.015625, draw.uniform(0.01, 1))),
        "embedding_multiplier": draw.choice((1.0, 12, draw.uniform(0.5, 20))),
        "residual_multiplier": draw.choice((1.0, 0.22, draw.uniform(0.1, 2))),
        "logits_scaling": draw.choice((1.0, 8, draw.uniform(0.5, 20))),
    }


def _smollm3(draw: Random) -> Fields:
    fields, pattern = _llama(draw), draw.choice((1, 2, 3, 4, 9))
    if draw.random() < 0.5:
        return {**fields, "no_rope_layer_interval": pattern}
    turned = [int((layer + 1) % pattern != 0) for layer in range(fields["num_hidden_layers"])]
    return {**fields, "no_rope_layers": turned}


def _olmo2(draw: Random) -> Fields:
    return _qwen3(draw)


def _olmo3(draw: Random) -> Fields:
    fields = _olmo2(draw)
    window = draw.randint(2, fields["max_position_embeddings"] + 3)
    bases = draw.choice(((5e5, 5e5), (5e5, 1e4), (1e4, 1e4), (1e4, 5e5)))
    full = {**fields["rope_parameters"], "rope_theta": bases[0]}
    rope = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": bases[1]}}
    return {**fields, **_types(draw, fields["num_hidden_layers"]), "sliding_window": window, "rope_parameters": rope}


def _types(draw: Random, layers: int) -> Fields:
    pattern = draw.randint(2, 5)
    return {"layer_types": ["sliding_attention" if (at + 1) % pattern else "full_attention" for at in range(layers)]}


def _gemma2(draw: Random) -> Fields:
    fields = _of_heads(draw)
    positions = fields["max_position_embeddings"]
    return {
        **fields,
        **_tied(draw),
        "attention_bias": draw.random() < 0.3,
        "query_pre_attn_scalar": draw.randint(1, 40),
        "attn_logit_softcapping": draw.choice((None, 2.0, 50.0)),
        "final_logit_softcapping": draw.choice((None, 3.0, 30.0)),
        "sliding_window": draw.randint(2, positions + 3),  # transformers' cache of 1 keeps all
        "rope_parameters": _rope(draw, positions),
    }


def _gemma3(draw: Random) -> Fields:
    fields = _gemma2(draw)
    types = _types(draw, fields["num_hidden_layers"])
    local = {"rope_type": "default", "rope_theta": draw.choice((500.0, 1e4))}
    rope = {"full_attention": fields["rope_parameters"], "sliding_attention": local}
    return {**fields, **types, "rope_parameters": rope, "attn_logit_softcapping": None}  # not applied


def _of_heads(draw: Random) -> Fields:
    """Return sizes with a head size of its own: the width is a multiple of the heads, or of nothing."""
    heads = draw.randint(1, 7)
    head_size = 2 * draw.randint(1, 10)
    width = heads * draw.randint(1, 15)
    return {**_sizes(draw, width, heads), "num_key_value_heads": _shared(draw, heads), "head_dim": head_size}


def _sizes(draw: Random, width: int, heads: int) -> Fields:
    return {
        "vocab_size": _vocab_size(draw),
        "hidden_size": width,
        "intermediate_size": draw.randint(1, 130),
        "num_hidden_layers": draw.randint(1, 4),
        "num_attention_heads": heads,
        "max_position_embeddings": draw.randint(9, 40),
    }


def _vocab_size(draw: Random) -> int:
    return draw.choice((draw.randint(3, 300), 127, 128, 129, 256, 257))


def _shared(draw: Random, heads: int) -> int:
    return draw.choice([count for count in range(1, heads + 1) if heads % count == 0])


def _tied(draw: Random) -> Fields:
    return {"tie_word_embeddings": draw.random() < 0.4, "rms_norm_eps": draw.choice((1e-6, 1e-5, 1e-3))}


def _rope(draw: Random, positions: int) -> Fields:
    rope = {"rope_type": draw.choice(_SCALINGS), "rope_theta": draw.choice((100.0, 1e4, 5e5, 1e6))}
    original = draw.randint(4, positions)
    match rope["rope_type"]:
        case "linear":
            return {**rope, "factor": draw.uniform(1, 9)}
        case "llama3":
            low = draw.uniform(0.5, 2)
            bands = {"low_freq_factor": low, "high_freq_factor": low + draw.uniform(0.5, 4)}
            return {**rope, **bands, "factor": draw.uniform(1, 9), "original_max_position_embeddings": original}
        case "yarn":
            betas = draw.choice(({}, {"beta_fast": draw.uniform(4, 40), "beta_slow": draw.uniform(0.2, 2)}))
            told = draw.choice(({}, {"attention_factor": draw.uniform(0.5, 2)}))
            length = draw.choice(({}, {"original_max_position_embeddings": original}))
            ramp = draw.choice(({}, {"truncate": True}, {"truncate": False}))
            return {**rope, **betas, **told, **length, **ramp, "factor": draw.uniform(1, 9)}
        case _:
            return rope


_FAMILIES: Mapping[str, Callable[[Random], Fields]] = {
    "gpt2": _gpt2,
    "gptj": _gptj,
    "gpt_neox": _neox,
    "llama": _llama,
    "mistral": _mistral,
    "phi3": _phi3,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "gpt_oss": _gpt_oss,
    "granite": _granite,
    "smollm3": _smollm3,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "dots1": _dots1,
    "glm4_moe": _glm4_moe,
}

"""Keys of latent attention in a config.json: read, written as they were read, and refused by name."""

import math
from dataclasses import replace
from typing import Any

import pytest
from tests.train.weights.test_recognise import config_of, shapes_of

from shardwise.protocol.errors import DataError
from shardwise.train.config import GptConfig
from shardwise.train.weights import recognise
from shardwise.train.weights.config_file import published_config
from shardwise.train.weights.families import family_of

Fields = dict[str, Any]
VOCAB_SIZE = 102400
SCALING = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
SECTION: Fields = {
    "preset": "llama2-7b",
    "layers": 2,
    "heads": 16,
    "embed": 2048,
    "headSize": 192,
    "rotaryDim": 64,
    "rotaryPairs": "interleaved",
    "mlp": 1408,
    "normEpsilon": 1e-6,
    "latent": {"kvRank": 512, "valueSize": 128},
    "experts": {"count": 64, "perToken": 6, "shareOne": False, "shared": 2816, "balance": 0.0},
}
"""DeepSeek-V2-Lite's, without its first layer and without stretched positions."""
IN_GROUPS: Fields = {"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3}
"""DeepSeek-V2's."""


def published_of(section: Fields) -> tuple[GptConfig, Fields]:
    """A model's config, and what its export says in config.json."""
    config = config_of(section, VOCAB_SIZE)
    family = family_of(config)
    assert family is not None
    assert family.name == "deepseek_v2"
    return config, published_config(family, config, "float32")


@pytest.mark.parametrize(
    ("preset", "name", "vocab_size", "expected"),
    [
        (
            "deepseek-v2-lite",
            "deepseek_v2",
            102400,
            {"intermediate_size": 10944, "first_k_dense_replace": 1, "routed_scaling_factor": 1.0},
        ),
        (
            "moonlight-16b-a3b",
            "deepseek_v3",
            163840,
            {"intermediate_size": 11264, "routed_scaling_factor": 2.446, "n_group": 1, "rope_scaling": None},
        ),
    ],
)
def test_a_preset_is_of_its_family(preset: str, name: str, vocab_size: int, expected: Fields) -> None:
    """It is exported as its family with the published numbers, and read back but for how loads are kept even."""
    config = config_of({"preset": preset}, vocab_size)
    family = family_of(config)
    assert family is not None
    assert family.name == name
    published = published_config(family, config, "float32")
    assert {key: published[key] for key in expected} == expected
    assert recognise(shapes_of(config), published, None) == replace(config, balance=0.0)
    if config.rope_scaling is not None:
        assert (published["rope_scaling"]["mscale"], published["rope_scaling"]["mscale_all_dim"]) == (0.707, 0.707)


@pytest.mark.parametrize("preset", ["deepseek-v2-lite", "moonlight-16b-a3b"])
def test_the_same_model_without_latent_attention_is_of_no_such_family(preset: str) -> None:
    """Whatever else it has of them: an export would name tensors that are not there."""
    config = config_of({"preset": preset}, 1024)
    ordinary = replace(
        config, kv_rank=0, q_rank=0, value_size=0, latent_epsilon=GptConfig.latent_epsilon, rope_scaling=None
    )
    ordinary = replace(ordinary, query_pre_attn_scalar=float(ordinary.head_size))
    assert family_of(config) is not None
    assert not ordinary.is_latent
    family = family_of(ordinary)
    assert family is None or not family.has_latent


@pytest.mark.parametrize("q_rank", [None, 1536])
def test_the_published_sizes_are_written_by_their_names(q_rank: int | None) -> None:
    """And read back as the same model."""
    config, published = published_of({**SECTION, "latent": {"kvRank": 512, "qRank": q_rank, "valueSize": 128}})
    expected = {
        "kv_lora_rank": 512,
        "q_lora_rank": q_rank,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1408,
        "num_key_value_heads": 16,
    }
    assert {name: published[name] for name in expected} == expected
    assert recognise(shapes_of(config), published, None) == config


def test_groups_count_where_the_choice_is_limited_by_them() -> None:
    """A group's score is then its best expert's; a greedy choice has none, whatever is said of them beside it."""
    config, published = published_of(SECTION)
    greedy = {"topk_method": "greedy", "n_group": 1, "topk_group": 1}
    assert {key: published[key] for key in greedy} == greedy
    assert recognise(shapes_of(config), {**published, "n_group": 8, "topk_group": 3}, None) == config

    limited = replace(config, expert_groups=8, groups_per_token=3, group_score="best")
    assert recognise(shapes_of(config), {**published, **IN_GROUPS}, None) == limited
    family = family_of(limited)
    assert family is not None
    written = published_config(family, limited, "float32")
    assert {key: written[key] for key in IN_GROUPS} == IN_GROUPS


@pytest.mark.parametrize(
    ("gains", "of_rope"),
    [
        ({}, 1.0),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 1.4}, None),
        ({"mscale": None}, None),
        ({"attention_factor": 0.5}, 0.5),
    ],
)
def test_what_yarn_sharpens_is_written_as_it_was_read(gains: Fields, of_rope: float | None) -> None:
    """Scores are multiplied by the square of a gain of `mscale_all_dim`, queries and keys by that of `mscale` over it.

    Without `mscale` they are multiplied by what YaRN's authors do.
    """
    config, published = published_of(SECTION)
    scaling = {**SCALING, **gains}
    read = recognise(shapes_of(config), {**published, "rope_scaling": scaling}, None)
    assert read.rope_scaling is not None
    gain, of_mscale = (0.1 * (scaling[key] or 1.0) * math.log(40) + 1 for key in ("mscale_all_dim", "mscale"))
    expected = of_rope or (of_mscale / gain if scaling["mscale"] else 0.1 * math.log(40) + 1)
    assert read.rope_scaling.attention_factor == pytest.approx(expected, rel=1e-12)
    assert 192 / read.query_pre_attn_scalar == pytest.approx(gain**4, rel=1e-11)

    family = family_of(read)
    assert family is not None
    written = published_config(family, read, "float32")
    assert written["rope_scaling"]["mscale_all_dim"] == scaling["mscale_all_dim"]
    if of_rope == 1:
        assert written["rope_scaling"]["mscale"] == scaling["mscale"]
    assert recognise(shapes_of(read), written, None) == read


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2, expected 1 for DeepSeek-V2"),
        ({"topk_method": "noaux_tc"}, "topk_method is noaux_tc, expected greedy or group_limited_greedy"),
        ({**IN_GROUPS, "n_group": None}, "n_group is missing, expected a whole number from 1"),
        ({**IN_GROUPS, "topk_group": 0}, "topk_group is 0, expected a whole number from 1"),
        ({"norm_topk_prob": True}, "norm_topk_prob is True, expected False"),
        ({"attention_bias": True}, "attention_bias is True, expected False"),
        ({"kv_lora_rank": None}, "kv_lora_rank is missing, expected a whole number"),
        ({"kv_lora_rank": 500}, r"kv_a_proj_with_mqa.weight: 576 rows, expected 564 by kv_lora_rank"),
        ({"qk_nope_head_dim": 96}, r"kv_b_proj.weight: 4096 rows, expected 3584 by"),
        ({"q_lora_rank": 64}, r"q_a_proj.weight: 0 rows, expected 64 by"),
        ({"num_attention_heads": None}, "num_attention_heads is missing"),
        ({"qk_rope_head_dim": 0}, "qk_rope_head_dim is 0, expected a whole number"),
        ({"rope_scaling": {**SCALING, "type": "linear"}}, "rope_scaling.beta_fast is 32, expected no such key"),
        ({"rope_scaling": {**SCALING, "mscale_all_dim": -1}}, "rope_scaling.mscale_all_dim is -1, expected a number"),
        ({"rope_scaling": {**SCALING, "factor": None}}, "rope_scaling.factor is None, expected a number"),
    ],
)
def test_a_config_that_is_not_computed_is_refused_by_key(fields: Fields, words: str) -> None:
    """The error names the key, or the tensor that it contradicts."""
    config, published = published_of(SECTION)
    with pytest.raises(DataError, match=words):
        recognise(shapes_of(config), {**published, **fields}, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"queryPreAttnScalar": 100.0},
        {"rotaryPairs": "half"},
        {"latent": {"kvRank": 512, "valueSize": 128, "normEpsilon": 1e-5}},
        {"experts": {**SECTION["experts"], "shared": 2000}},
        {"experts": {**SECTION["experts"], "shared": None}},
        {"experts": {**SECTION["experts"], "groups": 8, "groupsPerToken": 3, "groupScore": "two-best"}},
    ],
)
def test_a_model_of_no_family_is_not_exported(changes: Fields) -> None:
    """What the keys cannot say is no DeepSeek, and no other family has latent attention."""
    assert family_of(config_of({**SECTION, **changes}, VOCAB_SIZE)) is None

"""Recognising published models by names, shapes and a config.json, and the job section that fits them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.train.small_gpt import gpt2_config, training_of

from shardwise.protocol.errors import DataError
from shardwise.train.config import GptConfig
from shardwise.train.weights import model_section, recognise
from shardwise.train.weights.config_file import published_config
from shardwise.train.weights.families import family_of
from shardwise.train.weights.joined import joined_of
from shardwise.train.weights.tensors import tensors

Shapes = dict[str, tuple[int, ...]]


def config_of(section: Mapping[str, Any], vocab_size: int) -> GptConfig:
    """What is built for a job with this section."""
    data = {"train": [{"name": "text", "paths": ["text.txt"]}], "tokenizer": "tokenizer.json"}
    training = training_of(model=dict(section), data=data)
    return GptConfig.of(training, tokenizer_size=vocab_size, platform="cpu")


def shapes_of(config: GptConfig) -> Shapes:
    """The published shapes of a model."""
    family = family_of(config)
    assert family is not None
    expected = tensors(family.rows, config)
    joined = joined_of(family, expected.values())
    parts = {part.name for one in joined for part in one.parts}
    apart = {name: tensor.shape for name, tensor in expected.items() if name not in parts}
    return {**apart, **{one.name: one.shape for one in joined}}


PRESETS = [
    ("gpt2-small", 50257),
    ("gpt2-medium", 50257),
    ("gpt2-large", 50257),
    ("gpt2-xl", 50257),
    ("gptj-6b", 50400),
]


@pytest.mark.parametrize(("preset", "vocab_size"), PRESETS)
def test_published_sizes_need_no_config(preset: str, vocab_size: int) -> None:
    """The shapes of a published model alone give the preset of its name."""
    config = config_of({"preset": preset}, vocab_size)
    assert recognise(shapes_of(config), None, None) == config


@pytest.mark.parametrize("family", ["gpt2", "gptj"])
@pytest.mark.parametrize("tweak", [False, True])
def test_a_config_comes_back_from_its_export(family: str, small: Mapping[str, GptConfig], *, tweak: bool) -> None:
    """What an export writes into config.json is what an import reads out of it."""
    fields = vars(small[family]) | {"norm_epsilon": 1e-6, "init_std": 0.01}
    config = GptConfig(**fields | {"scale_by_inverse_layer": tweak and family == "gpt2"})
    kind = family_of(config)
    assert kind is not None
    assert recognise(shapes_of(config), published_config(kind, config, "float32"), None) == config


@pytest.mark.parametrize("family", ["gpt2", "gptj"])
def test_the_printed_section_makes_the_imported_model(family: str, small: Mapping[str, GptConfig]) -> None:
    """A job with the section of an import builds that model, field by field."""
    config = small[family]
    assert config_of(model_section(config), config.vocab_size) == config


def test_heads_are_asked_for_where_nothing_tells(small: Mapping[str, GptConfig]) -> None:
    """An unpublished size without config.json needs the number, and a number that does not divide is refused."""
    shapes = shapes_of(small["gpt2"])
    with pytest.raises(DataError, match=r"GPT-2 was not published with 32 features; give --heads"):
        recognise(shapes, None, None)
    assert recognise(shapes, None, 8).num_heads == 8
    with pytest.raises(DataError, match="expected a divisor of the model's 32 features"):
        recognise(shapes, None, 5)
    with pytest.raises(DataError, match=r"given 8, but config\.json says 4"):
        recognise(shapes, {"n_head": 4}, 8)


def test_a_small_gptj_needs_its_rotary_dimension(small: Mapping[str, GptConfig]) -> None:
    """The published 64 does not fit small heads, and no tensor tells the right one."""
    with pytest.raises(DataError, match=r"rotary_dim: 64, expected an even number up to the 8 features of a head"):
        recognise(shapes_of(small["gptj"]), None, 4)


OTHERS: list[tuple[str, dict[str, Any], str]] = [
    ("gpt2", {"model_type": "gpt_neox"}, "model_type is gpt_neox, expected gpt2"),
    ("gpt2", {"activation_function": "relu"}, "activation_function is relu, expected gelu_new"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights is False, expected True"),
    ("gptj", {"tie_word_embeddings": True}, "tie_word_embeddings is True, expected False"),
    ("gpt2", {"n_layer": 2}, "n_layer is 2, but the tensors have 3"),
    ("gpt2", {"n_head": "4"}, "n_head is '4', expected a whole number"),
    ("gpt2", {"layer_norm_epsilon": None}, "layer_norm_epsilon is None, expected a number"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": 1}, "scale_attn_by_inverse_layer_idx is 1, expected true or false"),
]


@pytest.mark.parametrize(("family", "fields", "words"), OTHERS)
def test_a_config_of_something_else_is_refused(
    family: str,
    fields: dict[str, Any],
    words: str,
    small: Mapping[str, GptConfig],
    hf_configs: Mapping[str, dict[str, Any]],
) -> None:
    """A config.json that says what this trainer does not compute, or contradicts the tensors, is refused by field."""
    with pytest.raises(DataError, match=words):
        recognise(shapes_of(small[family]), {**hf_configs[family], **fields}, None)


PUBLISHED = {
    "llama2-7b": ("llama", 32000),
    "llama3.1-8b": ("llama", 128256),
    "llama3.2-1b": ("llama", 128256),
    "mistral-7b": ("mistral", 32000),
    "qwen2.5-0.5b": ("qwen2", 151936),
    "qwen2.5-7b": ("qwen2", 152064),
    "qwen3-0.6b": ("qwen3", 151936),
    "qwen3-8b": ("qwen3", 151936),
    "mixtral-8x7b": ("mixtral", 32000),
    "qwen1.5-moe-a2.7b": ("qwen2_moe", 151936),
    "qwen3-30b-a3b": ("qwen3_moe", 151936),
    "gpt-oss-20b": ("gpt_oss", 201088),
    "gpt-oss-120b": ("gpt_oss", 201088),
    "granite3.3-2b": ("granite", 49159),
    "phi4-14b": ("llama", 100352),
    "smollm3-3b": ("smollm3", 128256),
    "olmo2-1b": ("olmo2", 100352),
    "olmo2-7b": ("olmo2", 100352),
    "olmo3-7b": ("olmo3", 100278),
    "gemma2-2b": ("gemma2", 256000),
    "gemma3-1b": ("gemma3_text", 262144),
    "pythia-410m": ("gpt_neox", 50304),
    "glm4.5-air": ("glm4_moe", 151552),
    "dots.llm1": ("dots1", 152064),
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_a_preset_is_of_its_family(preset: str) -> None:
    """It is exported as its family, and read back as the same config with the same section.

    But for a balance of experts, which is of training: it is written and never read.
    """
    name, vocab_size = PUBLISHED[preset]
    config = replace(config_of({"preset": preset}, vocab_size), balance=0.0)
    family = family_of(config)
    assert family is not None
    assert family.name == name
    again = recognise(shapes_of(config), published_config(family, config, "float32"), None)
    assert again == config
    assert replace(config_of(model_section(again), vocab_size), balance=0.0) == config


def test_a_gpt_oss_is_stretched_unless_its_config_says_otherwise() -> None:
    """As transformers takes one that says nothing; an export of a model that is not stretched says so."""
    config = config_of({"preset": "gpt-oss-20b"}, 201088)
    family = family_of(config)
    assert family is not None
    published = published_config(family, config, "float32")
    assert published["rope_scaling"]["truncate"] is False
    silent = {key: value for key, value in published.items() if key not in ("rope_scaling", "rope_theta")}
    assert recognise(shapes_of(config), silent, None) == replace(config, balance=0.0)
    plain = replace(config, balance=0.0, rope_scaling=None)
    written = published_config(family, plain, "float32")
    assert written["rope_scaling"] == {"rope_type": "default"}
    assert recognise(shapes_of(plain), written, None) == plain


def test_the_factors_of_a_granite_are_the_published_numbers() -> None:
    """What scores are multiplied by is 1 over a root, and is written with the digits that it was read with."""
    config = config_of({"preset": "granite3.3-2b"}, 49159)
    family = family_of(config)
    assert family is not None
    published = published_config(family, config, "float32")
    expected = {"embedding_multiplier": 12, "residual_multiplier": 0.22, "logits_scaling": 8}
    assert {name: published[name] for name in expected} == expected
    for multiplier in (0.015625, 0.22, 1 / 3, 1.0):
        again = recognise(shapes_of(config), {**published, "attention_multiplier": multiplier}, None)
        written = published_config(family, again, "float32")["attention_multiplier"]
        assert written == pytest.approx(multiplier, rel=1e-11)
        assert (written == multiplier) == (multiplier != 1 / 3)
    assert published["attention_multiplier"] == 0.015625


LLAMA_LIKE: list[tuple[str, dict[str, Any], str]] = [
    ("llama3.2-1b", {"model_type": "phi3"}, r"model_type is phi3, expected .*llama.*mistral.*qwen2"),
    ("llama3.2-1b", {"model_type": None}, r"may be those of Llama, Mistral.*put the model's config\.json"),
    ("llama3.2-1b", {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_scaling.rope_type is longrope"),
    ("llama3.2-1b", {"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 1.0}}, "rope_scaling.mscale is 1.0"),
    *(
        (
            "llama3.2-1b",
            {"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": given}},
            rf"rope_scaling.truncate is {given!r}, expected true or false",
        )
        for given in ("true", 1)
    ),
    ("llama3.2-1b", {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
    (
        "llama3.2-1b",
        {"rope_scaling": {"type": "yarn", "factor": "two"}},
        "rope_scaling.factor is 'two', expected a number",
    ),
    (
        "llama3.2-1b",
        {"rope_scaling": {"type": "linear", "factor": 0.5}},
        "rope_scaling.factor is 0.5, .* number from 1",
    ),
    ("llama3.2-1b", {"rope_scaling": {"type": "llama3", "factor": 8.0}}, "rope_scaling.low_freq_factor is missing"),
    ("llama3.2-1b", {"rope_scaling": {"type": ["yarn"]}}, "rope_scaling.rope_type is .*yarn.*, expected default or"),
    ("llama3.2-1b", {"rope_scaling": [2.0]}, r"rope_scaling is \[2.0\], expected an object"),
    ("llama3.2-1b", {"rope_parameters": "yarn"}, "rope_parameters is 'yarn', expected an object"),
    ("llama3.2-1b", {"rope_theta": "big"}, "rope_theta is 'big', expected a number above 0"),
    ("llama3.2-1b", {"rope_theta": -5}, "rope_theta is -5, expected a number above 0"),
    ("llama3.2-1b", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, expected 1"),
    ("llama3.2-1b", {"num_key_value_heads": 5}, "num_key_value_heads is 5, expected a divisor of its 32 heads"),
    ("llama3.2-1b", {"num_attention_heads": None}, r"no config.json beside the file has num_attention_heads"),
    ("llama3.2-1b", {"head_dim": 63}, "63, expected an even number .* with its head_dim"),
    ("llama3.2-1b", {"hidden_act": ["silu"]}, "hidden_act is .*silu.*, expected silu"),
    ("llama3.2-1b", {"hidden_act": "relu"}, r"hidden_act is relu, expected silu for Llama \(model_type llama\)"),
    ("llama3.2-1b", {"quantization_config": {"bits": 4}}, "quantization_config is .* expected None"),
    ("mistral-7b", {"sliding_window": "4096"}, "sliding_window is '4096', expected a whole number"),
    ("qwen2.5-0.5b", {"use_sliding_window": True}, "use_sliding_window is true, expected false for Qwen 2.5"),
    ("gpt-oss-20b", {"swiglu_limit": 5.0}, "swiglu_limit is 5.0, expected 7.0 for gpt-oss"),
    ("gpt-oss-20b", {"swiglu_alpha": 1.0}, "swiglu_alpha is 1.0, expected 1.702 for gpt-oss"),
    ("gpt-oss-20b", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config.quant_method is fp8"),
    ("gpt-oss-20b", {"layer_types": ["full_attention", *["sliding_attention"] * 23]}, "layer_types is .*, expected"),
    ("granite3.3-2b", {"attention_multiplier": 0}, "attention_multiplier is 0, expected a number above 0 for Granite"),
    ("granite3.3-2b", {"residual_multiplier": -0.2}, "residual_multiplier is -0.2, expected a number above 0"),
    ("granite3.3-2b", {"logits_scaling": "8"}, "logits_scaling is '8', expected a number above 0"),
    (
        "smollm3-3b",
        {"no_rope_layers": [1, 0, 0, *[1] * 33]},
        "no_rope_layers is .*, expected 0 for every so many-th block for SmolLM3",
    ),
    ("smollm3-3b", {"no_rope_layers": [1, 0]}, "no_rope_layers is .*, expected a list of 0 and 1, at least 36 of them"),
    ("smollm3-3b", {"no_rope_layers": "all"}, "no_rope_layers is all, expected a list of 0 and 1"),
    ("smollm3-3b", {"no_rope_layer_interval": 0}, "no_rope_layer_interval is 0, expected a whole number from 1"),
    ("smollm3-3b", {"layer_types": ["sliding_attention"] * 36}, "use_sliding_window is true, expected false"),
    (
        "olmo3-7b",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        "rope_parameters is one object, expected full_attention and sliding_attention in it for OLMo 3",
    ),
    (
        "olmo3-7b",
        {"rope_parameters": None, "rope_theta": 1e4},
        "rope_theta is 10000.0, expected 500000, or rope_parameters with full_attention and sliding_attention, for",
    ),
    (
        "olmo3-7b",
        {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
        "rope_parameters.sliding_attention.rope_type is linear, expected default",
    ),
    ("gemma2-2b", {"attn_logit_softcapping": -1}, "attn_logit_softcapping is -1, expected a number above 0"),
    ("gemma2-2b", {"sliding_window": None}, "sliding_window is null, expected a whole number"),
    ("gemma2-2b", {"layer_types": 7}, "layer_types is 7, expected a list"),
    (
        "gemma3-1b",
        {"layer_types": ["sliding_attention", "full_attention"]},
        "layer_types is .*, expected full_attention in",
    ),
    ("gemma3-1b", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0, expected None"),
    ("gemma3-1b", {"rope_local_base_freq": "x"}, "rope_local_base_freq is 'x', expected a number above 0"),
    ("gemma3-1b", {"rope_parameters": {"full_attention": 7}}, "full_attention is 7, expected an object"),
    ("pythia-410m", {"rotary_pct": 0}, "rotary_pct is 0, expected a number above 0"),
    ("pythia-410m", {"hidden_act": "relu"}, "hidden_act is relu, expected gelu or gelu_new"),
]


@pytest.mark.parametrize(("preset", "fields", "words"), LLAMA_LIKE)
def test_a_config_that_is_not_computed_is_refused_by_key(preset: str, fields: dict[str, Any], words: str) -> None:
    """The error names the key, what it is, what can be computed, and the family."""
    config = config_of({"preset": preset}, PUBLISHED[preset][1])
    family = family_of(config)
    assert family is not None
    with pytest.raises(DataError, match=words):
        recognise(shapes_of(config), {**published_config(family, config, "float32"), **fields}, None)


def test_yarn_that_names_what_transformers_does_by_default() -> None:
    """`truncate: true` is what a config.json without it means."""
    config = config_of({"preset": "llama3.2-1b"}, PUBLISHED["llama3.2-1b"][1])
    family = family_of(config)
    assert family is not None
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    published, shapes = published_config(family, config, "float32"), shapes_of(config)
    without, named = (
        recognise(shapes, {**published, "rope_scaling": scaling}, None)
        for scaling in (yarn, {**yarn, "truncate": True})
    )
    assert named == without
    assert named.rope_scaling is not None


@pytest.mark.parametrize("name", ["gelu_new", "gelu_pytorch_tanh", "gelu_fast"])
def test_the_names_of_the_tanh_form_mean_the_same(name: str) -> None:
    """GPT-NeoX-20B has the last one."""
    config = config_of({"preset": "pythia-410m"}, PUBLISHED["pythia-410m"][1])
    family = family_of(config)
    assert family is not None
    published = {**published_config(family, config, "float32"), "hidden_act": name}
    assert recognise(shapes_of(config), published, None).activation == "gelu"


def test_both_forms_of_rotary_keys_mean_the_same() -> None:
    """What version 5 of transformers keeps in rope_parameters is read as what was in rope_theta and rope_scaling."""
    config = config_of({"preset": "llama3.1-8b"}, 128256)
    family = family_of(config)
    assert family is not None
    older = published_config(family, config, "float32")
    newer = {name: value for name, value in older.items() if not name.startswith("rope_")}
    newer["rope_parameters"] = {**older["rope_scaling"], "rope_theta": older["rope_theta"]}
    assert recognise(shapes_of(config), newer, None) == recognise(shapes_of(config), older, None) == config


LEFT_OUT: list[tuple[str, tuple[str, ...]]] = [
    ("olmo3-7b", ("rope_parameters", "layer_types", "sliding_window_pattern", "sliding_window")),
    ("olmo3-7b", ("rope_theta", "rope_scaling")),
    ("smollm3-3b", ("no_rope_layers", "no_rope_layer_interval", "num_key_value_heads", "tie_word_embeddings")),
    ("smollm3-3b", ("no_rope_layer_interval",)),
    ("smollm3-3b", ("no_rope_layers",)),
    ("mistral-7b", ("sliding_window", "rope_theta", "rope_scaling")),
    ("gemma2-2b", ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar")),
    ("gemma3-1b", ("rope_theta", "rope_local_base_freq", "rope_scaling", "layer_types", "query_pre_attn_scalar")),
    (
        "pythia-410m",
        ("rotary_pct", "rotary_emb_base", "use_parallel_residual", "tie_word_embeddings", "attention_bias"),
    ),
]


@pytest.mark.parametrize(("preset", "keys"), LEFT_OUT)
def test_a_key_that_is_left_out_has_the_value_of_transformers(preset: str, keys: tuple[str, ...]) -> None:
    """A config.json need not say what is usual for its model type."""
    changes = {"mistral-7b": {"slidingWindow": 4096}, "gemma3-1b": {"slidingWindow": 4096}}
    config = config_of({"preset": preset, **changes.get(preset, {})}, PUBLISHED[preset][1])
    family = family_of(config)
    assert family is not None
    published = published_config(family, config, "float32")
    shorter = {name: value for name, value in published.items() if name not in keys}
    assert len(shorter) == len(published) - len(keys)
    assert recognise(shapes_of(config), shorter, None) == config


def test_positions_of_the_first_training_may_stand_beside_the_scaling() -> None:
    """As transformers has it, original_max_position_embeddings counts wherever it stands."""
    config = config_of({"preset": "llama3.1-8b"}, 128256)
    family = family_of(config)
    assert family is not None
    published = published_config(family, config, "float32")
    scaling = dict(published["rope_scaling"])
    beside = {"original_max_position_embeddings": scaling.pop("original_max_position_embeddings")}
    assert recognise(shapes_of(config), {**published, **beside, "rope_scaling": scaling}, None) == config


def test_recognition_reads_every_size() -> None:
    """Each size comes from its own tensor: no two are mixed up."""
    config = gpt2_config(num_layers=5, num_heads=2, embed_size=24, mlp_size=40, seq_len=7, vocab_size=11, init_std=0.02)
    assert recognise(shapes_of(config), {"n_head": 2}, None) == config

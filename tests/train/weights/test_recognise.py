"""Recognising published models by names, shapes and a config.json, and the job section that fits them."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.train.small_gpt import gpt2_config, training_of

from shardwise.protocol.errors import DataError
from shardwise.train.config import GptConfig
from shardwise.train.weights import model_section, recognise
from shardwise.train.weights.families import family_of, tensors
from shardwise.train.weights.recognise import published_config

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
    return {name: tensor.shape for name, tensor in tensors(family, config).items()}


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


def test_recognition_reads_every_size() -> None:
    """Each size comes from its own tensor: no two are mixed up."""
    config = gpt2_config(num_layers=5, num_heads=2, embed_size=24, mlp_size=40, seq_len=7, vocab_size=11, init_std=0.02)
    assert recognise(shapes_of(config), {"n_head": 2}, None) == config

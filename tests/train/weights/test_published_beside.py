"""What an export keeps of the published files beside a tokenizer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.train.weights.test_recognise import config_of

from shardwise.train.weights import PublishedBeside
from shardwise.train.weights.families import family_of

LLAMA = {"preset": "llama3.2-1b", "seqLen": 4096}
GPT2 = {"preset": "gpt2-small", "seqLen": 512}
OF_LLAMA = {"vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32}
OF_GPT2 = {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12}


def _positions(folder: Path, model: Mapping[str, Any], vocab_size: int, published: Mapping[str, Any]) -> dict[str, int]:
    (folder / "config.json").write_text(json.dumps(published), encoding="utf-8")
    config = config_of(model, vocab_size)
    family = family_of(config)
    assert family is not None
    return PublishedBeside.of(folder / "tokenizer.json", family, config).positions(family, config)


@pytest.mark.parametrize(
    ("published", "kept"),
    [
        ({**OF_LLAMA, "max_position_embeddings": 131072}, {"max_position_embeddings": 131072}),
        ({**OF_LLAMA, "max_position_embeddings": 2048}, {}),
        ({**OF_LLAMA, "num_hidden_layers": 28, "max_position_embeddings": 131072}, {}),
        ({"max_position_embeddings": 131072}, {}),
    ],
)
def test_positions_are_kept_where_they_are_more_and_the_models_own(
    published: Mapping[str, Any], kept: Mapping[str, int], tmp_path: Path
) -> None:
    """Of a model with rotary positions; fewer than the run has trained on, or another model's, are not."""
    assert _positions(tmp_path, LLAMA, 128256, published) == kept


def test_a_table_of_positions_is_as_long_as_it_is(tmp_path: Path) -> None:
    """GPT-2's learned positions are an array: config.json says its length, whatever the published one had."""
    assert _positions(tmp_path, GPT2, 50257, {**OF_GPT2, "n_positions": 1024}) == {}


@pytest.mark.parametrize(
    ("given", "generation", "config", "expected"),
    [
        ((7, [8, 9]), [8, 6], 5, (7, [8, 9, 6, 5])),
        ((None, [8]), None, None, (3, 8)),
        ((None, []), [8], None, (3, 8)),
        ((7, []), None, None, (7, None)),
    ],
)
def test_tokens_are_those_given_and_then_the_published(
    given: tuple[int | None, list[int]], generation: Any, config: Any, expected: tuple[Any, Any]
) -> None:
    """Each once; a single one is no list, as older readers expect."""
    published = PublishedBeside(
        config={"bos_token_id": 3, "eos_token_id": config}, generation={"eos_token_id": generation}
    )
    assert tuple(published.tokens(*given).values()) == expected


def test_without_a_tokenizer_file_nothing_is_kept() -> None:
    """As of bytes."""
    config = config_of(LLAMA, 128256)
    family = family_of(config)
    assert family is not None
    assert PublishedBeside.of(None, family, config) == PublishedBeside(config={}, generation={})

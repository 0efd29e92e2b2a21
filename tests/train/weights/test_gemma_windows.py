"""What an export of Gemma says of models whose windows are not the published ones."""

from dataclasses import replace
from typing import Any

import pytest
from tests.train.weights.test_recognise import config_of, shapes_of

from shardwise.protocol.errors import DataError
from shardwise.train.config import GptConfig
from shardwise.train.weights import check_exportable, recognise
from shardwise.train.weights.config_file import published_config
from shardwise.train.weights.families import family_of

SCALED = {"ropeScaling": {"kind": "linear", "factor": 8.0}}
NO_WINDOW = {"sliding_window": None, "sliding_window_pattern": None, "local_rope_theta": None}


def gemma(preset: str, section: dict[str, Any], **fields: Any) -> GptConfig:
    """The config of a Gemma with these fields, which its preset would fill in if a job left them out."""
    return replace(config_of({"preset": preset, **section}, 262144), **fields)


def config_json(config: GptConfig) -> dict[str, Any]:
    """The config.json of its export."""
    family = family_of(config)
    assert family is not None
    return published_config(family, config, "float32")


def test_windowed_blocks_that_are_stretched_are_refused_by_name() -> None:
    """Gemma 3's key means a base that no scaling stretches, and a Gemma 3 without a window has none to stretch."""
    with pytest.raises(DataError, match=r"not Gemma 3: localRopeTheta is None, not a number.*ropeScaling"):
        check_exportable(gemma("gemma3-1b", SCALED, local_rope_theta=None))
    assert check_exportable(gemma("gemma3-1b", SCALED, **NO_WINDOW)).name == "gemma3_text"
    assert check_exportable(gemma("gemma3-1b", SCALED)).name == "gemma3_text"
    assert check_exportable(gemma("gemma2-2b", SCALED)).name == "gemma2"


@pytest.mark.parametrize("preset", ["gemma2-2b", "gemma3-1b"])
def test_a_gemma_without_a_window_has_full_attention_in_every_block(preset: str) -> None:
    """The window's size is written all the same, since transformers wants one; it may be null, or any."""
    config = gemma(preset, {"layers": 4, **SCALED}, **NO_WINDOW)
    written = config_json(config)
    assert written["layer_types"] == ["full_attention"] * 4
    assert written["sliding_window"] >= config.seq_len
    for window in (written["sliding_window"], None, 7):
        assert recognise(shapes_of(config), {**written, "sliding_window": window}, None) == config


@pytest.mark.parametrize("preset", ["gemma2-2b", "gemma3-1b"])
@pytest.mark.parametrize("layers", [1, 4, 7])
def test_a_window_in_every_block_comes_back(preset: str, layers: int) -> None:
    """Such a model has no pattern, however many blocks it has."""
    config = gemma(preset, {"layers": layers}, sliding_window_pattern=None)
    assert recognise(shapes_of(config), config_json(config), None) == config


def test_windowed_blocks_with_the_base_of_the_others_come_back() -> None:
    """They have none of their own, unless a scaling stretches the others."""
    shared = gemma("gemma3-1b", {}, local_rope_theta=None)
    assert recognise(shapes_of(shared), config_json(shared), None) == shared
    stretched = gemma("gemma3-1b", SCALED, local_rope_theta=shared.rope_theta)
    assert recognise(shapes_of(stretched), config_json(stretched), None) == stretched

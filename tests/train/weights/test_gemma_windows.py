"""What an export of Gemma says of models whose windows are not the published ones."""

from dataclasses import replace
from typing import Any

import pytest
from tests.train.weights.test_recognise import config_of

from shardwise.protocol.errors import DataError
from shardwise.train.config import GptConfig
from shardwise.train.weights import check_exportable

SCALED = {"ropeScaling": {"kind": "linear", "factor": 8.0}}


def gemma(preset: str, section: dict[str, Any], **fields: Any) -> GptConfig:
    """The config of a Gemma with these fields, which its preset would fill in if a job left them out."""
    return replace(config_of({"preset": preset, **section}, 262144), **fields)


def test_windowed_blocks_that_are_stretched_are_refused_by_name() -> None:
    """Gemma 3's key means a base that no scaling stretches, and a Gemma 3 without a window has none to stretch."""
    with pytest.raises(DataError, match=r"not Gemma 3: localRopeTheta is None, not a number.*ropeScaling"):
        check_exportable(gemma("gemma3-1b", SCALED, local_rope_theta=None))
    without = {"sliding_window": None, "sliding_window_pattern": None, "local_rope_theta": None}
    assert check_exportable(gemma("gemma3-1b", SCALED, **without)).name == "gemma3_text"
    assert check_exportable(gemma("gemma3-1b", SCALED)).name == "gemma3_text"
    assert check_exportable(gemma("gemma2-2b", SCALED)).name == "gemma2"

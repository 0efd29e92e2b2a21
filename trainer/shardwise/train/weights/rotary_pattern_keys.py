"""The keys of a config.json that say which blocks are without rotary positions."""

from collections.abc import Mapping
from typing import Any

from shardwise.train.config import GptConfig
from shardwise.train.weights.family import Family
from shardwise.train.weights.key_values import refused, whole

_TURNED, _PATTERN = "no_rope_layers", "no_rope_layer_interval"
"""The first has a 1 for each block that has them, whatever its name says, and a 0 for each other one."""


def read_rotary_pattern(family: Family, published: Mapping[str, Any], num_layers: int) -> dict[str, int]:
    """Return the field of the blocks without positions; a list of blocks counts before a pattern, as in transformers.

    Raises:
        DataError: other blocks without positions than this trainer computes.
    """
    if not family.rotary_pattern:
        return {}
    stated = whole(family, published, _PATTERN, 0)
    turned = published.get(_TURNED)
    if turned is None:
        return {"rotary_pattern": stated or family.rotary_pattern}
    if not isinstance(turned, list) or len(turned) < num_layers or any(one not in (0, 1) for one in turned):
        raise refused(family, _TURNED, turned, f"a list of 0 and 1, at least {num_layers} of them")
    turned = turned[:num_layers]
    candidates = (*([stated] if stated else []), *range(1, num_layers + 1))
    pattern = next((pattern for pattern in candidates if _blocks(pattern, num_layers) == turned), None)
    if pattern is None and 0 in turned:
        raise refused(family, _TURNED, turned, "0 for every so many-th block")
    return {} if pattern is None else {"rotary_pattern": pattern}


def rotary_pattern_keys(family: Family, config: GptConfig) -> dict[str, Any]:
    """Return the keys of a model's blocks without positions."""
    if not family.rotary_pattern:
        return {}
    pattern = config.rotary_pattern
    if pattern is None:
        return {_TURNED: [1] * config.num_layers}
    return {_PATTERN: pattern, _TURNED: _blocks(pattern, config.num_layers)}


def _blocks(pattern: int, num_layers: int) -> list[int]:
    return [int((layer + 1) % pattern != 0) for layer in range(num_layers)]

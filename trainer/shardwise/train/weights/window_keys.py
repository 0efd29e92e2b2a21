"""The keys of sliding windows in a config.json: how wide they are, and which blocks have one."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.train.config import GptConfig
from shardwise.train.weights.family import Family
from shardwise.train.weights.key_values import refused, whole

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
_TYPES, _PATTERN, _WINDOW, _USED = "layer_types", "sliding_window_pattern", "sliding_window", "use_sliding_window"
_NO_WINDOW = 1
"""The pattern of blocks that all see all."""


def read_windows(family: Family, published: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
    """Return the fields of the sliding windows.

    Raises:
        DataError: windows in other blocks than this trainer computes.
    """
    types = published.get(_TYPES)
    if types is not None and not isinstance(types, list):
        raise refused(family, _TYPES, repr(types), "a list")
    if family.windows == "none":
        if published.get(_USED) or _LOCAL in (types or ()):
            raise refused(family, _USED, "true", "false")
        return {}
    window = published.get(_WINDOW, family.usual_window)
    if window is not None:
        window = whole(family, published, _WINDOW, window)
    if family.windows == "every":
        return {"sliding_window": window}
    stated = whole(family, published, _PATTERN, 0)
    usual = stated or family.window_pattern
    types = types or _types(usual, num_layers)
    if types == _types(_NO_WINDOW, num_layers):
        return {}
    if window is None:
        raise refused(family, _WINDOW, "null", "a whole number")
    if not stated and types == [_LOCAL] * num_layers:
        return {"sliding_window": window}
    pattern = _pattern_of(types, usual, num_layers)
    if pattern is None:
        raise refused(family, _TYPES, types, f"{_GLOBAL} in every so many-th block")
    return {"sliding_window": window, "sliding_window_pattern": pattern}


def window_keys(family: Family, config: GptConfig) -> dict[str, Any]:
    """Return the keys of a model's sliding windows."""
    if family.windows == "none":
        return {}
    if family.windows == "every":
        return {_WINDOW: config.sliding_window}
    window, pattern = config.sliding_window, config.sliding_window_pattern
    if window is None:
        # transformers makes the mask of a window also where no block has one.
        window, pattern = config.seq_len, _NO_WINDOW
    if pattern is None:
        return {_WINDOW: window, _TYPES: [_LOCAL] * config.num_layers}
    return {_WINDOW: window, _PATTERN: pattern, _TYPES: _types(pattern, config.num_layers)}


def _types(pattern: int, num_layers: int) -> list[str]:
    return [_LOCAL if (layer + 1) % pattern else _GLOBAL for layer in range(num_layers)]


def _pattern_of(types: Sequence[str], usual: int, num_layers: int) -> int | None:
    """Return n where every n-th of these blocks has full attention; if several n fit, the usual one."""
    candidates = (usual, *range(2, num_layers + 2))
    return next((pattern for pattern in candidates if _types(pattern, num_layers) == list(types)), None)

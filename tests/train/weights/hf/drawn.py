"""The weights of the recorded models, drawn from a seed by their names and shapes. It needs numpy alone."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

_DEVIATION = 0.15


def drawn(shapes: Mapping[str, Sequence[int]], gains: float) -> dict[str, NDArray[np.float32]]:
    """Every entry of every tensor is random: gains of norms around `gains`, all others around 0."""
    rng = np.random.default_rng(11)
    return {
        name: (gains * _is_gain(name) + _DEVIATION * rng.standard_normal(shapes[name])).astype(np.float32)
        for name in sorted(shapes)
    }


def _is_gain(name: str) -> bool:
    return name.endswith("weight") and ("norm" in name or ".ln_" in name)

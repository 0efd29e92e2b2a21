"""The weights of the recorded model whose experts are packed, drawn from a seed by name and shape; numpy alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.train.weights.hf.drawn import drawn

BLOCKS, SCALES = "_blocks", "_scales"


def drawn_packed(shapes: Mapping[str, Sequence[int]]) -> dict[str, NDArray[Any]]:
    """Every byte of blocks is random, and scales make values of about the deviation of the others."""
    rng = np.random.default_rng(12)
    packed = {
        name: rng.integers(*((0, 256) if name.endswith(BLOCKS) else (121, 125)), shapes[name]).astype(np.uint8)
        for name in sorted(shapes)
        if name.endswith((BLOCKS, SCALES))
    }
    return {**drawn({name: shape for name, shape in shapes.items() if name not in packed}, 1.0), **packed}

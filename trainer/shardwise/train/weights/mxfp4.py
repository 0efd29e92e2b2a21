"""The 4-bit format of published weights: blocks of 32 values, two in each byte, that share a power of two.

A value is a sign, two bits of exponent and one of mantissa (E2M1), of which a byte has the first in its lower half; a
scale is a byte of exponent (E8M0), counted from 127. Source: Open Compute Project, "OCP Microscaling Formats (MX)
Specification" 1.0 (2023), sections 5.3 and 5.4.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
"""Values that share a scale."""
BLOCK_BYTES = BLOCK // 2

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = np.array([*_MAGNITUDES, *(-magnitude for magnitude in _MAGNITUDES)], np.float32)
_PAIRS = np.stack([np.tile(_VALUES, 16), np.repeat(_VALUES, 16)], axis=-1)  # of each byte: lower half, then upper
_SCALES = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.nan)).astype(np.float32)


def decode(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[Any]:
    """Return float32 [..., blocks x 32] of bytes [..., blocks, 16] and their scales [..., blocks]."""
    values = _PAIRS[blocks].reshape(*blocks.shape[:-1], BLOCK)
    values *= _SCALES[scales][..., None]
    return values.reshape(*blocks.shape[:-2], -1)

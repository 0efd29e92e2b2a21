"""Entropies of counted tokens, which the loss plot draws as lines: what a model must get below to have learned more.

It takes arrays and reads no file.
"""

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]


def unigram_entropy(targets: Int32Array) -> float:
    """Return H(target) in nats, from the counts of targets [token]."""
    _, counts = np.unique(targets, return_counts=True)
    return _entropy(counts)


def bigram_entropy(tokens: Int32Array, targets: Int32Array) -> float:
    """Return H(target | token) in nats, from the counts of pairs; both arguments [token]."""
    pairs = tokens.astype(np.int64) << 32 | targets
    _, counts = np.unique(pairs, return_counts=True)
    return _entropy(counts) - unigram_entropy(tokens)


def _entropy(counts: NDArray[np.int64]) -> float:
    shares = counts / counts.sum()
    return float(-np.sum(shares * np.log(shares)))

"""Random tokens that look like text to an embedding: entry n comes about 1 / n as often as the first (Zipf's law)."""

from typing import Any

import numpy as np
from benchmarks.sizes import Size

Tokens = np.ndarray[Any, np.dtype[np.int32]]


def tokens_and_targets(size: Size) -> tuple[Tokens, Tokens]:
    """Two int32 [sequences, seq_len] arrays; the target is the token that follows."""
    weights = 1 / np.arange(1, size.vocab + 1)
    drawn = np.random.default_rng(0).choice(size.vocab, (size.sequences, size.seq_len + 1), p=weights / weights.sum())
    ids: Tokens = drawn.astype(np.int32)
    return ids[:, :-1], ids[:, 1:]

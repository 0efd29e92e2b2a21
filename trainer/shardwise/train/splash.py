"""The Pallas kernel for TPUs that ships with JAX, made for a device's heads and the order of its queries."""

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.train.zigzag import zigzag

BLOCK = 512  # positions: scores are held for one block of queries against one of keys


def _chunks(length: int, ways: int) -> Any:
    """Return the causal mask of queries in the order of `zigzag`.

    The kernel's maker looks at each block. Most see all or nothing, which their edges tell; for 128k positions to
    compare all pairs would take a minute.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks  # noqa: PLC0415

    class Chunks(masks.CausalMask):
        def __getitem__(self, index: tuple[slice, slice]) -> NDArray[np.bool_]:
            rows, keys = self.q_sequence[index[0]], index[1]
            if rows[0] >= keys.stop - 1:
                return _constant(rows.size, keys.stop - keys.start, value=True)
            if rows[-1] < keys.start:
                return _constant(rows.size, keys.stop - keys.start, value=False)
            block: NDArray[np.bool_] = super().__getitem__(index)
            return block

    mask = Chunks((length, length))
    mask.q_sequence = zigzag(mask.q_sequence, ways)
    return mask


@cache
def _constant(rows: int, keys: int, *, value: bool) -> NDArray[np.bool_]:
    return np.full((rows, keys), value)


def splash_kernel(num_heads: int, length: int, *, ways: int = 1, interpret: bool = False) -> Any:
    """Return the Pallas kernel for so many heads of one device, and queries in the order of `zigzag` over `ways`."""
    # Imported here: it takes half a second, which no other kernel should pay.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels  # noqa: PLC0415
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks  # noqa: PLC0415

    size = math.gcd(BLOCK, length // (1 if ways == 1 else 2 * ways))  # a multiple of 128: the job file's rules check it
    blocks = kernels.BlockSizes(
        block_q=size,
        block_kv=size,
        block_kv_compute=size,
        block_q_dkv=size,
        block_kv_dkv=size,
        block_kv_dkv_compute=size,
        block_q_dq=size,
        block_kv_dq=size,
    )
    causal = masks.CausalMask((length, length)) if ways == 1 else _chunks(length, ways)
    mask = masks.MultiHeadMask([causal] * num_heads)
    return kernels.make_splash_mha(mask, head_shards=1, q_seq_shards=ways, block_sizes=blocks, interpret=interpret)

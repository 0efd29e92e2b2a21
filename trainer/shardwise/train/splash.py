"""The Pallas kernel for TPUs that ships with JAX, made for a device's heads and the order of its queries."""

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.train.zigzag import zigzag

BLOCK = 512  # positions: scores are held for one block of queries against one of keys


def splash_kernel(
    num_heads: int,
    length: int,
    *,
    window: int | None = None,
    softcap: float | None = None,
    ways: int = 1,
    interpret: bool = False,
) -> Any:
    """Return the Pallas kernel for so many heads of one device, and queries in the order of `zigzag` over `ways`.

    Args:
        num_heads: of queries; keys and values may have fewer, each for as many neighbouring ones.
        length: positions.
        window: a query sees itself and so many less one before it; None: all of them.
        softcap: scores are bent into this range by tanh; None: they are not.
        ways: devices that share a sequence.
        interpret: run it on any device, slowly.

    """
    # Imported here: it takes half a second, which no other kernel should pay.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels  # noqa: PLC0415
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks  # noqa: PLC0415

    is_plain = window is None and ways == 1
    seen = masks.CausalMask((length, length)) if is_plain else _chunks(length, window, ways)
    return kernels.make_splash_mha(
        masks.MultiHeadMask([seen] * num_heads),
        head_shards=1,
        q_seq_shards=ways,
        block_sizes=square_blocks(block_of(length // (1 if ways == 1 else 2 * ways))),
        attn_logits_soft_cap=softcap,
        interpret=interpret,
    )


def block_of(chunk: int) -> int:
    """Return the side of the blocks of a chunk of so many positions, a multiple of 128: the job's rules check it."""
    return math.gcd(BLOCK, chunk)


def square_blocks(size: int) -> Any:
    """Return the sizes of the kernel's blocks: the same for queries and keys, and for all of its passes."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels  # noqa: PLC0415

    return kernels.BlockSizes(
        block_q=size,
        block_kv=size,
        block_kv_compute=size,
        block_q_dkv=size,
        block_kv_dkv=size,
        block_kv_dkv_compute=size,
        block_q_dq=size,
        block_kv_dq=size,
    )


def _chunks(length: int, window: int | None, ways: int) -> Any:
    """Return the mask of queries in the order of `zigzag`.

    The kernel's maker looks at each block. Most see all or nothing, which their edges tell; for 128k positions to
    compare all pairs would take a minute.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks  # noqa: PLC0415

    reach = length if window is None else window

    class Chunks(masks.LocalMask):
        def __getitem__(self, index: tuple[slice, slice]) -> NDArray[np.bool_]:
            rows, keys = self.q_sequence[index[0]], index[1]
            least, most = rows[0] - (keys.stop - 1), rows[-1] - keys.start  # of how far a key lies before a query
            if least >= 0 and most < reach:
                return _constant(rows.size, keys.stop - keys.start, value=True)
            if most < 0 or least >= reach:
                return _constant(rows.size, keys.stop - keys.start, value=False)
            block: NDArray[np.bool_] = super().__getitem__(index)
            return block

    mask = Chunks((length, length), (None if window is None else window - 1, 0), offset=0)
    mask.q_sequence = zigzag(mask.q_sequence, ways)
    return mask


@cache
def _constant(rows: int, keys: int, *, value: bool) -> NDArray[np.bool_]:
    return np.full((rows, keys), value)

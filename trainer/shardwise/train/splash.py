"""The Pallas kernel for TPUs that ships with JAX, made for a device's heads and the order of its queries."""

import math
from typing import Any

from shardwise.train.zigzag import zigzag

BLOCK = 512  # positions: scores are held for one block of queries against one of keys


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
    causal = masks.CausalMask((length, length))
    causal.q_sequence = zigzag(causal.q_sequence, ways)
    mask = masks.MultiHeadMask([causal] * num_heads)
    return kernels.make_splash_mha(mask, head_shards=1, q_seq_shards=ways, block_sizes=blocks, interpret=interpret)

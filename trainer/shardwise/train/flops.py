"""How much arithmetic a token costs, and how much this machine can do: the two sides of MFU.

Called by the loop and the benchmarks.

Model FLOPs a token = 6 x (parameters in matrices that a token is multiplied with) + 6 x layers x position x embed.
The 6 is 2 for a multiply and add, times 3 for the forward and the backward pass; the last term is causal attention,
which uses half of the score matrix (12 x layers x position x embed without causality). Recomputation in the backward
pass is not counted: this is model, not hardware, utilisation. Formula: Chowdhery et al., "PaLM" (2022), appendix B.
"""

import time

import jax
import jax.numpy as jnp

from shardwise.train.config import GptConfig

_GEMM_SIZE = 1024


def num_matrix_parameters(config: GptConfig) -> int:
    """Parameters in the matrices of all blocks and of the head; padding, biases, gains and lookups are left out."""
    embed, mlp = config.embed_size, config.mlp_size
    return config.num_layers * (4 * embed * embed + 2 * embed * mlp) + config.vocab_size * embed


def flops_per_token(config: GptConfig) -> int:
    """Model FLOPs of one trained token, forward and backward."""
    return 6 * num_matrix_parameters(config) + 6 * config.num_layers * config.seq_len * config.embed_size


def measured_peak_flops() -> float:
    """The FLOP/s of the fastest of a few float32 matrix products on one device of this host.

    On a CPU the simulated devices share the cores, so this is the peak of all of them together.
    """
    square = jnp.ones((_GEMM_SIZE, _GEMM_SIZE), jnp.float32)
    product = jax.jit(jnp.matmul)
    product(square, square).block_until_ready()
    return 2 * _GEMM_SIZE**3 / min(_seconds(product, square) for _ in range(5))


def _seconds(product, square: jax.Array) -> float:  # type: ignore[no-untyped-def]  # noqa: ANN001
    start = time.perf_counter()
    product(square, square).block_until_ready()
    return time.perf_counter() - start

"""How much arithmetic a token costs, and how much this machine can do: the two sides of MFU.

The formula is in `job/sizes.py`; here it is counted for a configuration of the trainer.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from shardwise.job import sizes
from shardwise.job.accelerators import accelerator_of
from shardwise.job.adapter_sizes import adapter_parameters
from shardwise.job.latent_sizes import Products, latent_products
from shardwise.job.spec import Training, TrainingJob
from shardwise.train.config import GptConfig

_SIZE, _SIZE_ON_CPU = 8192, 1024


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The peak of all devices of a job together."""

    flops_per_second: float
    source: str
    """Where the figure comes from, for the log."""


def num_matrix_parameters(config: GptConfig) -> int:
    """Count the parameters in the matrices that a token is multiplied with, of all blocks and of the head.

    No padding, biases, gains or lookups.
    """
    inside = (config.experts_per_token or 1) * config.mlp_size + config.shared_size
    routes = config.num_experts + config.shared_gate
    block = sizes.block_matrix_parameters(
        embed=config.embed_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        inside=inside,
        is_gated=config.is_gated,
        routes=routes,
        products=_products(config),
    )
    dense = config.num_dense_blocks * config.embed_size * (3 * (config.dense_mlp_size - inside) - routes)
    return config.num_layers * block + dense + config.vocab_size * config.embed_size


def _products(config: GptConfig) -> Products:
    """Return the products of attention, if they are not the usual ones."""
    if not config.is_latent:
        return ()
    return latent_products(
        embed=config.embed_size,
        heads=config.num_heads,
        head_size=config.head_size,
        rotary_dim=config.rotary_dim,
        kv_rank=config.kv_rank,
        q_rank=config.q_rank,
        value_size=config.value_size,
    )


def flops_per_token(config: GptConfig, training: Training) -> int:
    """Return the model FLOPs of one token of a resolved job, forward and backward."""
    return sizes.flops_per_token(
        matrix_parameters=num_matrix_parameters(config),
        values=config.num_heads * (config.head_size + config.value_size),
        seen_twice=keys_seen_twice(config),
        adapters=adapter_parameters(training.model, training.lora, of_a_token=True),
        more_forwards=training.more_forwards,
    )


def keys_seen_twice(config: GptConfig) -> int:
    """Return twice the keys that a token sees on average, summed over the layers."""
    return sizes.keys_seen_twice(
        config.num_layers, config.seq_len, config.sliding_window, config.sliding_window_pattern
    )


def peak(job: TrainingJob, devices: int, machines: int, measured: Callable[[str], float]) -> Peak:
    """Return the peak of all devices of a resolved job, in its compute dtype.

    Args:
        job: its accelerator class may give the peak of one device; otherwise it is measured.
        devices: of the whole run.
        machines: how many the processes of the run are on; simulated devices share the processors of theirs.
        measured: returns the FLOP/s of a product in a dtype, as `measured_flops` does on this host.

    """
    spec = accelerator_of(job.spec.hardware).spec
    dtype = job.spec.training.precision.compute
    if spec.peak_flops is not None:
        one = spec.peak_flops.per_second(dtype)
        source = f"{devices} x {one / 1e12:,.1f} TFLOP/s in {dtype}, the class's peak"
        return Peak(flops_per_second=devices * one, source=source)
    number = machines if spec.platform == "cpu" else devices
    one = measured(dtype)
    many = f"{number} x " if number > 1 else ""
    source = f"{many}{one / 1e9:,.0f} GFLOP/s, a {dtype} matrix product at the first start"
    return Peak(flops_per_second=number * one, source=source)


def measured_flops(dtype: str) -> float:
    """Measure the FLOP/s of the fastest of a few matrix products on one device of this host.

    On a CPU the simulated devices share the cores, so this is the peak of all of them together.
    """
    size = _SIZE_ON_CPU if jax.default_backend() == "cpu" else _SIZE
    square = jnp.ones((size, size), dtype)
    product = jax.jit(jnp.matmul)
    with jax.default_matmul_precision("highest" if dtype == "float32" else None):
        product(square, square).block_until_ready()
        return 2 * size**3 / min(_seconds(product, square) for _ in range(5))


def _seconds(product, square: jax.Array) -> float:  # type: ignore[no-untyped-def]  # noqa: ANN001
    start = time.perf_counter()
    product(square, square).block_until_ready()
    return time.perf_counter() - start

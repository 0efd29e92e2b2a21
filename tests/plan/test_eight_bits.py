"""Plans of products in 8 bits: their arithmetic takes half as long, and nothing else changes."""

import pytest
from tests.plan.compiling import small

from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob
from shardwise.plan.build import _in_compute_format
from shardwise.plan.estimate import estimate
from shardwise.plan.result import Flops

BOUND_BY_ARITHMETIC = (
    "model={layers: 32, heads: 32, embed: 8192, mlp: 28672, seqLen: 4096, remat: full}",
    "batch={sequences: 512, microbatches: 8}",
    "data.tokenizer=byte",
)


def _job(accelerator: str, topology: str, products: str) -> TrainingJob:
    return resolve(small(accelerator, topology, 1, *BOUND_BY_ARITHMETIC, f"precision.products={products}"))


@pytest.mark.parametrize(
    ("accelerator", "topology", "form"), [("tpu-v5e", "4x8", "int8"), ("gpu-h100", "4x8", "float8")]
)
def test_a_search_knows_that_they_are_faster(accelerator: str, topology: str, form: str) -> None:
    """Two of three products with weights take half as long: of nearly all arithmetic that is a third less."""
    plain, fast = (estimate(_job(accelerator, topology, each)) for each in ("compute", form))

    assert fast.bytes == plain.bytes
    assert 0.64 < fast.seconds / plain.seconds < 0.72


def test_a_bound_counts_them_at_their_own_peak() -> None:
    """Of 90 FLOPs 60 are twice as fast, so they take as long as 60 in the compute format."""
    flops = Flops(model=90.0, program=90.0, eight_bit=60.0)

    assert _in_compute_format(_job("tpu-v7x", "2x2x1", "float8"), flops).program == pytest.approx(60.0, rel=1e-3)
    assert _in_compute_format(_job("tpu-v7x", "2x2x1", "compute"), flops) == flops

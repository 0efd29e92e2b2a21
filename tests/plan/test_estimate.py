"""shardwise.plan.estimate: what adapters take beside the weights that they are for, and first blocks of mixtures."""

import math
from typing import Any

import jax
import pytest
from tests.train.conftest import SMALL

from shardwise.job.accelerators import accelerator_of
from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob
from shardwise.plan.arithmetic import least_wire
from shardwise.plan.estimate import estimate
from shardwise.train.config import GptConfig
from shardwise.train.layout import Layout
from shardwise.train.state import Program

LLAMA_8B = (
    "layers: 32, heads: 32, kvHeads: 8, embed: 4096, mlp: 14336, seqLen: 4096, remat: full, norm: rms, "
    "activation: swiglu, position: rotary, tiedHead: false, vocabSize: 128256"
)


@pytest.mark.parametrize("mesh", ["{tensor: 1}", "{tensor: 2}", "{tensor: 4}", "{tensor: 2, fsdp: false}"])
@pytest.mark.parametrize("heads", ["heads: 8", "heads: 8, kvHeads: 4, activation: swiglu"])
def test_adapters_take_what_a_device_holds_of_them(mesh: str, heads: str) -> None:
    """Weights, moments and gradients of every rank, by the shardings of the state; what is gathered is little more."""
    words = [f"training.model={{layers: 64, {heads}, embed: 64, seqLen: 32, vocabSize: 1024}}", f"training.mesh={mesh}"]
    small, large = adapted(8, *words), adapted(256, *words)
    grown = estimate(large).bytes - estimate(small).bytes

    held = held_of(large) - held_of(small)
    assert held < grown < 1.15 * held


@pytest.mark.parametrize("mesh", ["{}", "{tensor: 2}", "{expert: 2}", "{expert: 4, fsdp: false}"])
def test_adapters_of_experts_take_what_a_device_holds_of_them(mesh: str) -> None:
    """Those of all experts, of the MLP beside them and first blocks, which are wide: by shardings of the state."""
    changes = ("shared=64", "denseBlocks=10", "denseMlp=2048")
    small, large = (mixture(mesh, *changes, lora=f"{{rank: {rank}, mlp: true}}") for rank in (8, 64))
    grown = estimate(large).bytes - estimate(small).bytes

    held = held_of(large) - held_of(small)
    assert held < grown < 1.1 * held


def test_a_rank_that_does_not_fit_is_not_estimated_as_small() -> None:
    """Adapters of rank 1024 beside Llama 8B are 10 GiB on each of four devices, and those of rank 16 are nothing."""
    words = (f"training.model={{{LLAMA_8B}}}", "training.batch={sequences: 16, microbatches: 4}")
    bfloat16 = "training.precision.compute=bfloat16"
    sixteen, thousand = (estimate(adapted(rank, *words, bfloat16)).bytes / 2**30 for rank in (16, 1024))
    assert sixteen + 9.5 < thousand


def test_a_table_that_stays_has_no_gradient() -> None:
    """Nor moments: where all is trained, an entry takes the gradient, whole, and a fourth of 12 bytes for them more."""

    def grown(rank: int | None) -> float:
        words = ("training.precision.compute=float32", "training.model={layers: 2, heads: 8, embed: 64, seqLen: 32}")
        small, large = (adapted(rank, *words, f"training.model.vocabSize={size}") for size in (1024, 2048))
        return estimate(large).bytes - estimate(small).bytes

    assert grown(None) - grown(8) == 1024 * 64 * (4 + 12 / 4)


_A100 = {("full", 8): 4.510, ("none", 6): 3.400, ("dots", 2): 1.214}
"""Seconds of a step by the plan of the compiled program, on four hosts of eight GPUs, by `remat` and microbatches."""


def test_what_crosses_the_network_of_gpus_takes_its_time() -> None:
    """A host of eight A100 has 12.5 GB/s, and each of them 300 to the other seven: more microbatches gather more often.

    Estimated by the links within a host, they would all be bound by arithmetic alike.
    """
    found = {}
    for remat, microbatches in _A100:
        model = f"{{layers: 24, heads: 16, embed: 2048, seqLen: 1024, vocabSize: 50257, remat: {remat}}}"
        batch = f"{{sequences: 1536, microbatches: {microbatches}}}"
        words = ("hardware={accelerator: gke-gpu-a100, topology: 4x8}", "training.precision.compute=bfloat16")
        job = resolve(loads(SMALL, [*words, f"training.model={model}", f"training.batch={batch}"]))
        found[remat, microbatches] = estimate(job).seconds

    assert found == pytest.approx(_A100, rel=0.1)


def test_of_layouts_that_are_as_fast_the_one_that_moves_less_is_told() -> None:
    """Where arithmetic binds, gathering once for each of two microbatches takes as long, and twice the links."""
    one, two = (estimate(adapted(None, f"training.batch.microbatches={number}")) for number in (1, 2))

    assert two.moving_seconds > one.moving_seconds


def adapted(rank: int | None, *words: str) -> TrainingJob:
    """A job that trains adapters of this rank, or all weights, on four devices of TPU v6e."""
    lora = ("training.startFrom={path: base, step: 0}", f"training.lora.rank={rank}") if rank else ()
    return resolve(loads(SMALL, ["hardware={accelerator: tpu-v6e, topology: 2x2}", *lora, *words]))


def held_of(job: TrainingJob) -> int:
    """Bytes on one device of all that is trained, its optimizer's state and its gradient in float32."""
    state = program_of(job).abstract()
    held: int = sum(_entries(x) * x.dtype.itemsize for x in jax.tree.leaves((state["params"], state["optimizer"])))
    return held + sum(_entries(x) * 4 for x in state["params"].values())


def program_of(job: TrainingJob) -> Program:
    """The step of a job on four devices of this host."""
    training = job.spec.training
    config = GptConfig.of(training, tokenizer_size=1024, platform="tpu")
    return Program.of(training, Layout.of(training, jax.devices()[:4]), config)


def _entries(x: Any) -> int:
    """Entries of an array on one device."""
    entries: int = math.prod(x.sharding.shard_shape(x.shape))
    return entries


@pytest.mark.parametrize("mesh", ["{}", "{fsdp: false}", "{expert: 2}", "{tensor: 2}"])
@pytest.mark.parametrize("changes", [("denseMlp=64", "denseMlp=1024"), ("denseBlocks=20", "denseBlocks=4")])
def test_first_blocks_take_what_a_device_holds_of_them(mesh: str, changes: tuple[str, str]) -> None:
    """Their one MLP, not the experts that the others have: weights, moments and gradients, by the state's shardings.

    What is gathered of a block, and its activations, are little beside many blocks.
    """
    small, large = (mixture(mesh, change) for change in changes)
    grown = estimate(large).bytes - estimate(small).bytes

    held = held_of(large) - held_of(small)
    assert held > 0
    assert grown == pytest.approx(held, rel=0.1)


@pytest.mark.parametrize("mesh", ["{}", "{expert: 2}"])
@pytest.mark.parametrize("changes", [("denseMlp=64", "denseMlp=1024"), ("denseBlocks=20", "denseBlocks=4")])
def test_first_blocks_move_what_the_least_traffic_says(mesh: str, changes: tuple[str, str]) -> None:
    """Their weights, and no tokens to experts: what moves in all, by the bytes that a link takes in a second."""
    small, large = (mixture(mesh, change) for change in changes)
    grown = estimate(large).moving_seconds - estimate(small).moving_seconds

    interconnect = accelerator_of(large.spec.hardware).spec.interconnect
    assert interconnect is not None
    moved = sum(least_wire(program_of(large)).values()) - sum(least_wire(program_of(small)).values())
    assert moved > 0
    assert grown == pytest.approx(moved / float(interconnect.bandwidth.value), rel=1e-6)


def test_first_blocks_that_are_the_widest_are_gathered_whole() -> None:
    """Twice in the compute format, and with what is inside of them: more than a block of few narrow experts is."""
    small, large = (mixture("{}", "denseBlocks=1", f"denseMlp={width}") for width in (2**14, 2**17))
    grown = estimate(large).bytes - estimate(small).bytes

    weights, activations = 2 * 4 * 3 * 256, 4 * 32 * 4 * 6
    assert grown == held_of(large) - held_of(small) + (weights + activations) * (2**17 - 2**14)


def mixture(mesh: str, *changes: str, lora: str | None = None) -> TrainingJob:
    """A job that trains a mixture behind first blocks with one MLP each, or adapters, on four devices of TPU v6e."""
    model = (
        "{layers: 40, heads: 4, embed: 256, mlp: 512, seqLen: 32, vocabSize: 1024, activation: swiglu, remat: full, "
        "mlpBias: false, experts: {count: 4, perToken: 2, denseBlocks: 20, denseMlp: 64}}"
    )
    words = [f"training.model={model}", f"training.mesh={mesh}", "training.precision.compute=float32"]
    if lora:
        words += [f"training.lora={lora}", "training.startFrom={path: base, step: 0}"]
    return adapted(None, *words, *(f"training.model.experts.{change}" for change in changes))

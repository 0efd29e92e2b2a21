"""A model with sinks, windows in turn, and a mixture whose experts and router have biases: the same on every mesh."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.train.small_gpt import forward_of, gpt2_config, program_of, random_params
from tests.train.test_experts import MIXTURE
from tests.train.test_meshes import run

from shardwise.train.state import Program

MakeProgram = Callable[..., Program]
GPT_OSS = (
    *MIXTURE,
    "model.heads=8",
    "model.kvHeads=4",
    "model.headSize=8",
    "model.rotaryPairs=half",
    "model.seqLen=64",
    "model.attentionSinks=true",
    "model.activation=swiglu-clamped",
    "model.mlpBias=true",
    "model.experts.routerBias=true",
    "model.slidingWindow=20",
    "model.slidingWindowPattern=2",
    "data.attendAcross=document",
)
MESHES = {
    "context 2 x fsdp 2 x tensor 2": (8, ("mesh.context=2", "mesh.tensor=2")),
    "context 2 in a ring x data 2, no fsdp": (4, ("mesh.context=2", "mesh.contextStrategy=ring", "mesh.fsdp=false")),
    "pipeline 2 x fsdp 2 x tensor 2, 4 microbatches": (
        8,
        ("mesh.pipeline=2", "mesh.tensor=2", "batch.microbatches=4"),
    ),
    "fsdp 2 x experts over 2 x tensor 2": (8, ("mesh.expert=2", "mesh.tensor=2")),
    "replica 2 x fsdp 2, dots, 2 microbatches": (4, ("mesh.replica=2", "model.remat=dots", "batch.microbatches=2")),
}


@pytest.fixture(scope="module")
def of_one_device() -> Callable[[MakeProgram], tuple[str, list[float]]]:
    """Return the digest and the losses of one device, which are computed once."""
    kept: list[tuple[str, list[float]]] = []

    def known(make_program: MakeProgram) -> tuple[str, list[float]]:
        if not kept:
            kept.append(run(make_program(*GPT_OSS, num_devices=1)))
        return kept[0]

    return known


@pytest.mark.parametrize("mesh", MESHES)
def test_losses_do_not_depend_on_the_mesh(
    make_program: MakeProgram, of_one_device: Callable[[MakeProgram], tuple[str, list[float]]], mesh: str
) -> None:
    """Every mesh begins with the bits of one device and has its losses, with packed documents and split sequences."""
    devices, words = MESHES[mesh]
    digest, expected = of_one_device(make_program)
    found, losses = run(make_program(*GPT_OSS, *words, num_devices=devices))

    assert expected[-1] < expected[0] - 0.1
    assert found == digest
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=0)


def test_a_bias_of_keys_counts_beside_sinks() -> None:
    """It moves all scores of a query alike, but not the sink: so it changes logits, and all of it has a gradient."""
    program = program_of(gpt2_config(num_layers=1, attention_sinks=True))
    params = random_params(program)
    tokens = np.arange(16, dtype=np.int32)[None]
    moved = {**params, "blocks.attention.qkv.bias": params["blocks.attention.qkv.bias"].at[0, 1].add(1.0)}
    before, after = (forward_of(program)(one, tokens)[..., : program.config.vocab_size] for one in (params, moved))

    assert np.abs(before - after).max() > 1e-3
    assert program.config.same_for_all_keys_counts == program.config.head_size

"""The trainer's programs on GPUs, compiled by three wheels and a description of the GPU, and on simulated devices."""

import math

import pytest
from tests.plan.compiling import DATA, small
from tests.plan.table import APART, EXPERTS, LATENT, SINKS, Row, answer, of_platform

from shardwise.job.resolve import resolve
from shardwise.protocol.errors import JobError

OTHERS = of_platform("gpu", "cpu")


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: row.name)
def test_a_job_compiles(row: Row) -> None:
    """Step, init, both evaluations and generation; scores that a program shows are float32 from product to softmax.

    CuDNN's kernel does not show its own; the loss's are there always.
    """
    said = answer(row)

    assert set(said) == set(row.request.programs)
    assert [f"{name}: {program['error']}" for name, program in said.items() if "error" in program] == []
    assert said["step"]["stand_in"] is None
    assert {name for softmax in said["step"]["scores"] for name in softmax} == {"f32"}


def test_h100s_take_cudnn() -> None:
    """On one host and on two, with tensor from 1 to 8, in bfloat16: the fused kernel, also where nobody asks for it.

    But not with context, since it takes whole sequences, nor with sinks and with values narrower than keys.
    """
    others = {"mesh.context=4", SINKS, LATENT}
    split = [row for row in OTHERS if row.accelerator == "gpu-h100" and others & {*row.words}]
    rows = [row for row in OTHERS if row.accelerator == "gpu-h100" and row not in split]

    assert {answer(row)["step"]["kernel"] for row in rows} == {"cudnn"}
    assert {answer(row)["step"]["kernel"] for row in split} == {"blockwise"}
    assert {row.topology for row in rows} == {"1x8", "2x8"}
    assert {row.request.job.spec.training.mesh.tensor for row in rows} == {1, 2, 4, 8}


def test_experts_multiply_their_own_rows() -> None:
    """The whole step takes less memory than a copy of the picks for each expert would."""
    (row,) = (row for row in OTHERS if EXPERTS in row.words and APART not in row.words)
    said, training = answer(row)["step"], resolve(row.request.job).spec.training
    model = training.model
    assert model.experts and model.embed and model.seq_len  # noqa: PT018  all are given
    ways = math.prod(said["mesh"][axis] for axis in DATA)
    tokens = training.batch.sequences // ways * model.seq_len  # of a device
    picks = 2 * tokens * model.experts.per_token * model.embed  # their bytes in bfloat16

    assert said["peak_bytes"] < model.experts.count * picks


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("precision.compute=float32",), "bfloat16 with attention: cudnn"),
        (("model.heads=2",), "heads of a multiple of 8 up to 128 values with attention: cudnn"),
    ],
)
def test_a_shape_that_cudnn_cannot_take_is_refused(words: tuple[str, ...], said: str) -> None:
    """By the job file's rules, which say what would do."""
    with pytest.raises(JobError, match=said):
        small("gpu-h100", "1x8", 1, "model.attention=cudnn", *words)


def test_what_layers_keep_goes_to_the_host() -> None:
    """With `remat: offload` a device holds the inputs of its layers no longer, and its host has exactly these bytes."""
    whole, away = (
        next(row for row in OTHERS if row.name == f"gpu-h100 1x8{words}") for words in ("", " model.remat=offload")
    )
    model = away.request.job.spec.training.model
    assert model.layers and model.seq_len and model.embed  # noqa: PT018  all are given
    inputs = model.layers * 2 * model.seq_len * model.embed * 2  # of two sequences, in bfloat16

    assert answer(away)["step"]["on_host"] == [0, inputs]
    assert answer(away)["step"]["peak_bytes"] == pytest.approx(answer(whole)["step"]["peak_bytes"] - inputs, rel=1e-3)

"""shardwise.job.kernels: which attention kernel a job gets on a platform."""

import pytest
from tests.job.wrong_files import QUICKSTART

from shardwise.job.kernels import kernel_of
from shardwise.job.load import load
from shardwise.job.resolve import resolve

BFLOAT16 = "training.precision.compute=bfloat16"
NARROW = ["training.model={preset: tiny, position: rotary, rotaryDim: 8, attentionBias: false, latent: {kvRank: 64}}"]


@pytest.mark.parametrize(
    ("overrides", "on_cpu", "on_gpu", "on_tpu"),
    [
        ([BFLOAT16], "blockwise", "cudnn", "splash"),
        ([], "blockwise", "blockwise", "splash"),
        ([BFLOAT16, "training.data.attendAcross=document"], "blockwise", "blockwise", "splash"),
        ([BFLOAT16, "training.model.seqLen=100"], "blockwise", "cudnn", "blockwise"),
        ([BFLOAT16, "training.model.preset=gptj-6b"], "blockwise", "blockwise", "splash"),
        ([BFLOAT16, "training.model.attentionSinks=true"], "blockwise", "blockwise", "splash"),
        ([BFLOAT16, "training.mesh.context=4", "training.model.seqLen=1024"], "blockwise", "blockwise", "splash"),
        ([BFLOAT16, "training.mesh.context=4", "training.model.seqLen=128"], "blockwise", "blockwise", "blockwise"),
        ([BFLOAT16, *NARROW, "training.model.latent.valueSize=16"], "blockwise", "blockwise", "splash"),
        ([BFLOAT16, *NARROW, "training.model.latent.valueSize=32"], "blockwise", "cudnn", "splash"),
        ([BFLOAT16, "training.model.attention=plain"], "plain", "plain", "plain"),
    ],
)
def test_auto_takes_the_best_kernel_that_can(overrides: list[str], on_cpu: str, on_gpu: str, on_tpu: str) -> None:
    """A fused kernel is taken for what it can compute, blockwise for the rest, and a kernel asked for by name stays."""
    training = resolve(load(QUICKSTART, overrides)).spec.training

    assert [kernel_of(training, platform) for platform in ("cpu", "gpu", "tpu")] == [on_cpu, on_gpu, on_tpu]

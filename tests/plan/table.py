"""Which small jobs are compiled for which class: each choice of a job at least once, and those together that interact.

Used by the tests beside this. Precision is bfloat16 and the kernel `auto` where a row does not say. A class's first job
compiles every program of a run, and so does the first on several slices of a TPU and of a GPU; the others the step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.plan.compiling import EVERY_PROGRAM, Request, answers, small

from shardwise.job.accelerators import BUILT_IN


@dataclass(frozen=True)
class Row:
    """A job of the table."""

    accelerator: str
    topology: str
    slices: int = 1
    words: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What a test calls it."""
        slices = f"{self.slices}x" if self.slices > 1 else ""
        return " ".join([self.accelerator, slices + self.topology, *self.words])

    @property
    def request(self) -> Request:
        """What is asked of the compiler."""
        alike = (row for row in ROWS if row.accelerator == self.accelerator and (row.slices > 1) == (self.slices > 1))
        wanted = next(alike) == self and (self.slices == 1 or self.accelerator in _EVERY_PROGRAM_ON_SLICES)
        programs = EVERY_PROGRAM if wanted else ("step",)
        return Request(small(self.accelerator, self.topology, self.slices, *self.words), programs)


_EVERY_PROGRAM_ON_SLICES = ("tpu-v5e", "gpu-h100")
WEIGHTS = 2 * 4 + 1
"""Matrices of the small model: four of each layer, and the token table."""
FLOAT32 = "precision.compute=float32"
WINDOWS = ("model.seqLen=512", "model.slidingWindow=200", "model.slidingWindowPattern=2", "model.kvHeads=2")
DOCUMENTS = "data.attendAcross=document"
TWO_ROUNDS = ("mesh.pipeline=2", "mesh.pipelineRounds=2", "model.layers=4", "batch.microbatches=2")
RING = "mesh.contextStrategy=ring"
EXPERTS = (
    "model={layers: 2, heads: 8, embed: 512, mlp: 768, seqLen: 256, norm: rms, activation: swiglu, mlpBias: false, "
    "position: rotary, experts: {count: 8, perToken: 2}}"
)
SHARED = ("model.experts.shared=512", "model.experts.sharedGate=true")
APART = "mesh.expert=2"
BARE = (
    "model={layers: 2, heads: 8, kvHeads: 4, embed: 512, mlp: 1024, seqLen: 256, norm: rms, activation: geglu, "
    "position: rotary, rotaryPattern: 2, attentionBias: false, mlpBias: false, preNorm: false, postNorm: true, "
    "qkNorm: true, qkNormOver: all-heads, embeddingFactor: 12, residualFactor: 0.2, logitDivisor: 8}"
)
WIDTHS = ("model.embed=1024", "model.mlp=2816")
"""Of an MLP whose half, 1,408, has so few factors of 2 that rows are long before they are even, and few."""
SINKS = (
    "model={layers: 2, heads: 8, kvHeads: 4, embed: 512, headSize: 64, mlp: 512, seqLen: 512, norm: rms, "
    "activation: swiglu-clamped, position: rotary, rotaryPairs: half, slidingWindow: 200, slidingWindowPattern: 2, "
    "attentionSinks: true, tiedHead: false, experts: {count: 8, perToken: 2, routerBias: true}}"
)
"""gpt-oss, small."""
LATENT = (
    "model={layers: 3, heads: 8, headSize: 96, rotaryDim: 32, embed: 512, mlp: 512, seqLen: 512, norm: rms, "
    "activation: geglu, mlpBias: false, attentionBias: false, position: rotary, tiedHead: false, "
    "latent: {kvRank: 128, qRank: 256, valueSize: 64}, experts: {count: 8, perToken: 2, score: sigmoid, "
    "shareFactor: 2.5, pickBias: true, groups: 4, groupsPerToken: 2, shared: 512, denseBlocks: 1, denseMlp: 1024}}"
)
"""DeepSeek-V3, small."""
UNEVEN = (
    "model={layers: 2, heads: 8, headSize: 64, embed: 1440, mlp: 360, seqLen: 256, norm: rms, activation: swiglu, "
    "mlpBias: false, position: rotary, experts: {count: 8, perToken: 2}}"
)
"""Experts whose rows are joined to no even ones: gpt-oss's are 2,880 wide both ways."""
PAIRS = (
    "data.train=[{name: pairs, paths: [pairs.jsonl], chatTemplate: chatml, preferences: true}]",
    DOCUMENTS,
    "startFrom={path: base, step: 0}",
)
ANSWERS = (
    "data.train=[{name: answers, paths: [answers.jsonl], chatTemplate: chatml, labels: true}]",
    DOCUMENTS,
    "loss.preferences=kto",
    "startFrom={path: base, step: 0}",
)
REWARDS = (
    "data.train=[{name: asked, paths: [asked.jsonl], prompts: true}]",
    "reinforcement={samples: 4, maxTokens: 128, updates: 2, klWeight: 0.1, reward: {pattern: '(a)'}}",
    "startFrom={path: base, step: 0}",
)
ADAPTERS = "lora.rank=8"
FOUR_LAYERS = ("model.layers=4", "batch={sequences: 64, microbatches: 2}")
ON_HOST = ("model.remat=offload", "optimizer.memory=host")
ROWS = (
    Row("tpu-v4", "2x2x2"),
    Row("tpu-v4", "2x2x1", 2, ("precision.params=bfloat16", "mesh.tensor=2")),
    Row("tpu-v4", "2x2x4", 1, ("model.attention=blockwise", "model.seqLen=1024", "model.remat=dots")),
    Row("tpu-v5e", "2x4"),
    Row("tpu-v5e", "4x4", 2, ("precision.reduce=float32", "model.remat=dots")),
    Row("tpu-v5e", "2x4", 1, ("precision.products=int8", "mesh.tensor=2", "model.remat=dots")),
    Row("tpu-v5e", "2x4", 2, ("mesh.replica=4",)),
    Row("tpu-v5e", "1x1", 1, ("model.attention=plain", "model.block=parallel", "model.seqLen=96", "model.remat=none")),
    Row("tpu-v5e", "4x4", 1, ("model.attention=splash", "model.seqLen=640", "mesh.tensor=2")),
    Row("tpu-v5e", "16x16"),
    Row("tpu-v5e-4t", "2x4", 1, ("model.seqLen=96",)),
    Row("tpu-v5e-4t", "2x4", 2, (FLOAT32, "model.attention=plain", "model.remat=none")),
    Row("tpu-v5p", "2x2x2"),
    Row("tpu-v5p", "2x2x1", 2, ("model.attention=splash", "model.seqLen=512", "model.remat=none")),
    Row("tpu-v5p", "2x4x4", 1, (FLOAT32, "optimizer={name: muon, learningRate: 1e-3}", "mesh.tensor=2")),
    Row("tpu-v5p", "4x8x8"),
    Row("tpu-v5p", "2x2x1", 1, ("model.attention=splash", "model.attentionSoftcap=50", *WINDOWS)),
    Row("tpu-v5p", "2x2x2", 1, ("mesh.context=4", "model.seqLen=1024", DOCUMENTS)),
    Row("tpu-v5p", "2x2x2", 1, (*WIDTHS, "mesh.tensor=2")),
    Row("tpu-v5p", "2x2x2", 1, (UNEVEN, APART)),
    Row("tpu-v5p", "2x2x2", 1, (EXPERTS, *SHARED, "mesh.tensor=2")),
    Row("tpu-v5p", "2x2x1", 2, ("mesh.context=2", "model.seqLen=512", "model.position=rotary")),
    Row("tpu-v5p", "2x2x2", 1, ("mesh.pipeline=2", "batch.microbatches=4")),
    Row("tpu-v5p", "2x2x2", 1, ("mesh.context=4", RING, "model.seqLen=1024", DOCUMENTS)),
    Row("tpu-v5e", "2x4", 2, ("mesh.tensor=2", *TWO_ROUNDS, DOCUMENTS)),
    Row("tpu-v6e", "2x4", 1, (DOCUMENTS, "batch.microbatches=2")),
    Row("tpu-v6e", "2x4", 1, FOUR_LAYERS),
    Row("tpu-v6e", "2x4", 1, (*FOUR_LAYERS, *ON_HOST)),
    Row("tpu-v6e", "2x4", 2, ("mesh.tensor=4", "model.block=parallel", "model.position=rotary")),
    Row("tpu-v6e", "2x4", 1, ("mesh.context=2", "mesh.tensor=2", "model.seqLen=512", "model.remat=dots")),
    Row(
        "tpu-v6e",
        "2x4",
        1,
        # so long that no gathered weight is as large as all keys
        ("mesh.context=2", RING, "mesh.tensor=2", "model.remat=none", *WINDOWS, "model.seqLen=1024"),
    ),
    Row("tpu-v6e", "2x4", 1, ("mesh.pipeline=2", "mesh.context=2", "batch.microbatches=2", "model.seqLen=512")),
    Row("tpu-v6e", "2x4", 1, (EXPERTS, "mesh.tensor=2", "batch.microbatches=2")),
    Row("tpu-v6e", "2x4", 1, (EXPERTS, APART, "mesh.tensor=2", "batch.microbatches=2")),
    Row("tpu-v6e", "2x4", 1, (EXPERTS, *SHARED)),
    Row("tpu-v6e", "2x4", 1, (BARE, "mesh.tensor=2")),
    Row("tpu-v6e", "2x4", 1, (SINKS, "mesh.tensor=2")),
    Row("tpu-v6e", "2x4", 1, (SINKS, "mesh.context=2", RING, "model.seqLen=1024", DOCUMENTS)),
    Row("tpu-v6e", "2x4", 1, (LATENT, "mesh.tensor=2")),
    Row("tpu-v6e", "2x4", 1, (LATENT, "mesh.context=2", DOCUMENTS)),
    Row("tpu-v6e", "2x4", 1, (*PAIRS, ADAPTERS, "mesh.tensor=2", "model.seqLen=512")),
    Row("tpu-v6e", "2x4", 1, (*PAIRS, "mesh.tensor=2", "model.seqLen=512")),
    Row("tpu-v6e", "2x4", 1, (*PAIRS, "loss={preferences: orpo, chosenWeight: 1}", "mesh.tensor=2")),
    Row("tpu-v6e", "2x4", 1, (*ANSWERS, "mesh.tensor=2", "model.seqLen=512")),
    Row("tpu-v6e", "2x4", 1, (*REWARDS, "mesh.tensor=2", "model.seqLen=512")),
    Row("tpu-v6e", "2x4", 1, ("optimizer.average={decay: 0.999}", "mesh.tensor=2")),
    Row("tpu-v6e-4t", "2x4"),
    Row("tpu-v6e-4t", "2x2", 2, ("model.seqLen=96", "model.tiedHead=false", "model.dropout.residual=0.1")),
    Row("tpu-v7x", "2x2x1"),
    Row("tpu-v7x", "2x2x1", 2, ("model.attention=plain", "precision.reduce=float32")),
    Row("tpu-v7x", "2x2x1", 1, ("precision.products=float8",)),
    Row("gpu-h100", "1x8"),
    Row("gpu-h100", "1x8", 1, ("model.remat=offload",)),
    Row("gpu-h100", "1x8", 1, ("model.attention=cudnn", "mesh.tensor=8")),
    Row("gpu-h100", "2x8", 1, ("model.attention=cudnn", "mesh.tensor=2", "model.seqLen=1024", "model.remat=dots")),
    Row("gpu-h100", "2x8", 1, ("model.attention=cudnn", "mesh.tensor=4", "model.seqLen=1000")),
    Row("gpu-h100", "1x8", 2, ("mesh.tensor=4", "model.remat=none")),
    Row("gpu-h100", "1x8", 1, ("precision.products=float8", "mesh.tensor=2")),
    Row("gpu-h100", "1x8", 1, ("model.attention=cudnn", *WINDOWS)),
    Row("gpu-h100", "1x8", 1, ("mesh.context=4", "model.seqLen=1024", DOCUMENTS)),
    Row("gpu-h100", "1x8", 1, ("model.attention=cudnn", "mesh.pipeline=2", "batch.microbatches=4")),
    Row("gpu-h100", "1x8", 1, ("mesh.context=4", RING, "model.seqLen=1024", DOCUMENTS)),
    Row("gpu-h100", "1x8", 1, (EXPERTS, "model.experts.count=64", "model.seqLen=2048", "mesh.tensor=2")),
    Row("gpu-h100", "1x8", 1, (EXPERTS, "model.experts.count=64", "model.seqLen=2048", APART)),
    Row("gpu-h100", "1x8", 1, (BARE, "mesh.tensor=2")),
    Row("gpu-h100", "1x8", 1, (SINKS, "mesh.tensor=2")),
    Row("gpu-h100", "1x8", 1, (LATENT, "mesh.tensor=2")),
    Row("gpu-h100", "1x8", 1, (*PAIRS, ADAPTERS, "model.attention=cudnn", "mesh.pipeline=2", "batch.microbatches=4")),
    Row("gke-gpu-a100", "1x8", 1, (DOCUMENTS, "model.seqLen=1024")),
    Row("gke-gpu-a100", "1x2", 2, ("model.attention=plain", "model.block=parallel", "model.seqLen=96")),
    Row("gke-gpu-b200", "1x8", 1, ("mesh.tensor=2",)),
    Row("gke-gpu-b200", "1x8", 2),
    Row("gke-gpu-gb200", "1x4", 1, ("mesh.tensor=2",)),
    Row("gke-gpu-gb200", "1x4", 2),
    Row("gke-gpu-h100", "1x8"),
    Row("gke-gpu-h100", "1x8", 2, ("mesh.tensor=4", "model.remat=none")),
    Row("gke-gpu-h100-mega", "1x8"),
    Row("gke-gpu-h100-mega", "1x8", 2, ("mesh.tensor=4", "model.remat=none")),
    Row("eks-gpu-h100", "1x8"),
    Row("eks-gpu-h100", "1x8", 2, ("mesh.tensor=4", "model.remat=none")),
    Row("eks-gpu-h200", "1x8", 1, ("precision.params=bfloat16",)),
    Row("eks-gpu-h200", "1x8", 2, (FLOAT32,)),
    Row("gke-gpu-h200", "1x8", 1, ("precision.params=bfloat16",)),
    Row("gke-gpu-h200", "1x8", 2, (FLOAT32,)),
    Row("gke-gpu-l4", "1x4", 1, ("model.seqLen=640",)),
    Row("gke-gpu-l4", "1x2", 2),
    Row("gpu", "1x2"),
    Row("gpu", "1x2", 2, ("precision.reduce=float32",)),
    Row("cpu-sim", "1x4"),
    Row("cpu-sim", "1x2", 2, ("model.attention=blockwise", "model.seqLen=1024")),
)


def of_platform(*platforms: str) -> list[Row]:
    """The rows of these platforms."""
    return [row for row in ROWS if BUILT_IN[row.accelerator].spec.platform in platforms]


def answer(row: Row) -> Mapping[str, Any]:
    """What came of a row; its class's others are compiled by the same process."""
    alike: Sequence[Row] = [other for other in ROWS if other.accelerator == row.accelerator]
    return answers([other.request for other in alike])[alike.index(row)]

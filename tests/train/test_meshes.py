"""The promise of the trainer: the mesh changes neither the weights it starts from nor, beyond rounding, the loss."""

import hashlib
from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np
import pytest
from tests.train.conftest import IN_FULL

from shardwise.train.microbatches import Batch
from shardwise.train.state import Program, State, flat
from shardwise.train.step import Metrics, lower_step
from shardwise.train.zigzag import zigzag

MakeProgram = Callable[..., Program]
NUM_STEPS = 20
LLAMA = (
    "model.heads=8",
    "model.kvHeads=4",
    "model.headSize=8",
    "model.norm=rms",
    "model.activation=swiglu",
    "model.position=rotary",
    "model.rotaryPairs=half",
    "model.ropeTheta=1e5",
    "model.tiedHead=false",
    "model.attentionBias=false",
    "model.mlpBias=false",
)
GEMMA = (
    *LLAMA,
    "model.norm=rms-unit-offset",
    "model.activation=geglu",
    "model.tiedHead=true",
    "model.postNorm=true",
    "model.qkNorm=true",
    "model.scaleEmbedding=true",
    "model.attentionSoftcap=20",
    "model.logitSoftcap=10",
    "model.slidingWindow=8",
    "model.slidingWindowPattern=3",
    "model.localRopeTheta=1e3",
)
SMOLLM = (*LLAMA, "model.attentionBias=true", "model.rotaryPattern=2")
GRANITE = (
    *LLAMA,
    "model.queryPreAttnScalar=64",
    "model.embeddingFactor=12",
    "model.residualFactor=0.22",
    "model.logitDivisor=0.5",
    "loss.zLoss=1e-4",
)
OLMO = (
    *LLAMA,
    "model.preNorm=false",
    "model.postNorm=true",
    "model.qkNorm=true",
    "model.qkNormOver=all-heads",
)
LATENT = (
    *(word for word in LLAMA if not word.startswith("model.kvHeads")),
    "model.headSize=12",
    "model.rotaryDim=4",
    "model.rotaryPairs=interleaved",
    "model.latent.kvRank=20",
    "model.latent.qRank=24",
    "model.latent.valueSize=6",
)
NEOX = (
    "model.block=parallel-two-norms",
    "model.position=rotary",
    "model.rotaryPairs=half",
    "model.rotaryDim=4",
    "model.activation=gelu-exact",
    "model.tiedHead=false",
)
MESHES = {
    "one device": (1, ()),
    "fsdp 2 x tensor 4": (8, ("mesh.tensor=4",)),
    "data 2 x tensor 2, no fsdp, 4 microbatches": (4, ("mesh.tensor=2", "mesh.fsdp=false", "batch.microbatches=4")),
    "replica 2 x fsdp 2 x tensor 2, 2 microbatches": (8, ("mesh.tensor=2", "mesh.replica=2", "batch.microbatches=2")),
    "fsdp 2 x 2 in two steps x tensor 2": (8, ("mesh.tensor=2", "mesh.dataInner=2")),
}


@pytest.mark.parametrize(
    ("words", "tolerance"),
    [
        (("optimizer.name=adamw", "model.block=sequential"), 2e-6),
        pytest.param(
            ("optimizer.name=adam", "model.block=parallel", "model.position=rotary", "model.tiedHead=false"),
            2e-6,
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("optimizer.name=lion", "optimizer.learningRate=1e-4", "model.block=parallel", "loss.zLoss=1e-4"),
            2e-6,
            marks=pytest.mark.long,
        ),
        (("optimizer.name=muon", "optimizer.learningRate=1e-3", "model.block=sequential"), 1e-4),
        pytest.param(LLAMA, 1e-5, marks=pytest.mark.long),
        pytest.param(
            (*LLAMA, "model.attentionBias=true", "model.attentionOutBias=false", "model.qkNorm=true"),
            1e-5,
            marks=pytest.mark.long,
        ),
        (GEMMA, 1e-5),
        pytest.param(OLMO, 1e-5, marks=pytest.mark.long),
        pytest.param(GRANITE, 1e-5, marks=pytest.mark.long),
        pytest.param(SMOLLM, 1e-5, marks=pytest.mark.long),
        pytest.param(NEOX, 1e-5, marks=pytest.mark.long),
        (LATENT, 1e-5),
        pytest.param((*LATENT, "optimizer.name=muon", "optimizer.learningRate=1e-3"), 1e-4, marks=pytest.mark.long),
    ],
    ids=[
        "adamw",
        "adam-parallel-rotary",
        "lion-parallel",
        "muon",
        "llama",
        "qwen",
        "gemma",
        "olmo",
        "granite",
        "smollm",
        "neox",
        "latent",
        "latent-muon",
    ],
)
def test_losses_do_not_depend_on_the_mesh(make_program: MakeProgram, words: tuple[str, ...], tolerance: float) -> None:
    """Over 20 float32 steps every mesh gives the losses of one device, and starts from the very same bits."""
    runs = {name: run(make_program(*words, *more, num_devices=devices)) for name, (devices, more) in MESHES.items()}
    digest, losses = runs["one device"]
    assert losses[-1] < losses[0] - 0.1

    for name, (other_digest, other_losses) in runs.items():
        assert digest == other_digest, name
        np.testing.assert_allclose(other_losses, losses, rtol=tolerance, atol=0, err_msg=name)


def test_dropout_does_not_depend_on_the_mesh_or_the_microbatch(make_program: MakeProgram) -> None:
    """The same entries are dropped wherever a sequence lands, and other seeds drop others."""
    words = ("model.dropout.embed=0.1", "model.dropout.residual=0.2")
    _, one = run(make_program(*words, num_devices=1), num_steps=5)
    _, many = run(make_program(*words, "mesh.tensor=2", "batch.microbatches=2"), num_steps=5)
    _, without = run(make_program(num_devices=1), num_steps=5)

    np.testing.assert_allclose(many, one, rtol=2e-6, atol=0)
    assert abs(without[0] - one[0]) > 1e-4


def test_the_same_mesh_gives_the_same_bits(make_program: MakeProgram) -> None:
    """Two runs on one layout end in states that are equal to the last bit."""
    first, second = (_train(make_program("mesh.tensor=2"), 5)[0] for _ in range(2))

    assert _digest(first) == _digest(second)


def test_bfloat16_compute_still_learns_and_keeps_float32_weights(make_program: MakeProgram) -> None:
    """With a 16-bit compute dtype weights and moments stay float32, and the loss stays near the float32 one."""
    program = make_program("precision.compute=bfloat16", "mesh.tensor=2")
    state, losses = _train(program, 10)
    _, reference = _train(make_program("mesh.tensor=2"), 10)

    assert {leaf.dtype.name for path, leaf in flat(state).items() if "embedding" in path} == {"float32"}
    np.testing.assert_allclose(losses, reference, rtol=2e-2)


def test_bfloat16_weights_train_beside_their_float32_masters(make_program: MakeProgram) -> None:
    """They take the path of float32 weights, not that of weights that lose every update below their rounding."""
    words = ("optimizer.learningRate=1e-4", "mesh.tensor=2")
    program = make_program(*words, "precision.params=bfloat16", "precision.compute=bfloat16")
    state, losses = _train(program, 20)
    _, reference = _train(make_program(*words, "precision.compute=bfloat16"), 20)
    masters = state["optimizer"].weights

    np.testing.assert_allclose(losses, reference, rtol=2e-3)
    for path, weight in state["params"].items():
        assert weight.dtype.name == "bfloat16"
        assert masters[path].sharding == weight.sharding
        np.testing.assert_array_equal(weight, masters[path].astype(weight.dtype), err_msg=path)


def run(program: Program, num_steps: int = NUM_STEPS) -> tuple[str, list[float]]:
    """The digest of a program's first state, and its losses."""
    digest, metrics = run_with_metrics(program, num_steps)
    return digest, [float(one.loss) for one in metrics]


def run_with_metrics(program: Program, num_steps: int = NUM_STEPS) -> tuple[str, list[Metrics]]:
    """The digest of a program's first state, and the numbers of its steps."""
    initial: State = program.lower_init().compile()()
    digest = _digest(initial)  # before the first step takes the state's memory
    return digest, _steps(program, num_steps, initial)[1]


def in_full(program: Program) -> Program:
    """The program with all of XLA's optimization, as one host compiles it."""
    return replace(program, xla_options={**IN_FULL, **program.xla_options})


def _train(program: Program, num_steps: int) -> tuple[State, list[float]]:
    state, metrics = _steps(program, num_steps, program.lower_init().compile()())
    return state, [float(one.loss) for one in metrics]


def _steps(program: Program, num_steps: int, state: State) -> tuple[State, list[Metrics]]:
    compiled = lower_step(program).compile()
    words = jax.device_put(np.zeros(program.layout.mesh.size, np.int32), program.layout.control)
    every = []
    for step in range(num_steps):
        state, metrics = compiled(state, batch_of(program, step), words)
        every.append(jax.device_get(metrics))
    return state, every


def batch_of(program: Program, step: int) -> Batch:
    """Learnable text: every token is followed by one of two."""
    rng = np.random.default_rng(step)
    shape = (program.training.batch.sequences, program.config.seq_len + 1)
    jumps = rng.integers(1, 3, shape)
    tokens = ((rng.integers(0, 64, (shape[0], 1)) + jumps.cumsum(1)) % 64).astype(np.int32)
    weights = (rng.random((shape[0], shape[1] - 1)) < 0.9).astype(np.float32)
    segments = (rng.random(weights.shape) < 0.1).cumsum(1).astype(np.int32)  # documents, for a job that looks at them
    ways = program.layout.context
    fields = (zigzag(field, ways, axis=1) for field in (tokens[:, :-1], tokens[:, 1:], weights, segments))
    return Batch(*(jax.device_put(field, program.layout.batch) for field in fields))


def _digest(state: State) -> str:
    """A digest by path of all bits, gathered on the host: a trainer's own costs each mesh a program for each shape."""
    digest = hashlib.sha256()
    for path, leaf in sorted(flat(state).items()):
        digest.update(path.encode() + np.asarray(leaf).tobytes())
    return digest.hexdigest()

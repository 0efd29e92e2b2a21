"""The step program: what it holds, what it reports, and that there is only one."""

import math
from collections.abc import Callable

import jax
import numpy as np
import pytest
from tests.train.buffers import largest_buffer_bytes

from shardwise.protocol.contract import Control
from shardwise.train.loss import LossSums
from shardwise.train.microbatches import Batch
from shardwise.train.state import Program, State
from shardwise.train.step import Metrics, lower_evaluation, lower_step

MakeProgram = Callable[..., Program]


def test_fsdp_never_holds_the_stacked_weights_whole(make_program: MakeProgram) -> None:
    """A layer's weights are gathered when it runs and dropped again: no buffer holds all layers' of one matrix."""
    program = make_program("model.layers=8", "model.embed=128", "model.seqLen=8", "mesh.tensor=2", "batch.sequences=8")
    compiled = lower_step(program).compile()
    stacked = program.abstract()["params"]["blocks.mlp.up.weight"]
    whole_over_data = math.prod(stacked.shape) * 4 // 2

    assert largest_buffer_bytes(compiled) < whole_over_data


def test_the_largest_control_comes_out(make_program: MakeProgram) -> None:
    """Whatever one device's process asks for, every process reads."""
    program = make_program("mesh.tensor=2")
    words = np.zeros(8, np.int32)
    words[5] = Control.SAVE
    words[6] = Control.STOP
    _, metrics = _step(program, words)

    assert Control(int(metrics.control)) == Control.STOP


def test_a_batch_of_another_shape_is_an_error_and_not_a_second_compile(make_program: MakeProgram) -> None:
    """The compiled step takes what it was compiled for and nothing else."""
    program, other = make_program(num_devices=1), make_program("batch.sequences=8", num_devices=1)
    compiled = lower_step(program).compile()
    state: State = program.lower_init().compile()()

    with pytest.raises(TypeError):
        compiled(state, _batch(other), _words(program, np.zeros(1, np.int32)))


def test_evaluation_is_the_loss_before_the_step(make_program: MakeProgram) -> None:
    """On the same weights and batch the evaluation's mean is the loss that the step reports, on any mesh."""
    program = make_program("mesh.tensor=2", "mesh.replica=2", "batch.microbatches=2")
    evaluation = lower_evaluation(program).compile()
    state: State = program.lower_init().compile()()
    sums: LossSums = evaluation(state["params"], _batch(program))
    _, metrics = _step(program, np.zeros(8, np.int32))

    assert float(sums.cross_entropy / sums.weight) == pytest.approx(float(metrics.loss), rel=1e-6)
    assert float(sums.weight) == float(metrics.weight) == _batch(program).weights.sum()


def test_evaluation_fits_where_the_step_does(make_program: MakeProgram) -> None:
    """It takes one microbatch at a time too: the more there are, the less it holds."""
    held = {}
    for number in (1, 8):
        program = make_program("batch.sequences=64", f"batch.microbatches={number}", num_devices=1)
        for name, lower in (("step", lower_step), ("evaluation", lower_evaluation)):
            memory = lower(program).compile().memory_analysis()
            assert memory is not None
            held[name, number] = memory.temp_size_in_bytes

    assert held["evaluation", 8] < held["evaluation", 1] / 4
    assert held["evaluation", 8] < held["step", 8]


def test_documents_do_not_attend_across_when_the_job_says_so(make_program: MakeProgram) -> None:
    """With attendAcross document the segments change the loss; with stream they are not even looked at."""
    losses = {}
    for across in ("stream", "document"):
        program = make_program(f"data.attendAcross={across}", "optimizer.learningRate=1e-2", num_devices=1)
        for split in (False, True):
            losses[across, split] = _trained_loss(program, split=split)

    assert losses["stream", False] == losses["stream", True] == losses["document", False]
    assert losses["document", True] != losses["document", False]


ROTARY = "model.position=rotary"
COUNTING = {
    ("model.position=learned",): 0,
    (ROTARY,): 8,
    (ROTARY, "model.rotaryDim=4"): 4,
    (ROTARY, "model.rotaryPattern=1"): 0,
}
"""In how many of the 8 features of a head what is added to all keys alike counts: those that positions turn."""


@pytest.mark.parametrize("words", COUNTING, ids=" ".join)
def test_the_keys_bias_moves_only_where_it_counts(make_program: MakeProgram, words: tuple[str, ...]) -> None:
    """Elsewhere its gradient is exactly zero, so rounding must not make Lion's full steps of it."""
    program = make_program(*words, "optimizer.name=lion", num_devices=1)
    state, _ = _step(program, np.zeros(1, np.int32))
    query, key, value = np.moveaxis(np.asarray(state["params"]["blocks.attention.qkv.bias"]), 1, 0)

    assert key[..., : COUNTING[words]].all()
    assert not key[..., COUNTING[words] :].any()
    assert query.any()
    assert value.all()


@pytest.mark.parametrize("words", COUNTING, ids=" ".join)
def test_the_bias_of_the_keys_norm_moves_only_where_it_counts(
    make_program: MakeProgram, words: tuple[str, ...]
) -> None:
    """Likewise where queries and keys are normed; there the projection's own bias counts."""
    program = make_program(*words, "model.qkNorm=true", "optimizer.name=lion", num_devices=1)
    params = _step(program, np.zeros(1, np.int32))[0]["params"]

    assert params["blocks.attention.k_norm.bias"][..., : COUNTING[words]].all()
    assert not params["blocks.attention.k_norm.bias"][..., COUNTING[words] :].any()
    assert np.asarray(params["blocks.attention.q_norm.bias"]).any()
    assert (np.asarray(params["blocks.attention.k_norm.weight"]) != 1).any()
    assert np.asarray(params["blocks.attention.qkv.bias"])[:, 1].any()


def _trained_loss(program: Program, *, split: bool) -> float:
    compiled = lower_step(program).compile()
    state: State = program.lower_init().compile()()
    metrics = None
    for _ in range(3):
        state, metrics = compiled(state, _batch(program, split=split), _words(program, np.zeros(1, np.int32)))
    assert metrics is not None
    return float(metrics.loss)


def _step(program: Program, words: np.ndarray) -> tuple[State, Metrics]:
    compiled = lower_step(program).compile()
    result: tuple[State, Metrics] = compiled(program.lower_init().compile()(), _batch(program), _words(program, words))
    return result


def _words(program: Program, words: np.ndarray) -> jax.Array:
    placed: jax.Array = jax.device_put(words, program.layout.control)
    return placed


def _batch(program: Program, *, split: bool = False) -> Batch:
    rng = np.random.default_rng(0)
    shape = (program.training.batch.sequences, program.config.seq_len)
    segments = np.broadcast_to(np.arange(shape[1]) >= shape[1] // 2, shape) if split else np.zeros(shape)
    fields = (
        rng.integers(0, 257, shape).astype(np.int32),
        rng.integers(0, 257, shape).astype(np.int32),
        (rng.random(shape) < 0.7).astype(np.float32),
        segments.astype(np.int32),
    )
    return Batch(*(jax.device_put(field, program.layout.batch) for field in fields))

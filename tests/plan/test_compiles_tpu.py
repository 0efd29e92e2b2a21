"""The trainer's programs on TPUs: each compiles for the real topology, and keeps its promises in what comes out."""

import math
from collections.abc import Callable

import pytest
from tests.plan.compiling import DATA, small
from tests.plan.table import (
    APART,
    EXPERTS,
    FOUR_LAYERS,
    ON_HOST,
    RING,
    ROWS,
    SHARED,
    UNEVEN,
    WEIGHTS,
    WIDTHS,
    Row,
    answer,
    of_platform,
)

from shardwise.job.accelerators import BUILT_IN
from shardwise.job.resolve import resolve
from shardwise.job.spec import Training
from shardwise.plan.arithmetic import stream_moves
from shardwise.protocol.errors import JobError
from shardwise.train.pipeline import Schedule

TPUS = of_platform("tpu")
CHOICES: dict[str, Callable[[Training], object]] = {
    "attention": lambda training: training.model.attention,
    "block": lambda training: training.model.block,
    "remat": lambda training: training.model.remat,
    "params": lambda training: training.precision.params,
    "compute": lambda training: training.precision.compute,
    "reduce": lambda training: training.precision.reduce,
    "attendAcross": lambda training: training.data.attend_across,
    "seqLen": lambda training: training.model.seq_len,
}
SPLIT = [row for row in TPUS if any(word.startswith("mesh.context=") for word in row.words)]
STAGED = [row for row in TPUS if "mesh.pipeline=2" in row.words]
FIRST = [next(row for row in TPUS if row.accelerator == name) for name in dict.fromkeys(r.accelerator for r in TPUS)]


@pytest.mark.parametrize("row", TPUS, ids=lambda row: row.name)
def test_a_job_compiles(row: Row) -> None:
    """Step, init, both evaluations and generation, and scores are float32 from their product to the softmax."""
    said = answer(row)

    assert set(said) == set(row.request.programs)
    assert [f"{name}: {program['error']}" for name, program in said.items() if "error" in program] == []
    assert said["step"]["stand_in"] is None
    assert said["step"]["scores"]
    assert {name for softmax in said["step"]["scores"] for name in softmax} <= {"f32", "float32"}


def test_only_what_crosses_slices_takes_the_network() -> None:
    """Of four replicas in two slices those of a slice scatter their sum first and gather it last, by their own links.

    Each of the three moves half of the gradients of a device; where a slice is one replica all of it crosses.
    """
    rows = [
        next(row for row in TPUS if row.slices == 2 and ("mesh.replica=4" in row.words) is more)
        for more in (True, False)
    ]
    shared, apart = (_over_replicas(row) for row in rows)

    assert math.isclose(shared["network"], sum(shared.values()) / 3, rel_tol=0.05)
    assert {*shared} == {"network", "ici"}
    assert {*apart} == {"network"}


def _over_replicas(row: Row) -> dict[str, float]:
    """Return the bytes that a device sends over `replica` alone, by link."""
    found: dict[str, float] = {}
    for move in answer(row)["step"]["collectives"]:
        if move["axes"] == ["replica"]:
            found[move["link"]] = found.get(move["link"], 0.0) + move["wire_bytes"]
    return found


@pytest.mark.parametrize("row", FIRST, ids=lambda row: row.name)
def test_weights_move_as_promised(row: Row) -> None:
    """Every gather of a weight runs beside computation, and gradients are scattered: none is summed whole on each chip.

    A class's first job. Weights travel in bfloat16; what goes in float32 are biases, norms and positions, all of them
    smaller than the smallest weight.
    """
    size = row.request.job.spec.training.model.embed
    assert size
    moves = [move for move in answer(row)["step"]["collectives"] if set(move["axes"]) & DATA]
    gathers = [move for move in moves if move["kind"] == "all-gather" and move["dtype"] == "bf16"]
    sums = [move for move in moves if move["kind"] == "all-reduce"]

    assert sum(move["count"] for move in gathers) >= WEIGHTS
    assert [move for move in gathers if move["asynchronous"] < move["count"]] == []
    assert [move for move in sums if move["dtype"] == "bf16" or move["largest_bytes"] >= 2 * size * size] == []


@pytest.mark.parametrize(("word", "largest"), [(WIDTHS[1], 2 * 1024 * 1408), (UNEVEN, 2 * 1440 * 4 * 360)])
def test_gradients_of_odd_widths_are_scattered(word: str, largest: int) -> None:
    """Rows are joined until they are even, and no further: of few rows a TPU would sum the whole on each chip.

    Those of experts that are joined to no even ones are, too.
    """
    (row,) = (row for row in TPUS if word in row.words)
    moves = [move for move in answer(row)["step"]["collectives"] if set(move["axes"]) & DATA]
    large = [move for move in moves if move["largest_bytes"] >= largest]

    assert {move["kind"] for move in large} == {"all-gather", "reduce-scatter"}
    assert [move for move in moves if move["kind"] == "all-reduce" and move["dtype"] == "bf16"] == []


def test_experts_move_as_promised() -> None:
    """All experts of a layer are gathered beside computation like any weight, and their gradients are scattered."""
    (row,) = (row for row in TPUS if EXPERTS in row.words and not {APART, *SHARED} & {*row.words})
    said, model = answer(row)["step"], resolve(row.request.job).spec.training.model
    assert model.experts and model.experts.count and model.embed and model.mlp  # noqa: PT018  all are given
    one = 2 * model.experts.count * model.embed * model.mlp // said["mesh"]["tensor"]  # the experts' gates, say
    moves = [move for move in said["collectives"] if set(move["axes"]) & DATA and move["dtype"] == "bf16"]
    gathers = [move for move in moves if move["kind"] == "all-gather"]

    assert max(move["largest_bytes"] for move in gathers) == one
    assert [move for move in gathers if move["asynchronous"] < move["count"]] == []
    assert max(move["largest_bytes"] for move in moves if move["kind"] == "reduce-scatter") >= one
    assert [move for move in moves if move["kind"] == "all-reduce"] == []


def test_a_shared_expert_adds_no_move_over_tensor() -> None:
    """Its sum and its gradient go with those of the experts: the stream moves as often as without it, but for gates."""
    (row,) = (row for row in TPUS if {EXPERTS, *SHARED, "mesh.tensor=2"} <= {*row.words})
    said, training = answer(row)["step"], resolve(row.request.job).spec.training
    model, mesh = training.model, said["mesh"]
    assert model.layers and model.embed and model.seq_len and model.remat  # noqa: PT018  all are given
    rows = training.batch.sequences // math.prod(mesh[axis] for axis in DATA)
    least = stream_moves(model.layers, model.block, model.remat) * 2 * rows * model.seq_len * model.embed / 2
    moved = sum(
        move["wire_bytes"] for move in said["collectives"] if move["axes"] == ["tensor"] and move["dtype"] == "bf16"
    )
    assert least <= moved < 1.001 * least


def test_tokens_move_to_their_experts_as_promised() -> None:
    """Tokens are gathered beside computation over the devices that share experts; of experts only a part moves."""
    (row,) = (row for row in TPUS if {EXPERTS, APART} <= {*row.words})
    said, training = answer(row)["step"], resolve(row.request.job).spec.training
    model, mesh = training.model, said["mesh"]
    assert model.experts and model.experts.count and model.embed and model.mlp and model.seq_len  # noqa: PT018
    rows = training.batch.sequences // math.prod(mesh[axis] for axis in DATA) // training.batch.microbatches
    tokens = 2 * 2 * rows * model.seq_len * model.embed  # of two chips, two bytes a value
    part = 2 * model.experts.count // 2 * model.embed * model.mlp // mesh["tensor"]
    inner = [move for move in said["collectives"] if move["axes"] == ["data_inner"] and move["dtype"] == "bf16"]
    outer = [move for move in said["collectives"] if move["axes"] == ["data_outer"] and move["dtype"] == "bf16"]
    gathers = [move for move in (*inner, *outer) if move["kind"] == "all-gather"]
    assert max(move["largest_bytes"] for move in inner if move["kind"] == "all-gather") >= tokens
    assert max(move["largest_bytes"] for move in outer if move["kind"] == "all-gather") == part
    assert [move for move in gathers if move["asynchronous"] < move["count"]] == []
    assert [move for move in (*inner, *outer) if move["kind"] == "all-reduce"] == []


@pytest.mark.parametrize("row", [row for row in SPLIT if RING not in row.words], ids=lambda row: row.name)
def test_keys_and_values_move_as_promised(row: Row) -> None:
    """Context gathers them beside computation and scatters their gradients: none is summed whole on each chip."""
    said = answer(row)["step"]
    model, mesh = resolve(row.request.job).spec.training.model, said["mesh"]
    assert model.seq_len
    assert model.embed
    assert model.heads
    assert model.head_size
    heads = model.heads * model.head_size
    keys = 2 * 2 * mesh["context"] * model.seq_len * heads  # two sequences a chip, two bytes a value
    moves = [move for move in said["collectives"] if "context" in move["axes"] and move["dtype"] == "bf16"]
    largest = {move["kind"]: move["largest_bytes"] for move in moves}

    assert largest["all-gather"] == keys
    assert keys <= largest["reduce-scatter"] <= 1.2 * keys  # XLA may pad the pieces of a small array
    assert [move for move in moves if move["kind"] == "all-gather" and move["asynchronous"] < move["count"]] == []
    assert largest.get("all-reduce", 0) < keys


@pytest.mark.parametrize("row", STAGED, ids=lambda row: row.name)
def test_stages_hand_on_as_promised(row: Row) -> None:
    """In each tick two activations each way, beside computation; of weights those that are dealt out, and no others."""
    said, training = answer(row)["step"], resolve(row.request.job).spec.training
    schedule, mesh = Schedule.of(training), said["mesh"]
    moves = [move for move in said["collectives"] if move["axes"] == ["pipeline"]]
    handed = [move for move in moves if move["kind"] == "collective-permute" and move["dtype"] == "bf16"]
    dealt = [move for move in moves if move["kind"] == "collective-permute" and move["dtype"] == "f32"]
    rows = training.batch.sequences // (mesh["replica"] * mesh["data_outer"] * mesh["data_inner"])
    assert training.model.seq_len
    assert training.model.embed
    tokens = rows // schedule.microbatches * training.model.seq_len // (mesh["context"] * mesh["tensor"])
    matrices = [move for move in moves if move["kind"] != "collective-permute" and move["dtype"] == "bf16"]

    assert sum(move["count"] for move in handed) >= 2 * (2 * schedule.ticks)
    activation_bytes, largest_bytes = 2 * tokens * training.model.embed, max(move["largest_bytes"] for move in handed)
    # With rounds the largest is a weight: XLA casts some before it deals them out.
    assert largest_bytes > activation_bytes if schedule.rounds > 1 else largest_bytes == activation_bytes
    assert [move for move in moves if "permute" in move["kind"] and move["asynchronous"] < move["count"]] == []
    assert bool(dealt) == (schedule.rounds > 1)
    assert matrices == []


@pytest.mark.parametrize("row", [row for row in SPLIT if RING in row.words], ids=lambda row: row.name)
def test_keys_and_values_pass_around_a_ring(row: Row) -> None:
    """Beside computation, and as many bytes as the arithmetic says: no part is sent in vain, and none is gathered."""
    said = answer(row)["step"]
    model, mesh = resolve(row.request.job).spec.training.model, said["mesh"]
    assert model.layers and model.seq_len and model.kv_heads and model.head_size  # noqa: PT018  all are given
    context, rows = mesh["context"], 2 * mesh["context"] * mesh["tensor"]  # two sequences a chip
    part = 2 * rows * model.seq_len // context * model.kv_heads * model.head_size // mesh["tensor"]  # keys, or values
    passes = {"none": 3.0, "full": 4 - 1 / (context - 1)}[model.remat]  # the last is the gradients'
    moves = [move for move in said["collectives"] if move["axes"] == ["context"] and move["dtype"] == "bf16"]
    sends = [move for move in moves if move["kind"] == "collective-permute"]

    assert sum(move["wire_bytes"] for move in sends) == model.layers * passes * (context - 1) * 2 * part
    assert [move for move in sends if move["asynchronous"] < move["count"]] == []
    assert max(move["largest_bytes"] for move in moves if move["kind"] == "all-gather") < context * part


def test_the_table_has_every_class_and_choice() -> None:
    """On one slice and on several; each kernel of each platform; what a field may be; lengths that suit no kernel."""
    chosen = {name: {of(resolve(row.request.job).spec.training) for row in ROWS} for name, of in CHOICES.items()}

    assert {(row.accelerator, row.slices > 1) for row in ROWS} == {(name, many) for name in BUILT_IN for many in (0, 1)}
    assert chosen["attention"] == {"auto", "plain", "blockwise", "splash", "cudnn"}
    assert chosen["remat"] == {"full", "offload", "dots", "none"}
    assert chosen["block"] == {"sequential", "parallel"}
    assert chosen["params"] == chosen["compute"] == {"float32", "bfloat16"}
    assert chosen["reduce"] == {"compute", "float32"}
    assert chosen["attendAcross"] == {"stream", "document"}
    assert {96, 128, 640, 1000, 1024} <= chosen["seqLen"]


@pytest.mark.parametrize("length", [96, 1000])
def test_a_length_that_splash_cannot_take_is_refused(length: int) -> None:
    """By the job file's rules, which say what would do; `auto` takes another kernel."""
    with pytest.raises(JobError, match=rf"given {length}, expected a multiple of 128 with attention: splash.*auto"):
        small("tpu-v5e", "2x4", 1, "model.attention=splash", f"model.seqLen={length}")
    small("tpu-v5e", "2x4", 1, f"model.seqLen={length}")


def test_what_lies_with_the_host_is_off_the_device() -> None:
    """It is the inputs of layers to the byte, and AdamW's two moments, with the padding of their tiles."""
    whole, away = (answer(Row("tpu-v6e", "2x4", 1, words))["step"] for words in (FOUR_LAYERS, (*FOUR_LAYERS, *ON_HOST)))
    state, inputs = away["on_host"]
    moments = 2 * 4 * 4 * 12 * 512**2 / 8  # of the layers' matrices, a device's eighth

    assert inputs == 4 * 4 * 128 * 512 * 2  # four layers, four sequences of a microbatch, in bfloat16
    assert moments < state < 1.5 * moments
    assert away["peak_bytes"] <= whole["peak_bytes"] - state - inputs

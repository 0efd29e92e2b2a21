"""The trainer's programs on TPUs: each compiles for the real topology, and keeps its promises in what comes out."""

from collections.abc import Callable

import pytest
from tests.plan.compiling import DATA, small
from tests.plan.table import ROWS, Row, answer, of_platform

from shardwise.job.accelerators import BUILT_IN
from shardwise.job.errors import JobError
from shardwise.job.resolve import resolve
from shardwise.job.spec import Training

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
FIRST = [next(row for row in TPUS if row.accelerator == name) for name in dict.fromkeys(r.accelerator for r in TPUS)]


@pytest.mark.parametrize("row", TPUS, ids=lambda row: row.name)
def test_a_job_compiles(row: Row) -> None:
    """Step, init, evaluation and generation, and scores are float32 from their product to the softmax."""
    said = answer(row)

    assert set(said) == set(row.request.programs)
    assert [f"{name}: {program['error']}" for name, program in said.items() if "error" in program] == []
    assert said["step"]["stand_in"] is None
    assert said["step"]["scores"]
    assert {name for softmax in said["step"]["scores"] for name in softmax} <= {"f32", "float32"}


@pytest.mark.parametrize("row", FIRST, ids=lambda row: row.name)
def test_weights_move_as_promised(row: Row) -> None:
    """Every gather of a weight runs beside computation, and gradients are scattered: none is summed whole on each chip.

    A class's first job: bfloat16, or float32 on one.
    """
    said, size = answer(row)["step"], small("tpu-v5e", "1x1").spec.training.model.embed
    assert size
    rows = [move for move in said["collectives"] if set(move["axes"]) <= DATA and move["dtype"] in ("f32", "bf16")]
    smallest = size * size * (4 if "precision.compute=float32" in row.words else 2)

    assert [move for move in rows if move["kind"] == "all-gather"]
    assert [move for move in rows if move["kind"] == "all-gather" and move["asynchronous"] < move["count"]] == []
    assert [move for move in rows if move["kind"] == "reduce-scatter"]
    assert [move for move in rows if move["kind"] == "all-reduce" and move["largest_bytes"] >= smallest] == []


def test_the_table_has_every_class_and_choice() -> None:
    """On one slice and on several; each kernel of each platform; what a field may be; lengths that suit no kernel."""
    chosen = {name: {of(resolve(row.request.job).spec.training) for row in ROWS} for name, of in CHOICES.items()}

    assert {(row.accelerator, row.slices > 1) for row in ROWS} == {(name, many) for name in BUILT_IN for many in (0, 1)}
    assert chosen["attention"] == {"auto", "plain", "blockwise", "splash", "cudnn"}
    assert chosen["remat"] == {"full", "dots", "none"}
    assert chosen["block"] == {"sequential", "parallel"}
    assert chosen["params"] == chosen["compute"] == {"float32", "bfloat16"}
    assert chosen["reduce"] == {"compute", "float32"}
    assert chosen["attendAcross"] == {"sequence", "document"}
    assert {96, 128, 640, 1000, 1024} <= chosen["seqLen"]


@pytest.mark.parametrize("length", [96, 1000])
def test_a_length_that_splash_cannot_take_is_refused(length: int) -> None:
    """By the job file's rules, which say what would do; `auto` takes another kernel."""
    with pytest.raises(JobError, match=rf"given {length}, expected a multiple of 128 with attention: splash.*auto"):
        small("tpu-v5e", "2x4", 1, "model.attention=splash", f"model.seqLen={length}")
    small("tpu-v5e", "2x4", 1, f"model.seqLen={length}")

"""Layers split over devices: the numbers of one device, the bubble of the formula, and no more kept than is said."""

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P
from jax.extend.core import Jaxpr
from tests.long import all_but
from tests.train.conftest import run_here
from tests.train.grids import layout_over
from tests.train.test_meshes import NUM_STEPS, batch_of, in_full, run

from shardwise.plan.flops import traced_flops
from shardwise.protocol.contract import ExitCode
from shardwise.train.metrics import records
from shardwise.train.pipeline import Schedule, dealt
from shardwise.train.state import Program
from shardwise.train.step import lower_evaluation, trace_step

Array = jax.Array
MakeProgram = Callable[..., Program]
GPT2 = ("model.layers=4", "batch.microbatches=4")
# Windows in turn depend on a layer's number in the model.
WINDOWS = (*GPT2, "model.slidingWindow=8", "model.slidingWindowPattern=3", "data.attendAcross=document")
DROPOUT = (*GPT2, "model.dropout.embed=0.1", "model.dropout.residual=0.2")
PRODUCTS = {
    "pipeline 4": (4, ("mesh.pipeline=4",)),
    "pipeline 2 x fsdp 2 x tensor 2, 2 rounds": (8, ("mesh.pipeline=2", "mesh.pipelineRounds=2", "mesh.tensor=2")),
    "pipeline 2 x fsdp 2 x 2 in two steps": (8, ("mesh.pipeline=2", "mesh.dataInner=2", "model.remat=none")),
    "pipeline 2 x data 2 x tensor 2, no fsdp": (8, ("mesh.pipeline=2", "mesh.tensor=2", "mesh.fsdp=false")),
    "pipeline 2 x replica 2 x tensor 2, 2 rounds": (
        8,
        ("mesh.pipeline=2", "mesh.pipelineRounds=2", "mesh.replica=2", "mesh.tensor=2", "model.remat=dots"),
    ),
    "pipeline 2 x context 2 x fsdp 2": (8, ("mesh.pipeline=2", "mesh.context=2")),
}
SHORT = ["pipeline 2 x fsdp 2 x tensor 2, 2 rounds", "pipeline 2 x context 2 x fsdp 2"]
"""Those that `make test` takes."""
SCHEDULES = [
    Schedule(stages, rounds, microbatches) for stages, rounds, microbatches in ((2, 1, 4), (4, 2, 8), (3, 3, 3))
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_every_stage_has_every_item_once_and_idles_as_the_formula_says(schedule: Schedule) -> None:
    """What a stage has at a tick the one before had at the last; the first has it from the last, a round later."""
    stages, rounds, microbatches = schedule.stages, schedule.rounds, schedule.microbatches
    worked: list[list[tuple[int, int] | None]] = []
    for stage in range(stages):
        items = (schedule.item(jnp.int32(stage), jnp.int32(tick)) for tick in range(schedule.ticks))
        worked.append([(int(turn), int(which)) if busy else None for turn, which, busy in items])
    idle = sum(item is None for line in worked for item in line) / (stages * schedule.ticks)

    assert idle == pytest.approx((stages - 1) / (rounds * microbatches + stages - 1))
    assert idle == pytest.approx(schedule.idle_share)
    for line, after in pairwise(worked):
        assert sorted(item for item in line if item) == [(r, m) for r in range(rounds) for m in range(microbatches)]
        assert after[1:] == line[:-1]
    again = [(turn + 1, which) if turn + 1 < rounds else None for turn, which in filter(None, worked[-1])]
    came = [worked[0][tick + 1] for tick, item in enumerate(worked[-1][:-1]) if item]
    assert [item for item in came if item and item[0]] == [item for item in again if item]


@pytest.mark.parametrize(("stages", "rounds"), [(2, 2), (4, 2), (2, 4), (4, 3), (6, 4)])
def test_layers_go_to_the_stages_that_compute_with_them(stages: int, rounds: int) -> None:
    """Of each round the stage gets its layers, in the model's order, and their gradients go back."""
    schedule, mesh = Schedule(stages, rounds, stages), layout_over(pipeline=stages).mesh
    deal = jax.shard_map(partial(dealt, schedule), mesh=mesh, in_specs=P("pipeline"), out_specs=P("pipeline"))
    layers = jnp.arange(2 * stages * rounds, dtype=jnp.float32)
    by_stage = layers.reshape(rounds, stages, 2).swapaxes(0, 1).ravel()

    np.testing.assert_array_equal(jax.jit(deal)(layers), by_stage)
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: (deal(x) * by_stage).sum()))(layers), layers)


@pytest.mark.parametrize("words", [("mesh.pipeline=4",), ("mesh.pipeline=2", "mesh.pipelineRounds=2")])
def test_losses_are_those_of_the_same_microbatches_to_the_last_bit(
    make_program: MakeProgram, words: tuple[str, ...]
) -> None:
    """Where nothing but layers is split, each sum has its order: over all steps, and in an evaluation."""
    split = make_program(*GPT2, *words, num_devices=4)
    num_beside = split.layout.mesh.size // split.layout.stages
    alone, beside = (in_full(make_program(*GPT2, num_devices=number)) for number in (1, num_beside))
    digest, losses = run(in_full(split), 5)

    assert (digest, losses) == run(beside, 5)
    assert digest == run(alone, 1)[0]


@cache
def of_one_device(make_program: MakeProgram) -> tuple[str, list[float]]:
    """The digest and the losses that every product of axes must have."""
    return run(make_program(*WINDOWS, num_devices=1))


@pytest.mark.parametrize("name", all_but(SHORT, PRODUCTS))
def test_every_product_of_axes_gives_the_losses_of_one_device(make_program: MakeProgram, name: str) -> None:
    """Over 20 float32 steps, and from the very same bits: windows in turn, and packed documents."""
    devices, more = PRODUCTS[name]
    digest, losses = of_one_device(make_program)
    other_digest, other_losses = run(make_program(*WINDOWS, *more, num_devices=devices))

    assert losses[-1] < losses[0] - 0.1
    assert digest == other_digest
    assert len(losses) == NUM_STEPS
    np.testing.assert_allclose(other_losses, losses, rtol=1e-5, atol=0)


def test_dropout_is_that_of_one_device(make_program: MakeProgram) -> None:
    """Each layer drops the same entries of a sequence, on whichever stage it is."""
    _, losses = run(make_program(*DROPOUT, num_devices=1), num_steps=5)
    _, others = run(make_program(*DROPOUT, "mesh={pipeline: 2, pipelineRounds: 2}", num_devices=2), num_steps=5)

    np.testing.assert_allclose(others, losses, rtol=2e-6, atol=0)


def test_an_evaluation_is_that_of_one_device(make_program: MakeProgram) -> None:
    """Its sums, over all microbatches."""
    sums = []
    for words, devices in (((), 1), (("mesh.pipeline=2", "mesh.pipelineRounds=2"), 4)):
        program = make_program(*GPT2, *words, num_devices=devices)
        params = program.lower_init().compile()()["params"]
        sums.append(lower_evaluation(program).compile()(params, batch_of(program, 0)))

    for one, other in zip(*(jax.tree.leaves(jax.device_get(each)) for each in sums), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6)


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_program_idles_as_the_formula_says(make_program: MakeProgram, rounds: int) -> None:
    """Counted by the products of its layers: those without an item compute too, so there are as many more."""

    def of_layers(*words: str, devices: int) -> int:
        found = []
        for layers in (4, 8):
            program = make_program("batch.microbatches=4", f"model.layers={layers}", *words, num_devices=devices)
            found.append(traced_flops(trace_step(program), dict(program.layout.mesh.shape)))
        return found[1] - found[0]  # without what is no layer

    split = of_layers("mesh.pipeline=2", f"mesh.pipelineRounds={rounds}", devices=2)
    idle = 1 - of_layers(devices=1) / split
    formula = 1 / (4 * rounds + 1)

    assert abs(idle - formula) < 0.1 * formula


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_input_of_each_layer_is_kept_and_no_weight(make_program: MakeProgram, rounds: int) -> None:
    """With `remat: full`, for each tick; the weights that a tick picks would be a copy of a stage for each."""
    words = ("mesh.pipeline=2", f"mesh.pipelineRounds={rounds}")
    program = make_program(*GPT2, *words, num_devices=2)
    schedule, config = Schedule.of(program.training), program.config
    of_visit = config.num_layers // schedule.stages // rounds
    loops = (equation for equation in _equations(trace_step(program)) if equation.primitive.name == "scan")
    shapes = [out.aval for loop in loops if loop.params["length"] == schedule.ticks for out in loop.outvars]
    kept = [
        out.shape for out in shapes if out.shape[:1] == (schedule.ticks,) and jnp.issubdtype(out.dtype, jnp.floating)
    ]

    rows = program.training.batch.sequences // schedule.microbatches
    one_input = of_visit * rows * config.seq_len * config.embed_size
    assert sum(map(math.prod, kept)) == schedule.ticks * one_input


@pytest.mark.usefixtures("as_a_trainer")
def test_a_run_goes_on_without_a_pipeline_and_with_it_again(tmp_path: Path) -> None:
    """Saved with layers split, restored with whole ones, and the other way round: the losses are of one run."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    whole, split = ("mesh.tensor=2",), ("mesh={pipeline: 2, pipelineRounds: 2}",)
    parts = {"one": [(6, whole)], "several": [(2, split), (4, whole), (6, split)]}
    losses = {}
    for name, runs in parts.items():
        directory = tmp_path / name
        (directory / "logs").mkdir(parents=True)
        for steps, mesh in runs:
            words = (*GPT2, f"steps={steps}", *mesh, f"data.train.0.paths=[{text}]")
            assert run_here(directory, *(f"training.{word}" for word in words)) == ExitCode.OK
        losses[name] = [one["loss"] for one in records(directory / "metrics.jsonl") if "loss" in one]

    assert len(losses["one"]) == 6
    np.testing.assert_allclose(losses["several"], losses["one"], rtol=1e-5, atol=0)


def _equations(jaxpr: Jaxpr) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for part in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(part, "jaxpr", part)
            if isinstance(inner, Jaxpr):
                yield from _equations(inner)

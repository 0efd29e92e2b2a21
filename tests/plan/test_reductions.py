"""precision.reduce in compiled programs: the format in which each gradient is summed over devices."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.plan.compiling import DATA
from tests.plan.table import (
    ADAPTERS,
    APART,
    BARE,
    EXPERTS,
    FLOAT32,
    FOUR_LAYERS,
    LATENT,
    SHARED,
    SINKS,
    UNEVEN,
    WEIGHTS,
    Row,
    answer,
    of_platform,
)

SPLIT = [row for row in of_platform("tpu", "gpu") if FLOAT32 not in row.words and row.topology != "1x1"]
WIDE = [row for row in SPLIT if "precision.reduce=float32" in row.words]
# Over several microbatches XLA may add up the table's gradients first, in float32, and scatter the sum once.
UNLIKE = {"mesh.tensor=8", "batch.microbatches=2", "batch.microbatches=4", FOUR_LAYERS[1]}
NARROW = [row for row in SPLIT if row not in WIDE and not UNLIKE & set(row.words)]


def sums(row: Row) -> list[Mapping[str, Any]]:
    """The sums of floats over data or replica in a step."""
    kinds, axes = ("reduce-scatter", "all-reduce"), {*DATA, "replica"}
    moves = answer(row)["step"]["collectives"]
    return [move for move in moves if move["kind"] in kinds and set(move["axes"]) & axes and move["dtype"] != "s32"]


def test_tpus_and_gpus_are_looked_at() -> None:
    """With each of the two formats."""
    for rows in (WIDE, NARROW):
        assert {row.accelerator[:3] for row in rows} >= {"tpu", "gpu"}


@pytest.mark.parametrize("row", WIDE, ids=lambda row: row.name)
def test_float32_holds_for_every_gradient(row: Row) -> None:
    """With compute bfloat16 nothing is summed over data or replica in anything else."""
    moves = sums(row)

    assert sum(move["count"] for move in moves if set(move["axes"]) & DATA) >= WEIGHTS
    assert {move["dtype"] for move in moves} == {"f32"}


@pytest.mark.parametrize("row", NARROW, ids=lambda row: row.name)
def test_by_default_weights_are_summed_in_the_format_of_compute(row: Row) -> None:
    """Each matrix in bfloat16, once over each mesh axis of data; what replicas sum of each other in float32.

    Experts that are split over the inner axis are summed over the outer one alone; what they add to tokens, and its
    gradient, is summed over the inner one.
    """
    moves, mesh = sums(row), answer(row)["step"]["mesh"]
    over_data = [move for move in moves if set(move["axes"]) & DATA and move["dtype"] == "bf16"]
    # What a TPU sums whole is a shared expert's gate: gathered so, forward and again, since it is a single column.
    gathered = [move for move in over_data if move["kind"] == "all-reduce"] if SHARED[0] in row.words else []
    assert {move["largest_bytes"] for move in gathered} <= {2 * 512}
    over_data = [move for move in over_data if move not in gathered]
    steps = sum(mesh[axis] > 1 for axis in DATA)
    more = ("model.tiedHead=false" in row.words) + 2 * ("model.kvHeads=2" in row.words)  # a head; a matrix a layer
    more += 4 * bool({EXPERTS, UNEVEN} & {*row.words})  # a layer's gates and its router
    more += 2 * 4 * (SHARED[0] in row.words)  # the shared expert's three, and its gate
    more += 2 * 2 * (BARE in row.words)  # gates, and queries apart from keys
    # All of these: two tables; a layer's attention, its experts' three and their router; of the latent ones five of
    # attention, and three of the first block and of each shared expert.
    more += (2 + 2 * (3 + 3 + 1) - WEIGHTS) * (SINKS in row.words)
    more += (2 + 3 * 5 + 3 + 2 * (3 + 1 + 3) - WEIGHTS) * (LATENT in row.words)
    apart = 2 * (2 - 3) * (APART in row.words)  # of two layers
    # Beside adapters no weight is summed, and of each of the four products of a layer both factors are.
    trained = 2 * 4 * 2 if ADAPTERS in row.words else WEIGHTS + more

    assert sum(move["count"] for move in over_data) == trained * steps + apart
    assert {move["dtype"] for move in moves if move["axes"] == ["replica"]} <= {"f32"}

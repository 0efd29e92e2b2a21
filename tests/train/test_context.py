"""Sequences split over devices: the numbers of one device, on every product of axes, with equal work for all."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.long import all_but
from tests.train.conftest import run_here
from tests.train.grids import layout_over
from tests.train.test_attention import assert_close, inputs, with_gradients
from tests.train.test_meshes import LLAMA, NUM_STEPS, run

from shardwise.job.kernels import Kernel
from shardwise.job.spec.training import ContextStrategy
from shardwise.plan.flops import traced_flops
from shardwise.protocol.contract import ExitCode
from shardwise.train import context
from shardwise.train.attention import blockwise, plain
from shardwise.train.context import attend_over_context
from shardwise.train.layout import Layout
from shardwise.train.metrics import records
from shardwise.train.scores import Scores
from shardwise.train.splash import splash_kernel
from shardwise.train.state import Program
from shardwise.train.tiles import How
from shardwise.train.zigzag import straight, zigzag

Array = jax.Array
MakeProgram = Callable[..., Program]
FLOAT32 = jnp.dtype("float32")
DOCUMENTS = "data.attendAcross=document"
GPT2_WITH_DROPOUT = ("model.dropout.embed=0.1", "model.dropout.residual=0.2")
# A window of 20 of 64 positions crosses the chunks of every mesh below; blocks are of 16.
GEMMA = (
    *LLAMA,
    "model.seqLen=64",
    "model.attentionSoftcap=20",
    "model.slidingWindow=20",
    "model.slidingWindowPattern=3",
    "model.qkNorm=true",
    DOCUMENTS,
)
PRODUCTS = {
    "context 2": (2, ("mesh.context=2",)),
    "context 2 x fsdp 2 x tensor 2": (8, ("mesh.context=2", "mesh.tensor=2")),
    "context 4 x data 2, no fsdp, 2 microbatches": (
        8,
        ("mesh.context=4", "mesh.fsdp=false", "batch.microbatches=2", "model.seqLen=128"),
    ),
    "context 2 x fsdp 2 x 2 in two steps": (8, ("mesh.context=2", "mesh.dataInner=2")),
    "context 2 x replica 2 x tensor 2": (8, ("mesh.context=2", "mesh.replica=2", "mesh.tensor=2")),
}

SHORT = ["context 2 x fsdp 2 x tensor 2"]
"""What `make test` takes; `tests/train/test_ring.py` has more ways, without FSDP, in more than one microbatch."""


@pytest.mark.parametrize("ways", [1, 2, 3])
def test_each_device_has_a_chunk_and_its_mirror_image(ways: int) -> None:
    """Device i holds chunks i and 2 ways - 1 - i, for host arrays and device arrays; the way back is its inverse."""
    rows = np.arange(24, dtype=np.int32).reshape(2, 12)
    moved = zigzag(rows, ways, axis=1)
    chunks = np.split(rows[0], 2 * ways)

    for device, part in enumerate(np.split(moved[0], ways)):
        np.testing.assert_array_equal(part, np.concatenate([chunks[device], chunks[-1 - device]]))
    np.testing.assert_array_equal(zigzag(jnp.asarray(rows), ways, axis=1), moved)
    np.testing.assert_array_equal(straight(jnp.asarray(moved), ways, axis=1), rows)


@pytest.mark.parametrize("kernel", ["plain", "blockwise"])
@pytest.mark.parametrize(
    ("scores", "documents"), [(Scores(), True), (Scores(40, softcap=5.0), False), (Scores(40, jnp.array(True)), True)]
)
def test_attention_is_that_of_one_device(kernel: Kernel, scores: Scores, *, documents: bool) -> None:
    """With shared heads, documents, windows and caps: outputs, and gradients of queries, keys and values."""
    q, k, v, segments = inputs(128, 8, documents=documents)
    q = jnp.concatenate([q, 2 * q], axis=1)
    expected = with_gradients(partial(plain, scores=scores), q, k, v, segments)
    layout = layout_over(outer=2, context=2, tensor=2)
    with jax.set_mesh(layout.mesh):
        found = with_gradients(partial(over_context, layout, kernel, scores), q, k, v, segments)
    assert_close(jax.device_get(found), expected, 1e-5)


IN_TURN = [Scores(200, jnp.array(has_window), 5.0) for has_window in (True, False)]


@pytest.mark.parametrize("scores", [Scores(), *IN_TURN], ids=["plain", "bent", "bent, no window"])
def test_splash_is_that_of_one_device(monkeypatch: pytest.MonkeyPatch, scores: Scores) -> None:
    """The TPU kernel, interpreted, with its blocks in the order of the devices' chunks."""
    monkeypatch.setattr(context, "splash_kernel", partial(splash_kernel, interpret=True))
    q, k, v, segments = inputs(512, 128, documents=True)
    layout = layout_over(context=2, tensor=2)
    with jax.set_mesh(layout.mesh):
        out = jax.jit(partial(over_context, layout, "splash", scores))(q, k, v, segments)
    assert_close((jax.device_get(out),), (plain(q, k, v, segments, scores=scores),), 1e-5)


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_devices_share_the_work_of_one(ways: int) -> None:
    """Forward and backward, the program's products on all devices are those of one device within 5 %.

    All devices run the same loops, as long on each, so none has more of them than another.
    """
    length = 16 * ways * 4
    q, k, v = (jax.ShapeDtypeStruct((1, 2, length, 8), FLOAT32) for _ in range(3))
    layout = layout_over(context=ways)

    def flops(attention: Callable[..., Array], mesh: dict[str, int]) -> int:
        grads = jax.grad(lambda q, k, v: attention(q, k, v).sum(), argnums=(0, 1, 2))
        return traced_flops(jax.make_jaxpr(grads)(q, k, v).jaxpr, mesh)

    with jax.set_mesh(layout.mesh):
        several = flops(partial(over_context, layout, "blockwise", Scores(), segments=None), dict(layout.mesh.shape))
    one = flops(partial(blockwise, segments=None, block=length // ways // 2), {})
    everything = flops(partial(plain, segments=None), {})

    assert one <= several <= 1.05 * one
    assert several < 0.9 * everything


@pytest.mark.parametrize(("length", "ways"), [(8192, 2), (131072, 4), (131072, 16)])
def test_splash_computes_as_many_blocks_on_each_device(length: int, ways: int) -> None:
    """Its three passes, by the tables that the kernel decides by: largest over smallest is at most 1.05."""
    kernel = splash_kernel(1, length, ways=ways)
    for info in (kernel.fwd_mask_info, kernel.dq_mask_info, kernel.dkv_mask_info):
        blocks = [np.count_nonzero(part) for part in np.array_split(np.asarray(info.block_mask), ways, axis=1)]
        assert max(blocks) <= 1.05 * min(blocks)
        assert sum(blocks) < 0.6 * np.asarray(info.block_mask).size


@cache
def of_one_device(make_program: MakeProgram, *longer: str) -> tuple[str, list[float]]:
    """The digest and the losses that every product of axes must have."""
    return run(make_program(*GEMMA, *longer, num_devices=1))


@pytest.mark.parametrize("name", all_but(SHORT, PRODUCTS))
def test_every_product_of_axes_gives_the_losses_of_one_device(make_program: MakeProgram, name: str) -> None:
    """Over 20 float32 steps, and from the very same bits: windows, caps, shared heads and packed documents."""
    devices, more = PRODUCTS[name]
    digest, losses = of_one_device(make_program, *(word for word in more if word.startswith("model.")))
    other_digest, other_losses = run(make_program(*GEMMA, *more, num_devices=devices))

    assert losses[-1] < losses[0] - 0.1
    assert digest == other_digest
    assert len(losses) == NUM_STEPS
    np.testing.assert_allclose(other_losses, losses, rtol=1e-5, atol=0)


@pytest.mark.parametrize("remat", all_but(["dots"], ["dots", "none"]))
def test_learned_positions_and_dropout_are_those_of_one_device(make_program: MakeProgram, remat: str) -> None:
    """A token keeps its place and the entries that are dropped, wherever it lies, whatever is kept of a layer."""
    words = (*GPT2_WITH_DROPOUT, f"model.remat={remat}")
    digest, losses = run(make_program(*words, num_devices=1), num_steps=5)
    other_digest, other_losses = run(make_program(*words, "mesh.context=4", num_devices=8), num_steps=5)

    assert digest == other_digest
    np.testing.assert_allclose(other_losses, losses, rtol=2e-6, atol=0)


@pytest.mark.usefixtures("as_a_trainer")
@pytest.mark.long  # tests/train/test_pipeline.py has a run go on without its axis, and with it again
def test_a_run_goes_on_without_context_and_with_it_again(tmp_path: Path) -> None:
    """Saved with sequences split, restored with whole ones, and the other way round: the losses are of one run."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 2000)
    whole, split = ("training.mesh.tensor=2",), ("training.mesh.context=4",)
    parts = {"one": [(6, whole)], "several": [(2, split), (4, whole), (6, split)]}
    losses = {}
    for name, runs in parts.items():
        directory = tmp_path / name
        (directory / "logs").mkdir(parents=True)
        for steps, mesh in runs:
            overrides = ("training.model.layers=1", f"training.steps={steps}", *mesh)
            assert run_here(directory, *overrides, f"training.data.train.0.paths=[{text}]") == ExitCode.OK
        losses[name] = [one["loss"] for one in records(directory / "metrics.jsonl") if "loss" in one]

    assert len(losses["one"]) == 6
    np.testing.assert_allclose(losses["several"], losses["one"], rtol=1e-5, atol=0)


def over_context(
    layout: Layout,
    kernel: Kernel,
    scores: Scores,
    q: Array,
    k: Array,
    v: Array,
    segments: Array | None,
    *,
    strategy: ContextStrategy = "gather",
    sinks: Array | None = None,
) -> Array:
    """Attention over context, of arrays in the sequence's order."""
    ways = layout.context
    rows = None if segments is None else zigzag(segments, ways, axis=1)
    q, k, v = (zigzag(x, ways, axis=2) for x in (q, k, v))
    how = How(kernel, scores, FLOAT32)
    out = attend_over_context(q, k, v, rows, how=how, strategy=strategy, sinks=sinks)
    return straight(out, ways, axis=2)


@pytest.mark.parametrize("strategy", ["gather", "ring"])
def test_memory_grows_with_the_positions(strategy: ContextStrategy) -> None:
    """Four times the positions take about four times the memory of a device, gradients included."""
    layout = layout_over(context=2)

    def held(length: int) -> int:
        shape = jax.ShapeDtypeStruct((1, 2, length, 64), FLOAT32)
        attention = partial(over_context, layout, "blockwise", Scores(), segments=None, strategy=strategy)
        with jax.set_mesh(layout.mesh):
            grads = jax.jit(jax.grad(lambda q, k, v: attention(q, k, v).sum(), argnums=(0, 1, 2)))
            memory = grads.lower(shape, shape, shape).compile().memory_analysis()
        assert memory is not None
        return int(memory.temp_size_in_bytes)

    assert held(8192) < 5 * held(2048)
